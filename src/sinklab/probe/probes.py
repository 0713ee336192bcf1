"""The room of probes: what can be read off a live forward. Each is a frozen config with its own few lines, each names its paper.

A probe has any of three methods, and is called where it has one: `see` (an attention call, its weights reduced on the spot), `see_hidden` (the hidden
state after a layer; level 0 is what enters the first), `see_output` (what the output projection of an attention layer is given).
All write to the ledger.
"""

from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from sinklab.probe.ledger import Ledger
from sinklab.probe.seen import Seen
from sinklab.probe.visible import Visible

TAIL = 64  # queries of the definition `tail_window`
OWN = 64  # places whose weight on themselves is kept; all of them where documents are packed, each of which has a beginning
FIRST = 8  # keys of the definition `tail_window`


@runtime_checkable
class SeesAttention(Protocol):
    """Wants every attention call."""

    def see(self, seen: Seen, ledger: Ledger) -> None:
        """Reduce the weights of one call of one layer."""


@runtime_checkable
class SeesHidden(Protocol):
    """Wants hidden states between layers."""

    def see_hidden(self, level: int, hidden: Tensor, offset: int, ledger: Ledger) -> None:
        """Reduce the hidden state (B, T, d) whose first token stands at `offset` in the text."""


@runtime_checkable
class SeesOutput(Protocol):
    """Wants what attention puts out."""

    def see_output(self, seen: Seen, out: Tensor, given: Tensor | None, weight: Tensor | None, ledger: Ledger) -> None:
        """Reduce the output (B, T, H * Dv) beside what the output projection was given, None where more than gates came between.

        `weight` is the projection's matrix, where it can be read.
        """


Probe = SeesAttention | SeesHidden | SeesOutput


@dataclass(frozen=True)
class Alpha:
    """alpha_k = sum_i A[i, k] / (number of queries that may see k), for every k or for named positions (Gu et al., 2410.10781, section 3.1)."""

    name: ClassVar[str] = "alpha"
    positions: tuple[int, ...] = ()  # from 1, in real tokens; empty: all of them

    def see(self, seen: Seen, ledger: Ledger) -> None:
        """Sums over queries and how many queries there were, by key."""
        visible = seen.visible
        if self.positions:
            sums, way = self._selected(seen, ledger), "selected"
        else:
            sums, way = seen.columns()
        ledger.ways[seen.layer].add(way)
        ledger.add_columns(seen.layer, "sum", sums, visible.key_offset)
        ledger.add_columns(seen.layer, "count", visible.counts, visible.key_offset)

    def _selected(self, seen: Seen, ledger: Ledger) -> Tensor:
        """NaN at the places that were not asked for."""
        visible = seen.visible
        places, targets = visible.once(("places", self.positions), lambda: self._places(visible, ledger))
        sums = torch.full((visible.batch, seen.heads, visible.keys + 1), torch.nan, device=visible.device)
        return sums.scatter_(-1, targets.expand(-1, seen.heads, -1), seen.selected(places))[..., :-1]

    def _places(self, visible: Visible, ledger: Ledger) -> tuple[Tensor, Tensor]:
        """Where the named positions are among the keys of a call; what is not among them goes one place past the end."""
        wanted = _counted_from_0(self.positions, visible.device)
        places = ledger.first_real(visible.device)[:, None] + wanted - visible.key_offset
        inside = (places >= 0) & (places < visible.keys)
        return places.clamp(0, visible.keys - 1), torch.where(inside, places, visible.keys)[:, None]


@dataclass(frozen=True)
class Own:
    """What each of the first 64 queries gives to its own place, for definitions that leave it out."""

    name: ClassVar[str] = "own"

    def see(self, seen: Seen, ledger: Ledger) -> None:
        """The diagonal, as far as it is wanted."""
        visible = seen.visible
        wanted = visible.queries if ledger.starts is not None else OWN - visible.query_offset + int(ledger.first_real("cpu").max())
        if wanted > 0:
            ledger.append(seen.layer, "own", seen.own(min(wanted, visible.queries)))


