"""Numbers as rows in parquet: what lasts, and what every figure and page is drawn from.

One row per (run, input, length, step, sequence, layer, head, name); `value` is a list over positions, or of one number. Layers and heads count from 0
as in transformers (for hidden states, layer 0 is what enters the first layer), positions from 1; head -1 is "all heads", layer -1 "the whole model".
The tokens stand in a table of their own. Parquet cannot be appended to, so there are parts, each whole or not there.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sinklab.errors import SinklabError
from sinklab.probe.result import HIDDEN, Result, joined

SCHEMA = 1
_META = b"sinklab"
_KEY = [
    ("run", pa.string()), ("input", pa.string()), ("length", pa.int32()), ("step", pa.int64()), ("sequence", pa.int32()),
]  # fmt: skip
ROWS = pa.schema([*_KEY, ("layer", pa.int16()), ("head", pa.int16()), ("name", pa.string()), ("value", pa.list_(pa.float32()))])
TOKENS = pa.schema(
    [*_KEY, ("padding", pa.int32()), ("ids", pa.list_(pa.int64())), ("texts", pa.list_(pa.string())), ("starts", pa.list_(pa.int32()))]
)


def table(result: Result, first: int = 0, step: int = 0) -> pa.Table:
    """The rows of a result; its sequences are numbered from `first`."""
    pieces = [_rows_of(result, name, values, first, step) for name, values in sorted(result.numbers.items())]
    if result.loss is not None:
        pieces.append(_rows_of(result, "loss", result.loss[:, None, None, None], first, step, layer=-1))
    return pa.concat_tables(pieces).replace_schema_metadata(_metadata(result, first))


def save(result: Result, folder: Path) -> Path:
    """Write a result as the only one of a folder."""
    if any(folder.glob("rows/*")):
        raise SinklabError(f"{folder} holds rows already; they are not overwritten.")
    write_part(result, folder, 0)
    return folder


def write_part(result: Result, folder: Path, first: int, step: int = 0) -> None:
    """One part, whole or not at all: the tokens first, so that whoever sees the rows finds them too."""
    number = len(list((folder / "rows").glob("part-*.parquet")))
    for kind, content in (("tokens", _tokens(result, first, step)), ("rows", table(result, first, step))):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        _write(content, folder / kind / f"part-{number:05d}.parquet")


def load(folder: str | Path, input: str | None = None) -> Result:  # noqa: A002 - the same word as in the rows
    """The result that was saved in a folder; with several inputs, the one that is named."""
    results = load_all(folder)
    if input is None and len(results) > 1:
        raise SinklabError(f'{folder} holds {", ".join(results)}: say which, as in load(folder, input="{next(iter(results))}").')
    if input is not None and input not in results:
        raise SinklabError(f"{folder} holds {', '.join(results)}, not {input}.")
    return next(iter(results.values())) if input is None else results[input]


def load_all(folder: str | Path) -> dict[str, Result]:
    """Every input of a folder, in the order in which they were measured."""
    by_input: dict[str, list[Result]] = {}
    for part in parts(Path(folder)):
        by_input.setdefault(part.input, []).append(part)
    if not by_input:
        raise SinklabError(f"{folder} holds no rows of sinklab.")
    return {name: joined(found) for name, found in by_input.items()}


def measured(folder: Path) -> dict[str, int]:
    """How many sequences of each input are there, from the parts' metadata alone."""
    found: dict[str, int] = {}
    for path in sorted((folder / "rows").glob("part-*.parquet")):
        with _readable(path):
            facts = json.loads((pq.read_schema(path).metadata or {})[_META])
            found[facts["input"]] = max(found.get(facts["input"], 0), facts["first"] + facts["sequences"])
    return found


def parts(folder: Path) -> Iterator[Result]:
    """The parts of a folder, in the order in which they were written."""
    for path in sorted((folder / "rows").glob("part-*.parquet")):
        with _readable(path):
            found = _result(pq.read_table(path), pq.read_table(folder / "tokens" / path.name))
        yield found


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowInvalid, OSError, KeyError, ValueError) as error:
        raise SinklabError(f"{path} cannot be read as rows of sinklab: {str(error).splitlines()[0]}") from error


def _rows_of(result: Result, name: str, values: np.ndarray, first: int, step: int, layer: int = 0) -> pa.Table:
    many, layers, heads, width = values.shape
    places = np.arange(1, width + 1)
    lengths = (~np.isnan(values) * places).max(-1).reshape(-1) if width else np.zeros(many * layers * heads, int)
    kept = lengths > 0
    n, la, h = (x.reshape(-1)[kept] for x in np.meshgrid(np.arange(many), np.arange(layers), np.arange(heads), indexing="ij"))
    flat = values.reshape(-1, width)[kept]
    inside = np.arange(width) < lengths[kept, None]
    offsets = np.concatenate([[0], np.cumsum(lengths[kept])]).astype(np.int32)
    lists = pa.ListArray.from_arrays(offsets, pa.array(flat[inside]))
    shared = heads == 1 and (name == "queries" or layer < 0 or name in HIDDEN)
    columns = {"layer": la + layer, "head": np.full_like(h, -1) if shared else h, "name": pa.repeat(name, len(n)), "value": lists}
    return pa.table(_key(result, n + first, step) | columns, schema=ROWS)


