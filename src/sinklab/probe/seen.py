"""What probes see of one attention call, the same from both ways of watching: tensors before the map (exact, linear memory) or a map that a model drew."""

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

    layer: int
    visible: Visible

    @property
    def heads(self) -> int: ...
    @property
    def call(self) -> Call | None: ...
    def columns(self) -> tuple[Tensor, str]: ...
    def selected(self, places: Tensor) -> Tensor: ...
    def block(self, queries: slice, keys: slice) -> Tensor: ...
    def own(self, first: int) -> Tensor: ...
    def virtual(self) -> Tensor | None: ...
    def entropy(self) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class SeenCall:
    """A call with its normaliser."""

    call: Call
    lse: Tensor

    @property
    def layer(self) -> int:
        return self.call.layer

    @property
    def visible(self) -> Visible:
        return self.call.visible

    @property
    def heads(self) -> int:
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
        scores = (q.float() * k.float()).sum(-1) * call.scale
        if call.softcap is not None:
            scores = call.softcap * torch.tanh(scores / call.softcap)
        if call.bias is not None:
            wide = call.bias.expand(-1, -1, call.visible.queries, -1)
            scores = scores + wide.diagonal(shift, -2, -1)[..., : q.shape[2]]
        return torch.exp(scores - self.lse[:, :, :first])

    def virtual(self) -> Tensor | None:
        """float32 (B, H, Tq): mass on a learned sink; None where the model has none."""
        return None if self.call.sink is None else torch.exp(self.call.sink.float() - self.lse)

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
        return self.map.shape[1]

    def columns(self) -> tuple[Tensor, str]:
        return self.map.sum(-2, dtype=torch.float32), "map"

    def selected(self, places: Tensor) -> Tensor:
        return self.columns()[0].gather(-1, places[:, None].expand(-1, self.heads, -1))

    def block(self, queries: slice, keys: slice) -> Tensor:
        return self.map[:, :, queries, keys].float()

    def own(self, first: int) -> Tensor:
        shift = self.visible.query_offset - self.visible.key_offset
        return self.map.diagonal(shift, -2, -1)[..., : min(first, self.visible.queries)].float()

    def virtual(self) -> Tensor | None:
        return self.rest

    def entropy(self) -> Tensor:
        entropy = -torch.xlogy(self.map, self.map).sum(-1, dtype=torch.float32)
        return entropy if self.rest is None else entropy - torch.xlogy(self.rest, self.rest)
