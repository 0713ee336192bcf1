"""A whole measurement: models times inputs into run folders, with a table, a verdict and a page at the end."""

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from sinklab import runs
from sinklab.config import Config
from sinklab.errors import SinklabError, nearest
from sinklab.probe import definitions, rows
from sinklab.probe.result import Result
from sinklab.report.summary import Asked, summarise, whole

if TYPE_CHECKING:
    from sinklab.data.inputs import Inputs
    from sinklab.data.sources import Source
    from sinklab.models import Loaded
    from sinklab.probe.probes import Probe

INPUTS = ("natural", "random", "repeat")
Bos = Literal["keep", "add", "none"]
PROBES = ("alpha", "virtual", "own", "tail", "norms", "massive", "contribution", "gate")  # always measured: cheap beside the forward
MORE_PROBES = ("entropy", "decomposition", "matrix-entropy")


@dataclass(frozen=True)
class Request:
    """The command line, parsed."""

    models: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    prompts: tuple[str, ...] = ()
    text: Path | None = None
    dataset: str | None = None
    lengths: tuple[int, ...] = ()
    samples: int = 100
    epsilons: tuple[float, ...] = ()
    positions: tuple[int, ...] = ()
    definitions: tuple[str, ...] = ()
    bos: Bos = "keep"
    chat_template: bool = False
    batch_size: int | None = None
    revision: str | None = None
    dtype: str | None = None
    device: str = "auto"
    seed: int = 0
    probes: tuple[str, ...] = ()
    out: Path = Path("runs")
    trust_remote_code: bool = False


class Experiment(Config):
    """What is asked of one model: every leaf is part of the run's identity. Definitions and thresholds are not, they are computed from the rows."""

    model: str
    content: str = ""  # hash of a local model's files, so that another checkpoint under the same path is another run
    revision: str | None = None
    inputs: tuple[str, ...] = INPUTS
    prompts: tuple[str, ...] = ()
    source: str = ""  # which natural texts
    lengths: tuple[int, ...] = (64,)
    samples: int = 100
    bos: Bos = "keep"
    chat_template: bool = False
    dtype: str = "float32"
    seed: int = 0
    probes: tuple[str, ...] = PROBES
    trust_remote_code: bool = False


def run(request: Request, as_json: bool) -> None:
    """Measure every model, then say what was found: a table, verdicts and where the pages are, or one JSON object."""
    _check(request)
    asked = _asked(request)
    source = _source(request)
    surveys = [_survey(name, request, asked, source) for name in request.models]
    document = whole([survey.entry for survey in surveys])
    comparison = None
    if len(surveys) > 1:
        from sinklab.report.compare import write_comparison

        comparison = write_comparison(request.out, [survey.entry for survey in surveys], [survey.page for survey in surveys])
    if as_json:
        print(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))
    else:
        _tell(surveys, comparison)


@dataclass(frozen=True)
class Survey:
    """One model, measured."""

    entry: dict[str, Any]
    folder: Path
    page: Path


def _survey(name: str, request: Request, asked: Asked, source: "Source | None") -> Survey:
    experiment = _experiment(name, request, source)
    machine = {"device": request.device, "batch_size": request.batch_size or "auto"}
    with runs.opened(request.out, name, experiment, machine) as run:
        if (run.folder / "settings.json").exists() and (run.folder / "summary.json").exists():
            print(f"sinklab: {name} has been measured; this is {run.folder}.", file=sys.stderr)
        else:
            _measure(run, name, request, experiment, source)
        return _report(run, name, asked)


def _measure(run: runs.Run, name: str, request: Request, experiment: Experiment, source: "Source | None") -> None:
    """Whatever is not there yet."""
    from sinklab.models import load_model

    _hush()
    with _spinner(f"Loading {name}"):
        loaded = load_model(name, revision=request.revision, dtype=request.dtype, device=request.device, trust_remote_code=request.trust_remote_code)
        inputs = list(_inputs(loaded, experiment, source))
    there = rows.measured(run.folder)
    with _progress(name, sum(len(some.tokens) for some in inputs), sum(there.values())) as advance:
        for some in inputs:
            _measure_input(run, loaded, some, experiment, request.batch_size, there.get(some.name, 0), advance)
    run.write_json("settings.json", _settings(loaded, experiment, request, inputs))


