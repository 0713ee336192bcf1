"""The command `sinklab`. Each command is one call; everything heavy is imported inside of it."""

import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, cast

import typer

from sinklab import __version__
from sinklab.errors import SinklabError, nearest

app = typer.Typer(
    name="sinklab",
    help="Attention sinks of causal language models: does my model have them, where, and so what.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

# Typer brings its own copy of click or uses the one that is installed, by its version; the class is the same in kind.
UsageError: type[Exception] = next(cls for cls in typer.BadParameter.__mro__ if cls.__name__ == "UsageError")

Models = Annotated[list[str], typer.Argument(metavar="MODEL...", help="Hub id, folder, .gguf file, PEFT adapter, or `demo`; several give one table.")]
Model = Annotated[str, typer.Argument(metavar="MODEL", help="Hub id, folder, .gguf file, PEFT adapter, or `demo`.")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a Hub model.")]
Dtype = Annotated[str | None, typer.Option(help="float32, bf16 or fp16. Default: float32 on a CPU, the checkpoint's own elsewhere.")]
Device = Annotated[str, typer.Option(help="auto (spread over what there is), cpu, cuda, cuda:1, mps.")]
Trust = Annotated[bool, typer.Option("--trust-remote-code", help="Run code that comes with the model. Off unless given.")]


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Attention sinks of causal language models: does my model have them, where, and so what."""
    if version:
        typer.echo(f"sinklab {__version__}")
        raise typer.Exit


@app.command()
def measure(
    models: Models,
    inputs: Annotated[list[str] | None, typer.Option(help="natural, random, repeat; several by comma or repetition.  [default: all three]")] = None,
    prompt: Annotated[list[str] | None, typer.Option(help="One text, at its own length; may be repeated.")] = None,
    text: Annotated[Path | None, typer.Option(help="Natural text from a file: txt, jsonl or parquet.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Natural text from a data set of the Hub.")] = None,
    length: Annotated[list[str] | None, typer.Option(help="Tokens per sequence; several allowed.  [default: 64]")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Sequences per input.")] = 100,
    epsilon: Annotated[list[str] | None, typer.Option(help="Threshold; several allowed.  [default: 0.3]")] = None,
    position: Annotated[list[str] | None, typer.Option(help="Positions from 1; 0 is a learned (virtual) sink.  [default: 1]")] = None,
    definition: Annotated[
        list[str] | None, typer.Option(help="What to call a sink; several allowed, `all` for every one.  [default: gu2024]")
    ] = None,
    bos: Annotated[str, typer.Option(help="keep (as the tokenizer does), add or none.")] = "keep",
    chat_template: Annotated[bool, typer.Option("--chat-template", help="Wrap natural text as a user's turn.")] = False,
    batch_size: Annotated[str, typer.Option(help="Sequences per forward, or auto.")] = "auto",
    revision: Revision = None,
    dtype: Dtype = None,
    device: Device = "auto",
    seed: Annotated[int, typer.Option(help="Of random and repeated tokens.")] = 0,
    probes: Annotated[
        list[str] | None, typer.Option(help="More to measure: entropy, decomposition, matrix-entropy ...; `all` for every one.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Root of the run folders.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json and nothing else on stdout.")] = False,
    trust_remote_code: Trust = False,
) -> None:
    """Measure attention sinks; print a table and a verdict, write rows, a summary and a page."""
    from sinklab import survey

    request = survey.Request(
        models=tuple(models), inputs=_several(inputs), prompts=tuple(prompt or ()), text=text, dataset=dataset, lengths=_integers(length, "--length"),
        samples=samples, epsilons=_numbers(epsilon, "--epsilon"), positions=_integers(position, "--position", least=0),
        definitions=_several(definition), bos=cast("survey.Bos", bos), chat_template=chat_template, batch_size=_batch_size(batch_size),
        revision=revision, dtype=dtype, device=device, seed=seed, probes=_several(probes), out=out, trust_remote_code=trust_remote_code,
    )  # fmt: skip
    with _interruptible():
        survey.run(request, as_json)


@app.command()
def doctor(model: Model, revision: Revision = None, dtype: Dtype = None, device: Device = "auto", trust_remote_code: Trust = False) -> None:
    """Test on this machine that a model is measured truly: pass or fail per line, with its figure."""
    from sinklab import survey

    if not survey.examine(model, revision=revision, dtype=dtype, device=device, trust_remote_code=trust_remote_code):
        raise typer.Exit(1)


@app.command("list")
def list_experiments(
    words: Annotated[list[str] | None, typer.Argument(metavar="[WORD]...", help="Those that have every word in name, group or difference.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """List the experiments by question: what each differs in from its base, and what the paper found."""
    from sinklab import catalogue

    catalogue.print_list(words or (), as_json)


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Such as paper/default; `sinklab list` names them all.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[PATH=VALUE]...", help="Such as experiment.model.weights=Sigmoid; machine.* changes no identity.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Show one experiment: its difference, its parts and their formulas, its size, what the paper found."""
    from sinklab import catalogue

    catalogue.print_shown(name, overrides or (), as_json)


def main() -> None:
    """Run the command; what goes wrong outside of us is one sentence on stderr and exit code 2."""
    signal.signal(signal.SIGTERM, _interrupt)
    if len(sys.argv) == 1:
        sys.argv.append("--help")
    try:
        code = typer.main.get_command(app).main(prog_name="sinklab", standalone_mode=False)
    except UsageError as error:
        code = _say(f"{_one_line(error)}{_nearest_command(error)}", 2)
    except SinklabError as error:
        code = _say(str(error), 2)
    except OSError as error:
        code = _say(f"{error.strerror or error}: {error.filename}" if error.filename else str(error.strerror or error), 2)
    except _Interrupted:
        code = _say("Interrupted. What was measured is kept; the same command goes on from there.", 130)
    sys.exit(code if isinstance(code, int) else 0)


def _say(sentence: str, code: int) -> int:
    print(f"sinklab: {sentence}", file=sys.stderr)
    return code


def _one_line(error: Any) -> str:
    """Without the help that it may bring."""
    return " ".join(str(error.format_message()).split())


def _nearest_command(error: Any) -> str:
    text = _one_line(error)
    named = re.search(r"No such command '(.*?)'", text)
    return nearest(named[1], [command.name or "" for command in app.registered_commands]) if named and "Did you mean" not in text else ""


class _Interrupted(Exception):  # noqa: N818 - what happened, not an error
    """By Ctrl-C or SIGTERM; Typer would end the process without a word."""


@contextmanager
def _interruptible() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as signalled:
        raise _Interrupted from signalled


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _several(values: list[str] | None) -> tuple[str, ...]:
    """Values by comma, by repetition, or both."""
    return tuple(dict.fromkeys(part.strip() for value in values or () for part in value.split(",") if part.strip()))


def _integers(values: list[str] | None, option: str, least: int = 1) -> tuple[int, ...]:
    return tuple(int(number) for number in _checked(values, option, int, least))


def _numbers(values: list[str] | None, option: str) -> tuple[float, ...]:
    return tuple(_checked(values, option, float, 0, most=1))


def _checked(values: list[str] | None, option: str, kind: type, least: float, most: float = float("inf")) -> list[Any]:
    if values and not _several(values):
        raise SinklabError(f"{option} is empty.")
    found = []
    for value in _several(values):
        try:
            number = kind(value)
        except ValueError as error:
            raise SinklabError(f"{option} takes {'whole numbers' if kind is int else 'numbers'}, not `{value}`.") from error
        if not number >= least:
            raise SinklabError(f"{option} must be at least {least}, not {value}.")
        if number > most:
            raise SinklabError(f"{option} must be at most {most}, not {value}.")
        found.append(number)
    return found


def _batch_size(value: str) -> int | None:
    return None if value == "auto" else _integers([value], "--batch-size")[0]
