"""What a model's name stands for, and whether it can be loaded at all: each thing that is wrong with it is one sentence."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sinklab.errors import SinklabError, nearest, one_line

DEMO = "demo"
SAFE = "model.safetensors"
INDEX = "model.safetensors.index.json"
ADAPTER = "adapter_model.safetensors"
VIRTUAL = {
    "PROMPT_TUNING",
    "MULTITASK_PROMPT_TUNING",
    "P_TUNING",
    "PREFIX_TUNING",
    "ADAPTION_PROMPT",
    "CPT",
    "CARTRIDGE",
}  # kinds of adapters
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True)
class Checkpoint:
    """What transformers has to be told: a folder or Hub id, a GGUF file in it, an adapter over it."""

    name: str
    source: str
    revision: str | None = None  # the commit, for a Hub id
    gguf: str | None = None
    adapter: Path | None = None
    notes: tuple[str, ...] = ()

    @property
    def where(self) -> dict[str, Any]:
        """Keyword arguments that say where the files of the model are."""
        gguf = {"gguf_file": self.gguf} if self.gguf else {}
        return {"pretrained_model_name_or_path": self.source, "revision": self.revision} | gguf


def find(name: str, revision: str | None = None) -> Checkpoint:
    """The checkpoint of that name: a folder, a GGUF file, or else a Hub id."""
    path = Path(name).expanduser()
    local = path.exists() or name.startswith(("/", ".", "~")) or path.suffix == ".gguf"
    if revision is not None and local:
        raise SinklabError(f"A revision belongs to a model on the Hub, and `{name}` is a file or folder.")
    if path.suffix == ".gguf":
        return gguf_file(name, path)
    if path.is_dir():
        return folder(name, path)
    if path.exists():
        raise SinklabError(f"`{name}` is a file; a model is a Hub id, a folder, a .gguf file, an adapter or `{DEMO}`.")
    if local:
        raise SinklabError(f"There is no folder `{name}`.{nearest_name(name)}")
    return on_the_hub(name, revision)


def folder(name: str, path: Path) -> Checkpoint:
    """A folder that holds a model, or an adapter to one."""
    has_config = (path / "config.json").is_file()
    has_adapter = (path / "adapter_config.json").is_file()
    if has_adapter and not has_config:
        return adapter(name, path)
    if not has_config:
        raise SinklabError(f"`{name}` holds no config.json, so it is not a model.{inside(path)}")
    config = read_json(path / "config.json")
    if "model_type" not in config:
        raise SinklabError(f"`{path / 'config.json'}` names no model_type, so it is not a model of transformers.")
    check_weights(path, config.get("transformers_weights") or SAFE)
    kind = adapter_settings(name, path).get("peft_type", "PEFT") if has_adapter else None
    return Checkpoint(name, str(path), notes=(f"{kind} adapter over the model in the same folder",) if kind else ())


def inside(path: Path) -> str:
    """What the user may have meant inside of a folder that is no model."""
    for pattern in ("*.gguf", "*/config.json", "*/adapter_config.json"):
        for found in sorted(path.glob(pattern)):
            return f" Did you mean `{found if found.suffix == '.gguf' else found.parent}`?"
    return ""


def adapter(name: str, path: Path, revision: str | None = None) -> Checkpoint:
    """An adapter of PEFT over its base, which may be anything that has a name."""
    settings = adapter_settings(name, path)
    base_name = settings.get("base_model_name_or_path")
    if not base_name:
        raise SinklabError(f"The adapter `{name}` does not name its base model.")
    try:
        base = find(str(base_name), settings.get("revision"))
    except SinklabError as error:
        raise SinklabError(f"The base of the adapter `{name}` is missing: {error}") from error
    commit = f" (adapter at {revision})" if revision else ""
    note = f"{settings.get('peft_type', 'PEFT')} adapter over {base_name}{commit}"
    return replace(base, name=name, adapter=path, notes=(note, *base.notes))


def adapter_settings(name: str, path: Path) -> dict[str, Any]:
    """What an adapter says of itself, if it is one that can be put into a model."""
    settings = read_json(path / "adapter_config.json")
    if (kind := settings.get("peft_type")) in VIRTUAL:
        raise SinklabError(f"The adapter `{name}` is of the kind {kind}, which puts tokens of its own before the text and cannot be measured.")
    if not (path / ADAPTER).is_file():
        kept = "only pickled weights, which can run code when they are read" if pickled(path) else "no weights"
        raise SinklabError(f"The adapter `{name}` holds {kept}: {ADAPTER} is not there.")
    check_safetensors(path / ADAPTER)
    if importlib.util.find_spec("peft") is None:
        raise SinklabError(f'`{name}` is an adapter, and loading one needs the package `peft`: pip install "sinklab[peft]".')
    return settings


def gguf_file(name: str, path: Path) -> Checkpoint:
    """A GGUF file; its quantised weights are dequantised when it is loaded."""
    if not path.is_file():
        raise SinklabError(f"There is no file `{name}`.{nearest_name(name)}")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise SinklabError(f"`{name}` is not a GGUF file: it does not begin with the letters GGUF.")
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise SinklabError('Reading a .gguf file needs the package `gguf`: pip install "sinklab[gguf]".') from error
    try:
        kinds = Counter(tensor.tensor_type.name for tensor in GGUFReader(path).tensors)
    except (ValueError, KeyError, IndexError, OverflowError, OSError) as error:
        raise SinklabError(f"The GGUF file `{name}` is torn or truncated.") from error
    if not kinds:
        raise SinklabError(f"The GGUF file `{name}` holds no weights.")
    return Checkpoint(name, str(path.parent), gguf=path.name, notes=gguf_notes(kinds))


def gguf_notes(kinds: Counter[str]) -> tuple[str, ...]:
    """How the weights are stored, if that is less than what a float holds."""
    quantised = Counter({kind: count for kind, count in kinds.items() if kind not in {"F64", "F32", "F16", "BF16"}})
    if not quantised:
        return ()
    kind = quantised.most_common(1)[0][0]
    bits = re.search(r"\d+", kind)
    return (f"{bits[0]}-bit weights ({kind}), dequantised" if bits else f"quantised weights ({kind}), dequantised",)


def on_the_hub(name: str, revision: str | None) -> Checkpoint:
    """A model or an adapter on the Hub, or in its cache on this machine."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    missing: list[Exception] = []
    for file in ("config.json", "adapter_config.json"):
        found = download(name, file, revision)
        if isinstance(found, Path):
            commit = found.parent.name
            if file == "config.json":
                read_json(found)
                return Checkpoint(name, name, commit)
            download(name, ADAPTER, commit)
            return adapter(name, found.parent, commit)
        missing.append(found)
    if any(isinstance(error, LocalEntryNotFoundError) for error in missing):
        raise SinklabError(f"`{name}` is no folder here and not in the cache, and the Hub cannot be reached.{nearest_name(name)}")
    raise SinklabError(f"`{name}` on the Hub holds no config.json, so it is not a model of transformers.")


