"""The self-test passes on sound models of both kinds, and fails where the probe is broken on purpose."""

import pytest
import torch

from families.tiny import tiny
from four_models import MODELS
from sinklab.errors import NotMeasurable
from sinklab.probe import call, doctor, watch


@pytest.mark.parametrize("make", [*MODELS.values(), lambda: tiny("bloom"), lambda: tiny("granite_swa"), lambda: tiny("deepseek_v32")])
def test_sound_models_pass_every_line(make):
    lines = doctor.doctor(make())
    assert [line.name for line in lines] == list(doctor.CHECKS)
    assert all(line.passed for line in lines), lines
    assert all(line.figure <= line.limit for line in lines)


def broken(name, monkeypatch):
    """One fault, and the line that must notice it."""
    weights, answer, seen = call.Call.weights, watch.answer, watch.SeenCall.columns
    faults = {
        "logits with and without the probe are equal": (watch, "answer", lambda c: (answer(c)[0] * 1.01, answer(c)[1])),
        "mass of every head sums to one": (watch.SeenCall, "columns", lambda self: (seen(self)[0] * 1.01, "broken")),
        "padded equals unpadded": (watch.Ledger, "first_real", lambda self, device: torch.zeros(self.batch, dtype=torch.long, device=device)),
        "alpha equals the eager map": (call.Call, "weights", lambda self, *a: weights(self, *a) * 1.01),
    }
    monkeypatch.setattr(*faults[name])


@pytest.mark.parametrize(
    "name",
    ["logits with and without the probe are equal", "mass of every head sums to one", "padded equals unpadded", "alpha equals the eager map"],
)
def test_a_broken_probe_is_noticed(name, monkeypatch):
    broken(name, monkeypatch)
    (line,) = [line for line in doctor.doctor(MODELS["llama"]()) if line.name == name]
    assert line.passed is False


def test_decoding_that_does_not_add_up_is_noticed(monkeypatch):
    lost = watch.Ledger.add_columns
    monkeypatch.setattr(watch.Ledger, "add_columns", lambda self, *a: lost(self, *a) if self.newest > 1 else None)
    (line,) = [line for line in doctor.doctor(MODELS["llama"]()) if "decoding" in line.name]
    assert line.passed is False


def test_what_stays_behind_is_noticed(monkeypatch):
    leave = watch.Watch.__exit__

    def forgetful(self, *error):
        leave(self, *error)
        self.places.layers[0].register_forward_hook(lambda *_: None)

    monkeypatch.setattr(watch.Watch, "__exit__", forgetful)
    (line,) = [line for line in doctor.doctor(MODELS["llama"]()) if "left as it was" in line.name]
    assert line.passed is False


def test_a_model_that_cannot_be_measured_says_why():
    with pytest.raises(NotMeasurable):
        doctor.doctor(torch.nn.Linear(2, 2))
