"""The wheel, alone in an empty environment: nothing of the checkout is on its path, and it measures a model."""

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from small import save, small_llama, small_tokenizer

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The one that `make wheel` has built, or one of this checkout."""
    if built := os.environ.get("SINKLAB_WHEEL"):
        return Path(built).resolve()
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(command, check=True)
    return next(folder.glob("*.whl"))


def test_it_holds_the_package_with_its_data_and_nothing_else(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    ours = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src/sinklab").rglob("*") if path.suffix in {".py", ".json", ".css", ".typed"}}
    assert ours <= names
    assert {name.split("/")[0] for name in names} == {"sinklab", next(name for name in names if ".dist-info" in name).split("/")[0]}


@pytest.mark.slow
def test_it_works_in_an_empty_environment(wheel, tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv/bin/python"
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "-qq"]
    torch = os.environ.get("SINKLAB_TORCH", "torch==2.13.0").split()
    subprocess.run([*pip, "--no-deps", "-r", ROOT / "requirements/lock.txt"], check=True)
    subprocess.run([*pip, *torch], check=True)
    subprocess.run([*pip, wheel], check=True)  # with what it declares: the lock must satisfy it
    subprocess.run([python, "-m", "pip", "check"], check=True)
    model = save(tmp_path / "model", small_llama(), small_tokenizer())
    words = ["measure", model, "--inputs", "random,repeat", "--samples", "3", "--json", "--out", tmp_path / "runs"]
    env = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    done = subprocess.run([tmp_path / "venv/bin/sinklab", *words], capture_output=True, text=True, cwd=tmp_path, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert list(json.loads(done.stdout)["models"][0]["inputs"]) == ["random", "repeat"]
    assert next((tmp_path / "runs").rglob("report.html")).stat().st_size > 1000
