"""Where probes write while a model runs: numbers by layer and name.

They grow with the text, so that a prompt and its decoding add up to one forward.
"""

from collections import defaultdict

import torch
import torch.nn.functional as F
from torch import Tensor

from sinklab.model.weights import Weights

Key = tuple[int, str]


class Ledger:
    """The numbers of one batch of sequences. Places are columns of the (padded) text; sequences are shifted to their first real token at the end."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.whole = True  # the newest forward came to its end
        self.length = 0  # places of the text so far
        self.newest = 0  # places that the newest forward added
        self.real: Tensor | None = None  # boolean (B, length); None: all of them
        self.input_ids: Tensor | None = None
        self.starts: Tensor | None = None  # boolean (B, length): where packed documents begin
        self.sums: dict[Key, Tensor] = {}  # (B, H, places): added up over queries
        self.queries: dict[Key, Tensor] = {}  # (B, H): added up over queries
        self.places: dict[Key, list[Tensor]] = defaultdict(list)  # (B, H, run of places), one after another
        self.facts: dict[Key, Tensor] = {}  # (B, ...): the newest
        self.ways: dict[int, set[str]] = defaultdict(set)
        self.kinds: dict[int, Weights] = {}  # of weight, by layer
        self.windows: dict[Key, Tensor] = {}  # (B, H, queries kept, n)

    def advance(self, tokens: Tensor | None, many: int, mask: Tensor | None, position_ids: Tensor | None) -> None:
        """The next `many` tokens of every sequence come."""
        if self.length == 0 and mask is None and position_ids is not None:
            self.starts = _document_starts(position_ids.expand(self.batch, -1))
        self.length += many
        self.newest = many
        if tokens is not None:
            self.input_ids = tokens if self.input_ids is None else torch.cat([self.input_ids, tokens], -1)
        if mask is not None and mask.dim() == 2:
            real = mask[:, : self.length].bool()
            self.real = None if bool(real.all()) else real

    @property
    def asked(self) -> Tensor:
        """(B,): how many real tokens, and so queries, every sequence has."""
        return torch.full((self.batch,), self.length) if self.real is None else self.real.sum(-1)

    def first_real(self, device: torch.device | str) -> Tensor:
        """(B,): the place of each sequence's first real token."""
        if self.real is None:
            return torch.zeros(self.batch, dtype=torch.long, device=device)
        return self.real.to(device).long().argmax(-1)

    def real_until(self, length: int) -> Tensor | None:
        """Boolean (B, length): which of the first places are not padding; None: all of them."""
        return None if self.real is None else self.real[:, :length]

    def add_columns(self, layer: int, name: str, values: Tensor, offset: int) -> None:
        """Sums over the queries of one call, for places offset, offset + 1, ..."""
        self.sums[layer, name] = _added(self.sums.get((layer, name)), values, offset)

    def add_queries(self, layer: int, name: str, values: Tensor) -> None:
        """Sums over the queries of one call."""
        before = self.queries.get((layer, name))
        self.queries[layer, name] = values if before is None else before + values

    def append(self, layer: int, name: str, values: Tensor) -> None:
        """Values of the newest run of places."""
        self.places[layer, name].append(values)

    def keep_last(self, layer: int, name: str, values: Tensor, many: int) -> None:
        """The newest `many` along dimension 2, whatever call they came from."""
        before = self.windows.get((layer, name))
        self.windows[layer, name] = (values if before is None else torch.cat([before, values], 2))[:, :, -many:]

    def put(self, layer: int, name: str, values: Tensor) -> None:
        """A fact, in place of what was known before."""
        self.facts[layer, name] = values

    @property
    def is_empty(self) -> bool:
        """No probe has written anything."""
        return not (self.sums or self.queries or self.places or self.facts)


def _document_starts(position_ids: Tensor) -> Tensor | None:
    """As transformers finds packed documents: a position that does not follow on begins one."""
    jumps = torch.diff(position_ids, prepend=position_ids[:, :1] - 1, dim=-1) != 1
    jumps[:, 0] = True
    return jumps if bool(jumps[:, 1:].any()) else None


def _added(before: Tensor | None, values: Tensor, offset: int) -> Tensor:
    if offset:
        values = F.pad(values, (offset, 0))
    if before is None:
        return values
    if before.shape == values.shape:
        return before + values
    width = max(before.shape[-1], values.shape[-1])
    return F.pad(before, (0, width - before.shape[-1])) + F.pad(values, (0, width - values.shape[-1]))
