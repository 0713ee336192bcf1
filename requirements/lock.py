#!/usr/bin/env python3
"""Write exact versions of everything that sinklab, its extras and its development tools need, PyTorch excepted."""

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

HEADER = """\
# Written by `make lock`. Exact versions of everything in .venv except PyTorch (the variable TORCH of the Makefile),
# the demo data (demo.txt) and Triton (cpu-tests.txt). It is complete, so it is installed with --no-deps.
"""
# "torch" is the user's choice, and a CUDA build of it brings the rest of these.
LEFT_OUT = ("sinklab", "torch", "triton", "pip", "nvidia-", "cuda-")


def wanted() -> list[str]:
    """Requirements of the package, of the extras that may bring their dependencies, and of development."""
    project = tomllib.loads(Path("pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    return [
        *project["project"]["dependencies"],
        *(line for name, lines in extras.items() if name != "demo" for line in lines),
        *project["dependency-groups"]["dev"],
    ]


def freeze(torch: list[str]) -> list[str]:
    """Install the wanted packages into a new environment, PyTorch first, and list what came."""
    with tempfile.TemporaryDirectory() as folder:
        python(sys.executable, "-m", "venv", folder)
        pip = [f"{folder}/bin/python", "-m", "pip", "--disable-pip-version-check"]
        python(*pip, "install", "-qq", "--upgrade", "pip")
        python(*pip, "install", "-qq", *torch)
        python(*pip, "install", "-qq", *wanted())
        return python(*pip, "freeze", "--all").splitlines()


def python(*command: str) -> str:
    """What a command prints; whatever it complains about is shown."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout  # noqa: S603 - the words are ours and the Makefile's


def main() -> None:
    """Take the file to write and pip's arguments for PyTorch from the command line."""
    target, *torch = sys.argv[1:]
    lines = [line for line in freeze(torch) if not line.startswith(LEFT_OUT)]
    Path(target).write_text(HEADER + "\n".join(lines) + "\n")


main()
