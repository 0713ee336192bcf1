"""`torch.compile` for many variants of one function.

PyTorch counts recompilations by code object: after eight variants of one function it would run the next ones uncompiled, with a warning only, and
FlexAttention uncompiled draws whole maps. Here every variant has code of its own, and a compilation that cannot be had is an error.
"""

import types
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F, **options: Any) -> F:
    """Compiled whole, apart from every other use of the same code."""
    return cast("F", torch.compile(_copied(function), fullgraph=True, **options))


def _copied(function: Callable[..., Any]) -> Callable[..., Any]:
    assert isinstance(function, types.FunctionType)
    code = function.__code__.replace(co_name=f"{function.__code__.co_name}_")
    copy = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
