"""The two registers of transformers and the configs that name them: switched inside a context, put back after it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from sinklab.errors import NotMeasurable
from sinklab.probe.attach import Places
from sinklab.probe.visible import describe


@contextmanager
def registered(name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Our function and our mask function under one private name, gone on the way out (transformers has no inverse of `register`)."""
    try:
        AttentionInterface.register(name, function)
        AttentionMaskInterface.register(name, torch.compiler.disable(describe))
        yield
    finally:
        AttentionInterface._global_mapping.pop(name, None)
        AttentionMaskInterface._global_mapping.pop(name, None)


def registered_names() -> tuple[str, ...]:
    """Every attention and mask function that transformers knows by name."""
    return (*AttentionInterface._global_mapping, *AttentionMaskInterface._global_mapping)


_watched: set[int] = set()
_lock = threading.Lock()


@contextmanager
def alone(places: Places) -> Iterator[None]:
    """One watch at a time on a model: two would put back each other's settings, in whatever order they end."""
    with _lock:
        if id(places.base) in _watched:
            raise NotMeasurable("This model is being watched already, here or in another thread; one watch may have several probes.")
        _watched.add(id(places.base))
    try:
        yield
    finally:
        with _lock:
            _watched.discard(id(places.base))


@contextmanager
def implementation(places: Places, name: str) -> Iterator[None]:
    """Every config that the decoder's modules read says `name` inside, and what it said before on the way out.

    Set on the private attribute: the public setter refuses models without SDPA support (those with learned sinks), which we do support.
    """
    modules = [places.base, *(m for layer in places.layers for m in layer.modules()), *places.base.modules()]
    configs: list[Any] = [getattr(m, "config", None) for m in modules]
    before = {id(c): (c, c._attn_implementation_internal) for c in configs if hasattr(c, "_attn_implementation_internal")}
    try:
        for config, _ in before.values():
            config._attn_implementation_internal = name
        yield
    finally:
        for config, former in before.values():
            config._attn_implementation_internal = former
