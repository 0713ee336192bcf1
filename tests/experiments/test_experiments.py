"""Each experiment differs from its base in one thing, is what the golden files say, and keeps its identity."""

import json
from collections import Counter

import goldens
import pytest

from sinklab import experiments
from sinklab.config import identity, parse, plain
from sinklab.errors import SinklabError
from sinklab.experiments import gpu, laptop, paper
from sinklab.experiments.experiment import Experiment, impossible
from sinklab.experiments.findings import FOUND
from sinklab.experiments.scale import Scale, Variation, varied
from sinklab.model.masks import Window
from sinklab.model.weights import Sigmoid, Softmax

EVERY = experiments.every()
# The paper's run matrix, counted by question; what is not in it but stands beside it, after the plus.
MATRIX = {
    "base": 1, "learning rate": 8 + 1, "batch": 3, "data amount": 5, "random tokens": 5, "fixed token": 3, "weight decay": 7, "prefix": 5,
    "window": 6, "positions": 5 + 1, "norms": 1, "sink token and biases": 7, "fixed v*": 6, "dimensions of k*": 7, "similarity": 4, "kernels": 6,
    "softmax scale": 4, "p-norm": 9, "sigmoid's rate and decay": 5, "feed-forward": 5, "heads": 4, "initialisation": 0 + 1, "documents": 0 + 1,
    "1B": 2,
}  # fmt: skip


def of(scale):
    return [entry for name, entry in EVERY.items() if name.startswith(f"{scale}/")]


def test_the_experiments_are_as_written_down():
    found = list(goldens.differing())
    assert not found, f"{len(found)} lines differ; if that is meant: {goldens.COMMAND}\n" + "\n".join(found[:20])


def test_a_changed_base_is_one_line(monkeypatch):
    before = goldens.files()["experiments.txt"].splitlines()
    changed = Scale(gpu.SCALE.base_name, gpu.SCALE.prefix, varied(gpu.BASE, {"clip": 0.5}), gpu.SCALE.questions, FOUND).entries()
    monkeypatch.setattr(experiments, "every", lambda: EVERY | changed)
    after = goldens.files()["experiments.txt"].splitlines()
    assert [a.split(":")[0] for a, b in zip(after, before, strict=True) if a != b] == ["gpu/default"]


@pytest.mark.parametrize("scale", ["paper", "gpu", "laptop"])
def test_each_differs_from_its_base_in_one_thing_or_says_why(scale):
    for entry in of(scale):
        if entry.base is not None:
            assert len(entry.difference) == 1 or entry.because, entry.name
            assert entry.difference, entry.name
            assert not (entry.because and len(entry.difference) == 1), entry.name
            assert EVERY[entry.base.name] is entry.base


def test_identities_are_distinct_and_names_are_short():
    assert len({identity(entry.experiment) for entry in EVERY.values()}) == len(EVERY)
    for name in EVERY:
        assert len(name) <= 34 and name == name.lower() and " " not in name and name.count("/") == 1


def test_each_comes_back_from_its_own_json():
    for entry in EVERY.values():
        back = parse(Experiment, json.loads(json.dumps(plain(entry.experiment), allow_nan=False)))
        assert back == entry.experiment and identity(back) == identity(entry.experiment), entry.name


def test_a_setting_added_later_orphans_no_run():
    class Later(Experiment):
        new: int = 3

    for entry in EVERY.values():
        assert identity(parse(Later, plain(entry.experiment))) == identity(entry.experiment)
    assert identity(parse(Later, {"new": 4})) != identity(Experiment())


def test_the_paper_s_matrix_is_whole():
    assert Counter(entry.group for entry in of("paper") if not entry.group.startswith("beyond")) == MATRIX
    assert set(experiments.groups()) == {entry.group for entry in EVERY.values()}


def test_what_the_paper_says_stands_beside_each_run():
    names = {entry.name.removeprefix("paper/"): entry for entry in of("paper")}
    assert set(FOUND) == {name for name, entry in names.items() if not entry.group.startswith("beyond")}
    for name, found in FOUND.items():
        assert found.numbers or found.said, name
        assert found.where or found.said.startswith("no number"), name
        assert names[name].found is found and names[name].paper == f"paper/{name}"


