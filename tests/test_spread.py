"""A model that is larger than one place: spread over CPU and disk, it computes the same."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import sinklab
from sinklab.errors import SinklabError
from sinklab.models import Loaded, load_model
from sinklab.probe.probes import ALL
from small import save, small_llama, small_tokenizer

TOKENS = torch.arange(3, 43).reshape(2, 20)
SPREAD = {
    "model.embed_tokens": "cpu",
    "model.layers.0": "cpu",
    "model.layers.1": "disk",
    "model.norm": "cpu",
    "model.rotary_emb": "cpu",
    "lm_head": "disk",
}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return save(tmp_path / "llama", small_llama(), small_tokenizer())


def spread(checkpoint: Path) -> Loaded:
    return load_model(str(checkpoint), device=SPREAD)


def test_spread_over_cpu_and_disk_computes_the_same(checkpoint):
    loaded = spread(checkpoint)
    assert loaded.notes == ("spread over cpu, disk",)
    assert loaded.model.dtype == torch.float32
    assert loaded.model.model.layers[1].self_attn.q_proj.weight.device.type == "meta"  # its weights lie on disk between calls
    with torch.no_grad():
        ours = loaded.model(TOKENS, output_hidden_states=True)
        plain = load_model(str(checkpoint), device="cpu").model(TOKENS, output_hidden_states=True)
    assert len(ours.hidden_states) == 3
    for here, there in zip((*ours.hidden_states, ours.logits), (*plain.hidden_states, plain.logits), strict=True):
        assert torch.equal(here, there)


def test_a_spread_model_is_measured_as_a_whole_one(checkpoint):
    probes = list(ALL.values())
    here = sinklab.measure(spread(checkpoint).model, TOKENS, probes=probes, loss=True)
    there = sinklab.measure(load_model(str(checkpoint), device="cpu").model, TOKENS, probes=probes, loss=True)
    assert set(here.numbers) == set(there.numbers)
    for name, numbers in here.numbers.items():
        np.testing.assert_array_equal(numbers, there.numbers[name], name)
    np.testing.assert_array_equal(here.loss, there.loss)


def test_offload_folder_lives_as_long_as_the_model(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    loaded = spread(checkpoint)
    (folder,) = tmp_path.glob("sinklab-offload-*")
    with torch.no_grad():
        loaded.model(TOKENS)
    del loaded
    gc.collect()
    assert not folder.exists()


def test_offload_folder_goes_when_loading_fails(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | {"intermediate_size": 64}))
    with pytest.raises(SinklabError, match="cannot be loaded"):
        spread(checkpoint)
    assert list(tmp_path.glob("sinklab-offload-*")) == []


def test_places_that_are_not_there_are_refused(checkpoint):
    with pytest.raises(SinklabError, match="Unknown device `nowhere`"):
        load_model(str(checkpoint), device={"": "nowhere"})


def test_a_whole_model_may_lie_on_disk_in_silence(checkpoint, capfd):
    loaded = load_model(str(checkpoint), device={"": "disk"})
    assert {weight.device.type for weight in loaded.model.parameters()} == {"meta"}
    assert capfd.readouterr() == ("", "")
    with torch.no_grad():
        assert torch.equal(loaded.model(TOKENS).logits, small_llama()(TOKENS).logits)
