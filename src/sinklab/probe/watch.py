"""`with watch(model, probes) as rows:` any forward of the model is measured while it runs, and the model is left as it was.

Two ways in. Models that dispatch through transformers' AttentionInterface get our function under a private name, registered inside the context only,
together with a mask function that returns a description (registering the first alone would drop causality in silence). Older models run their own
eager code, and every map is read where softmax makes it and dropped before the next layer.
"""

import inspect
import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from transformers.masking_utils import bidirectional_mask_function

from sinklab.config import short
from sinklab.errors import NotMeasurable
from sinklab.model.attending import Attending, attend
from sinklab.model.decoder import Attention
from sinklab.model.grid import Grid
from sinklab.probe import ours
from sinklab.probe.attach import Places, find
from sinklab.probe.call import Call, answer, normaliser
from sinklab.probe.handed import handed
from sinklab.probe.ledger import Ledger
from sinklab.probe.maps import MapReader
from sinklab.probe.probes import DEFAULT, Probe, SeesAttention, SeesHidden, SeesOutput
from sinklab.probe.result import Result
from sinklab.probe.seam import alone, implementation, registered
from sinklab.probe.seen import Seen, SeenCall
from sinklab.probe.settle import first_places, settle, starts, tokens
from sinklab.probe.visible import Visible, adds_numbers, describe, drawn

if TYPE_CHECKING:
    import pyarrow as pa

_numbers = itertools.count()
_MOVES_SEQUENCES = ("reorder_cache", "crop", "batch_repeat_interleave", "batch_select_indices")


