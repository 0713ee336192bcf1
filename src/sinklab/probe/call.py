"""One attention call as every probe sees it, and its readable mathematics: scores, weights, output and normaliser, in chunks of queries."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sinklab.model.attend import attend, repeat_heads
from sinklab.model.positions import Distances
from sinklab.model.weights import Softmax, Weights
from sinklab.probe.visible import Visible

CHUNK_NUMBERS = 1 << 22  # numbers of scores in one chunk: 16 MiB of float32
CUDA_CHUNK_NUMBERS = 1 << 26  # launches cost more there than memory
SOFTMAX = Softmax()


@dataclass(frozen=True, eq=False)
class Call:
    """What a model handed to its attention function; q after positions, k and v before their heads are repeated."""

    layer: int
    q: Tensor  # (B, H, Tq, D)
    k: Tensor  # (B, Hkv, Tk, D)
    v: Tensor  # (B, Hkv, Tk, Dv)
    visible: Visible
    scale: float
    softcap: float | None = None
    bias: Tensor | None = None  # added to scores: (B or 1, H or 1, Tq, Tk)
    sink: Tensor | None = None  # a learned logit beside the scores: (B or 1, H, Tq or 1)
    sink_adds: Tensor | None = None  # what it adds to the normaliser, where that is something else than itself
    virtual_logits: Tensor | None = None  # (B, H, Tq, N): of what `sink` is the sum, where those keys have values
    virtual_values: Tensor | None = None  # (B, H, N, Dv)
    distances: Distances | None = None  # of keys before their query, and what they add to scores
    places: Tensor | None = None  # (B, Tk): where keys stand for `distances`; None: one after another
    kind: Weights = SOFTMAX  # of weight; others are not compared with softmax in one number

    @property
    def heads(self) -> int:
        """Of the queries; keys and values may have fewer."""
        return self.q.shape[1]

    @cached_property
    def by_products_only(self) -> bool:
        """Scores are scale * q.k and nothing else, which is what fast kernels know."""
        return self.softcap is None and self.by_capped_products

    @cached_property
    def by_capped_products(self) -> bool:
        """The same, but for a cap, and weights are those of softmax."""
        return self.bias is None and self.distances is None and isinstance(self.kind, Softmax)

    def chunks(self) -> Iterator[tuple[int, int, slice]]:
        """(start, stop, keys): runs of queries with the keys that any of them sees, last ones first so that memory peaks early."""
        visible = self.visible
        step = max(16, _chunk_numbers(self.q) // max(1, visible.batch * self.heads * visible.keys))
        for start in reversed(range(0, visible.queries, step)):
            stop = min(start + step, visible.queries)
            yield start, stop, keys_seen(visible, start, stop)

    def scores(self, start: int, stop: int, keys: slice) -> Tensor:
        """float32 (B, H, stop - start, keys): the logarithm of a weight before its row is normalised, -inf where a key is not seen."""
        return self.logs(start, stop, keys)[0]

    def logs(self, start: int, stop: int, keys: slice) -> tuple[Tensor, Tensor]:
        """The same, and the logarithm of what each score adds to its row's normaliser; for softmax both are the score."""
        q, k = self.q[:, :, start:stop].float(), repeat_heads(self.k[:, :, keys].float(), self.heads)
        scores = self.capped((q @ k.transpose(-1, -2)) * self.scale)
        if self.bias is not None:
            scores = scores + self.bias[:, :, _rows(self.bias, start, stop), keys]
        if self.distances is not None:
            scores = scores + self.distances.of(self.head_numbers, self._how_far(start, stop, keys))
        seen = self.visible.block(start, stop, keys)
        size, adds = self.kind.logs(scores)
        size = size.masked_fill(~seen, -torch.inf)
        return size, size if isinstance(self.kind, Softmax) else adds.masked_fill(~seen, -torch.inf)

    @property
    def head_numbers(self) -> Tensor:
        """(H, 1, 1)."""
        return torch.arange(self.heads, device=self.q.device)[:, None, None]

    def _how_far(self, start: int, stop: int, keys: slice) -> Tensor:
        if self.places is not None:
            of_queries = self.places[:, -self.visible.queries :][:, start:stop]
            return (of_queries[:, :, None] - self.places[:, None, keys])[:, None]
        i = torch.arange(start, stop, device=self.q.device)[:, None] + self.visible.query_offset
        j = torch.arange(keys.start, keys.stop, device=self.q.device) + self.visible.key_offset
        return i - j

    def capped(self, scores: Tensor) -> Tensor:
        """Scores as the model bounds them."""
        return scores if self.softcap is None else self.softcap * torch.tanh(scores / self.softcap)

    def weights(self, lse: Tensor, start: int, stop: int, keys: slice) -> Tensor:
        """A[i, j] = exp(s_ij - lse_i), float32; rows of padding are zero because their lse is +inf."""
        return torch.exp(self.scores(start, stop, keys) - lse[:, :, start:stop, None])


