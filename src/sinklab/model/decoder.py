"""The decoder: the only file that knows the order of things. What each thing is, the parts of its design say."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from sinklab.config import short
from sinklab.errors import SinklabError
from sinklab.model.attending import Attend, Attending, attend
from sinklab.model.design import Design
from sinklab.model.grid import Grid
from sinklab.model.norms import rms
from sinklab.model.positions import AddsToEmbeddings, AddsToScores, Distances, TurnsHeads, turn
from sinklab.model.slots import AfterAttention, VirtualKey
from sinklab.model.tensors import DOWN, EMBEDDING, GAIN, Linear, Recipe, Several, Tensors, draw, wide


class Cache(Protocol):
    """Keys and values of the places before, as transformers keeps them."""

    def get_seq_length(self) -> int:
        """How many places, learned sink tokens among them."""

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]:
        """Add those of new places; all of them."""


@dataclass(frozen=True, eq=False)
class Places:
    """What every block is told of one forward."""

    grid: Grid
    angles: tuple[Tensor, Tensor] | None  # cosines and sines of turned heads
    distances: Distances | None  # what they add to scores
    cache: Cache | None


Each = Callable[[nn.Module, Tensor, Places], Tensor]  # a block's next hidden state


class Decoder(nn.Module):
    """Tokens (B, T) -> hidden states (B, T, d) -> logits."""

    def __init__(self, design: Design) -> None:
        super().__init__()
        self.design = design
        self.embed = Tensors({"tokens": Recipe((design.vocabulary, design.width), EMBEDDING)})
        self.positions = Tensors(design.positions.recipes(design))
        self.registers = Tensors({"rows": Recipe((design.registers, design.width), EMBEDDING)} if design.registers else {})
        self.blocks = nn.ModuleList(Block(design, layer) for layer in range(design.depth))
        self.norm = Tensors({"gain": Recipe((design.width,), GAIN)} if design.norms.final else {})
        self.head = Linear(design.width, {"head": design.vocabulary})

    def forward(
        self, tokens: Tensor, real: Tensor | None = None, cache: Cache | None = None, embeddings: Tensor | None = None, each: Each | None = None
    ) -> Tensor:
        """The last hidden states of the text, normed. `real` (B, all tokens so far) is False at padding; `each` runs a block in its own way."""
        x = nn.functional.embedding(tokens, self.embed.tokens) if embeddings is None else embeddings
        before = cache.get_seq_length() if cache is not None else 0
        registers = 0 if before else self.design.registers
        if registers:
            x = torch.cat([self.registers.rows.to(x.dtype).expand(len(x), -1, -1), x], 1)
        x, places = self._begin(x, tokens, before, real, cache)
        for block in self.blocks:
            x = block(x, places) if each is None else each(block, x, places)
        x = x[:, registers:]
        return rms(x, self.norm.gain) if self.design.norms.final else x

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., d) -> (..., vocabulary)."""
        return self.head(hidden)

    def _begin(self, x: Tensor, tokens: Tensor, before: int, real: Tensor | None, cache: Cache | None) -> tuple[Tensor, Places]:
        """What depends on where tokens stand, once for all blocks."""
        design, many = self.design, x.shape[1]
        documents = design.documents.number(tokens if real is None or before else tokens.masked_fill(~real, -1))  # padding ends none
        if before and documents is not None:
            raise SinklabError("Documents that are kept apart are told by their tokens, which a cache does not hold.")
        self._check_length(before, many)
        grid = Grid(design.mask, many, before + many, x.device, design.registers, documents, real)
        where, kind = grid.places[:, before:].clamp_min(0), design.positions
        if isinstance(kind, AddsToEmbeddings):
            x = x + kind.rows(self.positions, where, design.width).to(x.dtype)
        angles = kind.angles(where, design.head_size) if isinstance(kind, TurnsHeads) else None
        distances = None
        if isinstance(kind, AddsToScores):
            distances = Distances(kind, kind.numbers(self.positions, design.heads, before + many, x.device))
        return x, Places(grid, angles, distances, cache)

    def _check_length(self, before: int, many: int) -> None:
        limit, given = self.design.positions.limit, self.design.mask.given
        if limit and before + many > limit:
            raise SinklabError(f"{before + many} places are more than the {limit} that {short(self.design.positions)} has.")
        if before and before - self.design.registers < given:
            raise SinklabError(f"{short(self.design.mask)} with a cache needs the {given} tokens of its prefix in the first piece.")