class Watch:
    """A model being watched. `ledgers` holds one ledger per batch of sequences that ran, the newest last."""

    def __init__(self, model: nn.Module, probes: Sequence[Probe] = DEFAULT) -> None:
        self.places: Places = find(model)
        self.probes = tuple(probes)
        self.ledgers: list[Ledger] = []
        self._name = f"sinklab-watch-{next(_numbers)}"
        self._stack = ExitStack()
        self._signature = inspect.signature(self.places.base.forward)
        self._paused = False
        self._waiting: dict[nn.Module, tuple[Seen, Tensor]] = {}
        self._ran: set[int] = set()
        self._reported: dict[int, int] = {}  # layer -> length of the text when it reported last
        self._grid: tuple[Grid, Visible] | None = None  # of our own decoder: its newest forward's mask, and ours of it
        self._last: tuple[Callable[[], Tensor | None], ...] = (lambda: None, lambda: None)  # queries and keys of the newest call
        self._sees = [p for p in self.probes if isinstance(p, SeesAttention)]
        self._sees_output = [p for p in self.probes if isinstance(p, SeesOutput)]

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(alone(self.places))
            if self.places.draws:
                stack.enter_context(implementation(self.places, "eager"))
                stack.enter_context(MapReader(self.places.attention, self._map_drawn, lambda: self.ledger))
            elif self.places.registers is not None:
                stack.enter_context(ours.hooked(self.places, self._attend_ours))
            else:
                stack.enter_context(registered(self._name, self._attend))
                stack.enter_context(implementation(self.places, self._name))
            for handle in self._hooks():
                stack.callback(handle.remove)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()
        if error is None:
            self._check_reports()

    @property
    def ledger(self) -> Ledger:
        """Where the newest batch is written."""
        if not self.ledgers:
            raise NotMeasurable("No forward of this model ran while it was watched.")
        return self.ledgers[-1]

    def pop(self) -> Result:
        """The newest batch, which is forgotten here."""
        result = self._result(self.ledger)
        self.ledgers.pop()
        return result

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Forwards in between are nobody's text."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def results(self) -> list[Result]:
        """One per batch of sequences that ran, in their order."""
        return [self._result(ledger) for ledger in self.ledgers if ledger.whole]

    def result(self) -> Result:
        """The newest batch: a prompt and what was decoded after it are one text."""
        return self._result(self.ledger)

    def rows(self) -> "pa.Table":
        """The newest batch as rows."""
        return self.result().rows()

    def _result(self, ledger: Ledger) -> Result:
        if not ledger.whole:
            raise NotMeasurable("The newest forward did not come to its end.")
        ways = tuple("+".join(sorted(ledger.ways.get(layer, ()))) for layer in range(self.places.depth))
        return Result(
            settle(ledger, self.places.depth, len(self.places.layers)),
            tokens(ledger),
            first_places(ledger),
            self.places.name,
            ways=ways,
            weights=tuple(short(ledger.kinds[layer]) if layer in ledger.kinds else "" for layer in range(self.places.depth)),
            proxy=any(kind.proxy for kind in ledger.kinds.values()),
            starts=starts(ledger),
        )

    def _hooks(self) -> Iterator[torch.utils.hooks.RemovableHandle]:
        yield self.places.base.register_forward_pre_hook(self._begin, with_kwargs=True)
        yield self.places.base.register_forward_hook(self._end)
        for attention, number in self.places.attention.items():
            yield attention.register_forward_pre_hook(self._runs(number))
        if any(isinstance(p, SeesHidden) for p in self.probes):
            yield self.places.layers[0].register_forward_pre_hook(self._hidden_enters, with_kwargs=True)
            for level, layer in enumerate(self.places.layers, 1):
                yield layer.register_forward_hook(self._hidden_leaves(level))
        if self._sees_output:
            for attention in self.places.attention:
                for child in attention.modules():
                    weight = getattr(child, "weight", None)
                    if child is not attention and isinstance(weight, Tensor) and weight.dim() == 2:
                        yield child.register_forward_pre_hook(self._given_to(attention))

    @torch.compiler.disable
    def _begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        """A forward starts: of a new batch, or of the next piece of the last one."""
        if self._paused or _recomputing():
            return None
        kwargs = _as_watched(kwargs)
        given = self._signature.bind_partial(*args, **kwargs).arguments
        given |= given.get("kwargs", {})
        tokens, embeds = given.get("input_ids"), given.get("inputs_embeds")
        text = tokens if tokens is not None else embeds
        if text is None:
            raise NotMeasurable("The forward has neither input_ids nor inputs_embeds.")
        cache: Any = given.get("past_key_values")
        offset = int(cache.get_seq_length()) if hasattr(cache, "get_seq_length") else 0
        offset = max(0, offset - (self.places.registers or 0))
        if offset == 0:
            self._check_reports()
            self._ran, self._reported = set(), {}
            self.ledgers.append(Ledger(text.shape[0]))
        self._follow(cache, text.shape[0], offset)
        self._refuse_maps(module, given)
        self.ledger.whole = False
        self.ledger.advance(tokens, text.shape[1], given.get("attention_mask"), given.get("position_ids"))
        if self.places.draws and (cache is not None or given.get("use_cache", getattr(getattr(module, "config", None), "use_cache", False))):
            self.ledger.starts = None
        return args, kwargs

    def _end(self, _module: nn.Module, _args: Any, _output: Any) -> None:
        if self.ledgers and not self._paused:
            self.ledger.whole = True

    def _refuse_maps(self, base: nn.Module, given: dict[str, Any]) -> None:
        wanted = given.get("output_attentions", getattr(getattr(base, "config", None), "output_attentions", False))
        if wanted and not self.places.draws:
            raise NotMeasurable("A model that is watched draws no attention maps and cannot return them; leave `output_attentions` out.")

    def _follow(self, cache: Any, batch: int, offset: int) -> None:
        """Refuse what would mix up sequences, before it does."""
        if offset and (not self.ledgers or self.ledger.length != offset or self.ledger.batch != batch):
            raise NotMeasurable(f"The cache holds {offset} tokens that were not watched; start watching before the prompt runs.")
        if cache is None:
            return
        for name in _MOVES_SEQUENCES:
            if hasattr(cache, name) and name not in vars(cache):
                setattr(cache, name, _refuse_moves)
                self._stack.callback(vars(cache).pop, name, None)

    def _attend(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **rest: Any) -> tuple[Tensor, None]:
        return _outside_graphs(self._attend_eagerly, module, query, key, value, attention_mask, rest)

    def _attend_eagerly(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, rest: dict[str, Any]) -> tuple[Tensor, None]:
        """What the model calls instead of its kernel."""
        dropout = rest.pop("dropout", 0.0)
        layer = self.places.attention.get(module, -1)
        again = all(old() is new for old, new in zip(self._last, (q, k), strict=True))  # one map on two halves of the values is one map
        self._last = (weakref.ref(q), weakref.ref(k))
        call = handed(layer, module, q, k, v, self._visible(module, q, k, mask, rest).to(q.device), rest)
        out, lse = answer(call)
        if dropout:
            out = _with_dropout(call, dropout)
        out = out.transpose(1, 2).contiguous()
        if layer >= 0 and not again and not _recomputing():
            with torch.no_grad():
                self._report(module, SeenCall(call, lse), out)
        return out, None

    def _attend_ours(self, module: Attention, given: Attending) -> Tensor:
        return _outside_graphs(self._attend_ours_eagerly, module, given)

    def _attend_ours_eagerly(self, module: Attention, given: Attending) -> Tensor:
        """What our decoder calls instead of `attend`, which it calls itself: the output is the same."""
        out = attend(given)
        if _recomputing():
            return out
        with torch.no_grad():
            if given.layer == 0 and given.grid.offset == 0:
                self.ledger.starts = ours.document_starts(given.grid)
            if self._grid is None or self._grid[0] is not given.grid:  # one for all layers of a forward
                self._grid = (given.grid, ours.visible(given.grid, len(given.q)))
            visible = self._grid[1]
            call = ours.as_call(given, visible)
            self.ledger.kinds[call.layer] = call.kind
            self._report(module, SeenCall(call, normaliser(call)), out[:, :, -visible.queries :].transpose(1, 2))
        return out

    def _visible(self, module: nn.Module, q: Tensor, k: Tensor, mask: Any, rest: dict[str, Any]) -> Visible:
        """From the description that our mask function made, from a tensor that the model drew, or from nothing."""
        queries, keys = q.shape[2], k.shape[2]
        if module in self.places.attention and (len(q) != self.ledger.batch or queries != self.ledger.newest):
            there = f"{self.ledger.batch} x {self.ledger.newest} tokens"
            raise NotMeasurable(f"{type(module).__name__} attends with {len(q)} x {queries} queries where there are {there}.")
        if isinstance(mask, Visible):
            if mask.room not in (None, keys) or mask.queries != queries:
                raise NotMeasurable(f"{type(module).__name__} attends to {keys} keys that are not the {mask.keys} tokens of the text.")
            if not mask.packed:  # transformers looks for packed documents only where there is neither a mask nor a cache
                self.ledger.starts = None
            return mask
        of_text = module in self.places.attention
        offset = max(0, self.ledger.length - queries) if of_text else 0
        real = self.ledger.real_until(offset + queries) if of_text else None
        if isinstance(mask, Tensor):
            if adds_numbers(mask):
                raise NotMeasurable(f"{type(module).__name__} is given a mask that adds numbers to its scores, which is not understood here.")
            return drawn(mask[..., :keys], real, offset)
        causal = rest.get("is_causal")
        causal = getattr(module, "is_causal", True) if causal is None else causal
        function = None if causal or queries == 1 else bidirectional_mask_function
        return describe(q.shape[0], queries, keys, offset, 0, function, real, q.device)

    def _map_drawn(self, module: nn.Module, seen: Seen) -> None:
        if not _recomputing():
            self._report(module, seen, None)

    def _report(self, module: nn.Module, seen: Seen, out: Tensor | None) -> None:
        if self.places.registers is None and not seen.visible.causal:  # our own masks show the future only to tokens that are given
            raise NotMeasurable(f"{type(module).__name__} is not causal: tokens see later ones.")
        if self._reported.get(seen.layer) == self.ledger.length:
            raise NotMeasurable(f"{type(module).__name__} of layer {seen.layer} attends more than once in one forward.")
        self._reported[seen.layer] = self.ledger.length
        for probe in self._sees:
            probe.see(seen, self.ledger)
        if self._sees_output and out is not None:
            self._waiting[module] = (seen, out.detach().flatten(2))

    def _runs(self, layer: int) -> Callable[[nn.Module, Any], None]:
        def hook(module: nn.Module, _args: Any) -> None:
            self._waiting.pop(module, None)  # of the last forward, if its output projection was not found
            self._ran.add(layer)

        return hook

    def _hidden_enters(self, _layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden = args[0] if args else kwargs["hidden_states"]
        self._see_hidden(0, hidden)

    def _hidden_leaves(self, level: int) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_layer: nn.Module, _args: Any, output: Any) -> None:
            self._see_hidden(level, output[0] if isinstance(output, tuple | list) else output)

        return hook

    @torch.compiler.disable
    def _see_hidden(self, level: int, hidden: Tensor) -> None:
        if self.places.registers:
            hidden = hidden[:, -self.ledger.newest :]
        if _recomputing() or hidden.dim() != 3:  # some models carry several streams side by side: no one state of a token
            return
        with torch.no_grad():
            for probe in self.probes:
                if isinstance(probe, SeesHidden):
                    probe.see_hidden(level, hidden.detach(), self.ledger.length - hidden.shape[1], self.ledger)

    def _given_to(self, attention: nn.Module) -> Callable[[nn.Module, Any], None]:
        """The first projection after the attention call that takes all heads is the output projection."""

        @torch.compiler.disable
        def hook(projection: nn.Module, args: Any) -> None:
            seen, out = self._waiting.get(attention, (None, None))
            if seen is None or out is None or not args or not _takes_heads(attention, projection, args[0], out) or _recomputing():
                return
            del self._waiting[attention]
            given: Tensor | None = args[0].detach()
            matrix = _matrix(projection, args[0].shape[-1])
            if isinstance(attention, Attention):
                given = args[0].detach()[:, -out.shape[1] :] if ours.only_gates(attention) else None
            with torch.no_grad():
                for probe in self._sees_output:
                    probe.see_output(seen, out, given, matrix, self.ledger)

        return hook

    def _check_reports(self) -> None:
        """Every layer that attends has reported, or nothing is trusted."""
        if not self.ledgers or self.ledger.is_empty:
            return
        silent = self._ran - set(self._reported)
        if silent:
            raise NotMeasurable(f"Attention in layers {sorted(silent)} ran and was not seen.")