def download(name: str, file: str, revision: str | None) -> Path | Exception:
    """A file of a repository, or the error that says that it is not there or cannot be reached."""
    from huggingface_hub import errors, hf_hub_download

    try:
        return Path(hf_hub_download(name, file, revision=revision))
    except errors.EntryNotFoundError as error:
        return error
    except errors.HFValidationError as error:
        raise SinklabError(f"`{name}` is no folder here, and cannot be the name of a model on the Hub.{nearest_name(name)}") from error
    except errors.GatedRepoError as error:
        raise SinklabError(f"`{name}` is gated: accept its terms on its page of the Hub, then log in with `hf auth login`.") from error
    except errors.RevisionNotFoundError as error:
        raise SinklabError(f"`{name}` has no revision `{revision}`.") from error
    except errors.RepositoryNotFoundError as error:
        raise SinklabError(f"`{name}` is no folder here, and no model of that name is on the Hub.{nearest_name(name)}") from error
    except OSError as error:
        raise SinklabError(f"`{name}` cannot be had from the Hub: {one_line(error)}") from error


def check_weights(path: Path, wanted: str = SAFE) -> None:
    """Weights that are there, in safetensors, and whole."""
    index = wanted if wanted.endswith(".json") else INDEX
    if wanted.endswith(".safetensors") and (path / wanted).is_file():
        files = [wanted]
    elif (path / index).is_file():
        files = sorted(set(read_json(path / index).get("weight_map", {}).values()))
    elif found := pickled(path):
        raise SinklabError(f"`{path}` holds only pickled weights ({found}), which can run code when they are read: save it as safetensors.")
    else:
        raise SinklabError(f"`{path}` holds a config.json and no weights: {wanted} is not there.")
    for file in files:
        if not (path / file).is_file():
            raise SinklabError(f"`{path}` is incomplete: its index names {file}, which is not there.")
        check_safetensors(path / file)


def check_safetensors(path: Path) -> None:
    """A file whose header and length agree; nothing of the weights is read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy"):
            return
    except (SafetensorError, OSError) as error:
        raise SinklabError(f"The weights in `{path}` are torn or truncated: {one_line(error)}.") from error


def pickled(path: Path) -> str | None:
    """The first file of weights that is not safetensors."""
    found = sorted(file.name for pattern in PICKLED for file in path.glob(pattern) if file.name != "training_args.bin")
    return found[0] if found else None


def read_json(path: Path) -> dict[str, Any]:
    """An object from a JSON file."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise SinklabError(f"`{path}` is broken in line {error.lineno}: {error.msg}.") from error
    except UnicodeDecodeError as error:
        raise SinklabError(f"`{path}` is broken: it is not UTF-8 text.") from error
    if not isinstance(values, dict):
        raise SinklabError(f"`{path}` is broken: it holds no object.")
    return values


def nearest_name(name: str) -> str:
    """The nearest of what could have been meant: the demo, what lies beside, what the Hub's cache holds."""
    parent = Path(name).expanduser().parent
    beside = sorted(path.name for path in parent.iterdir() if path.is_dir() or path.suffix == ".gguf") if parent.is_dir() else []
    return nearest(name, [DEMO, *(os.path.join(os.path.dirname(name), entry) for entry in beside), *cached_ids()])  # noqa: PTH118, PTH120  as it was written


def cached_ids() -> list[str]:
    """The models in the Hub's cache on this machine."""
    from huggingface_hub.constants import HF_HUB_CACHE

    return sorted(path.name.removeprefix("models--").replace("--", "/") for path in Path(HF_HUB_CACHE).glob("models--*"))
