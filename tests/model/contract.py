"""What every design keeps, whatever its parts: each function here is one clause, and raises where it is broken."""

import copy
import json
from contextlib import contextmanager
from typing import Any

import formulas
import pytest
import torch
from torch import Tensor

from sinklab.config import identity, parse, plain
from sinklab.errors import SinklabError
from sinklab.model import rows
from sinklab.model.decoder import Decoder, build
from sinklab.model.design import Design

T = 9
# Sines and cosines are float32 whatever the model is in.
EXACT, TURNED = 1e-9, 3e-6


def decoder(design: Design, dtype: torch.dtype = torch.float64) -> Decoder:
    """With first values, and every parameter moved from them, so that none is zero or one and no two heads are alike."""
    made = build(design, seed=1).to(dtype)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in made.parameters():
            p.add_(0.2 * torch.randn(p.shape, generator=generator, dtype=torch.float64).to(dtype))
    return made


def tokens(design: Design, length: int = T, batch: int = 2) -> Tensor:
    """Random, with the separators of documents at places 2 and 5 of the first text and none in the second."""
    found = torch.randint(8, design.vocabulary, (batch, length), generator=torch.Generator().manual_seed(3))
    separator = getattr(design.documents, "separator", 0)
    found[0, [place for place in (2, 5) if place < length]] = separator
    return found


def logits(model: Decoder, text: Tensor, real: Tensor | None = None) -> Tensor:
    return model.logits(model(text, real))


def close(found: Tensor, wanted: Tensor, tolerance: float) -> None:
    """The largest difference, relative to the largest number."""
    assert found.shape == wanted.shape
    assert torch.isfinite(found).all()
    assert error(found, wanted) <= tolerance


def error(found: Tensor, wanted: Tensor) -> float:
    return ((found - wanted).abs().max() / wanted.abs().max().clamp_min(1e-3)).item()


def tolerance(design: Design) -> float:
    return TURNED if type(design.positions).__name__ in {"Rope", "Sinusoidal"} else EXACT


