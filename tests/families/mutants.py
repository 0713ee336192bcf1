"""Probes that are wrong in one way each. What the model gets is untouched: what is measured changes, and the comparison must notice."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sinklab.probe import maps, watch
from sinklab.probe.call import Call, answer
from sinklab.probe.seen import SeenCall, SeenMap
from sinklab.probe.visible import Visible

ChangedCall = Callable[[Call], Call | None]  # None: there is nothing to change
ChangedMap = Callable[[SeenMap], SeenMap | None]


def of_calls(features: set[str]) -> dict[str, ChangedCall]:
    """The mutants of measuring tensors that apply to a model with these features."""
    windows = {"window": True, "chunk": True}.keys() & features
    mutants: dict[str, tuple[bool, ChangedCall]] = {
        "scaling x 2": (True, lambda call: replace(call, scale=2 * call.scale)),
        "score cap left out": ("score cap" in features, lambda call: None if call.softcap is None else replace(call, softcap=None)),
        "sink left out": ("learned sink" in features, lambda call: None if call.sink is None else replace(call, sink=None)),
        "bias left out": ("bias" in features, lambda call: None if call.bias is None else replace(call, bias=None)),
        "heads not grouped": ("grouped heads" in features, tiled),
        "window + 1": (bool(windows), lambda call: with_visible(call, wider(call.visible))),
        "window - 1": (bool(windows), lambda call: with_visible(call, narrower(call.visible))),
    }
    return {name: change for name, (applies, change) in mutants.items() if applies}


def of_maps(features: set[str]) -> dict[str, ChangedMap]:
    """The mutants of reading maps."""
    windows = {"window": True, "chunk": True}.keys() & features
    mutants: dict[str, tuple[bool, ChangedMap]] = {
        "rows for columns": (True, lambda seen: replace(seen, map=seen.map.transpose(-1, -2))),
        "one place off": (True, lambda seen: replace(seen, map=seen.map.roll(1, -1))),
        "padding counts": (True, lambda seen: replace(seen, visible=without_padding(seen.visible))),
        "sink left out": ("learned sink" in features, lambda seen: None if seen.rest is None else replace(seen, rest=None)),
        "window + 1": (bool(windows), lambda seen: with_visible(seen, wider(seen.visible))),
        "window - 1": (bool(windows), lambda seen: with_visible(seen, narrower(seen.visible))),
    }
    return {name: change for name, (applies, change) in mutants.items() if applies}


@contextmanager
def measuring(change_call: ChangedCall | None = None, change_map: ChangedMap | None = None) -> Iterator[list[Any]]:
    """Inside, what probes see is changed; yields what was changed, one entry for each time."""
    changed: list[Any] = []

    def seen_call(call: Call, lse: Tensor) -> SeenCall:
        other = change_call(call) if change_call else None
        changed.extend([] if other is None else [other])
        return SeenCall(call, lse) if other is None else SeenCall(other, answer(other)[1])

    def seen_map(*args: Any, **kwargs: Any) -> SeenMap:
        seen = SeenMap(*args, **kwargs)
        other = change_map(seen) if change_map else None
        changed.extend([] if other is None else [other])
        return seen if other is None else other

    watch.SeenCall, maps.SeenMap = seen_call, seen_map  # type: ignore[assignment, misc]
    try:
        yield changed
    finally:
        watch.SeenCall, maps.SeenMap = SeenCall, SeenMap  # type: ignore[misc]


def tiled(call: Call) -> Call | None:
    """Key heads one after another for the query heads, as if they were not grouped."""
    groups = call.heads // call.k.shape[1]
    if groups == 1 or call.k.shape[1] == 1:
        return None
    return replace(call, k=call.k.repeat(1, groups, 1, 1), v=call.v.repeat(1, groups, 1, 1))


def with_visible(seen: Any, visible: Visible | None) -> Any:
    return None if visible is None else replace(seen, visible=visible)


def wider(visible: Visible) -> Visible | None:
    """Each row that misses an earlier token sees the last one that it misses."""
    mask, missed = _masks(visible)
    nearest = missed & ~missed.flip(-1).cumsum(-1).flip(-1).gt(1)
    return _drawn(visible, mask | nearest) if missed.any() else None


def narrower(visible: Visible) -> Visible | None:
    """Each row that misses an earlier token misses one more."""
    mask, missed = _masks(visible)
    farthest = mask & (mask.cumsum(-1) == 1) & missed.any(-1, keepdim=True) & (mask.sum(-1, keepdim=True) > 1)
    return _drawn(visible, mask & ~farthest) if farthest.any() else None


def without_padding(visible: Visible) -> Visible:
    """Every query sees every place before it, padding too."""
    mask, _ = _masks(visible)
    return replace(_drawn(visible, torch.ones_like(mask).tril()), real=None)


def _masks(visible: Visible) -> tuple[Tensor, Tensor]:
    """(what is seen, what real queries miss of the real tokens before what they see), boolean (B, H or 1, Tq, Tk)."""
    mask = visible.block(0, visible.queries).expand(visible.batch, -1, -1, -1)
    real = torch.ones(visible.batch, visible.keys, dtype=torch.bool) if visible.real is None else visible.real[:, : visible.keys]
    before = mask.flip(-1).cumsum(-1).flip(-1) == mask.sum(-1, keepdim=True)
    missed = before & ~mask & real[:, None, None, :] & real[:, None, : visible.queries, None]
    return mask, missed


def _drawn(visible: Visible, mask: Tensor) -> Visible:
    return replace(visible, function=None, dense=mask, unbroken=False)
