"""The run folder: OUT/<name>/<identity>/ with run.json, rows in parts, summary.json, the page and its figures.

Begun, interrupted, continued, never overwritten.
"""

import fcntl
import json
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from sinklab.config import Config, difference, identity
from sinklab.errors import SinklabError

SCHEMA = 1
PACKAGES = ("sinklab", "torch", "transformers", "accelerate", "tokenizers", "datasets", "numpy", "pyarrow")


@dataclass(frozen=True)
class Run:
    """One run's folder."""

    folder: Path
    identity: str

    def write_json(self, name: str, content: Any) -> Path:
        """A whole file or none."""
        path = self.folder / name
        temporary = path.with_name(f".{name}.tmp")
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(content, file, indent=2, ensure_ascii=False, allow_nan=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        return path


@contextmanager
def opened(root: Path, name: str, experiment: Config, machine: dict[str, Any]) -> Iterator[Run]:
    """The run of an experiment under a root, new or continued; a second process on the same run is refused."""
    _check_root(root)
    key = identity(experiment)
    folder = root / safe_name(name) / key
    _check_ours(folder)
    folder.mkdir(parents=True, exist_ok=True)
    run = Run(folder, key)
    with _locked(folder):
        if not (folder / "run.json").exists():
            run.write_json("run.json", _described(name, experiment, machine))
        yield run


def safe_name(name: str) -> str:
    """A model's name as one folder's name: `meta-llama/Llama-3` -> `meta-llama--Llama-3`, a path -> its last part."""
    if name.startswith((".", "/", "~")) or Path(name).exists():
        name = Path(name).expanduser().resolve().name
    return re.sub(r"[^\w.-]", "_", name.replace("/", "--")).lstrip(".") or "model"


def _check_root(root: Path) -> None:
    if root.exists() and not root.is_dir():
        raise SinklabError(f"--out {root} is a file; give a folder.")
    if root.is_dir() and any(root.iterdir()) and not any(_is_ours(path) for path in root.glob("*/*")):
        raise SinklabError(f"--out {root} holds something else and no runs of sinklab; give a new or an empty folder.")


def _check_ours(folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()) and not _is_ours(folder):
        raise SinklabError(f"{folder} holds something else; give another --out.")


def _is_ours(folder: Path) -> bool:
    """A run.json of ours, or what an interruption before the first of them leaves."""
    try:
        return json.loads((folder / "run.json").read_text(encoding="utf-8"))["sinklab"]["schema"] >= 1
    except FileNotFoundError:
        return folder.is_dir() and {path.name for path in folder.iterdir()} <= {".lock", ".run.json.tmp"}
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _described(name: str, experiment: Config, machine: dict[str, Any]) -> dict[str, Any]:
    return {
        "sinklab": {"schema": SCHEMA, "kind": "measure"},
        "name": name,
        "identity": identity(experiment),
        "experiment": experiment.model_dump(mode="json"),
        "difference": difference(experiment),
        "packages": {package: package_version(package) for package in PACKAGES},
        "machine": machine | {"python": platform.python_version(), "system": platform.platform()},
    }


def package_version(package: str) -> str | None:
    """The version that is installed; None where there is none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SinklabError(f"Another process is at work in {folder}.") from error
        yield