class Block(nn.Module):
    """Attention, then the feed-forward function, each with its norms."""

    def __init__(self, design: Design, layer: int) -> None:
        super().__init__()
        self.apply_norms = design.norms.apply
        self.attention = Attention(design, layer)
        self.ffn = FeedForward(design)
        self.norms = Several({name: Tensors(design.norms.recipes(design.width)) for name in ("attention", "ffn")})

    def forward(self, x: Tensor, places: Places) -> Tensor:
        """The next hidden state."""
        x = self.apply_norms(self.norms["attention"], x, lambda normed: self.attention(normed, places))
        return self.apply_norms(self.norms["ffn"], x, self.ffn)


class Attention(nn.Module):
    """Queries, keys and values of the block's input; one function that attends; what is done to its output."""

    attend: Attend = staticmethod(attend)  # the one hook: a watch puts its own function here

    def __init__(self, design: Design, layer: int) -> None:
        super().__init__()
        self.design, self.layer = design, layer
        wide = design.heads * design.head_size
        self.inputs = Linear(design.width, {"query": wide, "key": wide, "value": wide})
        self.head_norm = Tensors(design.head_norm.recipes(design.head_size))
        self.features = Tensors(design.features.recipes(design.head_size))
        self.slots = Several({type(slot).__name__: Tensors(slot.recipes(design)) for slot in design.slots})
        self.output = Linear(design.joined.width(design.heads, design.head_size), {"output": design.width})

    def forward(self, x: Tensor, places: Places) -> Tensor:
        """(B, T, d) -> (B, T, d)."""
        design = self.design
        q, k, v = self._heads(x, places)
        logits, values = self._virtual_keys(q)
        if places.cache is not None:
            k, v = places.cache.update(k, v, self.layer)
        scale = design.head_size**-0.5
        out = self.attend(Attending(self.layer, q, k, v, scale, design.weights, places.grid, places.distances, logits, values))
        for slot in design.slots:
            if isinstance(slot, AfterAttention):
                out = slot.change(self.slots[type(slot).__name__], x, out)
        return self.output(design.joined.join(out))

    def _heads(self, x: Tensor, places: Places) -> tuple[Tensor, Tensor, Tensor]:
        """(B, H, T, D) each: normed, turned, then made features of. They lie in memory as (B, T, H, D), and so does what kernels make of them."""
        design = self.design
        q, k, v = self.inputs(x).unflatten(-1, (3, design.heads, design.head_size)).unbind(2)
        q, k = design.head_norm.apply(self.head_norm, q, k)
        if places.angles is not None:
            q, k = turn(q, *places.angles), turn(k, *places.angles)
        q, k = (design.features.phi(self.features, part).to(v.dtype) for part in (q, k))
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def _virtual_keys(self, q: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Scores (B or 1, H, T or 1, N) and values (H or 1, N, D) of all of them."""
        design = self.design
        kinds = [(slot, self.slots[type(slot).__name__]) for slot in design.slots if isinstance(slot, VirtualKey)]
        if not kinds:
            return None, None
        logits = [wide(slot.logit(p, q, design.head_size**-0.5)) for slot, p in kinds]
        values = [slot.value(p, design) for slot, p in kinds]
        stacked = torch.stack(torch.broadcast_tensors(*logits), -1)
        found = next((value for value in values if value is not None), None)
        if found is None:
            return stacked, None
        none = torch.zeros_like(found)
        return stacked, torch.stack([(none if value is None else value).expand(design.heads, -1) for value in values], 1)


class FeedForward(nn.Module):
    """The first matrices together, what is between, the last matrix."""

    def __init__(self, design: Design) -> None:
        super().__init__()
        self.between: Callable[[Tensor], Tensor] = design.ffn.between
        self.inputs = Linear(design.width, design.ffn.pieces(design.hidden))
        self.output = Linear(design.hidden, {"down": design.width}, DOWN)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, d) -> (B, T, d)."""
        return self.output(self.between(self.inputs(x)))


def build(design: Design, seed: int = 0, device: torch.device | str = "cpu") -> Decoder:
    """A decoder with its first weights; on the meta device, its shapes alone."""
    with torch.device(device):
        decoder = Decoder(design)
    if torch.device(device).type != "meta":
        draw(decoder, design.initial, design.depth, seed)
    return decoder
