"""What a folder's config.json says of our decoder: its design, and what other tools ask for, which is read from the design and kept nowhere else."""

from collections.abc import Callable
from dataclasses import field
from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from sinklab.config import parse, plain
from sinklab.errors import SinklabError
from sinklab.model.design import Design
from sinklab.model.masks import Mixed

FORMAT = 1  # of the folder: raised when a decoder of the same config.json and tensors would compute something else
ENDLESS = 1 << 20  # places, where nothing bounds them


class Derived:
    """A setting that is read from the design; another value for it is refused."""

    def __init__(self, of: Callable[[Design], int | bool]) -> None:
        self.of = of

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, config: "SinklabConfig | None", owner: type) -> Any:
        return self if config is None else self.of(config.parsed())

    def __set__(self, config: "SinklabConfig", value: Any) -> None:
        if value is not None and value != (own := self.of(config.parsed())):
            raise SinklabError(f"{_where(config.name_or_path)}: `{self.name}` is {value}, and by the design it is {own}.")


@strict
class SinklabConfig(PreTrainedConfig):
    """A design as plain data, every leaf of it; those that are not given have their default."""

    model_type = "sinklab"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]

    sinklab_version: int = FORMAT
    design: dict[str, Any] = field(default_factory=dict)
    seed: int = 0  # of the first weights, where none are loaded
    training: dict[str, Any] | None = None  # what trained it, in any form
    use_cache: bool | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    vocab_size = Derived(lambda design: design.vocabulary)
    hidden_size = Derived(lambda design: design.width)
    intermediate_size = Derived(lambda design: design.hidden)
    num_hidden_layers = Derived(lambda design: design.depth)
    num_attention_heads = Derived(lambda design: design.heads)
    num_key_value_heads = Derived(lambda design: design.heads)
    head_dim = Derived(lambda design: design.head_size)
    max_position_embeddings = Derived(lambda design: (design.positions.limit or ENDLESS) - design.registers)
    is_decoder = Derived(lambda _: True)
    tie_word_embeddings = Derived(lambda _: False)

    def __post_init__(self, **others: Any) -> None:
        where = _where(others.get("name_or_path"))
        if self.sinklab_version != FORMAT:
            age = "newer: update sinklab" if self.sinklab_version > FORMAT else "older"
            raise SinklabError(f"{where} has the version {self.sinklab_version}, and this sinklab reads version {FORMAT}; it is {age}.")
        try:
            design = parse(Design, self.design)
        except SinklabError as error:
            raise SinklabError(f"{where}: {str(error).removeprefix('Design: ')}") from error
        self.design = plain(design)
        if self.use_cache and not cached(design):
            raise SinklabError(f"{where}: `use_cache` is true, and {UNCACHED}.")
        self.use_cache = cached(design) if self.use_cache is None else self.use_cache
        super().__post_init__(**others)

    @classmethod
    def of(cls, design: Design, **settings: Any) -> "SinklabConfig":
        """The config of a design."""
        return cls(design=plain(design), **settings)

    def parsed(self) -> Design:
        """The design."""
        return parse(Design, self.design)

    def to_dict(self) -> dict[str, Any]:
        """As config.json has it, with what other tools ask for."""
        return super().to_dict() | {name: getattr(self, name) for name, kind in vars(type(self)).items() if isinstance(kind, Derived)}


UNCACHED = "documents that are kept apart are told by their tokens, which a cache does not hold"


def cached(design: Design) -> bool:
    """Whether keys and values of the places before are all that a token needs."""
    return isinstance(design.documents, Mixed)


def _where(name: str | None) -> str:
    return f"The config.json of `{name}`" if name else "SinklabConfig"