@dataclass(frozen=True)
class Virtual:
    """Mass on a learned sink, which no token holds: rows + virtual = 1 (gpt-oss, 2508.10925; softmax-off-by-one; K biases of 2410.10781)."""

    name: ClassVar[str] = "virtual"

    def see(self, seen: Seen, ledger: Ledger) -> None:
        """That mass summed over queries; zeros where the model has no such sink. By query too, where documents are packed: each has its own mean."""
        mass = seen.virtual()
        none = torch.zeros(seen.visible.batch, seen.heads, device=seen.visible.device)
        ledger.add_queries(seen.layer, "virtual", none if mass is None else mass.sum(-1))
        if mass is not None and ledger.starts is not None:
            ledger.append(seen.layer, "virtual.place", mass.masked_fill(~seen.visible.queries_real[:, None], torch.nan))


@dataclass(frozen=True)
class Tail:
    """What the last 64 queries give to each of the first 8 keys, for definitions that look at the end of a text only."""

    name: ClassVar[str] = "tail"

    def see(self, seen: Seen, ledger: Ledger) -> None:
        """A corner of the map, one row per query."""
        visible = seen.visible
        stops = last_real(visible)
        rows = slice(max(0, int(stops.min()) - TAIL), int(stops.max()))
        wanted = ledger.first_real(visible.device)[:, None] + torch.arange(FIRST, device=visible.device) - visible.key_offset
        keys = slice(max(0, int(wanted.min())), max(0, min(visible.keys, int(wanted.max()) + 1)))
        many = min(TAIL, rows.stop - rows.start)
        if keys.stop <= keys.start:  # a sliding cache has dropped the first keys: nobody sees them any more
            weights = torch.zeros(visible.batch, seen.heads, many, FIRST, device=visible.device)
            ledger.keep_last(seen.layer, "tail", weights, TAIL)
            return
        block = seen.block(rows, keys)
        inside = ((wanted >= keys.start) & (wanted < keys.stop))[:, None, None]
        at = (wanted - keys.start).clamp(0, block.shape[-1] - 1)[:, None, None]
        block = block.gather(-1, at.expand(-1, seen.heads, block.shape[2], -1)) * inside
        which = ((stops - rows.start - many)[:, None] + torch.arange(many, device=visible.device))[:, None, :, None]
        block = block.gather(2, which.clamp_min(0).expand(-1, seen.heads, -1, FIRST)) * (which >= 0)
        ledger.keep_last(seen.layer, "tail", block, TAIL)


@dataclass(frozen=True)
class Entropy:
    """Mean entropy of the rows, in nats (attention entropy collapse, Zhai et al., 2303.06296). Costs a second pass over all scores."""

    name: ClassVar[str] = "entropy"

    def see(self, seen: Seen, ledger: Ledger) -> None:
        """The sum over real queries."""
        entropy = seen.entropy() * seen.visible.queries_real[:, None]
        ledger.add_queries(seen.layer, "entropy", entropy.sum(-1))


@dataclass(frozen=True)
class Norms:
    """L2 norms of hidden states, queries, keys and values of every token (2410.10781, figures 2 and 11 to 14)."""

    name: ClassVar[str] = "norms"

    def see(self, seen: Seen, ledger: Ledger) -> None:
        """Of the new tokens' queries, keys and values."""
        call = seen.call
        if call is None:
            return
        new = slice(call.visible.keys - call.visible.queries, call.visible.keys)
        for name, x in (("norm.query", call.q), ("norm.key", call.k[:, :, new]), ("norm.value", call.v[:, :, new])):
            ledger.append(seen.layer, name, x.float().norm(dim=-1))

    def see_hidden(self, level: int, hidden: Tensor, _offset: int, ledger: Ledger) -> None:
        """Of the new tokens' hidden states."""
        ledger.append(level, "norm.hidden", hidden.float().norm(dim=-1)[:, None])


