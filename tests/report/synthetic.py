"""Results made by hand: attention that is known in advance, so that what is said of it can be checked."""

from __future__ import annotations

import numpy as np

from sinklab.probe.result import Result
from sinklab.report.summary import Asked, summarise

TEXTS = ("The", " cat", " sat", " on", " the", " mat", ".", " and")


def made(
    sink: float = 0.6,
    sequences: int = 40,
    layers: int = 4,
    heads: int = 4,
    length: int = 64,
    share: float = 0.5,
    seed: int = 0,
    **more: object,
) -> Result:
    """The first `share` of the heads of each layer give the first token about `sink`, the others what uniform attention does."""
    random = np.random.default_rng(seed)
    queries = np.arange(length, 0, -1, dtype=np.float32)
    uniform = np.array([np.mean(1 / np.arange(k, length + 1)) for k in range(1, length + 1)], np.float32)
    alpha = np.broadcast_to(uniform, (sequences, layers, heads, length)).copy()
    many = round(share * heads)
    alpha[:, :, :many, 1:] *= (1 - sink) / (1 - uniform[0]) if length > 1 else 1
    alpha[:, :, :many, 0] = sink + random.uniform(-0.02, 0.02, (sequences, layers, many))
    numbers = {"alpha": alpha, "queries": np.broadcast_to(queries, (sequences, layers, 1, length)).copy()}
    numbers["virtual"] = np.zeros((sequences, layers, heads, 1), np.float32)
    numbers["own"] = np.ones((sequences, layers, heads, length), np.float32)
    numbers["tail"] = np.full((sequences, layers, heads, 8), 0.05, np.float32)
    tokens = np.stack([(np.arange(length) + n) % len(TEXTS) for n in range(sequences)])
    texts = tuple(tuple(TEXTS[token] for token in row) for row in tokens)
    settings = {"model": "small", "input": "natural", "ways": ("chunks",) * layers, "texts": texts} | more
    return Result(numbers, tokens, np.zeros(sequences, int), loss=np.full(sequences, 3.5, np.float32), **settings)


def with_norms(result: Result, long: float = 200.0, value: float = 0.1, massive: bool = True) -> Result:
    """The first hidden state `long` times as long as the others' from layer 2 on, values a `value` of the others'; two heads share one."""
    many, layers, heads, length = result.numbers["alpha"].shape
    hidden = np.ones((many, layers + 1, 1, length), np.float32)
    hidden[:, 2:, :, 0] = long
    small = np.ones((many, layers, heads // 2, length), np.float32)
    values = small.copy()
    values[..., 0] = value
    outputs = np.repeat(values, 2, axis=2)
    quads = np.zeros((many, layers + 1, 1, 16), np.float32)
    if massive:
        quads[:, 2:, 0, :4] = (-5000, 1, 7, 2500)
        quads[:, 3, 0, 0] = -6000
    more = {"norm.hidden": hidden, "norm.key": small, "norm.value": values, "norm.query": outputs, "norm.output": outputs, "massive": quads}
    return Result(**{**vars(result), "numbers": result.numbers | more})


def with_everything(result: Result) -> Result:
    """Every number that the figures can draw."""
    result = with_norms(result)
    many, layers, heads, length = result.numbers["alpha"].shape
    cosine = np.full((many, layers, heads, length), -0.1, np.float32)
    cosine[..., 0] = 0.5
    entropy = np.linspace(3, 0.1, layers + 1, dtype=np.float32)[None, :, None, None].repeat(many, 0)
    gate = np.zeros((many, layers, heads, 1), np.float32)
    return Result(
        **{
            **vars(result),
            "numbers": result.numbers | {"qk.cosine": cosine, "qk.norms": cosine * 10 + 9, "matrix-entropy": entropy, "gate": gate},
        }
    )


def entry(results: dict[str, Result] | None = None, asked: Asked | None = None, model: str = "small", settings: dict | None = None) -> dict:
    """One entry of summary.json."""
    found = {"natural": made()} if results is None else results
    return summarise(model, {"dtype": "float32", "bos": "keep"} if settings is None else settings, found, asked or Asked())


def three() -> dict[str, Result]:
    """The paper's pattern: natural and random high, repeated none."""
    some = {
        "natural": with_norms(made()),
        "random": with_norms(made(0.7, seed=1)),
        "repeat": with_norms(made(0.05), long=1.0, massive=False),
    }
    some["repeat"].numbers["norm.hidden"][:, 2:] = 200
    return some