def _measure_input(
    run: runs.Run,
    loaded: "Loaded",
    inputs: "Inputs",
    experiment: Experiment,
    batch_size: int | None,
    there: int,
    advance: Callable[[int], None],
) -> None:
    """The sequences of one input that are not there yet, a part of the rows for each batch."""
    from sinklab.probe.measure import batches

    if there >= len(inputs.tokens):
        return
    mask = None if inputs.attention_mask is None else inputs.attention_mask[there:]
    words = _Words(loaded)
    for result in batches(
        loaded.model, inputs.tokens[there:], mask, probes=_probes(experiment), loss=inputs.length > 1, batch_size=batch_size, done=advance
    ):
        named = replace(result, model=loaded.name, input=inputs.name, run=run.identity, texts=words.of(result), notes=inputs.notes)
        rows.write_part(named, run.folder, there)
        there += len(result.tokens)


def _report(run: runs.Run, name: str, asked: Asked) -> Survey:
    """Everything but the rows is drawn from the rows."""
    from sinklab.report.figures import draw
    from sinklab.report.page import write_page

    results = rows.load_all(run.folder)
    settings = json.loads((run.folder / "settings.json").read_text(encoding="utf-8"))
    entry = summarise(name, settings, results, asked)
    run.write_json("summary.json", whole([entry]))
    draw(run.folder / "figures", results, asked.detail[1])
    return Survey(entry, run.folder, write_page(run.folder, entry, results))


def _tell(surveys: list[Survey], comparison: Path | None) -> None:
    from rich.console import Console
    from rich.text import Text

    from sinklab.report.tables import spoken, tables

    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    entries = [survey.entry for survey in surveys]
    for table in tables(entries):
        console.print(table)
    for survey in surveys:
        if len(surveys) > 1:
            console.rule(Text(survey.entry["model"]), align="left")
        console.print(spoken(survey.entry["verdict"]))
        console.print(Text(f"Page: {survey.page}"), soft_wrap=True)
    if comparison is not None:
        console.print(Text(f"All of them: {comparison}"), soft_wrap=True)


def _check(request: Request) -> None:
    """Names are refused before anything is loaded."""
    _known(request.inputs, INPUTS, "--inputs")
    _known((request.bos,), get_args(Bos), "--bos")
    _known(tuple(p for p in request.probes if p != "all"), (*PROBES, *MORE_PROBES), "--probes")
    if request.text is not None and request.dataset is not None:
        raise SinklabError("--text and --dataset both say where natural text comes from; give one of them.")
    if request.prompts and request.lengths and not request.inputs:
        raise SinklabError("--prompt measures a text at its own length; --length has no meaning for it.")
    if (request.text or request.dataset) and "natural" not in _wanted(request):
        raise SinklabError("--text and --dataset are for natural input, which was not asked for.")


def _known(names: tuple[str, ...], known: tuple[str, ...], option: str) -> None:
    for name in names:
        if name not in known:
            raise SinklabError(f"{option} does not know `{name}`.{nearest(name, known)} Known: {', '.join(known)}.")


def _wanted(request: Request) -> tuple[str, ...]:
    """The inputs: all three, unless some are named or a prompt is what is asked about."""
    return request.inputs or (() if request.prompts else INPUTS)


def _asked(request: Request) -> Asked:
    names = tuple(definitions.ALL) if "all" in request.definitions else request.definitions
    for name in names:
        definitions.named(name)
    default = Asked()
    return Asked(names or default.definitions, request.epsilons or default.epsilons, request.positions or default.positions)


def _source(request: Request) -> "Source | None":
    """Where natural text comes from; None where none is wanted."""
    if "natural" not in _wanted(request):
        return None
    from sinklab.data.sources import Files, HubDataset, SpeechTexts

    if request.text is not None:
        return Files((request.text,))
    return SpeechTexts() if request.dataset is None else HubDataset.parse(request.dataset)


def _experiment(name: str, request: Request, source: "Source | None") -> Experiment:
    more = MORE_PROBES if "all" in request.probes else tuple(p for p in request.probes if p not in PROBES)
    return Experiment(
        model=name, content=_content(name), revision=request.revision, inputs=_wanted(request), prompts=request.prompts,
        source="" if source is None else source.identity(), lengths=request.lengths or (64,), samples=request.samples, bos=request.bos,
        chat_template=request.chat_template, dtype=_dtype(request), seed=request.seed, probes=(*PROBES, *sorted(more)),
        trust_remote_code=request.trust_remote_code,
    )  # fmt: skip


def _dtype(request: Request) -> str:
    from sinklab.models import chosen_dtype, on_cpu, placement

    wanted = chosen_dtype(request.dtype)
    if wanted is not None:
        return str(wanted).removeprefix("torch.")
    return "float32" if on_cpu(placement(request.device)) else "the checkpoint's"


def _content(name: str) -> str:
    """Of a local model: a hash of its files' names, sizes, beginnings and ends."""
    path = Path(name).expanduser()
    if not path.exists():
        return ""
    digest = hashlib.sha256()
    for file in sorted(p for p in ([path] if path.is_file() else path.rglob("*")) if p.is_file()):
        size = file.stat().st_size
        digest.update(f"{file.name} {size}".encode())
        with file.open("rb") as content:
            digest.update(content.read(1 << 20))
            content.seek(max(0, size - (1 << 20)))
            digest.update(content.read())
    return digest.hexdigest()[:16]


