"""Loading a model from a folder, and one sentence for everything that can be wrong with one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaForSequenceClassification,
    T5Config,
)

from loading import TOKENS, complaint, logits
from sinklab.errors import SinklabError
from sinklab.models import load_model
from small import VOCABULARY, save, small_llama, small_tokenizer


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return save(tmp_path / "llama", small_llama(), small_tokenizer())


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_folder(checkpoint):
    loaded = load_model(str(checkpoint))
    assert loaded.name == str(checkpoint)
    assert (loaded.revision, loaded.notes) == (None, ())
    assert loaded.reader()("a").input_ids[0] == loaded.tokenizer.bos_token_id
    assert loaded.model.dtype == torch.float32
    assert not loaded.model.training
    assert torch.equal(logits(loaded.model), logits(small_llama()))


@pytest.mark.parametrize(
    ("name", "dtype"), [("bf16", torch.bfloat16), ("bfloat16", torch.bfloat16), ("fp16", torch.float16), ("float32", torch.float32)]
)
def test_dtype_is_what_was_asked_for(checkpoint, name, dtype):
    assert load_model(str(checkpoint), dtype=name, device="cpu").model.dtype == dtype


def test_cpu_is_float32_whatever_the_checkpoint_says(tmp_path):
    folder = save(tmp_path / "bf16", small_llama().bfloat16())
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    assert load_model(str(folder), device="cpu").model.dtype == torch.float32


def test_shards(tmp_path, checkpoint):
    small_llama().save_pretrained(tmp_path / "shards", max_shard_size="40KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    assert torch.equal(logits(load_model(str(tmp_path / "shards")).model), logits(small_llama()))
    next(iter(sorted((tmp_path / "shards").glob("*.safetensors")))).unlink()
    assert "its index names model-00001-of" in complaint(tmp_path / "shards")


def test_nothing_is_printed(checkpoint, capfd):
    before = transformers.utils.logging.get_verbosity(), transformers.utils.logging.is_progress_bar_enabled()
    load_model(str(checkpoint))
    assert capfd.readouterr() == ("", "")
    assert (transformers.utils.logging.get_verbosity(), transformers.utils.logging.is_progress_bar_enabled()) == before


def test_without_a_tokenizer_only_text_is_refused(tmp_path):
    loaded = load_model(str(save(tmp_path / "mute", small_llama())))
    assert loaded.tokenizer is None
    assert loaded.notes == ("no tokenizer",)
    with pytest.raises(SinklabError, match="has no tokenizer, so it cannot read text"):
        loaded.reader()


def test_broken_tokenizer_is_no_tokenizer(checkpoint):
    (checkpoint / "tokenizer.json").write_text("{")
    loaded = load_model(str(checkpoint))
    assert loaded.tokenizer is None
    assert loaded.notes[0].startswith("no tokenizer: ")


def test_missing_head_is_noted_and_missing_layers_are_refused(tmp_path):
    folder = save(tmp_path / "classifier", LlamaForSequenceClassification(small_llama().config))
    assert load_model(str(folder)).notes == (
        "no tokenizer",
        "no output head in the checkpoint: its loss means nothing",
    )
    weights = load_file(folder / "model.safetensors")
    save_file({name: weight for name, weight in weights.items() if "layers.1.self_attn.k_proj" not in name}, folder / "model.safetensors")
    assert "1 are missing, such as model.layers.1.self_attn.k_proj.weight" in complaint(folder)


def test_tied_head_is_not_missing(tmp_path):
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, bos_token_id=1, eos_token_id=2, n_positions=32, n_embd=16, n_layer=1, n_head=2))
    assert load_model(str(save(tmp_path / "gpt2", model, small_tokenizer()))).notes == ()


def test_weights_of_another_size(checkpoint):
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | {"intermediate_size": 64}))
    assert "cannot be loaded" in complaint(checkpoint)


@pytest.mark.parametrize("keep", [0, 5, 200, 0.5, -1])
def test_truncated_weights(checkpoint, keep):
    weights = checkpoint / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[: int(len(content) * keep) if isinstance(keep, float) else keep])
    text = complaint(checkpoint)
    assert "torn or truncated" in text
    assert "model.safetensors" in text


def test_pickled_weights_are_refused(checkpoint):
    torch.save(load_file(checkpoint / "model.safetensors"), checkpoint / "pytorch_model.bin")
    (checkpoint / "model.safetensors").unlink()
    assert "holds only pickled weights (pytorch_model.bin)" in complaint(checkpoint)


def test_no_weights(checkpoint):
    (checkpoint / "model.safetensors").unlink()
    assert "holds a config.json and no weights" in complaint(checkpoint)


def test_broken_config(checkpoint):
    (checkpoint / "config.json").write_text('{\n "model_type": "llama",\n "hidden_size"\n}')
    assert "config.json` is broken in line 4" in complaint(checkpoint)


@pytest.mark.parametrize(("content", "reason"), [("[]", "holds no object"), ("{}", "names no model_type"), ('{"model_type": "lama9"}', "lama9")])
def test_config_of_no_model(checkpoint, content, reason):
    (checkpoint / "config.json").write_text(content)
    assert reason in complaint(checkpoint)


def test_config_out_of_range(checkpoint):
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | {"hidden_size": "wide"}))
    assert "is wrong: Validation error for field 'hidden_size'" in complaint(checkpoint)


def test_folder_that_is_no_model(tmp_path, checkpoint):
    save(tmp_path / "runs" / "step-100", small_llama())
    assert complaint(tmp_path / "runs").endswith(f"Did you mean `{tmp_path / 'runs' / 'step-100'}`?")
    (tmp_path / "empty").mkdir()
    assert complaint(tmp_path / "empty").endswith("holds no config.json, so it is not a model.")


def test_encoders(tmp_path):
    bert = BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    folder = save(tmp_path / "bert", BertForMaskedLM(bert))
    assert "is an encoder of type bert (BertForMaskedLM)" in complaint(folder)
    bert.is_decoder = True
    assert load_model(str(save(tmp_path / "decoder", AutoModelForCausalLM.from_config(bert)))).model.config.is_decoder


def test_types_that_are_no_causal_model(checkpoint):
    T5Config(architectures=["T5ForConditionalGeneration"]).save_pretrained(checkpoint)
    assert "is of type t5 (T5ForConditionalGeneration), which transformers does not know as a causal language model" in complaint(checkpoint)


def test_unknown_names_get_the_nearest(checkpoint, monkeypatch):
    assert complaint("dmeo").endswith("Did you mean `demo`?")
    assert (
        complaint(str(checkpoint).replace("llama", "lama"))
        == f"There is no folder `{str(checkpoint).replace('llama', 'lama')}`. Did you mean `{checkpoint}`?"
    )
    monkeypatch.chdir(checkpoint.parent)
    assert complaint("lamma").endswith("Did you mean `llama`?")
    assert complaint("nobody/nothing").startswith("`nobody/nothing` is no folder here and not in the cache, and the Hub cannot be reached.")
    assert "cannot be the name of a model on the Hub" in complaint("no such name!")


def test_files_and_revisions(checkpoint, cache):
    assert "is a file; a model is" in complaint(checkpoint / "config.json")
    assert "A revision belongs to a model on the Hub" in complaint(checkpoint, revision="main")
    assert "A revision belongs to a model on the Hub" in complaint("demo", revision="main")


def test_options(checkpoint):
    with pytest.raises(SinklabError, match=r"Unknown dtype `flaot32`.* Did you mean `float32`"):
        load_model(str(checkpoint), dtype="flaot32")
    with pytest.raises(SinklabError, match=r"Unknown device `cdua`.* Did you mean `cuda`"):
        load_model(str(checkpoint), device="cdua")
    with pytest.raises(SinklabError, match=r"finds no xpu device|There is no xpu:7"):
        load_model(str(checkpoint), device="xpu:7")


OWN_CODE = """
from transformers import LlamaConfig, LlamaForCausalLM
class OwnConfig(LlamaConfig):
    model_type = "own"
