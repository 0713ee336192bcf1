"""Token sequences to measure on: natural text, random tokens, one token repeated, a prompt."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jinja2 import TemplateError
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from sinklab.data.sources import Source
from sinklab.errors import SinklabError, nearest, one_line

Bos = Literal["keep", "add", "none"]
CHARACTERS_PER_TOKEN = 16  # more than any ordinary text has
MARGIN = 64  # tokens behind the first ones, so that neither where a text is cut nor the end of a chat template reaches them


@dataclass(frozen=True)
class Inputs:
    """Sequences of one length, and where they come from."""

    name: str
    length: int
    tokens: Tensor  # (N, T) int64
    attention_mask: Tensor | None
    source: str
    notes: tuple[str, ...] = ()


def natural(tokenizer: PreTrainedTokenizerBase, source: Source, length: int, samples: int, bos: Bos = "keep", chat_template: bool = False) -> Inputs:
    """The first `length` tokens of the first documents that are long enough, in the order of the source.

    Where the source allows it and has too few documents, later parts of them follow, each of the same length.
    """
    reader = Reader(tokenizer, bos, chat_template)
    rows: list[list[int]] = []
    documents = 0
    for text in source.texts():
        documents += 1
        tokens = reader.first(text, length)
        if len(tokens) == length:
            rows.append(tokens)
        if len(rows) == samples:
            break
    beginnings = len(rows)
    if source.windows and beginnings < samples:
        later = (part for text in source.texts() for part in reader.later(text, length))
        rows += itertools.islice(later, samples - beginnings)
    if len(rows) < samples:
        raise SinklabError(too_short(len(rows), beginnings, documents, length, samples))
    notes = (f"{samples - beginnings} of {samples} sequences are later parts of the documents",) if beginnings < samples else ()
    return Inputs("natural", length, torch.tensor(rows), None, source.identity(), notes)


def too_short(rows: int, beginnings: int, documents: int, length: int, samples: int) -> str:
    """How many sequences were long enough."""
    what = f"{rows} sequences of {length} tokens can be cut from it" if rows > beginnings else f"{rows} of {documents} documents have {length} tokens"
    return f"The text is shorter than --length: only {what}, and {samples} were asked for."


def random_tokens(vocabulary: Tensor, length: int, samples: int, seed: int, bos_id: int | None = None) -> Inputs:
    """Tokens drawn independently and uniformly; sequence i is the same however many there are."""
    rows = [vocabulary[torch.randint(len(vocabulary), (length,), generator=generator(seed, "random", i))] for i in range(samples)]
    return drawn("random", torch.stack(rows), vocabulary, seed, bos_id)


def repeated(vocabulary: Tensor, length: int, samples: int, seed: int, bos_id: int | None = None) -> Inputs:
    """One token drawn uniformly for each sequence, repeated to its end."""
    rows = [vocabulary[torch.randint(len(vocabulary), (1,), generator=generator(seed, "repeat", i))].expand(length) for i in range(samples)]
    return drawn("repeat", torch.stack(rows), vocabulary, seed, bos_id)


def drawn(name: str, tokens: Tensor, vocabulary: Tensor, seed: int, bos_id: int | None) -> Inputs:
    """Drawn tokens, the first one replaced by BOS where it was asked for."""
    if bos_id is not None:
        tokens[:, 0] = bos_id
    front = "" if bos_id is None else f" after token {bos_id}"
    return Inputs(name, tokens.shape[1], tokens, None, f"uniform over {len(vocabulary)} tokens{front}, seed {seed}")


def generator(seed: int, name: str, sequence: int) -> torch.Generator:
    """The random numbers of one sequence, which depend on nothing but these three."""
    digest = hashlib.sha256(f"{seed} {name} {sequence}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8]) >> 1)


def prompt(tokenizer: PreTrainedTokenizerBase, text: str, bos: Bos = "keep", chat_template: bool = False) -> Inputs:
    """One text at its own length."""
    tokens = Reader(tokenizer, bos, chat_template).all(text)
    if not text.strip() or not tokens:
        raise SinklabError("The prompt is empty.")
    return Inputs("prompt", len(tokens), torch.tensor([tokens]), None, f"prompt {hashlib.sha256(text.encode()).hexdigest()[:16]}")


@dataclass(frozen=True)
class Reader:
    """How text becomes tokens: what stands in front of it, and whether it is wrapped as a user's turn. Nothing is put behind it.

    `bos` is about the first token. Plain text: `keep` puts there what the tokenizer puts there by itself, `add` the BOS token
    if it is not there already, `none` nothing. Wrapped text: the template writes its own beginning; `add` and `none` then add or
    remove the BOS token, which some templates also use as the mark of a turn.
    """

    tokenizer: PreTrainedTokenizerBase
    bos: Bos = "keep"
    chat_template: bool = False

    def __post_init__(self) -> None:
        if self.bos not in get_args(Bos):
            raise SinklabError(f"Unknown --bos `{self.bos}`; known are {', '.join(get_args(Bos))}.{nearest(self.bos, get_args(Bos))}")

    def all(self, text: str) -> list[int]:
        """Every token of a text with what belongs in front of it."""
        return self.wrapped(text) if self.chat_template else self.front() + self.plain(text)

    def first(self, text: str, length: int) -> list[int]:
        """The first tokens of a text, fewer if it has no more; of a long text only the beginning is looked at."""
        reach = CHARACTERS_PER_TOKEN * (length + MARGIN)
        while True:
            tokens = self.all(text[:reach])
            if reach >= len(text) or len(tokens) >= length + MARGIN:
                return tokens[:length]
            reach *= 2

    def later(self, text: str, length: int) -> Iterator[list[int]]:
        """What follows the first tokens, in whole sequences of the same length and with the same front."""
        tokens, front = self.plain(text), [] if self.chat_template else self.front()
        step = max(length - len(front), 1)
        for start in range(step, len(tokens) - step + 1, step):
            part = tokens[start : start + step]
            row = self.wrapped(self.tokenizer.decode(part))[:length] if self.chat_template else front + part
            if len(row) == length:
                yield row

    def plain(self, text: str) -> list[int]:
        """The tokens of the text alone."""
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False).input_ids)

    def front(self) -> list[int]:
        """What stands before a text."""
        if self.bos == "none":
            return []
        usual = front_of(self.tokenizer)
        return with_bos(usual, bos_id(self.tokenizer)) if self.bos == "add" else usual

    def wrapped(self, text: str) -> list[int]:
        """The tokens of the text as a user's turn."""
        if not self.tokenizer.chat_template:
            raise SinklabError("A chat template was asked for, and the tokenizer has none.")
        turn = [{"role": "user", "content": text}]
        try:
            tokens = list(self.tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=True, return_dict=False))
        except (TemplateError, TypeError, ValueError) as error:
            raise SinklabError(f"The tokenizer's chat template does not take a single turn of the user: {one_line(error)}.") from error
        if self.bos == "keep":
            return tokens
        return without_bos(tokens, self.tokenizer.bos_token_id) if self.bos == "none" else with_bos(tokens, bos_id(self.tokenizer))


