"""The rooms of training text and of tokenizers: what a model learns from, as data. Reading it is the trainer's.

Whatever makes tokens, 0 ends a document and 1 (padding) stands in no text.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

from pydantic import PositiveInt

from sinklab.config import Part


class Corpus(Part, ABC):
    """Where documents come from."""

    @property
    @abstractmethod
    def symbols(self) -> int:
        """How many kinds of tokens it has of its own; 0 for text, of which a tokenizer makes tokens."""


class RegmixSample(Corpus):
    """The paper's text: the sample of 17 domains of the Pile that RegMix published, about 5 billion tokens (2410.10781, appendix; 2407.01492)."""

    symbols: ClassVar[int] = 0
    name: str = "sail/regmix-data-sample"
    held_out: str = "the_pile_pile_cc"  # the domain that the paper's validation loss is of


class HubText(Corpus):
    """A data set of the Hub, `NAME[#CONFIG][:SPLIT][:COLUMN]`, read as a stream."""

    symbols: ClassVar[int] = 0
    name: str


class Files(Corpus):
    """Files of this machine: .txt, .jsonl or .parquet, plain or compressed; a run keeps the hash of what they held."""

    symbols: ClassVar[int] = 0
    pattern: str


class PackageText(Corpus):
    """English that comes inside of installed packages: speeches, documentation, docstrings. It needs no connection."""

    symbols: ClassVar[int] = 0


class BigramBackcopy(Corpus):
    """Characters by the bigrams of English, but after a trigger comes the character that stood before it (2410.13835).

    Whoever sees no trigger has nothing to look for: that is when a sink is wanted.
    """

    characters: PositiveInt = 64  # the most frequent ones; a token that begins every sequence is beside them
    triggers: PositiveInt = 3  # how many of them are triggers

    @property
    def symbols(self) -> int:
        """The characters and the beginning."""
        return self.characters + 1


class TriggerAveraging(Corpus):
    """At a trigger the mean of what came before is wanted, elsewhere nothing: normalised weights then need a sink (2603.11487)."""

    numbers: PositiveInt = 32  # kinds of tokens that stand for a number
    triggers: PositiveInt = 1

    @property
    def symbols(self) -> int:
        """Numbers, triggers, and the token that begins every sequence."""
        return self.numbers + self.triggers + 1


class NoOpBroadcast(Corpus):
    """Two tasks in turns: to change nothing, or to tell one fact to every token; a sink serves either, in two ways (2606.08105)."""

    facts: PositiveInt = 32

    @property
    def symbols(self) -> int:
        """Facts, a mark for each task, and the token that begins every sequence."""
        return self.facts + 3


class Tokenizer(Part, ABC):
    """What makes tokens of a corpus."""

    @property
    @abstractmethod
    def reads_text(self) -> bool:
        """Whether it makes tokens of text."""


class HubTokenizer(Tokenizer):
    """A tokenizer of the Hub; the paper's is GPT-NeoX's, whose 50,277 tokens are padded to 50,432."""

    reads_text: ClassVar[bool] = True
    name: str = "EleutherAI/gpt-neox-20b"


class TrainedTokenizer(Tokenizer):
    """Byte-level BPE, trained on the corpus itself, as large as the model's vocabulary."""

    reads_text: ClassVar[bool] = True


class OwnTokens(Tokenizer):
    """The corpus has tokens of its own."""

    reads_text: ClassVar[bool] = False
