"""Our decoder, watched: every design gives the numbers of a map that is written from its formulas, in float64."""

import itertools
import json
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from torch import Tensor

import sinklab
from dense_maps import BATCHES, DESIGNS, PADDED, T, attention, drawn, maps, mask, model, one_map, recorded, starred, text
from four_models import agree
from model import formulas
from model.examples import BASE
from sinklab.config import short
from sinklab.errors import NotMeasurable
from sinklab.hub import SinklabForCausalLM
from sinklab.model.decoder import build
from sinklab.model.design import Design
from sinklab.model.heads import Added
from sinklab.model.hub_config import cached
from sinklab.model.masks import Apart, Mixed, Prefix
from sinklab.model.positions import Rope
from sinklab.model.slots import FixedValue, HeadGate, KeyBias, KeyValueBias, SinkLogit
from sinklab.model.weights import Sigmoid, Softpick
from sinklab.probe import doctor
from sinklab.probe.definitions import ALL as DEFINITIONS
from sinklab.probe.probes import ALL, DEFAULT, Entropy
from sinklab.probe.result import Texts
from sinklab.report.summary import Asked, schema, summarise, whole

CACHED = [name for name, design in DESIGNS.items() if cached(design)]
PROBES, EVERYTHING = (*DEFAULT, Entropy()), tuple(ALL.values())
every = pytest.mark.parametrize("name", DESIGNS)


def near(found: Any, wanted: Tensor, tolerance: float = 2e-6) -> None:
    """Exact means: 1e-5 of a number, and what float32 loses."""
    torch.testing.assert_close(torch.as_tensor(found).double(), wanted.double(), rtol=1e-5, atol=tolerance, equal_nan=True)


@every
@pytest.mark.parametrize("batch", BATCHES)
def test_numbers_are_those_of_the_formulas(name, batch):
    gone = BATCHES[batch]
    result = sinklab.measure(model(name), text(name, many=len(gone)), mask() if batch == "padded" else None, probes=PROBES)
    for b, layers in enumerate(maps(name, batch)):
        there = [t for t in range(T) if t not in gone[b]]
        kept = [t - there[0] for t in there]
        for layer, wanted in enumerate(layers):
            of = {key: torch.as_tensor(x[b, layer]) for key, x in result.numbers.items()}
            near(of["alpha"][:, kept], wanted.alpha)
            near(of["queries"][:, kept][0], wanted.sees.sum(0))
            near(of["virtual"][:, 0], wanted.virtual.mean(-1))
            near(of["own"][:, kept], wanted.of_tokens.diagonal(0, -2, -1))
            near(of["entropy"][:, 0], wanted.entropy, 1e-5)
            first = [t for t in kept if t < 8]
            near(of["tail"][:, first], wanted.of_tokens.mean(1)[:, : len(first)])


@every
def test_named_positions_are_those_of_all(name):
    of, given = model(name), (text(name, many=3), mask())
    everywhere, named = sinklab.measure(of, *given), sinklab.measure(of, *given, positions=[1, 2, 9])
    at = torch.tensor([0, 1, 8])
    near(named.alpha[..., at], everywhere.alpha[..., at])
    assert named.alpha[..., 3].isnan().all()


@every
def test_learned_sinks_are_counted_as_the_paper_does(name):
    """One row more, all on itself: (1 + T * mass) / (T + 1); of each document where they are kept apart."""
    design = DESIGNS[name]
    cells = DEFINITIONS["gu2024"].cells(Texts.of(sinklab.measure(model(name), text(name))), 0)
    of_text = [formulas.named(formulas.DOCUMENTS, design.documents)(design.documents, tokens) for tokens in text(name).tolist()]
    documents = [(b, torch.tensor(numbers) == one) for b, numbers in enumerate(of_text) for one in sorted(set(numbers))]
    assert len(cells) == len(documents)
    for found, (b, inside) in zip(cells, documents, strict=True):
        for layer, wanted in enumerate(maps(name)[b]):
            mass, rows = wanted.virtual[:, inside].mean(-1), int(inside.sum())
            near(found[layer], torch.where(mass > 0, (1 + rows * mass) / (rows + 1), 0))


@pytest.mark.parametrize("name", [name for name, design in DESIGNS.items() if isinstance(design.documents, Apart)])
def test_documents_begin_with_a_token(name):
    result = sinklab.measure(model(name), text(name, many=3), mask())
    begins, many = [], []
    for tokens, gone in zip(text(name, many=3).tolist(), PADDED, strict=True):
        there = [t for t in range(T) if t not in gone]
        numbers = formulas.numbered(DESIGNS[name].documents, [tokens[t] for t in there])
        begins.append([t - there[0] for t, one, before in zip(there, numbers, [-1, *numbers], strict=False) if one != before])
        many += [numbers.count(one) for one in sorted(set(numbers))]
    assert [np.flatnonzero(row).tolist() for row in result.starts] == begins
    assert Texts.of(result).asked.tolist() == many


