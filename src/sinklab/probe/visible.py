"""Which keys each query of a call may see: described, not drawn.

transformers hands a mask function (`mask_function(batch, head, query, key) -> bool`) to whoever makes the mask. We keep the function. Where it is
made of causal, window, chunk, padding and packing parts only, every key is seen by one unbroken run of queries, and two integers per key say all:
`first` and `last`. Anything else is evaluated block by block.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from sinklab.errors import NotMeasurable

T = TypeVar("T")
MaskFunction = Callable[[Any, Any, Any, Any], Tensor]

# Parts whose intersection with "causal" leaves each key one unbroken run of queries. Names of transformers' closures: one that is
# renamed there is evaluated block by block, slower and still right.
_UNBROKEN = {
    "causal_mask_function",
    "sliding_window_overlay.<locals>.inner_mask",
    "chunked_overlay.<locals>.inner_mask",
    "padding_mask_function.<locals>.inner_mask",
    "packed_sequence_mask_function.<locals>.inner_mask",
}
_COMPOSED = {
    "and_masks.<locals>.and_mask",
    "remap_positions_for_packed_sequence.<locals>.inner_mask",
    "add_offsets_to_mask_function.<locals>.inner_mask",
}


@dataclass(frozen=True, eq=False)
class Visible:
    """The mask of one attention call: (batch, queries, keys), queries and keys counted within the call, offsets to places in the text."""

    batch: int
    queries: int
    keys: int
    device: torch.device
    query_offset: int = 0
    key_offset: int = 0
    function: MaskFunction | None = None  # over places in the text, padding included; None: `dense` says it all
    dense: Tensor | None = None  # a mask that somebody else drew: boolean (B or 1, H or 1, Tq, Tk)
    real: Tensor | None = None  # boolean (B, places): tokens that are not padding; None: all are
    unbroken: bool = False
    needs_vmap: bool = False
    home: torch.device | None = None  # where the function's own tensors are, if not on `device`
    room: int | None = None  # keys that the cache hands over, those to come among them; None: as many as there are

    def to(self, device: torch.device | str | int, **_: object) -> "Visible":
        """The same, with answers on another device: accelerate sends what layers of a spread model get, and they share one mask."""
        if isinstance(device, torch.dtype):
            return self.__getattr__("to")
        device = torch.device(device)
        return self if device == self.device else self._elsewhere.setdefault(device, replace(self, device=device, home=self._home))

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What depends on the mask alone is made for the first layer and kept for the others."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def block(self, start: int, stop: int, keys: slice = slice(None)) -> Tensor:
        """Queries start..stop against `keys`: boolean (B or 1, H or 1, queries, keys)."""
        if self.dense is not None:
            return self.dense[:, :, start:stop, keys].to(self.device)
        i = torch.arange(start, stop, device=self._home)[None, None, :, None] + self.query_offset
        j = torch.arange(*keys.indices(self.keys), device=self._home)[None, None, None, :] + self.key_offset
        b = torch.arange(self.batch, device=self._home)[:, None, None, None]
        return self._evaluate(b, i, j).to(self.device)

    @cached_property
    def packed(self) -> bool:
        """Documents of one row are kept apart."""
        return self.function is not None and "packed_sequence_mask_function.<locals>.inner_mask" in _leaves(self.function)

    @classmethod
    def __torch_function__(cls, func: Any, _types: Any, _args: Any = (), _kwargs: Any = None) -> Any:
        """A layer that runs after the watch has ended (a checkpointed one, in the backward pass) takes this for a tensor."""
        raise NotMeasurable(f"`{getattr(func, '__name__', func)}` met the mask of a watch: end the watch after the backward pass, not before.")

    @cached_property
    def causal(self) -> bool:
        """The last query but one does not see the last key."""
        return self.unbroken or self.queries < 2 or not bool(self.block(self.queries - 2, self.queries - 1, slice(self.keys - 1, self.keys)).any())

    def __getitem__(self, where: tuple[slice, ...]) -> "Visible":
        """Some models cut the mask to the queries that they keep: all of them, while they are watched."""
        if any(part not in (slice(None), slice(0, None)) for part in where):
            raise NotMeasurable("The model cuts its attention mask, which is a description while it is watched.")
        return self

    def __getattr__(self, name: str) -> Any:
        """Whoever takes this for a tensor is told so, in one sentence."""
        if hasattr(Tensor, name):
            raise NotMeasurable(f"The model edits its attention mask (`{name}`), which is a description while it is watched.")
        raise AttributeError(name)

    def contiguous(self) -> "Visible":
        """`generate` lays out the masks that it makes ahead for caches of fixed size; a description has no layout."""
        return self

    def padding(self) -> Tensor | None:
        """The 2-dimensional mask up to the last query: what the caller gave, if it left anything out."""
        return None if self.real is None else self.real[:, : self.query_offset + self.queries]

    @cached_property
    def plain(self) -> bool:
        """Causal over a whole text and nothing else: what kernels call `is_causal`. Also a single query that sees every key."""
        if not self.unbroken or self.key_offset:
            return False
        if self.keys - self.queries != self.query_offset or (self.query_offset and self.queries > 1) or not self._all_real:
            return False
        return self._ends_at_the_last or bool((self.last == self.queries - 1).all())

    @cached_property
    def queries_real(self) -> Tensor:
        """Boolean (B, queries): padding asks nothing."""
        if self.real is None:
            return torch.ones(self.batch, self.queries, dtype=torch.bool, device=self.device)
        return self.real[:, self.query_offset : self.query_offset + self.queries].to(self.device)

    @cached_property
    def first(self) -> Tensor:
        """int32 (1, keys): the first query of this call that stands at or after each key."""
        j = torch.arange(self.keys, device=self.device) + self.key_offset - self.query_offset
        return j.clamp_min(0)[None].to(torch.int32)

    @cached_property
    def last(self) -> Tensor:
        """int32 (B, keys): the last query of this call that sees each key; before `first` where none does. Found by bisection."""
        assert self.unbroken
        if self._ends_at_the_last:
            return self._last_without_windows
        first = self.first.to(self._home)
        low = first.expand(self.batch, -1).long() - 1  # sees it, or nobody does
        high = torch.full_like(low, self.queries)  # does not see it
        b = torch.arange(self.batch, device=self._home)[:, None]
        j = torch.arange(self.keys, device=self._home)[None] + self.key_offset
        for _ in range(self.queries.bit_length() + 1):
            middle = (low + high) // 2
            asked = middle.clamp(0, self.queries - 1)
            sees = self._evaluate(b, asked + self.query_offset, j) & (middle >= first) & (middle < self.queries)
            open_ = high - low > 1
            low, high = torch.where(sees & open_, middle, low), torch.where(~sees & open_, middle, high)
        return low.to(self.device, torch.int32)

    @property
    def _last_without_windows(self) -> Tensor:
        """Every real key is seen up to the last query."""
        last = torch.full_like(self.first, self.queries - 1)
        if self.real is None:
            return last
        real = self.real[:, self.key_offset : self.key_offset + self.keys].to(self.device)
        return torch.where(real, last, self.first - 1)

    @cached_property
    def _ends_at_the_last(self) -> bool:
        """Made of causality and padding alone."""
        assert self.function is not None
        return set(_leaves(self.function)) <= {"causal_mask_function", "padding_mask_function.<locals>.inner_mask"}

    @cached_property
    def counts(self) -> Tensor:
        """int32 (B, H or 1, keys): how many real queries of this call may see each key."""
        if not self.unbroken:
            steps = range(0, self.queries, 512)
            parts = [(self.block(a, min(a + 512, self.queries)) & self.queries_real[:, None, a : a + 512, None]).sum(-2) for a in steps]
            return torch.stack(parts).sum(0).to(torch.int32)
        if self.real is None:
            return (self.last - self.first + 1).clamp_min(0)[:, None].expand(self.batch, -1, -1)
        before = torch.nn.functional.pad(self.queries_real.long().cumsum(-1), (1, 0))
        first = self.first.expand(self.batch, -1).long().clamp_max(self.queries)
        return (before.gather(1, (self.last.long() + 1).clamp_min(0)) - before.gather(1, first)).clamp_min(0).to(torch.int32)[:, None]

    @cached_property
    def _kept(self) -> dict[Hashable, Any]:
        return {}

    @cached_property
    def _elsewhere(self) -> dict[torch.device, "Visible"]:
        return {}

    @property
    def _home(self) -> torch.device:
        return self.home or self.device

    @cached_property
    def _all_real(self) -> bool:
        return self.real is None or bool(self.real[:, self.key_offset : self.key_offset + self.keys].all())

    def _evaluate(self, b: Tensor, i: Tensor, j: Tensor) -> Tensor:
        assert self.function is not None
        if not self.needs_vmap:
            return self.function(b, torch.zeros_like(b), i, j).expand(torch.broadcast_shapes(b.shape, i.shape, j.shape))
        return _vmapped(self.function, b, i, j)


def describe(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: MaskFunction | None = None,
    attention_mask: Tensor | None = None,
    device: torch.device | str = "cpu",
    use_vmap: bool = False,
    **_: object,
) -> Visible:
    """What is registered with transformers as mask function: the same arguments, a description instead of a tensor."""
    from transformers.masking_utils import and_masks, causal_mask_function, padding_mask_function, prepare_padding_mask

    function = mask_function or causal_mask_function
    real = prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if real is not None:
        function = and_masks(function, padding_mask_function(real))
    offset = int(q_offset)
    keys = min(kv_length, offset + q_length - kv_offset)  # a static cache has room for tokens to come, which nobody sees
    return Visible(
        batch_size,
        q_length,
        keys,
        torch.device(device),
        offset,
        int(kv_offset),
        function,
        None,
        real,
        is_unbroken(function),
        use_vmap,
        room=kv_length,
    )


def adds_numbers(mask: Tensor) -> bool:
    """Whether a mask says more than who may see whom."""
    return mask.dtype != torch.bool and bool(((mask != 0) & (mask > torch.finfo(mask.dtype).min / 2)).any())


def drawn(mask: Tensor, real: Tensor | None, query_offset: int) -> Visible:
    """From a mask that a model has drawn itself: boolean, or added to the scores; its last key is its last query."""
    seen = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    batch, _, queries, keys = seen.shape
    if real is not None:
        batch = real.shape[0]
        seen = seen.expand(batch, -1, -1, -1)
    return Visible(batch, queries, keys, mask.device, query_offset, max(0, query_offset + queries - keys), dense=seen, real=real)


def is_unbroken(function: MaskFunction) -> bool:
    """Made of known parts only, causal among them."""
    leaves = list(_leaves(function))
    return all(leaf in _UNBROKEN for leaf in leaves) and "causal_mask_function" in leaves


def _leaves(function: MaskFunction) -> list[str]:
    name = getattr(function, "__qualname__", "?")
    if name not in _COMPOSED:
        return [name]
    inside = [cell.cell_contents for cell in function.__closure__ or ()]
    parts = [part for thing in inside for part in (thing if isinstance(thing, tuple) else (thing,)) if callable(part)]
    return [leaf for part in parts for leaf in _leaves(part)]


def _vmapped(function: MaskFunction, b: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """A user's own mask function may not broadcast; transformers maps it over single indices, and so do we."""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    b, i, j = torch.broadcast_tensors(b, i, j)
    flat = [x.reshape(-1) for x in (b, torch.zeros_like(b), i, j)]
    with TransformGetItemToIndex():
        return torch.vmap(function)(*flat).reshape(b.shape)
