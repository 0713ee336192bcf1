"""What probes see of one attention call, the same from both ways of watching.

Tensors before the map (exact, in linear memory), or a map that a model drew.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from sinklab.probe.call import Call
from sinklab.probe.columns import column_sums, selected_sums
from sinklab.probe.visible import Visible


class Seen(Protocol):
    """Weights are those of real queries: rows of padding are zero, and a row and its virtual mass sum to one."""

    @property
    def layer(self) -> int:
        """Which layer of attention, from 0."""

    @property
    def visible(self) -> Visible:
        """Which keys each query may see."""

    @property
    def heads(self) -> int:
        """How many heads the queries have."""

    @property
    def call(self) -> Call | None:
        """The tensors; None where there is a map alone."""

    def columns(self) -> tuple[Tensor, str]:
        """float32 (B, H, Tk), summed over queries, and the way they were computed."""

    def selected(self, places: Tensor) -> Tensor:
        """The same sums for a few keys: places (B, P) within the call -> (B, H, P)."""

    def block(self, queries: slice, keys: slice) -> Tensor:
        """Weights of a few queries on a few keys, float32 (B, H, queries, keys)."""

    def own(self, first: int) -> Tensor:
        """float32 (B, H, first): what each of the first queries gives to its own place."""

    def virtual(self) -> Tensor | None:
        """float32 (B, H, Tq): mass on a learned sink; None where the model has none."""

    def beside(self) -> Tensor | None:
        """float32 (B, H, Tq, N): the same mass by key that no token holds, where such keys have values."""

    def entropy(self) -> Tensor:
        """float32 (B, H, Tq) in nats over keys and virtual sink."""


@dataclass(frozen=True, eq=False)
class SeenCall:
    """A call with its normaliser."""

    call: Call
    lse: Tensor

    @property
    def layer(self) -> int:
        """As the call has it."""
        return self.call.layer

    @property
    def visible(self) -> Visible:
        """As the call has it."""
        return self.call.visible

    @property
    def heads(self) -> int:
        """As the call has them."""
        return self.call.heads

    @cached_property
    def _columns(self) -> tuple[Tensor, str]:
        return column_sums(self.call, self.lse)

    def columns(self) -> tuple[Tensor, str]:
        """float32 (B, H, Tk) and the way they were computed."""
        return self._columns

    def selected(self, places: Tensor) -> Tensor:
        """The same sums for a few keys: places (B, P) within the call -> (B, H, P)."""
        return selected_sums(self.call, self.lse, places)

    def block(self, queries: slice, keys: slice) -> Tensor:
        """Weights of a few queries on a few keys, float32 (B, H, queries, keys)."""
        return self.call.weights(self.lse, queries.start, queries.stop, keys)

    def own(self, first: int) -> Tensor:
        """float32 (B, H, first): what each of the first queries gives to its own place."""
        call = self.call
        shift = call.visible.query_offset - call.visible.key_offset
        q = call.q[:, :, :first]
        k = call.k[:, :, shift : shift + q.shape[2]].repeat_interleave(call.heads // call.k.shape[1], 1)
        scores = call.capped((q.float() * k.float()).sum(-1) * call.scale)
        if call.bias is not None:
            wide = call.bias.expand(-1, -1, call.visible.queries, -1)
            scores = scores + wide.diagonal(shift, -2, -1)[..., : q.shape[2]]
        if call.distances is not None:
            none = torch.zeros(1, dtype=torch.long, device=q.device)
            scores = scores + call.distances.of(call.head_numbers[:, 0], none)
        return torch.exp(call.kind.logs(scores)[0] - self.lse[:, :, :first])

    def virtual(self) -> Tensor | None:
        """float32 (B, H, Tq): mass on a learned sink; None where the model has none."""
        return None if self.call.sink is None else torch.exp(self.call.sink.float() - self.lse)

    def beside(self) -> Tensor | None:
        """float32 (B, H, Tq, N): the same mass by key that no token holds, where such keys have values."""
        logits = self.call.virtual_logits
        return None if logits is None else torch.exp(logits.float() - self.lse[..., None])

    def entropy(self) -> Tensor:
        """float32 (B, H, Tq) in nats over keys and virtual sink: a second pass over all scores."""
        entropy = torch.zeros_like(self.lse)
        for start, stop, keys in self.call.chunks():
            scores = self.call.scores(start, stop, keys)
            logs = scores - self.lse[:, :, start:stop, None]
            entropy[:, :, start:stop] -= torch.where(logs > -torch.inf, logs.exp() * logs, 0).sum(-1)
        virtual = self.virtual()
        return entropy if virtual is None else entropy - torch.xlogy(virtual, virtual)


@dataclass(frozen=True, eq=False)
class SeenMap:
    """A map that the model's own code drew: (B, H, Tq, Tk), reduced before the next layer runs. Rows of padding are zeroed by the maker."""

    layer: int
    map: Tensor
    visible: Visible
    rest: Tensor | None = None  # (B, H, Tq): mass on a learned sink
    call: None = None

    @property
    def heads(self) -> int:
        """As many as the map has."""
        return self.map.shape[1]

    def columns(self) -> tuple[Tensor, str]:
        """The map summed over its rows."""
        return self.map.sum(-2, dtype=torch.float32), "map"

    def selected(self, places: Tensor) -> Tensor:
        """A few of those sums."""
        return self.columns()[0].gather(-1, places[:, None].expand(-1, self.heads, -1))

    def block(self, queries: slice, keys: slice) -> Tensor:
        """A piece of the map."""
        return self.map[:, :, queries, keys].float()

    def own(self, first: int) -> Tensor:
        """The map's diagonal."""
        shift = self.visible.query_offset - self.visible.key_offset
        return self.map.diagonal(shift, -2, -1)[..., : min(first, self.visible.queries)].float()

    def virtual(self) -> Tensor | None:
        """The column that belongs to no key."""
        return self.rest

    def beside(self) -> None:
        """A learned sink in a map has no value."""

    def entropy(self) -> Tensor:
        """Of the map's rows, what belongs to no key included."""
        entropy = -torch.xlogy(self.map, self.map).sum(-1, dtype=torch.float32)
        return entropy if self.rest is None else entropy - torch.xlogy(self.rest, self.rest)