@every
def test_rows_say_of_what_kind_weights_are(name, tmp_path):
    design, result = DESIGNS[name], sinklab.measure(model(name), text(name))
    loaded = sinklab.load(result.save(tmp_path / "rows"))
    assert loaded.weights == result.weights == (short(design.weights),) * design.depth
    assert loaded.proxy == result.proxy == result.sink().proxy == starred(design.weights)
    assert (loaded.starts is None) == (result.starts is None) == isinstance(design.documents, Mixed)


@every
def test_all_probes_and_the_summary(name):
    design = DESIGNS[name]
    result = sinklab.measure(model(name), text(name), probes=EVERYTHING, loss=True)
    for key, numbers in result.numbers.items():
        assert np.isfinite(numbers).all(), key
    missing = {"gate"} if any(type(slot).__name__ == "ValueBias" for slot in design.slots) or design.joined == Added() else set()
    missing |= {"qk.cosine", "qk.norms"} if isinstance(design.mask, Prefix) else set()
    expected = {"alpha", "queries", "virtual", "own", "tail", "entropy", "massive", "qk.cosine", "qk.norms", "norm.output", "gate", "matrix-entropy"}
    assert expected - set(result.numbers) == missing
    entry = summarise(name, {}, {"natural": result}, Asked(tuple(DEFINITIONS), (0.3,), (0, 1, 2)))
    jsonschema.validate(json.loads(json.dumps(whole([entry]))), schema())
    assert {sink["proxy"] for sink in entry["inputs"]["natural"]["sinks"]} == {starred(design.weights)}
    assert ("proxy-weights" in {said["code"] for said in entry["verdict"]}) == starred(design.weights)


@pytest.mark.parametrize("name", [name for name in CACHED if DESIGNS[name].mask.given < T])
def test_the_loss_is_the_models_own(name):
    of, tokens = model(name), text(name)
    with torch.no_grad():
        own = [of(tokens[b : b + 1], labels=tokens[b : b + 1]).loss for b in range(2)]
    near(sinklab.measure(of, tokens, loss=True).loss, torch.stack(own), 1e-5)


# What heads put out


@pytest.mark.parametrize(
    "changes",
    [
        {}, {"joined": Added()}, {"slots": (KeyValueBias(), SinkLogit())}, {"slots": (FixedValue(times=5),), "joined": Added()},
        {"slots": (KeyValueBias(shared=True),), "registers": 2}, {"registers": 1, "weights": Sigmoid()},
    ],
    ids=str,
)  # fmt: skip
def test_what_each_key_writes_out(changes):
    """alpha_k |v_k W_O|, in two batches: nothing of one is taken for the other's. Keys that no token holds have their part."""
    design = Design(**(BASE | changes))
    of, tokens = drawn(design), torch.randint(8, 30, (2, T), generator=torch.Generator().manual_seed(3))
    result = sinklab.measure(of, tokens, probes=EVERYTHING, batch_size=1)
    shares = [DEFINITIONS["output_share"].cells(Texts.of(result), position) for position in range(T + 1)]
    near(sum(shares), torch.ones(2, design.depth, design.heads))
    with torch.no_grad(), recorded(of) as calls:
        of.model(tokens, use_cache=False)
    for call, module in zip(calls, attention(of), strict=True):
        for b, h in itertools.product(range(2), range(design.heads)):
            parts = module.output.weight.unflatten(1, (-1, design.head_size))
            part = parts[:, h % parts.shape[1]]
            lengths = (call.v[b, h, design.registers :] @ part.T).norm(dim=-1)
            near(result.numbers["norm.output"][b, call.layer, h], lengths, 1e-5)
            row = one_map(of.model.decoder, call, b, tokens[b].tolist(), [])
            carried = row.of_tokens[h].sum(0) @ lengths
            values = [*call.v[b, h, : design.registers], *([] if call.values is None else call.values.expand(design.heads, -1, -1)[h])]
            virtual = row.beside[h].sum(0) @ torch.stack([(v @ part.T).norm() for v in values]) if values else torch.zeros(())
            near(shares[0][b, call.layer, h], virtual / (virtual + carried))
            near(shares[1][b, call.layer, h], row.of_tokens[h, :, 0].sum() * lengths[0] / (virtual + carried))


def test_what_a_gate_takes_away():
    of, gates = drawn(Design(**BASE | {"slots": (HeadGate(),)})), []
    for module in attention(of):
        module.register_forward_hook(lambda m, given, _: gates.append(torch.sigmoid(given[0] @ m.slots["HeadGate"].gate.T)))
    result = sinklab.measure(of, text("heads=1"), probes=EVERYTHING)
    for layer, gate in enumerate(gates):
        near(result.numbers["gate"][:, layer, :, 0], 1 - gate.mean(1))


# Live