def _probes(experiment: Experiment) -> "tuple[Probe, ...]":
    from sinklab.probe.probes import ALL

    return tuple(ALL[name] for name in experiment.probes)


def _inputs(loaded: "Loaded", experiment: Experiment, source: "Source | None") -> "Iterator[Inputs]":
    """Every input at every length, checked against the model."""
    from sinklab.data.inputs import check_vocabulary, embedding_rows, prompt
    from sinklab.probe.measure import check_length

    for length in experiment.lengths if experiment.inputs else ():
        check_length(loaded.model.config, length)
        for kind in experiment.inputs:
            name = kind if len(experiment.lengths) == 1 else f"{kind}@{length}"
            some = replace(_made(kind, loaded, experiment, source, length), name=name)
            check_vocabulary(some, embedding_rows(loaded.model))
            yield some
    for number, text in enumerate(experiment.prompts, 1):
        some = prompt(loaded.reader(), text, experiment.bos, experiment.chat_template)
        check_length(loaded.model.config, some.length)
        check_vocabulary(some, embedding_rows(loaded.model))
        yield replace(some, name="prompt" if len(experiment.prompts) == 1 else f"prompt-{number}")


def _made(kind: str, loaded: "Loaded", experiment: Experiment, source: "Source | None", length: int) -> "Inputs":
    from sinklab.data import inputs

    if kind == "natural":
        assert source is not None
        return inputs.natural(loaded.reader(), source, length, experiment.samples, experiment.bos, experiment.chat_template)
    words = inputs.vocabulary(loaded.tokenizer, inputs.embedding_rows(loaded.model))
    first = inputs.bos_id(loaded.reader()) if experiment.bos == "add" else None
    make = inputs.random_tokens if kind == "random" else inputs.repeated
    return make(words, length, experiment.samples, experiment.seed, first)


def _settings(loaded: "Loaded", experiment: Experiment, request: Request, inputs: "list[Inputs]") -> dict[str, Any]:
    model = loaded.model
    return {
        **experiment.model_dump(mode="json", exclude={"model"}),
        "revision": loaded.revision,
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": request.device if request.device != "auto" else str(model.device),
        "architecture": type(model).__name__,
        "parameters": model.num_parameters(),
        "sources": {some.name: some.source for some in inputs},
        "notes": list(dict.fromkeys([*loaded.notes, *(note for some in inputs for note in some.notes)])),
        "packages": {name: runs.package_version(name) for name in runs.PACKAGES},
    }


@dataclass(frozen=True)
class _Words:
    """Tokens as text, each id decoded once."""

    loaded: "Loaded"

    @cached_property
    def _known(self) -> dict[int, str]:
        return {-1: ""}

    def of(self, result: Result) -> tuple[tuple[str, ...], ...] | None:
        """The text of every token of every sequence."""
        if self.loaded.tokenizer is None:
            return None
        for token in {int(token) for token in result.tokens.flat} - set(self._known):
            self._known[token] = str(self.loaded.tokenizer.decode([token]))
        return tuple(tuple(self._known[int(token)] for token in row) for row in result.tokens)


def _hush() -> None:
    """What transformers remarks on the way is not for whoever asked about sinks."""
    from transformers.utils import logging

    logging.set_verbosity_error()


@contextmanager
def _spinner(text: str) -> Iterator[None]:
    from rich.console import Console

    with Console(stderr=True).status(text):
        yield


@contextmanager
def _progress(name: str, total: int, there: int) -> Iterator[Callable[[int], None]]:
    """A bar with the time that is left, on stderr; gone when it is done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("sequences, left:"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task(f"Measuring {name}", total=total, completed=there)
        yield lambda many: progress.update(task, advance=many)


def examine(name: str, *, revision: str | None, dtype: str | None, device: str, trust_remote_code: bool) -> bool:
    """`sinklab doctor`: print a line per check, and whether all passed."""
    from rich.console import Console

    from sinklab.models import load_model
    from sinklab.probe.doctor import doctor
    from sinklab.report.tables import checks

    _hush()
    with _spinner(f"Loading {name}"):
        loaded = load_model(name, revision=revision, dtype=dtype, device=device, trust_remote_code=trust_remote_code)
    with _spinner(f"Examining {name}"):
        lines = doctor(loaded.model)
    Console(width=None if sys.stdout.isatty() else 120, highlight=False).print(checks(name, lines))
    return all(line.passed is not False for line in lines)
