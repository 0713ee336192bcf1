"""The self-test: does measuring this model, on this machine, give true numbers? Each line is a check with its figure."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sinklab.config import short
from sinklab.errors import one_line
from sinklab.probe.attach import Places, unwrap
from sinklab.probe.ledger import Ledger
from sinklab.probe.maps import MapReader
from sinklab.probe.measure import evaluating, measure, model_device
from sinklab.probe.probes import DEFAULT
from sinklab.probe.seam import implementation, registered_names
from sinklab.probe.seen import Seen
from sinklab.probe.watch import Watch

TOKENS = 48
DECODED = 6
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 3e-2}


@dataclass(frozen=True)
class Line:
    """One check: what was compared, how far apart it was, how far it may be. A check that cannot be made on this model says why."""

    name: str
    passed: bool | None
    figure: float | None
    limit: float | None
    note: str = ""


def doctor(model: nn.Module) -> list[Line]:
    """Run every check; a model that cannot be measured raises `NotMeasurable`."""
    with evaluating(model):
        tokens = _tokens(model)
        return [_line(model, tokens, name, check) for name, check in CHECKS.items()]


def _line(model: nn.Module, tokens: Tensor, name: str, check: "Check") -> Line:
    limit = _TOLERANCE.get(next(model.parameters()).dtype, 3e-2)
    try:
        figure = check(model, tokens)
    except _Skipped as reason:
        return Line(name, None, None, None, str(reason))
    return Line(name, figure <= limit, figure, limit)


class _Skipped(Exception):  # noqa: N818 - what happened, not an error
    """The check makes no sense for this model, and why."""


def _tokens(model: nn.Module) -> Tensor:
    """Two texts of random tokens, longer than a window that is short enough to be tried."""
    config = unwrap(model).config.get_text_config(decoder=True)
    window = getattr(config, "sliding_window", None) or 0
    most = getattr(config, "max_position_embeddings", None) or 2048
    length = min(most - DECODED, window + TOKENS if window <= 512 else TOKENS)
    generator = torch.Generator().manual_seed(0)
    rows = unwrap(model).get_input_embeddings().weight.shape[0]
    return torch.randint(min(10, rows // 4), max(2, rows * 3 // 4), (2, length), generator=generator).to(model_device(model))


def _same_logits(model: nn.Module, tokens: Tensor) -> float:
    plain = model(input_ids=tokens, use_cache=False).logits.float()
    with Watch(model, DEFAULT):
        watched = model(input_ids=tokens, use_cache=False).logits.float()
    return float((watched - plain).abs().max() / plain.abs().max())


def _mass_is_one(model: nn.Module, tokens: Tensor) -> float:
    with Watch(model, DEFAULT) as watch:
        model(input_ids=tokens, use_cache=False)
    ledger = watch.ledger
    if free := [kind for kind in ledger.kinds.values() if kind.proxy or kind.shortfall]:
        raise _Skipped(f"rows of {short(free[0])} need not sum to one")
    layers = {layer for layer, name in ledger.sums if name == "sum"}
    worst = 0.0
    for layer in layers:
        total = ledger.sums[layer, "sum"].sum(-1) + ledger.queries[layer, "virtual"]
        worst = max(worst, float((total / ledger.length - 1).abs().max()))
    return worst


def _padding_changes_nothing(model: nn.Module, tokens: Tensor) -> float:
    kept = tokens[:, : tokens.shape[1] // 2]
    padding = tokens.shape[1] - kept.shape[1]
    padded = torch.cat([tokens[:, :padding] * 0, kept], 1)
    mask = torch.ones_like(padded)
    mask[:, :padding] = 0
    a, b = measure(model, kept).alpha, measure(model, padded, mask).alpha
    return _apart(a, b[..., : a.shape[-1]])


def _apart(a: Tensor, b: Tensor) -> float:
    """The largest difference; infinite where only one of them has a number."""
    if bool((a.isnan() != b.isnan()).any()):
        return float("inf")
    return float((a - b).nan_to_num().abs().max())


def _decoding_adds_up(model: nn.Module, tokens: Tensor) -> float:
    if not unwrap(model).can_generate():
        raise _Skipped("the model cannot generate")
    with Watch(model, DEFAULT) as watch:
        text = _decoded(model, tokens)
    decoded = watch.result().alpha
    whole = measure(model, text[:, : decoded.shape[-1]]).alpha
    return _apart(decoded, whole)


def _decoded(model: nn.Module, tokens: Tensor) -> Tensor:
    generate: Any = model.generate
    try:
        return generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=DECODED, min_new_tokens=DECODED, do_sample=False, num_beams=1)
    except (AttributeError, TypeError, ValueError) as error:  # some types cannot: transformers' own code fails
        raise _Skipped(f"its generate fails: {one_line(error)}") from error


def _equals_eager(model: nn.Module, tokens: Tensor) -> float:
    """Our weights beside the maps that the model's own eager code draws, read where its softmax makes them."""
    ours, theirs = _Keep(), _Keep()
    with Watch(model, (ours,)) as watch:
        watch.places.base(input_ids=tokens, use_cache=False)
    if watch.places.draws:
        return _equals_returned(watch.places, tokens, ours)
    _draw(watch.places, tokens, theirs)
    if not theirs.weights:
        raise _Skipped("the model draws no map of its own")
    return max(_difference(ours, theirs, layer) for layer in theirs.weights)