class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig
"""


def test_own_code_runs_only_when_it_is_trusted(checkpoint, monkeypatch, tmp_path):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    config = json.loads((checkpoint / "config.json").read_text())
    own = {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}}
    (checkpoint / "config.json").write_text(json.dumps(config | own))
    (checkpoint / "own.py").write_text("raise SystemError('this ran')")
    assert complaint(checkpoint).endswith("brings its own code, which runs only with --trust-remote-code.")
    (checkpoint / "own.py").write_text(OWN_CODE)
    loaded = load_model(str(checkpoint), trust_remote_code=True)
    assert type(loaded.model).__name__ == "OwnModel"


@pytest.mark.parametrize(
    ("settings", "package"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
        ({"quant_method": "gptq", "bits": 4}, "optimum"),
        ({"quant_method": "awq", "bits": 4}, "gptqmodel"),
    ],
)
def test_package_of_a_quantised_checkpoint_is_named(checkpoint, settings, package):
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    text = complaint(checkpoint)
    assert "needs a package that is not there" in text
    assert package in text


def test_embedding_may_have_more_rows_than_the_tokenizer(checkpoint):
    loaded = load_model(str(checkpoint))
    assert loaded.model.get_input_embeddings().num_embeddings > len(loaded.reader()) == VOCABULARY


@pytest.mark.gpu
def test_on_a_gpu(tmp_path):
    folder = save(tmp_path / "bf16", small_llama().bfloat16(), small_tokenizer())
    for device in ("auto", "cuda", "cuda:0", {"": 0}):
        model = load_model(str(folder), device=device).model
        assert (model.device.type, model.dtype) == ("cuda", torch.bfloat16)
    split = load_model(str(folder), dtype="float32", device={"model.layers.1": "cpu", "": "cuda:0"})
    assert split.notes == ("spread over cpu, cuda:0",)
    whole = load_model(str(folder), dtype="float32", device="cuda")
    with torch.no_grad():
        torch.testing.assert_close(split.model(TOKENS.cuda()).logits.cpu(), whole.model(TOKENS.cuda()).logits.cpu(), atol=1e-3, rtol=1e-3)
    with pytest.raises(SinklabError, match="There is no cuda:99"):
        load_model(str(folder), device="cuda:99")