@dataclass(frozen=True)
class Massive:
    """The largest hidden activations per layer: value, place, dimension, and ratio to the median magnitude of the layer (Sun et al., 2402.17762)."""

    name: ClassVar[str] = "massive"
    many: int = 4

    def see_hidden(self, level: int, hidden: Tensor, offset: int, ledger: Ledger) -> None:
        """The largest of this piece of the text and of those before it."""
        width = hidden.shape[-1]
        real = _real_rows(ledger, hidden, offset)
        size = hidden.float().abs().masked_fill(~real[..., None], 0)
        medians = _median(size, real)
        values, where = size.flatten(1).topk(min(self.many, size[0].numel()))
        places, dimensions = where // width, where % width
        signed = hidden.float().flatten(1).gather(1, where)
        found = torch.stack([signed, (places + offset).float(), dimensions.float(), values / medians.clamp_min(1e-12)], -1)
        before = ledger.facts.get((level, "massive"))
        if before is not None:  # decoding: the largest of all calls
            found = torch.cat([before, found], 1)
            best = found[..., 0].abs().topk(min(self.many, found.shape[1])).indices
            found = found.gather(1, best[..., None].expand(-1, -1, 4))
        ledger.put(level, "massive", found)


@dataclass(frozen=True)
class Decomposition:
    """q.k = |q| |k| cos(q, k): per key both means over the queries that see it, of the cosine and of the norms (2410.10781, figures 2, 15 to 18)."""

    name: ClassVar[str] = "decomposition"

    def see(self, seen: Seen, ledger: Ledger) -> None:
        """Both sums over queries, from running sums rather than a map."""
        call, visible = seen.call, seen.visible
        if call is None or not visible.unbroken:
            return
        q = call.q.float() * visible.queries_real[:, None, :, None]
        norms = q.norm(dim=-1, keepdim=True)
        k = call.k.float().repeat_interleave(call.heads // call.k.shape[1], 1)
        lengths = k.norm(dim=-1, keepdim=True)
        directions = _over_queries(q / norms.clamp_min(1e-12), visible.first, visible.last)
        cosines = (k / lengths.clamp_min(1e-12) * directions).sum(-1)
        products = lengths[..., 0] * _over_queries(norms, visible.first, visible.last)[..., 0]
        ledger.add_columns(seen.layer, "qk.cosine", cosines, visible.key_offset)
        ledger.add_columns(seen.layer, "qk.norms", products, visible.key_offset)


@dataclass(frozen=True)
class Contribution:
    """|v_k W_O|, which times alpha_k says whether the sink carries anything (Kobayashi et al., 2004.10102; no-op or broadcast, 2606.08105)."""

    name: ClassVar[str] = "contribution"

    def see_output(self, seen: Seen, _out: Tensor, _given: Tensor | None, weight: Tensor | None, ledger: Ledger) -> None:
        """Norms of the new values after each head's part of the projection; and what keys that no token holds carry."""
        call = seen.call
        if call is None or weight is None:
            return
        parts = weight.detach().to(call.v.device).float().unflatten(1, (-1, call.v.shape[-1])).expand(-1, call.heads, -1)  # (d, H, Dv)
        gram = torch.einsum("dhv,dhw->hvw", parts, parts)
        new = call.v[:, :, call.visible.keys - call.visible.queries :].float().repeat_interleave(call.heads // call.v.shape[1], 1)
        ledger.append(seen.layer, "norm.output", _lengths(new, gram))
        if call.virtual_values is not None and (mass := seen.beside()) is not None:
            carried = mass * _lengths(call.virtual_values.float(), gram)[:, :, None]
            ledger.add_queries(seen.layer, "virtual.output", carried.sum((-2, -1)))


@dataclass(frozen=True)
class Gate:
    """What an output gate takes away: 1 - |gated output| / |output| per head (gated attention, Qiu et al., 2505.06708). Zero where nothing gates."""

    name: ClassVar[str] = "gate"

    def see_output(self, seen: Seen, out: Tensor, given: Tensor | None, _weight: Tensor | None, ledger: Ledger) -> None:
        """The sum over real queries."""
        if given is None:
            return
        before = out.float().unflatten(-1, (seen.heads, -1)).norm(dim=-1)
        after = given.float().reshape(out.shape).unflatten(-1, (seen.heads, -1)).norm(dim=-1)
        kept = torch.where(before > 0, after / before.clamp_min(1e-30), torch.ones_like(before))
        suppressed = (1 - kept) * seen.visible.queries_real[..., None]
        ledger.add_queries(seen.layer, "gate", suppressed.sum(1))


@dataclass(frozen=True)
class MatrixEntropy:
    """Entropy of the eigenvalues of the tokens' Gram matrix, per layer: the compression valley (2510.06477). Of the prompt; decoding adds nothing."""

    name: ClassVar[str] = "matrix-entropy"

    def see_hidden(self, level: int, hidden: Tensor, offset: int, ledger: Ledger) -> None:
        """One number per sequence, of its real tokens."""
        if offset:
            return
        real = _real_rows(ledger, hidden, offset)
        ledger.put(level, "matrix-entropy", torch.stack([_matrix_entropy(x[mask]) for x, mask in zip(hidden, real, strict=True)])[:, None])


DEFAULT: tuple[Probe, ...] = (Alpha(), Virtual(), Own(), Tail())
ALL: dict[str, Probe] = {
    p.name: p for p in (Alpha(), Virtual(), Own(), Tail(), Entropy(), Norms(), Massive(), Decomposition(), Contribution(), Gate(), MatrixEntropy())
}


@cache
def _counted_from_0(positions: tuple[int, ...], device: torch.device) -> Tensor:
    """Kept, because sending them to a GPU waits for it."""
    return torch.tensor(positions, device=device) - 1


def last_real(visible: Visible) -> Tensor:
    """(B,): one past the last real query of this call."""
    real = visible.queries_real
    return torch.where(real.any(-1), real.shape[1] - real.flip(-1).long().argmax(-1), 0)


def _real_rows(ledger: Ledger, hidden: Tensor, offset: int) -> Tensor:
    if ledger.real is None:
        return torch.ones(hidden.shape[:2], dtype=torch.bool, device=hidden.device)
    return ledger.real[:, offset : offset + hidden.shape[1]].to(hidden.device)


def _median(size: Tensor, real: Tensor, most: int = 16) -> Tensor:
    """(B, 1): of all magnitudes of at most 16 real tokens, evenly taken: sorting every number costs more than a layer's attention."""
    first, many = real.long().argmax(-1), real.sum(-1).clamp_min(1)
    some = first[:, None] + torch.linspace(0, 1, most, device=size.device) * (many - 1)[:, None]
    sample = size.gather(1, some.round().long()[..., None].expand(-1, -1, size.shape[-1]))
    return sample.flatten(1).median(-1, keepdim=True).values


def _lengths(v: Tensor, gram: Tensor) -> Tensor:
    """|v W_O| of values (B, H, N, Dv), gram = W_O^T W_O of each head -> (B, H, N)."""
    return torch.einsum("bhnv,hvw,bhnw->bhn", v, gram, v).clamp_min(0).sqrt()


def _over_queries(x: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """(B, H, Tq, D) -> (B, H, Tk, D): sums over queries first..last of each key."""
    running = torch.nn.functional.pad(x.cumsum(2), (0, 0, 1, 0))
    shape = (x.shape[0], x.shape[1], -1, x.shape[-1])

    def at(index: Tensor) -> Tensor:
        return running.gather(2, index.long().expand(x.shape[0], -1)[:, None, :, None].expand(shape))

    high = torch.maximum(last + 1, first).clamp_max(x.shape[2])
    return at(high) - at(first.clamp_max(x.shape[2]))


def _matrix_entropy(x: Tensor) -> Tensor:
    x = x.float()
    gram = x @ x.T if x.shape[0] <= x.shape[1] else x.T @ x
    values = torch.linalg.eigvalsh(gram.double()).clamp_min(0)
    shares = values / values.sum().clamp_min(1e-30)
    return -torch.xlogy(shares, shares).sum().float()