def front_of(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The tokens that a tokenizer puts before a text by itself."""
    tokens, alone = tokenizer("a").input_ids, tokenizer("a", add_special_tokens=False).input_ids
    for start in range(len(tokens) - len(alone) + 1):
        if tokens[start : start + len(alone)] == alone:
            return list(tokens[:start])
    return list(itertools.takewhile(lambda token: token in tokenizer.all_special_ids, tokens))


def bos_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """The token that begins a sequence, asked for by the user."""
    if tokenizer.bos_token_id is None:
        raise SinklabError("--bos add: the tokenizer has no BOS token.")
    return int(tokenizer.bos_token_id)


def with_bos(tokens: list[int], bos: int) -> list[int]:
    """Tokens with BOS in front, once."""
    return tokens if bos in tokens[:1] else [bos, *tokens]


def without_bos(tokens: list[int], bos: int | None) -> list[int]:
    """Tokens without BOS in front."""
    return list(itertools.dropwhile(lambda token: token == bos, tokens))


def vocabulary(tokenizer: PreTrainedTokenizerBase | None, rows: int) -> Tensor:
    """The tokens that may be drawn: those with a text of their own and a row in the embedding; every row without a tokenizer."""
    if tokenizer is None:
        return torch.arange(rows)
    known = sorted(token for token in set(tokenizer.get_vocab().values()) - special_ids(tokenizer) if token < rows)
    if not known:
        raise SinklabError("The tokenizer has no token that is not special and that the model has a row for.")
    return torch.tensor(known)


def special_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Marks rather than text, reserved ones too."""
    special = set(tokenizer.all_special_ids)
    with contextlib.suppress(NotImplementedError):  # mistral-common's tokenizers do not tell
        special |= {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    return special


def embedding_rows(model: PreTrainedModel) -> int:
    """How many tokens the model knows."""
    return int(model.get_input_embeddings().weight.shape[0])


def check_vocabulary(inputs: Inputs, rows: int) -> None:
    """Tokens that the model has a row for."""
    largest = int(inputs.tokens.max())
    if largest >= rows:
        raise SinklabError(f"The tokenizer does not fit the model: {inputs.name} has token {largest}, and the model knows {rows} tokens.")
