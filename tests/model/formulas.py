"""The decoder once more, from its formulas alone: float64, one text, one head, one query at a time, and nothing of the rooms' code.

A formula is found by the name of the member's class. Keys that a query does not see are not there, rather than weighed with zero; virtual keys are
columns before them; learned sink tokens are rows before the text.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

State = Mapping[str, Tensor]


def logits(design: Any, state: State, tokens: Tensor) -> Tensor:
    """(B, T) -> (B, T, vocabulary)."""
    return torch.stack([_text(design, state, text) for text in tokens.tolist()])


def named(room: Mapping[str, Any], part: Any) -> Any:
    """The formula of a member."""
    kind = type(part).__name__
    assert kind in room, f"tests/model/formulas.py has no formula of {kind}: write it down there, from the paper rather than from the code."
    return room[kind]


# Rows of weights: the scores of the keys that one query sees -> their weights.


def softmax(w: Any, s: Tensor) -> Tensor:
    e = torch.exp(s - s.max())
    return w.alpha * e / (e**w.p).sum() ** (1 / w.p)


def softpick(w: Any, s: Tensor) -> Tensor:
    e = torch.exp(s) - 1
    return torch.clamp(e, min=0) / (e.abs().sum() + 1e-8 * torch.exp(torch.clamp(s.detach().max(), min=0)))


def elu_plus_one(x: Tensor) -> Tensor:
    return torch.stack([x[i] + 1 if x[i] > 0 else torch.exp(x[i]) for i in range(len(x))])


NORMALISERS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "Unnormalised": lambda z, n: n.new_ones(()),
    "RowSum": lambda z, n: n.sum() + 1e-8,
    "PowerSum": lambda z, n: (n**z.p).sum() ** (1 / z.p),
    "AtLeastOne": lambda z, n: torch.clamp(n.sum().abs(), min=1),
}


def over(w: Any, n: Tensor) -> Tensor:
    return n / named(NORMALISERS, w.normaliser)(w.normaliser, n)


WEIGHTS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "Softmax": softmax,
    "Exponential": lambda w, s: torch.exp(s),
    "Sigmoid": lambda w, s: over(w, 1 / (1 + torch.exp(-s))),
    "EluPlusOne": lambda w, s: over(w, elu_plus_one(s)),
    "Linear": over,
    "Softpick": softpick,
}

# Features, of one head's query or key.

FEATURES: dict[str, Callable[[State, str, Tensor], Tensor]] = {
    "Identity": lambda w, at, x: x,
    "Elu": lambda w, at, x: elu_plus_one(x),
    "Mlp": lambda w, at, x: w[f"{at}.second"] @ torch.clamp(w[f"{at}.first"] @ x, min=0),
}

# Slots: a virtual key is (its score with q, its value) in a head; the others change what that head puts out for x.

DIRECTIONS: dict[str, Callable[[int], list[float]]] = {
    "FirstAxis": lambda size: [1.0] + [0.0] * (size - 1),
    "Even": lambda size: [1 / math.sqrt(size)] * size,
}


def key_bias(slot: Any, w: State, at: str, head: int, q: Tensor) -> tuple[Tensor, Tensor]:
    return _of_head(w[f"{at}.key"], head) @ q / math.sqrt(len(q)), q.new_zeros(len(q))


def key_value_bias(slot: Any, w: State, at: str, head: int, q: Tensor) -> tuple[Tensor, Tensor]:
    return key_bias(slot, w, at, head, q)[0], _of_head(w[f"{at}.value"], head)


def fixed_value(slot: Any, w: State, at: str, head: int, q: Tensor) -> tuple[Tensor, Tensor]:
    value = slot.times * torch.tensor(named(DIRECTIONS, slot.direction)(len(q)), dtype=torch.float64)
    return key_bias(slot, w, at, head, q)[0], value


def narrow_key_bias(slot: Any, w: State, at: str, head: int, q: Tensor) -> tuple[Tensor, Tensor]:
    key = torch.cat([w[f"{at}.key"][head], q.new_zeros(len(q) - slot.dimensions)])
    return key @ q / math.sqrt(len(q)), q.new_zeros(len(q))


VIRTUAL_KEYS: dict[str, Callable[[Any, State, str, int, Tensor], tuple[Tensor, Tensor]]] = {
    "KeyBias": key_bias,
    "KeyValueBias": key_value_bias,
    "FixedValue": fixed_value,
    "NarrowKeyBias": narrow_key_bias,
    "SinkLogit": lambda slot, w, at, head, q: (w[f"{at}.score"][head], q.new_zeros(len(q))),
    "OffByOne": lambda slot, w, at, head, q: (q.new_zeros(()), q.new_zeros(len(q))),
}


def element_gate(slot: Any, w: State, at: str, head: int, x: Tensor, out: Tensor) -> Tensor:
    mine = w[f"{at}.gate"][head * len(out) : (head + 1) * len(out)]
    return out / (1 + torch.exp(-mine @ x))


AFTER_ATTENTION: dict[str, Callable[[Any, State, str, int, Tensor, Tensor], Tensor]] = {
    "ValueBias": lambda slot, w, at, head, x, out: out + _of_head(w[f"{at}.value"], head),
    "HeadGate": lambda slot, w, at, head, x, out: out / (1 + torch.exp(-w[f"{at}.gate"][head] @ x)),
    "ElementGate": element_gate,
}

# Positions: what is added to the embedding at a place, what turns a head there, what is added to the score of a key at a distance.


def sinusoidal(w: State, place: int, width: int) -> Tensor:
    waves = [place * 10000 ** (-2 * i / width) for i in range((width + 1) // 2)]
    return torch.tensor(([math.sin(a) for a in waves] + [math.cos(a) for a in waves])[:width], dtype=torch.float64)


def rotation(base: float, place: int, size: int) -> Tensor:
    half, turned = size // 2, torch.zeros(size, size, dtype=torch.float64)
    for i in range(half):
        angle = place * base ** (-2 * i / size)
        turned[i, i] = turned[i + half, i + half] = math.cos(angle)
        turned[i, i + half], turned[i + half, i] = -math.sin(angle), math.sin(angle)
    return turned


def bucket(distance: int) -> int:
    return distance if distance < 16 else min(31, 16 + math.floor(math.log(distance / 16) / math.log(8) * 16))


ADDED_TO_EMBEDDINGS: dict[str, Callable[[State, int, int], Tensor]] = {
    "Sinusoidal": sinusoidal,
    "Learned": lambda w, place, width: w["positions.table"][place],
}
TURNED: dict[str, Callable[[Any, int, int], Tensor]] = {"Rope": lambda kind, place, size: rotation(kind.base, place, size)}
ADDED_TO_SCORES: dict[str, Callable[[State, int, int, int], Tensor | float]] = {
    "Alibi": lambda w, head, heads, distance: -(2.0 ** (-8 * (head + 1) / heads)) * distance,
    "BucketIndex": lambda w, head, heads, distance: float(bucket(distance)),
    "T5Relative": lambda w, head, heads, distance: w["positions.bias"][head, bucket(distance)],
}
POSITIONS = {"NoPositions", *ADDED_TO_EMBEDDINGS, *TURNED, *ADDED_TO_SCORES}

# Masks: whether the token at place i of a text sees the one at place j. Documents: which one each token of a text is of.

MASKS: dict[str, Callable[[Any, int, int], bool]] = {
    "Causal": lambda mask, i, j: j <= i,
    "Window": lambda mask, i, j: 0 <= i - j < mask.size,
    "Prefix": lambda mask, i, j: j <= i or j < mask.length,
}


def numbered(documents: Any, text: list[int]) -> list[int]:
    found, number = [], 0
    for token in text:
        found.append(number)
        number += token == documents.separator
    return found


DOCUMENTS: dict[str, Callable[[Any, list[int]], list[int]]] = {"Mixed": lambda documents, text: [0] * len(text), "Apart": numbered}

# Norms, of one token's hidden state or one head's query or key; f is what stands between.


def normed(x: Tensor, gain: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).mean() + 1e-5) * gain


Rows = list[Tensor]
PLACEMENTS: dict[str, Callable[[State, str, Rows, Callable[[Rows], Rows]], Rows]] = {
    "PreNorm": lambda w, at, x, f: _sum(x, f([normed(t, w[f"{at}.before"]) for t in x])),
    "PostNorm": lambda w, at, x, f: [normed(t, w[f"{at}.after"]) for t in _sum(x, f(x))],
    "Sandwich": lambda w, at, x, f: _sum(x, [normed(t, w[f"{at}.after"]) for t in f([normed(t, w[f"{at}.before"]) for t in x])]),
}
FINAL = {"PreNorm", "Sandwich"}  # with a norm after the last block
HEAD_NORMS: dict[str, Callable[[State, str, Tensor], Tensor]] = {
    "NoHeadNorm": lambda w, at, x: x,
    "QKNorm": lambda w, at, x: normed(x, w[at]),
}

# Feed-forward functions, of one token; w1 is all that it is multiplied with first.

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "ReLU": lambda x: torch.clamp(x, min=0),
    "GELU": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,
    "Swish": lambda x: x / (1 + torch.exp(-x)),
}
FEED_FORWARD: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor, Tensor, int], Tensor]] = {
    "Plain": lambda act, w1, x, hidden: act(w1 @ x),
    "Gated": lambda act, w1, x, hidden: act(w1[:hidden] @ x) * (w1[hidden:] @ x),
}

# Heads: what each puts out, and W_O -> the width of a hidden state.

JOINED: dict[str, Callable[[Rows, Tensor], Tensor]] = {
    "Concatenated": lambda outs, w: w @ torch.cat(outs),
    "Added": lambda outs, w: w @ torch.stack(outs).sum(0),
}


def _text(design: Any, w: State, text: list[int]) -> Tensor:
    before = design.registers
    x = [w["registers.rows"][r] for r in range(before)] + [w["embed.tokens"][token] for token in text]
    assert type(design.positions).__name__ in POSITIONS, f"tests/model/formulas.py has no formula of {type(design.positions).__name__}."
    if add := ADDED_TO_EMBEDDINGS.get(type(design.positions).__name__):
        x = [row + add(w, place, design.width) for place, row in enumerate(x)]
    sees = _visible(design, text)
    for layer in range(design.depth):
        place = named(PLACEMENTS, design.norms)
        x = place(w, f"blocks.{layer}.norms.attention", x, lambda rows, at=f"blocks.{layer}.attention": _attention(design, w, at, rows, sees))
        x = place(w, f"blocks.{layer}.norms.ffn", x, lambda rows, at=f"blocks.{layer}.ffn": [_feed_forward(design, w, at, row) for row in rows])
    if type(design.norms).__name__ in FINAL:
        x = [normed(row, w["norm.gain"]) for row in x]
    return torch.stack([w["head.weight"] @ row for row in x[before:]])


def _visible(design: Any, text: list[int]) -> list[list[int]]:
    """Of each place, learned sink tokens first, the places that it sees."""
    before, documents, mask = design.registers, named(DOCUMENTS, design.documents)(design.documents, text), named(MASKS, design.mask)
    found = [list(range(i + 1)) for i in range(before)]
    for i in range(len(text)):
        mine = [j for j in range(len(text)) if mask(design.mask, i, j) and documents[i] == documents[j]]
        found.append(list(range(before)) + [before + j for j in mine])
    return found


def _attention(design: Any, w: State, at: str, x: Rows, sees: list[list[int]]) -> Rows:
    heads = [_head(design, w, at, head, x, sees) for head in range(design.heads)]
    join = named(JOINED, design.joined)
    return [join([out[i] for out in heads], w[f"{at}.output.weight"]) for i in range(len(x))]


def _head(design: Any, w: State, at: str, head: int, x: Rows, sees: list[list[int]]) -> Rows:
    query, key, value = (_piece(w[f"{at}.inputs.weight"], which, head, design) for which in range(3))
    q = [_seen_as(design, w, at, "query", query @ row, place) for place, row in enumerate(x)]
    k = [_seen_as(design, w, at, "key", key @ row, place) for place, row in enumerate(x)]
    v = [value @ row for row in x]
    return [_out(design, w, at, head, i, x[i], q[i], [(k[j], v[j], i - j) for j in sees[i]]) for i in range(len(x))]


def _seen_as(design: Any, w: State, at: str, which: str, x: Tensor, place: int) -> Tensor:
    """A query or a key: normed, turned, then made features of."""
    x = named(HEAD_NORMS, design.head_norm)(w, f"{at}.head_norm.{which}", x)
    if turned := TURNED.get(type(design.positions).__name__):
        x = turned(design.positions, place, len(x)) @ x
    return named(FEATURES, design.features)(w, f"{at}.features", x)


def _out(design: Any, w: State, at: str, head: int, i: int, x: Tensor, q: Tensor, keys: list[tuple[Tensor, Tensor, int]]) -> Tensor:
    """What one head puts out for one query."""
    add = ADDED_TO_SCORES.get(type(design.positions).__name__, lambda *_: 0.0)
    scores = [q @ k / math.sqrt(len(q)) + add(w, head, design.heads, max(0, distance)) for k, _, distance in keys]
    virtual = [VIRTUAL_KEYS[kind](slot, w, f"{at}.slots.{kind}", head, q) for slot in design.slots if (kind := type(slot).__name__) in VIRTUAL_KEYS]
    row = named(WEIGHTS, design.weights)(design.weights, torch.stack([score for score, _ in virtual] + scores))
    out = row @ torch.stack([value for _, value in virtual] + [v for _, v, _ in keys])
    for slot in design.slots:
        if (kind := type(slot).__name__) not in VIRTUAL_KEYS:
            out = named(AFTER_ATTENTION, slot)(slot, w, f"{at}.slots.{kind}", head, x, out)
    return out


def _feed_forward(design: Any, w: State, at: str, x: Tensor) -> Tensor:
    act = named(ACTIVATIONS, design.ffn.activation)
    return w[f"{at}.output.weight"] @ named(FEED_FORWARD, design.ffn)(act, w[f"{at}.inputs.weight"], x, design.hidden)


def _piece(inputs: Tensor, which: int, head: int, design: Any) -> Tensor:
    """The rows of W_Q, W_K or W_V that make one head."""
    first = (which * design.heads + head) * design.head_size
    return inputs[first : first + design.head_size]


def _of_head(value: Tensor, head: int) -> Tensor:
    """Of a tensor with a row for each head, or one for all."""
    return value[0] if len(value) == 1 else value[head]


def _sum(x: Rows, y: Rows) -> Rows:
    return [a + b for a, b in zip(x, y, strict=True)]