def test_other_scales_point_at_the_paper_s_run_of_the_same_kind():
    for entry in EVERY.values():
        known = not entry.group.startswith("beyond") and not entry.name.startswith("laptop/backcopy")
        assert (entry.paper in EVERY) == known, entry.name
    assert EVERY["gpu/window-32"].paper == "paper/window-256" and EVERY["gpu/lr-1.5e-3-12k"].paper == "paper/lr-2e-4-40k"
    assert EVERY["laptop/batch-8"].paper == "paper/batch-128" and EVERY["laptop/sigmoid"].found.proxy


def test_the_paper_s_default():
    base = EVERY["paper/default"].experiment
    assert base == Experiment() and base.tokens == 20_971_520_000
    assert (base.optimiser.lr, base.optimiser.betas, base.optimiser.decay, base.clip, base.schedule.warmup) == (4e-4, (0.9, 0.95), 0.1, 1.0, 100)
    assert EVERY["paper/1b"].experiment.tokens == 2 * base.tokens


def test_a_variation_that_changes_nothing_is_the_base():
    assert "paper/decay-0.1" not in EVERY and "laptop/fixed-1" not in EVERY and "laptop/no-fixed-token" in EVERY
    assert laptop.BASE.data.transforms and not gpu.BASE.data.transforms
    twice = Scale("x/default", "x/", paper.SCALE.base, {"q": lambda base: iter([Variation("same", {"batch": base.batch})])})
    assert list(twice.entries()) == ["x/default"]


def test_changes_that_need_each_other_come_together():
    changed = varied(Experiment(), {"model.weights": Sigmoid(), "model.mask": Window(size=4), "steps": 7})
    assert (changed.model.weights, changed.model.mask, changed.steps) == (Sigmoid(), Window(size=4), 7)
    assert varied(Experiment(), {"model.weights.alpha": 2}).model.weights == Softmax(alpha=2)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"data": {"corpus": "BigramBackcopy"}}, "BigramBackcopy has tokens of its own, and HubTokenizer makes them of text; OwnTokens does not."),
        ({"data": {"tokenizer": "OwnTokens"}}, "RegmixSample is text, of which OwnTokens makes no tokens."),
        ({"data": {"corpus": "BigramBackcopy", "tokenizer": "OwnTokens"}, "model": {"vocabulary": 64}},
         "BigramBackcopy has 65 kinds of tokens, and the vocabulary 64."),
        ({"model": {"positions": "Learned", "registers": 1}}, "Learned has rows for 2048 places, and sequences have 2049."),
        ({"model": {"mask": {"kind": "Prefix", "length": 2048}}}, "Prefix(length=2048) leaves nothing to predict in sequences of 2048 tokens."),
        ({"data": {"transforms": [{"kind": "FixedToken", "position": 2049}]}}, "FixedToken(position=2049) is beyond sequences of 2048 tokens."),
        ({"data": {"transforms": [{"kind": "FixedToken", "token": 50432}]}}, "FixedToken(token=50432) is not in a vocabulary of 50432."),
        ({"data": {"transforms": [{"kind": "RandomTokens", "first": 3, "last": 2}]}}, "RandomTokens(first=3, last=2) ends before it begins."),
        ({"data": {"transforms": [{"kind": "RandomTokens", "last": 2049}]}}, "RandomTokens(last=2049) is beyond sequences of 2048 tokens."),
    ],
)  # fmt: skip
def test_impossible_pairs_say_why(data, sentence):
    with pytest.raises(SinklabError) as error:
        parse(Experiment, data)
    assert str(error.value) == sentence


def test_what_is_possible_is_not_refused():
    for entry in EVERY.values():
        assert not list(impossible(entry.experiment))
    parse(Experiment, {"data": {"transforms": [{"kind": "FixedToken", "position": 2048}]}, "model": {"mask": {"kind": "Prefix", "length": 2047}}})


@pytest.mark.parametrize("path", ["optimiser.lr", "optimiser.decay", "clip"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_are_finite(path, value):
    with pytest.raises(SinklabError):
        varied(Experiment(), {path: value})