def _as_watched(kwargs: dict[str, Any]) -> dict[str, Any]:
    """What the model is given instead: masks as the caller gave them, and every token in every layer (some models keep the last ones only)."""
    changed = {"attention_mask": _undescribed, "logits_to_keep": lambda _: 0}
    return kwargs | {name: change(kwargs[name]) for name, change in changed.items() if kwargs.get(name) is not None}


def _undescribed(mask: Any) -> Any:
    """`generate` asks for masks ahead where a cache has a fixed size; the model is given back the 2-dimensional one that they came from."""
    described = [x for x in (mask.values() if isinstance(mask, dict) else [mask]) if isinstance(x, Visible)]
    if not described:
        return mask
    return max(described, key=lambda x: x.keys).padding()


def _outside_graphs(function: Callable[..., Any], *args: Any) -> Any:
    """Our own work is not compiled into somebody's graph: a graph break, and the numbers are computed eagerly."""
    return torch.compiler.disable(function)(*args) if torch.compiler.is_compiling() else function(*args)


def _with_dropout(call: Call, dropout: float) -> Tensor:
    """Training with dropout on weights: the output is torch's own, so that random numbers are drawn as they would be."""
    if not call.by_products_only or call.sink is not None:
        raise NotMeasurable("Dropout on attention weights together with score caps, position biases or learned sinks is not watched; set it to 0.")
    from sinklab.model.attend import repeat_heads

    mask = None if call.visible.plain else call.visible.block(0, call.visible.queries)
    k, v = repeat_heads(call.k, call.heads), repeat_heads(call.v, call.heads)
    causal = mask is None and call.visible.queries > 1
    return torch.nn.functional.scaled_dot_product_attention(call.q, k, v, mask, dropout, causal, scale=call.scale)