@every
def test_prompt_and_decoding_equal_one_forward(name):
    """With padding before the prompt and without; where there can be no cache, the last forward is the whole text."""
    of, prompt = model(name), text(name, max(8, min(DESIGNS[name].mask.given, T)))
    for padding in (0, 3):
        given = torch.ones_like(prompt)
        given[0, :padding] = 0
        settings = {"attention_mask": given, "max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
        with sinklab.watch(of, EVERYTHING) as rows:
            found = of.generate(prompt, **settings)
        assert torch.equal(found, of.generate(prompt, **settings))
        whole_mask = torch.cat([given, torch.ones_like(found[:, prompt.shape[1] : -1])], 1)
        agree(rows.result(), sinklab.measure(of, found[:, :-1], whole_mask, probes=EVERYTHING))


@pytest.mark.parametrize("name", [name for name in CACHED if DESIGNS[name].mask.given < T])
def test_a_prompt_in_pieces_equals_one_forward(name):
    of, tokens, first = model(name), text(name), max(6, DESIGNS[name].mask.given)
    with torch.no_grad(), sinklab.watch(of) as rows:
        cache = of(tokens[:, :first], use_cache=True).past_key_values
        of(tokens[:, first : first + 1], past_key_values=cache)
        of(tokens[:, first + 1 :], past_key_values=cache)
    agree(rows.result(), sinklab.measure(of, tokens))


class Broken:
    """A probe that fails at the second layer."""

    name = "broken"

    def see(self, seen, ledger):
        if seen.layer == 1:
            raise ZeroDivisionError


@every
def test_watching_changes_nothing(name):
    of, tokens = model(name), text(name)
    modules = attention(of)
    with torch.no_grad():
        plain = of(tokens).logits
        with sinklab.watch(of, EVERYTHING):
            assert all("attend" in vars(module) for module in modules)
            assert torch.equal(of(tokens).logits, plain)
        with pytest.raises(ZeroDivisionError), sinklab.watch(of, [Broken()]):
            of(tokens)
        assert not any("attend" in vars(module) for module in modules)
        assert torch.equal(of(tokens).logits, plain)


LEARNING = [{}, {"registers": 2}, {"weights": Sigmoid()}, {"slots": (KeyValueBias(), HeadGate())}, {"mask": Prefix(length=3)}, {"documents": Apart()}]


@pytest.mark.parametrize("again", [False, True], ids=["kept", "again"])
@pytest.mark.parametrize("changes", LEARNING, ids=str)
def test_training_is_unchanged(changes, again):
    of, tokens = drawn(Design(**(BASE | changes))), text("documents=Apart")
    expected = sinklab.measure(of, tokens, probes=EVERYTHING)
    if again:
        of.activation_checkpointing_enable()
    of.train()
    plain = gradients(of, tokens)
    with sinklab.watch(of, EVERYTHING) as rows:
        watched = gradients(of, tokens)
    assert all(torch.equal(watched[name], gradient) for name, gradient in plain.items())
    assert not any(x.requires_grad for x in rows.ledger.sums.values())
    agree(rows.result(), expected)


def gradients(of: SinklabForCausalLM, tokens: Tensor) -> dict[str, Tensor]:
    of.zero_grad()
    of(tokens, labels=tokens, use_cache=False).loss.backward()
    return {name: p.grad.clone() for name, p in of.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", [name for name in DESIGNS if name.startswith(("weights", "mask", "documents", "registers", "joined"))])
def test_the_self_test(name):
    """Every line passes, or is not asked."""
    weights = DESIGNS[name].weights
    not_asked = {"alpha equals the eager map"}
    if starred(weights) or isinstance(weights, Softpick):
        not_asked.add("mass of every head sums to one")
    lines = doctor.doctor(drawn(DESIGNS[name], torch.float32))
    assert {line.name for line in lines if not line.passed} == not_asked
    assert all(line.passed is None and line.note for line in lines if not line.passed)


def test_a_bare_decoder_is_refused_in_a_sentence():
    bare = build(Design(**BASE))
    for use in (lambda: sinklab.measure(bare, text("heads=1")), lambda: sinklab.watch(bare), lambda: doctor.doctor(bare)):
        with pytest.raises(NotMeasurable, match=r"measure SinklabForCausalLM\.wrap\(decoder\)"):
            use()


# As the paper's code does it


def test_a_key_bias_is_what_the_paper_makes_of_it():
    """The bias is prepended, with a query of zeros, and the map of 65 x 65 is divided by 65, 64, ... at each key."""
    design = Design(**(BASE | {"slots": (KeyBias(),), "positions": Rope()}))
    of, tokens = drawn(design), torch.randint(8, 30, (3, 64), generator=torch.Generator().manual_seed(3))
    result = sinklab.measure(of, tokens)
    with torch.no_grad(), recorded(of) as calls:
        of.model(tokens, use_cache=False)
    for call, module in zip(calls, attention(of), strict=True):
        key = module.slots["KeyBias"].key[None, :, None].expand(3, -1, -1, -1)
        q, k = torch.cat([torch.zeros_like(key), call.q], 2), torch.cat([key, call.k], 2)
        scores = (q @ k.mT / design.head_size**0.5).masked_fill(torch.ones(65, 65).triu(1).bool(), -torch.inf)
        importance = (scores.softmax(-1) / torch.arange(65, 0, -1)).sum(-2)
        near(DEFINITIONS["gu2024"].cells(Texts.of(result), 0)[:, call.layer], importance[..., 0])
        near(result.alpha[:, call.layer], importance[..., 1:])