def _equals_returned(places: Places, tokens: Tensor, ours: "_Keep") -> float:
    """What was read where a model draws its maps, beside what it returns as `attentions`."""
    with implementation(places, "eager"):
        returned = getattr(places.base(input_ids=tokens, use_cache=False, output_attentions=True), "attentions", None) or ()
    maps = [a for a in returned if isinstance(a, Tensor) and a.shape[-2:] == (tokens.shape[1], tokens.shape[1])]
    if len(maps) != len(ours.weights):
        raise _Skipped("the model draws its own maps, which are read, and returns none")
    return max(
        float((ours.weights[layer] - drawn).sum(-2).abs().max() / tokens.shape[1]) for layer, drawn in zip(sorted(ours.weights), maps, strict=True)
    )


def _difference(ours: "_Keep", theirs: "_Keep", layer: int) -> float:
    weights, virtual = ours.weights[layer], ours.virtual[layer]
    drawn = theirs.weights[layer]
    if virtual is not None and theirs.virtual[layer] is None:  # a sink that the model applies to the output: not in its map, but in ours
        drawn = drawn * (1 - virtual[..., None])
    alpha = weights.sum(-2) - drawn.sum(-2)
    columns = ours.columns[layer] - weights.sum(-2)
    return float(torch.maximum(alpha.abs(), columns.abs()).max() / weights.shape[-2])


def _draw(places: Places, tokens: Tensor, keep: "_Keep") -> None:
    ledger = Ledger(len(tokens))
    ledger.advance(tokens, tokens.shape[1], None, None)
    with ExitStack() as stack:
        stack.enter_context(implementation(places, "eager"))
        stack.enter_context(MapReader(places.attention, lambda _, seen: keep.see(seen, ledger), lambda: ledger))
        places.base(input_ids=tokens, use_cache=False)


@dataclass
class _Keep:
    """A probe that keeps whole maps, of a short text."""

    weights: dict[int, Tensor] = field(default_factory=dict)
    virtual: dict[int, Tensor | None] = field(default_factory=dict)
    columns: dict[int, Tensor] = field(default_factory=dict)

    name = "maps"

    def see(self, seen: Seen, _ledger: Ledger) -> None:
        """Every weight of the call."""
        everything = slice(0, seen.visible.queries), slice(0, seen.visible.keys)
        self.weights[seen.layer] = seen.block(*everything)
        self.virtual[seen.layer] = seen.virtual()
        self.columns[seen.layer] = seen.columns()[0]


def _nothing_stays(model: nn.Module, tokens: Tensor) -> float:
    """Hooks, registered names and settings that are different afterwards; also after an exception."""
    before = list(_traces(model))
    with suppress(_Skipped), Watch(model, DEFAULT):
        model(input_ids=tokens, use_cache=False)
        raise _Skipped
    return float(sum(a != b for a, b in zip(before, _traces(model), strict=True)))


def _traces(model: nn.Module) -> Iterator[object]:
    inner = unwrap(model)
    yield registered_names()
    for module in inner.modules():
        inside = vars(module)
        yield (len(inside["_forward_hooks"]), len(inside["_forward_pre_hooks"]), tuple(inside))
        yield getattr(getattr(module, "config", None), "_attn_implementation", None)


Check = Callable[[nn.Module, Tensor], float]
CHECKS: dict[str, Check] = {
    "logits with and without the probe are equal": _same_logits,
    "mass of every head sums to one": _mass_is_one,
    "padded equals unpadded": _padding_changes_nothing,
    "prompt and decoding equal one forward": _decoding_adds_up,
    "alpha equals the eager map": _equals_eager,
    "the model is left as it was": _nothing_stays,
}