def _key(result: Result, sequences: np.ndarray, step: int) -> dict[str, Any]:
    many = len(sequences)
    return {
        "run": pa.repeat(result.run, many),
        "input": pa.repeat(result.input, many),
        "length": np.full(many, result.tokens.shape[1]),
        "step": np.full(many, step),
        "sequence": sequences,
    }


def _tokens(result: Result, first: int, step: int) -> pa.Table:
    many = len(result.tokens)
    ids = [row[: int(((row >= 0) * np.arange(1, len(row) + 1)).max())].tolist() for row in result.tokens]  # padding inside keeps its places
    starts = [[0] if result.starts is None else np.flatnonzero(row).tolist() for row in (result.tokens if result.starts is None else result.starts)]
    columns = {"padding": result.padding, "ids": ids, "texts": [None] * many if result.texts is None else result.texts, "starts": starts}
    return pa.table(_key(result, np.arange(first, first + many), step) | columns, schema=TOKENS).replace_schema_metadata(_metadata(result, first))


def _metadata(result: Result, first: int) -> dict[bytes, bytes]:
    shapes = {name: list(x.shape[1:]) for name, x in result.numbers.items()}
    facts = {"schema": SCHEMA, "model": result.model, "input": result.input, "run": result.run, "ways": result.ways, "notes": result.notes}
    facts |= {"weights": result.weights, "proxy": result.proxy}
    facts |= {"shapes": shapes, "sequences": len(result.tokens), "places": result.tokens.shape[1], "first": first}
    return {_META: json.dumps(facts | {"packed": result.starts is not None}).encode()}


def _write(content: pa.Table, path: Path) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        pq.write_table(content, file, compression="zstd")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _result(rows: pa.Table, tokens: pa.Table) -> Result:
    facts = json.loads((rows.schema.metadata or {})[_META])
    if facts["schema"] != SCHEMA:
        raise SinklabError(f"These rows have schema {facts['schema']}; this version of sinklab reads {SCHEMA}.")
    many, places = facts["sequences"], facts["places"]
    numbers = {name: np.full((many, *shape), np.nan, np.float32) for name, shape in facts["shapes"].items()}
    loss = None
    names = rows["name"].to_pylist()
    order = np.array(names)
    for name in dict.fromkeys(names):
        some = rows.filter(pa.array(order == name))
        if name == "loss":
            loss = np.full(many, np.nan, np.float32)
            loss[_numpy(some["sequence"]) - facts["first"]] = _flat(some)[1]
        else:
            _fill(numbers[name], some, facts["first"])
    return Result(
        numbers, _ids(tokens, places), _numpy(tokens["padding"]), facts["model"], facts["input"], facts["run"], tuple(facts["ways"]),
        tuple(facts.get("weights", ())), facts.get("proxy", False),
        _starts(tokens, places) if facts["packed"] else None, _texts(tokens), loss, tuple(facts["notes"]),
    )  # fmt: skip


def _fill(array: np.ndarray, some: pa.Table, first: int) -> None:
    lengths, values = _flat(some)
    n, layer, head = (np.repeat(_numpy(some[name]), lengths) for name in ("sequence", "layer", "head"))
    within = np.arange(len(values)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    array[n - first, layer, np.maximum(head, 0), within] = values


def _flat(some: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    lists = some["value"].combine_chunks()
    return lists.value_lengths().to_numpy(zero_copy_only=False), lists.flatten().to_numpy(zero_copy_only=False)


def _numpy(column: pa.ChunkedArray) -> np.ndarray:
    return column.to_numpy().astype(np.int64)


def _ids(tokens: pa.Table, places: int) -> np.ndarray:
    ids = np.full((len(tokens), places), -1, np.int64)
    for row, found in zip(ids, tokens["ids"].to_pylist(), strict=True):
        row[: len(found)] = found
    return ids


def _starts(tokens: pa.Table, places: int) -> np.ndarray:
    starts = np.zeros((len(tokens), places), bool)
    for row, found in zip(starts, tokens["starts"].to_pylist(), strict=True):
        row[found] = True
    return starts


def _texts(tokens: pa.Table) -> tuple[tuple[str, ...], ...] | None:
    texts = tokens["texts"].to_pylist()
    return None if any(text is None for text in texts) else tuple(tuple(text) for text in texts)
