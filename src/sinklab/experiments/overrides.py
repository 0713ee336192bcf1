"""`path=value`: leaves and parts of an experiment replaced by what was typed, all at once, so that pairs which need each other come in any order."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from sinklab.config import Config, parse, plain, typed
from sinklab.errors import SinklabError, nearest
from sinklab.experiments.experiment import Experiment, Job, Machine


def overridden(experiment: Experiment, words: Sequence[str]) -> Job:
    """What is under `experiment.` becomes part of its identity, what is under `machine.` does not."""
    job = Job(experiment=experiment)
    given: dict[str, str] = {}
    for word in words:
        path, value = _pair(word)
        if path in given:
            raise SinklabError(f"`{path}` is given twice.")
        given[path] = value
    data = plain(job)
    for path in sorted(given, key=lambda path: path.count(".")):  # a part before its settings
        _put(data, path, given[path])
    try:
        return parse(Job, data)
    except SinklabError as error:
        raise SinklabError(str(error).removeprefix("Job: ")) from error


def paths(config: Config, path: str) -> Iterator[str]:
    """Of every leaf and part."""
    for name in type(config).model_fields:
        yield f"{path}.{name}"
        if isinstance(value := getattr(config, name), Config):
            yield from paths(value, f"{path}.{name}")


def _pair(word: str) -> tuple[str, str]:
    path, equals, value = word.partition("=")
    if not equals or not value:
        raise SinklabError(f"`{word}` is no override; write path=value, such as experiment.model.weights=Sigmoid.")
    if not path.startswith(("experiment.", "machine.")):
        known = [*paths(Experiment(), "experiment"), *paths(Machine(), "machine")]
        meant = next((one for one in known if one.endswith(f".{path}")), None)
        hint = f" Did you mean `{meant}`?" if meant else nearest(path, known)
        raise SinklabError(f"`{path}` is neither under `experiment.` nor under `machine.`.{hint}")
    return path, value


def _put(data: dict[str, Any], path: str, text: str) -> None:
    """A name that is not known is left to `parse`, which says what is."""
    *way, last = path.split(".")
    node = data
    for name in way:
        inner = node.setdefault(name, {})
        if isinstance(inner, str):
            inner = {"kind": inner}
        if not isinstance(inner, dict):
            raise SinklabError(f"`{name}` in `{path}` is {json.dumps(inner)}, which has no settings by name; give all of it.")
        node[name] = node = inner
    node[last] = typed(text, isinstance(node.get(last), list))
