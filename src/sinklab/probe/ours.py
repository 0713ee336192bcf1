"""The way into our own decoder: the one function that attends, and its call as probes see it.

Learned sink tokens and virtual keys are no tokens of the text: what they get is virtual mass, and their own queries are left out.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from sinklab.model.attending import Attending
from sinklab.model.decoder import Attention
from sinklab.model.grid import Grid
from sinklab.model.masks import counted, same_document
from sinklab.model.slots import AfterAttention
from sinklab.probe.attach import Places
from sinklab.probe.call import Call
from sinklab.probe.visible import Visible, describe


@contextmanager
def hooked(places: Places, function: Callable[[Attention, Attending], Tensor]) -> Iterator[None]:
    """Every attention of the decoder calls `function` instead of `attend`, inside."""
    modules = [module for module in places.attention if isinstance(module, Attention)]
    try:
        for module in modules:
            module.attend = lambda call, module=module: function(module, call)  # type: ignore[misc]
        yield
    finally:
        for module in modules:
            vars(module).pop("attend", None)


def as_call(given: Attending, visible: Visible) -> Call:
    """The text's queries and keys."""
    registers = given.grid.registers
    asks = slice(registers if given.grid.offset == 0 else 0, None)
    q, k = given.q[:, :, asks], given.k[:, :, registers:]
    places = None if given.distances is None or given.grid.real is None else counted(given.grid.real, 0)
    call = Call(given.layer, q, k, given.v[:, :, registers:], visible, given.scale, distances=given.distances, places=places, kind=given.weights)
    beside = _beside(given, asks)
    if beside is None:
        return call
    sizes, adds = given.weights.logs(beside)
    values = _values(given, beside.shape[-1])
    return replace(
        call, sink=sizes.logsumexp(-1), sink_adds=adds.logsumexp(-1), virtual_logits=None if values is None else sizes, virtual_values=values
    )


def only_gates(module: Attention) -> bool:
    """Whether the output projection is given what the heads put out, side by side, and no more than gates before it."""
    design = module.design
    gates = all(slot.gates for slot in design.slots if isinstance(slot, AfterAttention))
    return gates and module.output.in_features == design.heads * design.head_size


def visible(grid: Grid, batch: int) -> Visible:
    """The same mask, of the text's places."""
    queries = grid.queries - (grid.registers if grid.offset == 0 else 0)
    keys = grid.keys - grid.registers
    plain = not grid.mask.span and grid.mask.unbroken and grid.documents is None
    found = describe(batch, queries, keys, keys - queries, 0, None if plain else _function(grid), grid.real, grid.device)
    return replace(found, unbroken=grid.mask.unbroken)


def document_starts(grid: Grid) -> Tensor | None:
    """Boolean (B, T): the first token of each document that is not padding; None where there is one document only."""
    if grid.documents is None:
        return None
    real = torch.ones_like(grid.documents, dtype=torch.bool) if grid.real is None else grid.real
    so_far = grid.documents.masked_fill(~real, -1).cummax(-1).values
    starts = real & (grid.documents != torch.nn.functional.pad(so_far[:, :-1], (1, 0), value=-1))
    return starts if bool((starts.sum(-1) > 1).any()) else None


def _function(grid: Grid) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    place = None if grid.real is None else counted(grid.real, 0)

    def sees(b: Tensor, _h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        seen = grid.mask.seen(i, j) if place is None else grid.mask.seen(place[b, i], place[b, j])
        return seen & same_document(grid.documents, b, i, j, 0)

    return sees


def _values(given: Attending, many: int) -> Tensor | None:
    """(B, H, N, D): values of what is no token; None where none has any."""
    registers = given.grid.registers
    if not registers and given.values is None:
        return None
    found = given.v.new_zeros(*given.v.shape[:2], many, given.v.shape[-1])
    found[:, :, :registers] = given.v[:, :, :registers]
    if given.values is not None:
        found[:, :, registers:] = given.values
    return found


def _beside(given: Attending, asks: slice) -> Tensor | None:
    """float32 (B, H, Tq, N): scores of what is no token."""
    q, registers = given.q[:, :, asks], given.grid.registers
    found = []
    if registers:
        scores = (q.float() @ given.k[:, :, :registers].float().transpose(-1, -2)) * given.scale
        if given.distances is not None:
            asked = given.grid.queries - q.shape[2]
            scores = scores + given.grid.added(given.distances, q.shape[1], asked, given.grid.queries, slice(0, registers))
        found.append(scores)
    if given.logits is not None:
        logits = given.logits if given.logits.shape[2] == 1 else given.logits[:, :, asks]
        found.append(logits.expand(*q.shape[:3], -1))
    return torch.cat(found, -1) if found else None
