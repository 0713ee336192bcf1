"""Where a model attends: its layers, the modules that attend in them, and by which of two ways they can be watched.

Read from the classes themselves.
"""

import inspect
import re
import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from sinklab.errors import NotMeasurable
from sinklab.model.decoder import Attention, Decoder


@dataclass(frozen=True, eq=False)
class Places:
    """A model taken apart: what gets the tokens, the decoder's layers, and the modules that attend."""

    base: nn.Module  # its forward gets input_ids and attention_mask
    layers: tuple[nn.Module, ...]
    attention: dict[nn.Module, int]  # module -> layer of attention; as the model numbers its caches, where a layer attends twice
    depth: int  # layers of attention, those that do not attend counted
    name: str  # of the model, as its config knows it
    draws: bool  # the model's own eager code draws maps, and we read them; otherwise tensors reach us through AttentionInterface
    registers: int | None = None  # our own decoder, with so many learned sink tokens before the text; None: another model
    given: int = 1  # tokens at the beginning that are not predicted


def find(model: nn.Module) -> Places:
    """Take a causal LM apart, or say why it cannot be measured."""
    inner = unwrap(model)
    if "shared_kv_states" in inspect.signature(inner.forward).parameters:
        raise NotMeasurable(f"{type(inner).__name__} attends to keys and values that another model hands over.")
    if (own := _ours(inner)) is not None:
        return own
    decoder = inner.get_decoder()
    if not isinstance(decoder, PreTrainedModel):  # ModernBERT calls its last projection so
        decoder = inner.base_model
    stem = _stem(inner, decoder)
    layers: tuple[nn.Module, ...] = tuple(decoder.get_submodule(stem))
    inside = {name: module for name, module in decoder.named_modules() if name.startswith(f"{stem}.") and _attends(type(module))}
    dispatching = {name: m for name, m in inside.items() if _dispatches(type(m))}
    classes: set[type] = {type(m) for layer in layers for m in layer.modules()}
    draws = not dispatching or any(_edits_masks(cls) for cls in classes)
    attention = _numbered(inside if draws else dispatching, stem)
    name = inner.config.name_or_path or type(inner).__name__
    return Places(_base(inner), layers, attention, max(len(layers), *(n + 1 for n in attention.values())), name, draws)


def _ours(model: PreTrainedModel) -> Places | None:
    """Our own decoder, whatever head it has."""
    decoder = next((module for module in model.modules() if isinstance(module, Decoder)), None)
    if decoder is None:
        return None
    attention: dict[nn.Module, int] = {module: module.layer for module in decoder.modules() if isinstance(module, Attention)}
    name = model.config.name_or_path or type(model).__name__
    design, blocks = decoder.design, tuple(decoder.blocks)
    return Places(model.base_model, blocks, attention, len(blocks), name, draws=False, registers=design.registers, given=design.mask.given)


def _stem(model: PreTrainedModel, decoder: nn.Module) -> str:
    """The list of layers that attend: `layers`, `h`, `blocks`, ...

    Of several, the text's is as long as its config says, a decoder's, and not deep inside.
    """
    stems = [
        name[: found.start()] for name, module in decoder.named_modules() if (found := re.search(r"\.\d+(\.|$)", name)) and _attends(type(module))
    ]
    if not stems:
        raise NotMeasurable(f"{type(model).__name__} has no softmax attention in its layers.")
    wanted = getattr(model.config.get_text_config(decoder=True), "num_hidden_layers", None)

    def fits(stem: str) -> tuple[bool, bool, int, int]:
        as_long = len(decoder.get_submodule(stem)) == wanted  # type: ignore[arg-type]
        return as_long, "decoder" in stem and "cross" not in stem, -stem.count("."), stems.count(stem)

    return max(dict.fromkeys(stems), key=fits)


def _numbered(found: dict[str, nn.Module], stem: str) -> dict[nn.Module, int]:
    """By layer; where layers attend more than once, by the index that the model gives each of them for its cache."""
    by_layer = {module: int(name[len(stem) + 1 :].split(".")[0]) for name, module in found.items()}
    own = {module: getattr(module, "layer_idx", None) for module in by_layer}
    if len(set(by_layer.values())) < len(by_layer) and len(set(own.values())) == len(own) and None not in own.values():
        return own  # type: ignore[return-value]
    return by_layer


def _attends(cls: type) -> bool:
    """A class whose code dispatches, or one of attention by its name (routers of experts have a softmax too) that draws a map."""
    named = re.search("attention|attn", cls.__name__, re.IGNORECASE) is not None
    return _dispatches(cls) or (named and bool({"softmax", "Softmax"} & _names(cls)))


def _dispatches(cls: type) -> bool:
    return bool({"ALL_ATTENTION_FUNCTIONS", "attention_interface"} & _names(cls))


def unwrap(model: nn.Module) -> PreTrainedModel:
    """The transformers model inside torch.compile's and PEFT's wrappers."""
    inner: Any = getattr(model, "_orig_mod", model)
    if any(getattr(config, "is_prompt_learning", False) for config in getattr(inner, "peft_config", {}).values()):
        raise NotMeasurable("A PEFT adapter of prompts or prefixes puts tokens before the text that are not in it; it is not measured.")
    if hasattr(inner, "get_base_model"):
        inner = inner.get_base_model()
    if isinstance(inner, Decoder):
        raise NotMeasurable("A bare Decoder is no transformers model; measure SinklabForCausalLM.wrap(decoder), which is the same weights.")
    if not isinstance(inner, PreTrainedModel):
        raise NotMeasurable(f"{type(inner).__name__} is not a transformers model.")
    if inner.config.is_encoder_decoder:
        raise NotMeasurable(f"{type(inner).__name__} has an encoder: its decoder attends to two texts.")
    return inner


def _base(model: PreTrainedModel) -> nn.Module:
    """What the causal LM's own forward calls with the tokens: its base model, or the decoder inside of it."""
    base = model.base_model
    if "decoder" in inspect.unwrap(type(model).forward).__code__.co_names and hasattr(base, "decoder"):
        return base.decoder
    if base is not model:
        return base
    return next((child for child in model.children() if isinstance(child, PreTrainedModel)), model)


@cache
def _names(cls: type) -> frozenset[str]:
    """Every global, attribute and keyword that the methods of a class name."""
    return frozenset(name for code in _codes(cls) for name in (*code.co_names, *code.co_varnames))


def chooses(cls: type) -> bool:
    """Chooses the keys of each query by what they hold."""
    return bool({"indexer", "prepare_dynamic_mask"} & _names(cls))


@cache
def _edits_masks(cls: type) -> bool:
    """Code that asks for `eager` or `sdpa` by name, or fills masks, works on masks as tensors, which a description is not."""
    return any(
        any(isinstance(const, tuple) and {"eager", "sdpa"} <= set(map(str, const)) for const in code.co_consts)
        or ("attention_mask" in code.co_varnames and {"masked_fill", "masked_fill_"} & set(code.co_names))
        for code in _codes(cls)
    )


def _codes(cls: type) -> Iterator[types.CodeType]:
    for parent in cls.__mro__:
        if parent.__module__.startswith("torch."):
            continue
        for member in vars(parent).values():
            function = inspect.unwrap(member) if callable(member) else member
            if isinstance(function, types.FunctionType):
                yield from _nested(function.__code__)


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _nested(const)
