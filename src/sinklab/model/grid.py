"""Who sees whom in one forward: the mask over places, learned sink tokens, documents, padding and what a cache holds."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sinklab.model.masks import Mask, counted, same_document, visible
from sinklab.model.positions import Distances


@dataclass(frozen=True, eq=False)
class Grid:
    """Rows are the new places, columns all of them, learned sink tokens first."""

    mask: Mask
    queries: int
    keys: int
    device: torch.device
    registers: int = 0
    documents: Tensor | None = None  # int64 (B, tokens): which document a token is of
    real: Tensor | None = None  # boolean (B, tokens): not padding

    @property
    def offset(self) -> int:
        """The place of the first query."""
        return self.keys - self.queries

    @property
    def causal(self) -> bool:
        """A whole text, each token seeing itself and all before it: what kernels call causal."""
        return self.unmasked and not self.mask.span and self.queries == self.keys

    @property
    def unmasked(self) -> bool:
        """A whole text under a mask of runs, with nobody left out."""
        return self.mask.unbroken and self.documents is None and self.real is None and (not self.mask.span or not self.registers)

    @property
    def places(self) -> Tensor:
        """int64 (B or 1, keys), from 0; padding is not counted, so that it changes no text: it has the place before it, -1 at first."""
        return torch.arange(self.keys, device=self.device)[None] if self.real is None else counted(self.real, self.registers)

    def columns(self, start: int, stop: int) -> slice:
        """The keys that queries start..stop may see, as far as the mask alone says."""
        if not self.mask.unbroken:
            return slice(0, self.keys)
        narrow = self.mask.span and not self.registers and self.real is None
        first = start + self.offset - self.mask.span + 1 if narrow else 0
        return slice(max(0, first), stop + self.offset)

    def seen(self, start: int, stop: int, keys: slice) -> Tensor:
        """Boolean (B or 1, 1, stop - start, keys)."""
        i = torch.arange(start + self.offset, stop + self.offset, device=self.device)[:, None]
        j = torch.arange(keys.start, keys.stop, device=self.device)[None]
        seen = visible(self.mask, *self._places(start, stop, keys), self.registers)[:, None]
        if self.documents is not None:
            b = torch.arange(len(self.documents), device=self.device)[:, None, None]
            seen = seen & same_document(self.documents, b, i, j, self.registers)[:, None]
        if self.real is None:
            return seen
        real = torch.nn.functional.pad(self.real, (self.registers, 0), value=True)
        return seen & (real[:, None, None, keys] | (i == j))  # padding sees itself: a row of nothing would be NaN

    def added(self, distances: Distances, heads: int, start: int, stop: int, keys: slice) -> Tensor:
        """What distances add to scores: (B or 1, H or 1, stop - start, keys)."""
        i, j = self._places(start, stop, keys)
        return distances.of(torch.arange(heads, device=self.device)[:, None, None], (i - j)[:, None])

    def _places(self, start: int, stop: int, keys: slice) -> tuple[Tensor, Tensor]:
        """Of queries (B or 1, stop - start, 1) and of keys (B or 1, 1, keys)."""
        places = self.places
        return places[:, start + self.offset : stop + self.offset, None], places[:, None, keys]
