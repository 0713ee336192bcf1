"""What sets the first token apart, as a few numbers: norms, values, contributions, depth. Only of what was measured; the rest is None."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from sinklab.probe.definitions import LEAST_QUERIES, mean
from sinklab.probe.result import Massive, Result, SinkToken, Texts

Fact = dict[str, Any]

SMALL = 0.5  # a value shorter than half of the others' does little
OFTEN = 5.0  # percent of the sequences in which something is found before it is listed
MANY = 8  # entries of a list that people read


def sink_cells(texts: Texts, position: int, epsilon: float) -> np.ndarray:
    """Boolean (N, L, H): alpha at a position is above epsilon, and enough queries can see it."""
    if not 1 <= position <= texts.alpha.shape[-1]:
        return np.zeros(texts.alpha.shape[:-1], bool)
    with np.errstate(invalid="ignore"):
        return (texts.alpha[..., position - 1] > epsilon) & (texts.queries[..., position - 1] >= LEAST_QUERIES)


def sinks_by_layer(texts: Texts, position: int, epsilon: float) -> np.ndarray:
    """(L,): percent of (sequence, head) that sink at a position; NaN where a layer does not attend or too few queries see it."""
    if not 1 <= position <= texts.alpha.shape[-1]:
        return np.full(texts.alpha.shape[1], np.nan)
    known = ~np.isnan(texts.alpha[..., position - 1]) & (np.nan_to_num(texts.queries[..., position - 1]) >= LEAST_QUERIES)
    return 100 * mean(np.where(known, sink_cells(texts, position, epsilon), np.nan), (0, 2))


def first_and_others(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(N, L, H, T) -> the first token's and the mean of the others', each (N, L, H)."""
    return x[..., 0], mean(x[..., 1:], -1)


def alpha_by_layer(texts: Texts) -> np.ndarray:
    """(L, T): alpha over positions, averaged over sequences and heads; NaN where nothing is."""
    total = np.zeros((texts.alpha.shape[1], texts.alpha.shape[3]))
    many = np.zeros_like(total)
    for one in texts.alpha:  # one sequence at a time: all of them at once would be in memory three times
        total += np.nansum(one, 1)
        many += (~np.isnan(one)).sum(1)
    return total / np.where(many > 0, many, np.nan)


def hidden_norms(texts: Texts) -> np.ndarray | None:
    """(3, L + 1): the first token's norm, the others' mean, and their ratio averaged over sequences (figures 7 and 8 of 2410.10781)."""
    if "norm.hidden" not in texts.numbers or texts.numbers["norm.hidden"].shape[-1] < 2:
        return None
    first, others = first_and_others(texts.number("norm.hidden"))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(others > 0, first / others, np.nan)
    return np.stack([mean(x, (0, 2)) for x in (first, others, ratio)])


def norm_ratio(texts: Texts) -> Fact | None:
    """The layer whose first hidden state stands out most."""
    norms = hidden_norms(texts)
    if norms is None or np.isnan(norms[2]).all():
        return None
    layer = int(np.nanargmax(norms[2]))
    return {"ratio": norms[2, layer], "layer": layer, "first": norms[0, layer], "others": norms[1, layer]}


def value_norm_ratio(texts: Texts, cells: np.ndarray) -> Fact | None:
    """|v_1 W_O| over the other tokens' in the heads that sink on the first token; |v_1| where only values were measured."""
    of = next((name for name in ("norm.output", "norm.value") if name in texts.numbers), None)
    if of is None or not cells.any() or texts.numbers[of].shape[-1] < 2:
        return None
    first, others = first_and_others(texts.number(of))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = _per_head(np.where(others > 0, first / others, np.nan), cells.shape[2], texts)[cells]
    if np.isnan(ratios).all():
        return None
    small = mean(np.where(np.isnan(ratios), np.nan, ratios < SMALL))
    return {"ratio": np.nanmedian(ratios), "small_percent": 100 * small, "of": of}


