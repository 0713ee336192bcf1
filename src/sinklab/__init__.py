"""Attention sinks of causal language models: measure them in any transformers model, exactly and in linear memory."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sinklab.errors import NotMeasurable as NotMeasurable
    from sinklab.errors import SinklabError as SinklabError
    from sinklab.models import load_model as load_model
    from sinklab.probe.doctor import doctor as doctor
    from sinklab.probe.measure import measure as measure
    from sinklab.probe.result import Result as Result
    from sinklab.probe.rows import load as load
    from sinklab.probe.rows import load_all as load_all
    from sinklab.probe.watch import Watch

    watch = Watch  # used as a function

# Public names and where they live: nothing is imported before it is used, so that `sinklab --help` needs no torch.
_HOMES = {
    "measure": "probe.measure",
    "watch": "probe.watch:Watch",
    "load": "probe.rows",
    "load_all": "probe.rows",
    "Result": "probe.result",
    "doctor": "probe.doctor",
    "load_model": "models",
    "SinklabError": "errors",
    "NotMeasurable": "errors",
}

__all__ = [  # noqa: PLE0604 - the same names, for people and type checkers
    *_HOMES
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sinklab' has no attribute {name!r}")
    home, _, attribute = _HOMES[name].partition(":")
    value = getattr(import_module(f"sinklab.{home}"), attribute or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*_HOMES, "__version__"])
