"""Our decoder's attention maps in float64, one text, head and query at a time, from the formulas and the queries and keys of a live forward."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from model import formulas
from model.examples import designs
from sinklab.hub import SinklabForCausalLM
from sinklab.model import attending
from sinklab.model.attending import Attending
from sinklab.model.decoder import Attention, Decoder, build
from sinklab.model.design import Design

DESIGNS = designs()
T = 17  # as many as a learnt table of 20 has beside three learned sink tokens
PADDED = [[0, 1, 2, 3], [14, 15, 16], [0, 5, 6, 11, 16]]  # before a text, after it, inside of it
BATCHES = {"whole": [[], []], "padded": PADDED}  # which places of each text are padding


@functools.cache
def model(name: str) -> SinklabForCausalLM:
    """In float64, with weights that leave no two heads alike."""
    return drawn(DESIGNS[name])


def drawn(design: Design, dtype: torch.dtype = torch.float64) -> SinklabForCausalLM:
    made, generator = build(design, seed=1).to(dtype), torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in made.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=generator, dtype=torch.float64).to(dtype))
    return SinklabForCausalLM.wrap(made).eval()


def text(name: str, length: int = T, many: int = 2) -> Tensor:
    """Random, with documents that end at places 2, 4 and 11 of all texts but the second."""
    found = torch.randint(8, DESIGNS[name].vocabulary, (many, T), generator=torch.Generator().manual_seed(3))
    found[::2, [2, 4, 11]] = getattr(DESIGNS[name].documents, "separator", 0)
    return found[:, :length]


def mask() -> Tensor:
    found = torch.ones(3, T, dtype=torch.long)
    for b, gone in enumerate(PADDED):
        found[b, gone] = 0
    return found


# Maps from formulas


@dataclass
class Map:
    """float64 weights of one text in one layer."""

    of_tokens: Tensor  # (H, T, T)
    beside: Tensor  # (H, T, N): of keys that no token holds, learned sink tokens first
    sees: Tensor  # boolean (T, T)

    @property
    def virtual(self) -> Tensor:
        return self.beside.sum(-1)

    @property
    def alpha(self) -> Tensor:
        return self.of_tokens.sum(1) / self.sees.sum(0)

    @property
    def entropy(self) -> Tensor:
        row = torch.cat([self.of_tokens, self.virtual[..., None]], -1)
        return -torch.xlogy(row, row).sum(-1).mean(-1)


def starred(w: Any) -> bool:
    """Whether the paper would put a star to the number: rows are no distribution, nor less than one."""
    kind, over = type(w).__name__, type(getattr(w, "normaliser", None)).__name__
    return not (kind == "Softpick" or over == "RowSum" or (kind == "Softmax" and w.p == 1))


def measured(w: Any, row: Tensor) -> Tensor:
    """By which sinks are measured (2410.10781, sections 4.3 and 7): proxies for starred ones, others without a constant before them."""
    if starred(w):
        return row.abs() / (row.abs().sum() + 1e-8)
    return row / getattr(w, "alpha", 1)


def attention(of: SinklabForCausalLM) -> list[Attention]:
    """Those of all layers."""
    return [module for module in of.modules() if isinstance(module, Attention)]


@contextmanager
def recorded(of: SinklabForCausalLM) -> Iterator[list[Attending]]:
    """Every call of a forward."""
    calls: list[Attending] = []
    modules = attention(of)

    def keep(call: Attending) -> Tensor:
        calls.append(call)
        return attending.attend(call)

    for module in modules:
        module.attend = keep
    try:
        yield calls
    finally:
        for module in modules:
            del module.attend


@functools.cache
def maps(name: str, batch: str = "whole") -> list[list[Map]]:
    """Of each text, by layer."""
    of, gone = model(name), BATCHES[batch]
    tokens = text(name, many=len(gone))
    with torch.no_grad(), recorded(of) as calls:
        of.model(tokens, attention_mask=mask() if batch == "padded" else None, use_cache=False)
    return [[one_map(of.model.decoder, call, b, tokens[b].tolist(), gone[b]) for call in calls] for b in range(len(gone))]


def one_map(decoder: Decoder, call: Attending, b: int, tokens: list[int], gone: list[int]) -> Map:
    """Padding is not there, rather than masked."""
    design, state = decoder.design, decoder.state_dict()
    kept = [t for t in range(len(tokens)) if t not in gone]
    before, many = design.registers, len(kept)
    there = [*range(before), *(before + t for t in kept)]
    q, k = call.q[b][:, there], call.k[b][:, there]
    sees = formulas._visible(design, [tokens[t] for t in kept])
    add = formulas.ADDED_TO_SCORES.get(type(design.positions).__name__, lambda *_: 0.0)
    weights = formulas.named(formulas.WEIGHTS, design.weights)
    logits = None if call.logits is None else call.logits.expand(len(call.q), design.heads, before + T, -1)[b][:, there].double()
    extra = before + (0 if logits is None else logits.shape[-1])
    of_tokens, besides = torch.zeros(design.heads, many, many).double(), torch.zeros(design.heads, many, extra).double()
    for h in range(design.heads):
        for i in range(many):
            at = before + i
            scores = [q[h, at] @ k[h, j] / design.head_size**0.5 + add(state, h, design.heads, max(0, at - j)) for j in sees[at]]
            scores = scores[:before] + ([] if logits is None else list(logits[h, at])) + scores[before:]
            row = measured(design.weights, weights(design.weights, torch.stack(scores)))
            besides[h, i] = row[:extra]
            of_tokens[h, i, [j - before for j in sees[at] if j >= before]] = row[extra:]
    seen = torch.zeros(many, many, dtype=torch.bool)
    for i in range(many):
        seen[i, [j - before for j in sees[before + i] if j >= before]] = True
    return Map(of_tokens, besides, seen)