def contribution(texts: Texts, cells: np.ndarray) -> Fact | None:
    """In the heads that sink on the first token: its share of the attention, and of what is written out."""
    if "norm.output" not in texts.numbers or not cells.any():
        return None
    lengths, shares = texts.number("norm.output"), []
    for n in range(len(cells)):  # one sequence at a time: these arrays are the largest that there are
        mass = texts.alpha[n] * texts.queries[n]
        parts = np.stack([mass, mass * lengths[n]])
        with np.errstate(divide="ignore", invalid="ignore"):
            shares.append((parts[..., 0] / np.nansum(parts, -1))[:, cells[n]])
    attention, output = mean(np.concatenate(shares, 1), 1)
    return {"attention_percent": 100 * attention, "output_percent": 100 * output}


def virtual_percent(result: Result) -> float | None:
    """Mean mass on a learned sink, over all heads that attend."""
    return 100 * float(mean(result.number("virtual"))) if result.has_virtual else None


def gate_percent(result: Result) -> float | None:
    """How much an output gate takes away on average; None where nothing gates."""
    if "gate" not in result.numbers:
        return None
    gate = result.number("gate")
    return 100 * float(mean(gate)) if (np.abs(np.nan_to_num(gate)) > 1e-4).any() else None


def massive_activations(found: list[Massive]) -> list[Fact]:
    """One entry per place and dimension, at the layer where it is largest, with the layers between which it is there."""
    groups: dict[tuple[int, int], list[Massive]] = {}
    for one in found:
        if one.percent >= OFTEN:
            groups.setdefault((one.position, one.dimension), []).append(one)
    facts = []
    for group in groups.values():
        layers = [one.layer for one in group]
        largest = max(group, key=lambda one: abs(one.value))
        facts.append(largest._asdict() | {"first_layer": min(layers), "last_layer": max(layers)})
    return sorted(facts, key=lambda fact: (-fact["percent"], -abs(fact["value"])))[: 2 * MANY]


def sink_positions(tokens: list[SinkToken], sequences: int) -> list[Fact]:
    """The positions at which sinks are found most often; the depth is the median over sequences."""
    return _grouped(((token.position, token) for token in tokens), "position", sequences)


def sink_texts(tokens: list[SinkToken], sequences: int, besides: tuple[int, ...]) -> list[Fact]:
    """The tokens on which sinks are found most often, besides the positions that were asked for."""
    return _grouped(((token.token, token) for token in tokens if token.position not in besides), "token", sequences)


def layer_ranges(layers: Iterable[int]) -> str:
    """[2, 3, 4, 9] -> `2–4, 9`."""
    spans: list[list[int]] = []
    for layer in sorted(set(layers)):
        if spans and layer == spans[-1][1] + 1:
            spans[-1][1] = layer
        else:
            spans.append([layer, layer])
    return ", ".join(f"{a}–{b}" if b > a else f"{a}" for a, b in spans)


def _grouped(pairs: Iterable[tuple[int, SinkToken]], key: str, sequences: int) -> list[Fact]:
    groups: dict[int, list[SinkToken]] = {}
    for value, token in pairs:
        groups.setdefault(value, []).append(token)
    facts = []
    for value, group in groups.items():
        percent = 100 * len({token.sequence for token in group}) / sequences
        if percent >= OFTEN:
            facts.append(_described(key, value, group, percent))
    return sorted(facts, key=lambda fact: -fact["percent"])[:MANY]


def _described(key: str, value: int, group: list[SinkToken], percent: float) -> Fact:
    texts = Counter(token.text for token in group if token.text is not None)
    return {
        key: value,
        "percent": percent,
        "heads_percent": np.mean([token.percent for token in group]),
        "first_layer": int(np.median([token.first_layer for token in group])),
        "last_layer": int(np.median([token.last_layer for token in group])),
        "examples": [text for text, _ in texts.most_common(3)],
    }


def _per_head(x: np.ndarray, heads: int, texts: Texts) -> np.ndarray:
    """Numbers of key-value heads (N, L, K), repeated for the query heads that share them; layers may differ in their heads."""
    if x.shape[2] == heads:
        return x
    repeated = np.full((*x.shape[:2], heads), np.nan)
    for layer in range(x.shape[1]):
        have = int((~np.isnan(x[:, layer])).any(0).sum())
        want = int((~np.isnan(texts.alpha[:, layer, :, 0])).any(0).sum())
        if have and want and want % have == 0:
            repeated[:, layer, :want] = np.repeat(x[:, layer, :have], want // have, axis=1)
    return repeated
