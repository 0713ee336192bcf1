"""Models that are no folder: in the Hub's cache, in a GGUF file, under an adapter."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, PromptTuningConfig, TaskType, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    LlamaForCausalLM,
)

from loading import complaint, logits
from sinklab.models import load_model
from small import BOS, save, small_llama, small_tokenizer

peft_warns = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return save(tmp_path / "llama", small_llama(), small_tokenizer())


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for module in ("huggingface_hub", "transformers.utils.hub"):
        monkeypatch.setattr(f"{module}.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def downloaded(hub: Path, name: str, folder: Path) -> Path:
    """A folder in the Hub's cache, as if it had been downloaded."""
    repository = hub / f"models--{name.replace('/', '--')}"
    shutil.copytree(folder, repository / "snapshots" / COMMIT)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    return repository / "snapshots" / COMMIT


def test_hub_cache_is_used_without_a_connection(hub, checkpoint):
    snapshot = downloaded(hub, "someone/llama", checkpoint)
    loaded = load_model("someone/llama")
    assert loaded.revision == COMMIT
    assert torch.equal(logits(loaded.model), logits(small_llama()))
    assert complaint("someone/lama").endswith("Did you mean `someone/llama`?")
    assert load_model("someone/llama", revision=COMMIT).revision == COMMIT
    (snapshot / "config.json").write_text("{]")
    assert "config.json` is broken in line 1" in complaint("someone/llama")


@pytest.mark.parametrize("broken", [b"", b"x" * 100])
def test_torn_weights_in_the_hub_cache(hub, checkpoint, broken):
    snapshot = downloaded(hub, "someone/llama", checkpoint)
    (snapshot / "model.safetensors").write_bytes(broken)
    assert "someone/llama` are torn or truncated" in complaint("someone/llama")


def test_pickled_weights_in_the_hub_cache_are_refused(hub, checkpoint):
    torch.save(load_file(checkpoint / "model.safetensors"), checkpoint / "pytorch_model.bin")
    (checkpoint / "model.safetensors").unlink()
    downloaded(hub, "someone/pickled", checkpoint)
    assert "holds no weights in safetensors, and pickled ones can run code" in complaint("someone/pickled")


@peft_warns
def test_adapter_in_the_hub_cache(hub, tmp_path, checkpoint):
    tuned = adapter(tmp_path / "lora", checkpoint)
    downloaded(hub, "someone/lora", tmp_path / "lora")
    loaded = load_model("someone/lora")
    assert loaded.notes == (f"LORA adapter over {checkpoint} (adapter at {COMMIT})",)
    torch.testing.assert_close(logits(loaded.model), logits(tuned))


def permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a rotated projection in the order of GGUF: the two halves of each head interleaved."""
    return weight.reshape(heads, 2, -1, weight.shape[-1]).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path: Path, model: LlamaForCausalLM, quantised: bool = False) -> Path:
    config, tokenizer = model.config, small_tokenizer("known")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("small")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    tokens += [f"<unused{i}>" for i in range(config.vocab_size - len(tokens) - 1)] + ["ab"]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 3 + [1] * (len(tokens) - 3))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        values = weight.numpy()
        if "q_proj" in name or "k_proj" in name:
            values = permuted(values, config.num_attention_heads if "q_proj" in name else config.num_key_value_heads)
        kind = gguf.GGMLQuantizationType.Q8_0 if quantised and values.ndim == 2 and values.shape[-1] % 32 == 0 else None
        values = gguf.quants.quantize(values, kind) if kind else values
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_gguf(tmp_path, capfd):
    loaded = load_model(str(write_gguf(tmp_path / "small.gguf", small_llama())))
    assert capfd.readouterr() == ("", "")
    assert loaded.notes == ()
    assert loaded.reader()("hello").input_ids == small_tokenizer("known")("hello").input_ids
    torch.testing.assert_close(logits(loaded.model), logits(small_llama()))


def test_quantised_gguf_says_so(tmp_path):
    loaded = load_model(str(write_gguf(tmp_path / "small.gguf", small_llama(), quantised=True)))
    assert loaded.notes == ("8-bit weights (Q8_0), dequantised",)
    torch.testing.assert_close(logits(loaded.model), logits(small_llama()), atol=0.3, rtol=0.1)
    assert not torch.equal(logits(loaded.model), logits(small_llama()))


def test_wrong_gguf(tmp_path):
    path = write_gguf(tmp_path / "small.gguf", small_llama())
    content = path.read_bytes()
    for keep in (20, 2000, len(content) - 100):
        path.write_bytes(content[:keep])
        assert "is torn or truncated" in complaint(path)
    path.write_bytes(b"PK" + content)
    assert "is not a GGUF file" in complaint(path)
    path.write_bytes(content.replace(b"llama", b"lmaaa"))
    assert "lmaaa is not supported" in complaint(path)
    assert complaint(tmp_path / "smal.gguf").endswith(f"Did you mean `{path}`?")
    assert complaint(tmp_path).endswith(f"Did you mean `{path}`?")


def adapter(folder: Path, base: Path) -> PeftModel:
    model = AutoModelForCausalLM.from_pretrained(base)
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False, task_type=TaskType.CAUSAL_LM)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        tuned = get_peft_model(model, lora).eval()
    tuned.save_pretrained(folder)
    return tuned


@peft_warns
def test_adapter(tmp_path, checkpoint):
    tuned = adapter(tmp_path / "lora", checkpoint)
    loaded = load_model(str(tmp_path / "lora"))
    assert loaded.notes == (f"LORA adapter over {checkpoint}",)
    assert loaded.reader().bos_token == BOS
    torch.testing.assert_close(logits(loaded.model), logits(tuned))
    assert (logits(loaded.model) - logits(small_llama())).abs().max() > 0.01


@peft_warns
def test_adapter_inside_the_folder_of_its_base(tmp_path, checkpoint):
    tuned = adapter(tmp_path / "lora", checkpoint)
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(tmp_path / "lora" / name, checkpoint / name)
    loaded = load_model(str(checkpoint))
    assert loaded.notes == ("LORA adapter over the model in the same folder",)
    torch.testing.assert_close(logits(loaded.model), logits(tuned))


@peft_warns
def test_packages_that_are_not_there_are_named(tmp_path, checkpoint, monkeypatch):
    adapter(tmp_path / "lora", checkpoint)
    path = write_gguf(tmp_path / "small.gguf", small_llama())
    monkeypatch.setitem(sys.modules, "peft", None)
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert complaint(tmp_path / "lora").endswith('needs the package `peft`: pip install "sinklab[peft]".')
    assert complaint(path).endswith('needs the package `gguf`: pip install "sinklab[gguf]".')


@peft_warns
def test_wrong_adapters(tmp_path, checkpoint):
    folder = tmp_path / "lora"
    adapter(folder, checkpoint)
    weights = load_file(folder / "adapter_model.safetensors")
    save_file({name: weight for name, weight in weights.items() if "layers.1" not in name}, folder / "adapter_model.safetensors")
    assert "does not fit its base: 4 weights differ" in complaint(folder)
    (folder / "adapter_model.safetensors").write_bytes(b"\x10")
    assert "torn or truncated" in complaint(folder)
    (folder / "adapter_model.safetensors").unlink()
    assert "holds no weights" in complaint(folder)
    torch.save(weights, folder / "adapter_model.bin")
    assert "holds only pickled weights" in complaint(folder)
    shutil.copytree(checkpoint, tmp_path / "other")
    adapter(folder, checkpoint)
    shutil.rmtree(checkpoint)
    assert complaint(folder).startswith(f"The base of the adapter `{folder}` is missing: There is no folder `{checkpoint}`.")


@peft_warns
def test_adapter_that_adds_virtual_tokens_is_refused(tmp_path, checkpoint):
    prompts = PromptTuningConfig(task_type=TaskType.CAUSAL_LM, num_virtual_tokens=3)
    get_peft_model(AutoModelForCausalLM.from_pretrained(checkpoint), prompts).save_pretrained(tmp_path / "prompts")
    assert "is of the kind PROMPT_TUNING, which puts tokens of its own before the text" in complaint(tmp_path / "prompts")
