"""What `sinklab list` and `sinklab show` say: the experiments as plain data, and that data on a terminal."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sinklab import experiments
from sinklab.config import Config, Part, changes, formula, identity, plain
from sinklab.errors import SinklabError, nearest
from sinklab.experiments.experiment import Entry, Experiment, Found
from sinklab.experiments.overrides import overridden

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

Facts = Mapping[str, Any]


def print_list(words: Sequence[str], as_json: bool) -> None:
    """The experiments in whose name, group or difference every word is."""
    entries = matching(words)
    if as_json:
        _print_json([listed(entry) for entry in entries])
        return
    console = _console()
    for group, asked in experiments.groups().items():
        if inside := [entry for entry in entries if entry.group == group]:
            console.print(_group(group, asked, inside))
    console.print(_counted(entries), soft_wrap=True)


def print_shown(name: str, words: Sequence[str], as_json: bool) -> None:
    """One experiment, with what was typed put into it."""
    facts = shown(name, words)
    if as_json:
        _print_json(facts)
        return
    console = _console()
    for part in _pages(facts):
        console.print(part)


def matching(words: Sequence[str]) -> list[Entry]:
    """Every word somewhere in each of them."""
    entries = list(experiments.every().values())
    texts = {entry.name: f"{entry.name} {entry.group} {difference(entry.difference)}".lower() for entry in entries}
    found = [entry for entry in entries if all(word.lower() in texts[entry.name] for word in words)]
    if not found:
        raise SinklabError(
            f"No experiment has {' and '.join(f'`{word}`' for word in words)} in its name, group or difference.{_nearest_word(words, texts)}"
        )
    return found


def listed(entry: Entry) -> dict[str, Any]:
    """An experiment in a line."""
    return {
        "name": entry.name,
        "group": entry.group,
        "base": entry.base.name if entry.base else None,
        "difference": entry.difference,
        "because": entry.because,
        "identity": identity(entry.experiment),
        "paper": {"run": entry.paper} | _found(entry.found),
    }


def shown(name: str, words: Sequence[str] = ()) -> dict[str, Any]:
    """An experiment in full."""
    entry = experiments.named(name)
    experiment = overridden(entry.experiment, words).experiment
    return listed(entry) | {
        "overrides": changes(experiment, entry.experiment),
        "identity": identity(experiment),
        "parts": list(parts(experiment, "experiment")),
        **_sizes(experiment),
        "experiment": plain(experiment),
    }


def parts(config: Config, path: str) -> Iterator[dict[str, Any]]:
    """Every group of settings and every part, outer ones first: which it is, its formula, its settings."""
    own = {name: getattr(config, name) for name in type(config).model_fields}
    inner = [(f"{path}.{name}", value) for name, value in own.items() if isinstance(value, Config)]
    several = {name: value for name, value in own.items() if isinstance(value, tuple) and all(isinstance(one, Part) for one in value)}
    plain_ones = {name: plain(value) for name, value in own.items() if not isinstance(value, Config) and name not in several}
    yield {"path": path, "part": type(config).__name__, "formula": formula(config), "settings": plain_ones}
    for where, value in inner + [(f"{path}.{name}", one) for name, many in several.items() for one in many]:
        yield from parts(value, where)


def difference(leaves: Facts) -> str:
    """model.weights=Sigmoid, steps=40000."""
    return ", ".join(f"{path}={_value(value)}" for path, value in leaves.items())


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _found(found: Found) -> dict[str, Any]:
    return {"where": found.where, "numbers": dict(found.numbers), "proxy": found.proxy, "said": found.said, "note": found.note}


def _sizes(experiment: Experiment) -> dict[str, Any]:
    """Counted on the meta device, where tensors have shapes and no numbers."""
    import torch

    from sinklab.model.decoder import build
    from sinklab.model.tensors import EMBEDDING
    from sinklab.train.optimiser import parameters

    model, length = experiment.model, experiment.data.length
    named = list(parameters(build(model, device="meta")))
    total = sum(one.tensor.numel() for one in named)
    outside = sum(one.tensor.numel() for one in named if one.name.startswith(("embed.", "head.")))
    multiplied = total - sum(one.tensor.numel() for one in named if one.role == EMBEDDING)
    places = torch.arange(length)
    keys = model.mask.seen(places[:, None], places).sum().item() / length
    attention = 12 * model.depth * model.heads * model.head_size * keys
    return {
        "parameters": {"all": total, "without_embeddings": total - outside, "multiplied": multiplied},
        "tokens": experiment.tokens,
        "keys_seen": keys,
        "flops": {"per_token": 6 * multiplied + attention, "attention_per_token": attention, "all": (6 * multiplied + attention) * experiment.tokens},
    }


def _nearest_word(words: Sequence[str], texts: Facts) -> str:
    """Of the word that is nowhere, or else of the first."""
    lost = next((word for word in words if not any(word.lower() in text for text in texts.values())), words[0])
    known = {part for text in texts.values() for part in (text, *text.replace("/", " ").replace("=", " ").replace("(", " ").split())}
    return nearest(lost.lower(), [*texts, *experiments.groups(), *sorted(known)])


def _print_json(content: Any) -> None:
    print(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False))


def _console() -> "Console":
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 160, highlight=False)


def _group(group: str, asked: str, entries: Sequence[Entry]) -> "RenderableType":
    """A question, and a line for each experiment."""
    from rich.console import Group
    from rich.text import Text

    table = _table("experiment", "differs in", "the paper found")
    for entry in entries:
        table.add_row(entry.name, Text(_differs(entry)), Text(_says(_found(entry.found))))
    return Group(Text.assemble((group, "bold"), f"  {asked}"), table)


def _table(*columns: str) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, no_wrap=i == 0, overflow="fold")
    return table


def _differs(entry: Entry) -> str:
    """From a scale's base, unless it says from which."""
    if entry.base is None:
        return difference(entry.difference) or "nothing: the paper's 60M run"
    beside = f" (from {entry.base.name})" if entry.base.base else ""
    return difference(entry.difference) + beside