def _takes_heads(attention: nn.Module, projection: nn.Module, given: Tensor, out: Tensor) -> bool:
    """Ours is known by its name, and may take heads that were added up; another model's by its width."""
    return projection is attention.output if isinstance(attention, Attention) else given.shape[-1] == out.shape[-1]


def _matrix(projection: nn.Module, width: int) -> Tensor | None:
    """The output projection as (d, H * Dv), or (d, Dv) where heads are added up; None where it is quantised and cannot be read."""
    weight: Any = projection.weight
    if isinstance(weight, Tensor) and weight.is_meta:  # it lies elsewhere between calls: accelerate's hook knows where
        weight = (getattr(getattr(projection, "_hf_hook", None), "weights_map", None) or {}).get("weight")
    if not isinstance(weight, Tensor) or not weight.is_floating_point() or weight.dim() != 2:
        return None
    return weight if weight.shape[1] == width and isinstance(projection, nn.Linear) else weight.T if weight.shape[0] == width else None


def _recomputing() -> bool:
    """Inside a backward pass: gradient checkpointing runs a layer again, which has reported already."""
    return torch._C._current_graph_task_id() != -1


def _refuse_moves(*_: Any, **__: Any) -> None:
    raise NotMeasurable("Beams and assisted decoding move or drop sequences in the cache while they run; measure the finished text instead.")