def is_the_formula(design: Design) -> None:
    """Logits and gradients of every parameter are the reference's, at every length."""
    for length in (1, 2, T):
        model, text = decoder(design), tokens(design, length)
        state = {name: p.detach().clone().requires_grad_() for name, p in model.state_dict().items()}
        found, wanted = logits(model, text), formulas.logits(design, state, text)
        close(found, wanted, tolerance(design))
        pull = torch.randn(found.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
        of_formula = torch.autograd.grad((wanted * pull).sum(), list(state.values()), materialize_grads=True)
        (found * pull).sum().backward()
        for (name, p), grad in zip(model.named_parameters(), of_formula, strict=True):
            assert p.grad is not None, f"{name} has no gradient"
            close(p.grad, grad, 10 * tolerance(design))


def survives_json(design: Design) -> None:
    """The design, and its identity."""
    again = parse(Design, json.loads(json.dumps(plain(design))))
    assert again == design
    assert again.model_dump() == design.model_dump()
    assert identity(again) == identity(design)


def looks_back_only(design: Design) -> None:
    """Another token at place t changes nothing before t, and something from it on; under a prefix, t must be after it."""
    model, text = decoder(design), tokens(design)
    prefix = getattr(design.mask, "length", 0)
    with torch.no_grad():
        before = logits(model, text)
        for t in range(T):
            other = text.clone()
            other[:, t] = text[:, t] % 7 + 1  # neither itself nor a separator of documents
            after = logits(model, other)
            untouched = t if t >= prefix else 0
            assert torch.allclose(after[:, :untouched], before[:, :untouched], rtol=0, atol=1e-12)
            assert not torch.allclose(after[:, t], before[:, t], rtol=0, atol=1e-6)


def learns(design: Design) -> None:
    """One step of AdamW on a batch lowers the loss on it, in float32 and from the first values."""
    model = build(design, seed=1)
    text = tokens(design, length=T, batch=4)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    before = loss(model, text)
    before.backward()
    optimiser.step()
    assert torch.isfinite(before)
    with torch.no_grad():
        assert loss(model, text) < before.item() - 1e-4


def loss(model: Decoder, text: Tensor) -> Tensor:
    """Of the tokens that are not given."""
    given = min(model.design.mask.given, text.shape[1] - 1)
    return torch.nn.functional.cross_entropy(logits(model, text)[:, given - 1 : -1].flatten(0, 1), text[:, given:].flatten())


def is_the_same_in_chunks(design: Design) -> None:
    """Logits and gradients, with and without a gradient asked for, from queries in chunks of two or three; and in pieces that are all kept."""
    model, text = decoder(design), tokens(design)
    pull = torch.randn((*text.shape, design.vocabulary), generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    whole, of_whole = _with_gradients(model, text, pull)
    with chunks_of(2, text.numel() * design.heads * (T + design.registers)):
        parts, of_parts = _with_gradients(model, text, pull)
        with torch.no_grad():
            close(logits(model, text), whole, 1e-12)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "FEW", 2)
        pieces, of_pieces = _with_gradients(model, text, pull)
    for one in (parts, pieces):
        close(one, whole, 1e-12)
    for found in (of_parts, of_pieces):
        for one, wanted in zip(found, of_whole, strict=True):
            close(one, wanted, 1e-10)


@contextmanager
def chunks_of(queries: int, scores: int) -> Any:
    """Where a call's scores are that many for T queries."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "AT_ONCE", queries * 4 * scores // T)
        yield


def _with_gradients(model: Decoder, text: Tensor, pull: Tensor) -> tuple[Tensor, list[Tensor]]:
    model.zero_grad()
    found = logits(model, text)
    (found * pull).sum().backward()
    return found.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]


def bears_bfloat16(design: Design, bound: float = 0.05) -> None:
    """Under autocast, from the first values: the largest error of a logit, relative to the largest logit."""
    model, text = build(design, seed=1), tokens(design)
    with torch.no_grad():
        wanted = logits(model, text)
        with torch.autocast("cpu", torch.bfloat16):
            found = logits(model, text).float()
    close(found, wanted, bound)


def does_not_see_padding(design: Design) -> None:
    """Tokens before a text that are not real change nothing of it, neither logits nor gradients."""
    model, text = decoder(design), tokens(design)
    alone = copy.deepcopy(model)
    for pad in (1, 4):
        junk = tokens(design, length=T + pad)
        padded = torch.cat([junk[:1, :pad], text[:1]], 1)
        batch = torch.cat([padded, junk[1:]])  # beside a text without padding
        real = torch.ones(batch.shape, dtype=torch.bool)
        real[0, :pad] = False
        found, wanted = logits(model, batch, real), logits(alone, text[:1])
        close(found[:1, pad:], wanted, 1e-11)
        close(found[1:], logits(alone, junk[1:]).detach(), 1e-11)
        model.zero_grad()
        alone.zero_grad()
        found[0, pad:].square().sum().backward()
        wanted.square().sum().backward()
        for p, q in zip(model.parameters(), alone.parameters(), strict=True):
            close(p.grad, q.grad, 1e-9)


class Cache:
    """Keys and values of what was read, of each layer."""

    def __init__(self) -> None:
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}

    def get_seq_length(self) -> int:
        return self.kept[0][0].shape[2] if self.kept else 0

    def update(self, k: Tensor, v: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        if layer in self.kept:
            k, v = torch.cat([self.kept[layer][0], k], 2), torch.cat([self.kept[layer][1], v], 2)
        self.kept[layer] = k, v
        return k, v


def remembers(design: Design) -> None:
    """A text read in pieces, with keys and values kept, has the logits of the whole, padded or not; a prefix is read as one piece."""
    model, text = decoder(design), tokens(design)
    real = torch.ones(text.shape, dtype=torch.bool)
    real[0, :2] = False
    prompt = max(4, min(T, 2 + getattr(design.mask, "length", 0)))
    with torch.no_grad():
        if hasattr(design.documents, "separator"):  # documents are told by their tokens, which nobody keeps
            with pytest.raises(SinklabError, match="kept apart"):
                _in_pieces(model, text, None, prompt)
            return
        for given in (None, real):
            whole, pieces = logits(model, text, given), _in_pieces(model, text, given, prompt)
            close(pieces[1:], whole[1:], 1e-11)
            close(pieces[0, 2:], whole[0, 2:], 1e-11)


def _in_pieces(model: Decoder, text: Tensor, real: Tensor | None, prompt: int) -> Tensor:
    """The prompt, then token after token, then the last two together."""
    cache, stops, found = Cache(), [prompt, *range(prompt + 1, T - 1), T], []
    for start, stop in zip([0, *stops], stops, strict=False):
        if start == stop:
            continue
        found.append(model.logits(model(text[:, start:stop], None if real is None else real[:, :stop], cache)))
    return torch.cat(found, 1)


CLAUSES = [is_the_formula, survives_json, looks_back_only, learns, is_the_same_in_chunks, bears_bfloat16, does_not_see_padding, remembers]