def _says(paper: Facts) -> str:
    """Sink_1 18.18 %, valid loss 3.73; a star where scores are proxies."""
    star = "*" if paper["proxy"] else ""
    numbers = ", ".join(f"{name} {x:.2f}" + (f" %{star}" if name.startswith("Sink") else "") for name, x in paper["numbers"].items())
    return "; ".join(part for part in (numbers, paper["said"]) if part) or paper["where"]


def _counted(entries: Sequence[Entry]) -> str:
    scales = {scale: sum(entry.name.startswith(f"{scale}/") for entry in entries) for scale in dict.fromkeys(e.name.split("/")[0] for e in entries)}
    many = ", ".join(f"{count} {scale}" for scale, count in scales.items())
    groups = len({entry.group for entry in entries})
    return (
        f"{len(entries)} experiment{'s' * (len(entries) != 1)} ({many}) in {groups} group{'s' * (groups != 1)}."
        " % marked * are of proxy scores. `sinklab show NAME` says all of one."
    )


def _pages(facts: Facts) -> "Iterator[RenderableType]":
    """From the top: the name, what differs, the parts, the sizes, the paper."""
    from rich.text import Text

    yield Text.assemble((facts["name"], "bold"), f"  {facts['group']}: {experiments.groups()[facts['group']]}")
    yield Text(f"Differs from {facts['base'] or 'paper/default'} in {difference(facts['difference']) or 'nothing'}{_reason(facts)}.")
    if facts["overrides"]:
        yield Text(f"Overridden: {difference(facts['overrides'])}.")
    table = _table("part", "is", "formula", "settings")
    for one in facts["parts"]:
        table.add_row(one["path"].removeprefix("experiment."), one["part"], Text(one["formula"]), Text(difference(one["settings"])))
    yield table
    yield from map(Text, _size_lines(facts))
    yield Text(f"Identity: {facts['identity']}.")
    yield from map(Text, _paper_lines(facts))


def _reason(facts: Facts) -> str:
    return f" ({facts['because']})" if facts["because"] else ""


def _size_lines(facts: Facts) -> Iterator[str]:
    """With the formulas that they come from."""
    counts, flops, settings = facts["parameters"], facts["flops"], facts["experiment"]
    yield f"Parameters: {counts['all']:,}, without token embedding and output matrix {counts['without_embeddings']:,}."
    yield f"Tokens: {facts['tokens']:,} = {settings['steps']:,} steps x {settings['batch']:,} sequences x {settings['data']['length']:,}."
    yield (
        f"FLOPs: {flops['all']:.3g} = tokens x (6 N + 12 L H D K) = tokens x ({6 * counts['multiplied']:.4g} + {flops['attention_per_token']:.4g}):"
        f" N = {counts['multiplied']:,} parameters that multiply (embeddings are looked up), L blocks, H heads of D,"
        f" K = {facts['keys_seen']:,.1f} keys that a query sees on average under the mask (causal: half of the length)."
    )


def _paper_lines(facts: Facts) -> Iterator[str]:
    """What it found, in which run, and where that is to be read."""
    paper, overridden_ = facts["paper"], bool(facts["overrides"])
    if not paper["run"]:
        yield "The paper has no such run."
        return
    run = "" if paper["run"] == facts["name"] and not overridden_ else f" for {paper['run']}"
    where = f" ({paper['where']})" if paper["where"] else ""
    yield f"The paper{run}: {_says(paper)}{where}.{' A star marks proxy scores.' if paper['proxy'] else ''}"
    if paper["note"]:
        yield f"Note: {paper['note']}"
