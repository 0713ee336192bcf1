"""What every experiment is, as text under tests/golden: `python tests/experiments/goldens.py` writes it anew, and the diff shows what a change did.

`experiments.txt`: a scale's base with all of its settings; of everything else what differs from its base, and the parameters that do. A changed
base is one line. `identities.txt`: the identity of each. A line that changes orphans the runs of that experiment.
"""

import difflib
import functools
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

from sinklab import catalogue, experiments
from sinklab.config import identity, plain
from sinklab.experiments.experiment import Entry
from sinklab.model.decoder import build
from sinklab.model.design import Design
from sinklab.model.tensors import named

FOLDER = Path(__file__).parents[1] / "golden"
COMMAND = "python tests/experiments/goldens.py"
FEW = 6  # parameters that are named one by one


def files() -> dict[str, str]:
    """Name -> content."""
    entries = experiments.every().values()
    return {
        "experiments.txt": "".join(f"{line(entry)}\n" for entry in entries),
        "identities.txt": "".join(f"{entry.name} {identity(entry.experiment)}\n" for entry in entries),
    }


def line(entry: Entry) -> str:
    """One for each."""
    if entry.base is None:
        return f"{entry.name}: {settings(entry)} | parameters {hashed(tensors(entry.experiment.model))}"
    beside = f" (from {entry.base.name})" if entry.base.base else ""
    return f"{entry.name}: {catalogue.difference(entry.difference)}{beside} | {changed(entry.base.experiment.model, entry.experiment.model)}"


def settings(entry: Entry) -> str:
    """Every part and leaf."""
    found = []
    for part in catalogue.parts(entry.experiment, "experiment"):
        inner = catalogue.difference(part["settings"])
        found.append(f"{part['path'].removeprefix('experiment.')}={part['part']}({inner})")
    return ", ".join(found)


def changed(former: Design, design: Design) -> str:
    """Parameters that come and go; the blocks of a model are one."""
    before, after = in_general(tensors(former)), in_general(tensors(design))
    found = [*(f"+{one}" for one in sorted(after - before)), *(f"-{one}" for one in sorted(before - after))]
    return "the same parameters" if not found else ", ".join(found) if len(found) <= FEW else f"parameters {hashed(tensors(design))}"


@functools.cache
def of_design(text: str) -> tuple[str, ...]:
    """Name, shape and role of each, as it is drawn."""
    model = build(Design.model_validate_json(text), device="meta")
    return tuple(f"{one.name} {'x'.join(map(str, one.recipe.shape))} {one.recipe.role}" for one in named(model))


def tensors(design: Design) -> tuple[str, ...]:
    """The same design is built once, however many experiments have it."""
    return of_design(json.dumps(plain(design)))


def in_general(all_of_them: tuple[str, ...]) -> set[str]:
    """`blocks.3.` as `blocks.*.`."""
    return {re.sub(r"^blocks\.\d+\.", "blocks.*.", one) for one in all_of_them}


def hashed(all_of_them: tuple[str, ...]) -> str:
    """Twelve digits, and how many tensors."""
    digest = hashlib.sha256("\n".join(sorted(all_of_them)).encode()).hexdigest()
    return f"{digest[:12]} of {len(all_of_them)} tensors"


def differing() -> Iterator[str]:
    """The lines that are not as they were written down."""
    for name, content in files().items():
        path = FOLDER / name
        former, now = path.read_text(encoding="utf-8").splitlines() if path.exists() else [], content.splitlines()
        yield from (
            f"{name}: {one[:1]}{one[1:].strip()}" for one in difflib.unified_diff(former, now, n=0, lineterm="") if re.match(r"[-+](?![-+])", one)
        )


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, content in files().items():
        (FOLDER / name).write_text(content, encoding="utf-8")