def answer(call: Call) -> tuple[Tensor, Tensor]:
    """(out, lse): the output for the model, and float32 lse (B, H, Tq) for probes: learned sinks are in it, and rows that do not count are +inf."""
    if not call.by_products_only or (call.sink is not None and torch.is_grad_enabled()):  # kernels give lse without its gradient
        out, lse = _by_chunks(call)
    elif call.visible.plain:
        out, lse = attend(call.q, call.k, call.v, call.scale, causal=call.visible.queries > 1)
    else:
        out, lse = _by_masks(call)
    if call.sink is not None:
        out, lse = _with_sink(out, lse, call.sink)
    lse = lse.detach()
    if call.visible.plain:
        return out, lse
    counts = call.visible.queries_real[:, None] & (lse != -torch.inf)
    return out, lse.masked_fill(~counts, torch.inf)


def normaliser(call: Call) -> Tensor:
    """float32 lse (B, H, Tq) alone, for weights of any kind: scores are compared with it, and learned sinks are in it."""
    if call.by_products_only and call.visible.plain:
        _, lse = attend(call.q, call.k, call.v, call.scale, causal=call.visible.queries > 1)
    else:
        runs = [call.logs(start, stop, keys)[1].logsumexp(-1) for start, stop, keys in call.chunks()]
        lse = torch.cat(runs[::-1], 2)
    adds = call.sink if call.sink_adds is None else call.sink_adds
    if adds is not None:
        lse = torch.logaddexp(lse, adds.float())
    if call.kind.floor:
        lse = torch.logaddexp(lse, lse.new_tensor(call.kind.floor).log())
    counts = call.visible.queries_real[:, None] & (lse != -torch.inf)
    return lse.masked_fill(~counts, torch.inf)


def _with_sink(out: Tensor, lse: Tensor, sink: Tensor) -> tuple[Tensor, Tensor]:
    """A logit that takes part in the normaliser and has no value: softmax with one column more, which is sigmoid(lse - sink) on the output."""
    sink = sink.float()
    return (out * torch.sigmoid(lse - sink)[..., None]).to(out.dtype), torch.logaddexp(lse, sink)


def _by_masks(call: Call) -> tuple[Tensor, Tensor]:
    """The fast kernel on runs of queries, each with the boolean mask of its own rows."""
    visible = call.visible
    step = max(64, _chunk_numbers(call.q) // max(1, visible.batch * visible.keys))
    outs, lses = [], []
    for start in reversed(range(0, visible.queries, step)):  # the longest first: what they leave free serves all the others
        stop = min(start + step, visible.queries)
        keys = keys_seen(visible, start, stop)
        out, lse = attend(call.q[:, :, start:stop], call.k[:, :, keys], call.v[:, :, keys], call.scale, False, visible.block(start, stop, keys))
        outs.append(out)
        lses.append(lse)
    return torch.cat(outs[::-1], 2), torch.cat(lses[::-1], 2)


def _by_chunks(call: Call) -> tuple[Tensor, Tensor]:
    """The specification, a run of queries at a time: whatever changes scores is in `Call.scores`."""
    outs, lses = [], []
    for start, stop, keys in reversed(list(call.chunks())):
        scores = call.scores(start, stop, keys)
        lse = torch.logsumexp(scores, -1)
        weights = torch.exp(scores - lse.masked_fill(lse == -torch.inf, 0)[..., None])
        outs.append(weights.to(call.v.dtype) @ repeat_heads(call.v[:, :, keys], call.heads))
        lses.append(lse)
    return torch.cat(outs, 2), torch.cat(lses, 2)


def _chunk_numbers(q: Tensor) -> int:
    return CUDA_CHUNK_NUMBERS if q.is_cuda else CHUNK_NUMBERS


def keys_seen(visible: Visible, start: int, stop: int) -> slice:
    """The shortest run of keys that holds all that queries start..stop see."""
    if not visible.unbroken:
        return slice(0, visible.keys)
    seen = ((visible.last >= start) & (visible.first < stop)).any(0).nonzero()
    return slice(int(seen[0]), int(seen[-1]) + 1) if len(seen) else slice(0, 1)


def _rows(bias: Tensor, start: int, stop: int) -> slice:
    return slice(start, stop) if bias.shape[2] > 1 else slice(None)
