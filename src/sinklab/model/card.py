"""The model card of a folder: what a decoder is made of, how it is loaded, what trained it."""

import json
import re
from collections.abc import Iterator
from typing import Any

from huggingface_hub import ModelCardData
from torch import nn

from sinklab.config import Part, difference, formula, short
from sinklab.model.design import Design


def card(name: str, design: Design, model: nn.Module, training: dict[str, Any] | None) -> str:
    """Markdown, with the front matter that the Hub reads."""
    kinds = sorted(_kinds(design) - _kinds(Design()))
    front = ModelCardData(library_name="sinklab", pipeline_tag="text-generation", tags=["sinklab", "attention-sink", *kinds])
    sections = [_head(name, design, model), _loading(name), _differences(design), _parts(design), _training(training)]
    return f"---\n{front.to_yaml()}\n---\n\n" + "\n\n".join(section for section in sections if section) + "\n"


def _head(name: str, design: Design, model: nn.Module) -> str:
    everything = sum(p.numel() for p in model.parameters())
    inner = everything - 2 * design.vocabulary * design.width
    shape = f"{design.depth} layers of width {design.width}, {design.heads} heads of {design.head_size}, a vocabulary of {design.vocabulary:,}"
    return (
        f"# {name}\n\nA causal language model made of parts, so that one thing at a time can be varied: {shape}; "
        f"{everything:,} parameters, {inner:,} of them neither embedding nor head."
    )


def _loading(name: str) -> str:
    return (
        "## Loading\n\n```python\nimport sinklab.hub  # pip install sinklab\nfrom transformers import AutoModelForCausalLM\n"
        f'model = AutoModelForCausalLM.from_pretrained("{name}")\n```\n\n`sinklab measure {name}` measures its attention sinks.'
    )


def _differences(design: Design) -> str:
    found = difference(design)
    if not found:
        return "## What differs from the default\n\nNothing."
    return "## What differs from the default\n\n" + "\n".join(f"- `{path}`: `{_said(value)}`" for path, value in found.items())


def _parts(design: Design) -> str:
    rows = [f"| {path} | `{short(part)}` | {_escaped(formula(part))} |" for path, part in parts(design)]
    return "\n".join(["## What it is made of", "", "| part | here | what it is |", "|---|---|---|", *rows])


def parts(config: Any, path: str = "") -> Iterator[tuple[str, Part]]:
    """Every part in a config and in its parts, by dotted path."""
    for name in type(config).model_fields:
        value = getattr(config, name)
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, Part):
                yield f"{path}{name}", part
                yield from parts(part, f"{path}{name}.")


def _kinds(design: Design) -> set[str]:
    return {type(part).__name__ for _, part in parts(design)}


def _training(training: dict[str, Any] | None) -> str:
    if not training:
        return ""
    return f"## What trained it\n\n```json\n{json.dumps(training, indent=2, ensure_ascii=False, default=str)}\n```"


def _escaped(text: str) -> str:
    """Formulas hold what Markdown takes for marks of its own."""
    return re.sub(r"([\\|*_<\[\]`])", r"\\\1", text)


def _said(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
