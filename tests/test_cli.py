"""The command, in real processes: what it writes and prints, that it goes on after an interruption, and one sentence for each kind of bad input."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pyarrow.parquet as pq
import pytest

import sinklab
from sinklab.probe import rows
from sinklab.probe.definitions import ALL
from sinklab.report.summary import schema
from small import save, small_llama, small_tokenizer

TEXT = "It was a dark and stormy night; the rain fell in torrents, except at occasional intervals. "


def sinklab_run(*words, cwd=None, **env):
    command = [sys.executable, "-m", "sinklab", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=120, env=os.environ | {"HF_HUB_OFFLINE": "1", **env}, check=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save(tmp_path_factory.mktemp("models") / "tiny", small_llama(), small_tokenizer())


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": f"{i} {TEXT * 4}"}) + "\n" for i in range(12)))
    return path


def small(model, text, out, *more):
    return ("measure", model, "--text", text, "--samples", 10, "--length", 32, "--out", out, *more)


def test_a_whole_measurement(model, text, tmp_path):
    done = sinklab_run(*small(model, text, tmp_path / "runs", "--definition", "all", "--epsilon", "0.1,0.2", "--position", "1,2", "--probes", "all"))
    assert done.returncode == 0, done.stderr
    assert "tiny" in done.stdout and "random" in done.stdout
    (folder,) = (tmp_path / "runs").glob("tiny/*")
    summary = json.loads((folder / "summary.json").read_text())
    jsonschema.validate(summary, schema())
    entry = summary["models"][0]
    assert list(entry["inputs"]) == ["natural", "random", "repeat"]
    assert {row["definition"] for row in entry["inputs"]["natural"]["sinks"]} == set(ALL)
    assert {(row["epsilon"], row["position"]) for row in entry["inputs"]["random"]["sinks"] if row["definition"] == "gu2024"} == {
        (e, p) for e in (0.1, 0.2) for p in (1, 2)
    }
    assert all(entry["inputs"][name]["sequences"] == 10 for name in entry["inputs"])
    assert (folder / "report.html").stat().st_size > 1000 and list((folder / "figures").iterdir())
    run = json.loads((folder / "run.json").read_text())
    assert run["identity"] == folder.name and run["difference"]["samples"] == 10
    result = sinklab.load(folder, "natural")
    assert result.sink(1, 0.1).percent == pytest.approx(entry["inputs"]["natural"]["sinks"][0]["percent"], abs=1e-4)
    assert result.texts[0][:2] == ("<s>", "0")
    assert result.loss.mean() == pytest.approx(entry["inputs"]["natural"]["loss"], rel=1e-4)


def test_json_is_all_that_stdout_gets_and_several_models_make_one_object(model, text, tmp_path):
    other = save(tmp_path / "other", small_llama(1), small_tokenizer())
    done = sinklab_run("measure", model, other, "--text", text, "--samples", 4, "--length", "16,24", "--json", "--out", tmp_path / "runs")
    document = json.loads(done.stdout)
    jsonschema.validate(document, schema())
    assert [entry["model"] for entry in document["models"]] == [str(model), str(other)]
    assert list(document["models"][0]["inputs"]) == [f"{kind}@{length}" for length in (16, 24) for kind in ("natural", "random", "repeat")]


def test_a_measured_run_is_shown_and_asked_anew_without_measuring(model, text, tmp_path):
    words = small(model, text, tmp_path / "runs")
    assert sinklab_run(*words).returncode == 0
    parts = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("part-*.parquet")}
    again = sinklab_run(*words, "--epsilon", "0.05", "--json")
    assert "has been measured" in again.stderr
    assert json.loads(again.stdout)["models"][0]["inputs"]["random"]["sinks"][0]["epsilon"] == 0.05
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("part-*.parquet")} == parts
    assert len(list((tmp_path / "runs").glob("tiny/*"))) == 1
    assert sinklab_run(*words, "--seed", 1).returncode == 0
    assert len(list((tmp_path / "runs").glob("tiny/*"))) == 2  # another question is another run


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_run_goes_on_from_there(model, text, tmp_path, kind):
    words = (
        "measure",
        model,
        "--text",
        text,
        "--samples",
        12,
        "--length",
        96,
        "--batch-size",
        1,
        "--inputs",
        "natural,random",
        "--probes",
        "all",
        "--out",
        tmp_path / "runs",
    )
    process = subprocess.Popen([sys.executable, "-m", "sinklab", *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while len(list((tmp_path / "runs").rglob("part-*.parquet"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(kind)
    _, err = process.communicate(timeout=30)
    assert process.returncode == (-9 if kind == signal.SIGKILL else 130), err
    assert kind == signal.SIGKILL or "goes on from there" in err
    (folder,) = (tmp_path / "runs").glob("tiny/*")
    before = rows.measured(folder)
    kept = {path: path.read_bytes() for path in folder.glob("rows/part-*.parquet")}
    assert 0 < sum(before.values()) < 24
    done = sinklab_run(*words)
    assert done.returncode == 0, done.stderr
    assert rows.measured(folder) == {"natural": 12, "random": 12}
    assert all(path.read_bytes() == content for path, content in kept.items())
    frame = pq.read_table(folder / "rows").to_pandas()
    assert not frame.duplicated(["input", "sequence", "layer", "head", "name"]).any()
    whole = sinklab_run(*words[:-1], tmp_path / "whole")
    assert whole.returncode == 0
    (other,) = (tmp_path / "whole").glob("tiny/*")
    a, b = sinklab.load_all(folder), sinklab.load_all(other)
    assert all((a[name].alpha == b[name].alpha).all() for name in a)


def test_a_prompt_is_measured_at_its_own_length(model, tmp_path):
    done = sinklab_run("measure", model, "--prompt", TEXT, "--json", "--out", tmp_path / "runs")
    (entry,) = json.loads(done.stdout)["models"]
    assert list(entry["inputs"]) == ["prompt"]
    assert entry["inputs"]["prompt"]["length"] == len(small_tokenizer()(TEXT).input_ids)
    assert entry["inputs"]["prompt"]["sequences"] == 1 and entry["inputs"]["prompt"]["sinks"][0]["low"] is None


def test_doctor_passes_and_prints_its_figures(model):
    done = sinklab_run("doctor", model)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("pass") == 6 and "fail" not in done.stdout


def bad(tmp_path, name):
    """(words, what the sentence says) for each kind of bad input."""
    model = save(tmp_path / "model", small_llama(), small_tokenizer())
    plain = save(tmp_path / "plain", small_llama(), small_tokenizer(bos="none", chat_template=False))
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"text": "short"}\n' + json.dumps({"text": TEXT}) + "\n")
    empty, broken, full = tmp_path / "empty.txt", tmp_path / "broken.jsonl", tmp_path / "full"
    empty.write_text("")
    broken.write_text('{"text": "fine"}\n{"text": \n')
    full.mkdir()
    (full / "thesis.tex").write_text("mine")
    a_file = tmp_path / "file"
    a_file.write_text("")
    measure = ("measure", model, "--out", tmp_path / "runs")
    return {
        "unknown model": (("measure", "dmeo"), "Did you mean `demo`"),
        "unknown option": ((*measure, "--lenght", 3), "--length"),
        "unknown command": (("mesure", model), "Did you mean"),
        "unknown input": ((*measure, "--inputs", "natral"), "Did you mean `natural`"),
        "unknown definition": ((*measure, "--definition", "gu2042"), "Did you mean `gu2024`"),
        "unknown probe": ((*measure, "--probes", "entrpy"), "Did you mean `entropy`"),
        "unknown bos": ((*measure, "--bos", "ad"), "Did you mean `add`"),
        "unknown dtype": ((*measure, "--dtype", "flot32"), "Did you mean `float32`"),
        "no number": ((*measure, "--length", "abc"), "--length takes whole numbers"),
        "zero length": ((*measure, "--length", 0), "--length must be at least 1"),
        "zero samples": ((*measure, "--samples", 0), "samples"),
        "batch": ((*measure, "--batch-size", "many"), "--batch-size takes whole numbers, not `many`"),
        "text too short": ((*measure, "--text", texts, "--length", 64), "1 of 2 documents"),
        "no text": ((*measure, "--text", tmp_path / "nothing.txt"), "nothing.txt"),
        "empty text": ((*measure, "--text", empty), "is empty"),
        "broken line": ((*measure, "--text", broken), "line 2"),
        "text and data set": ((*measure, "--text", texts, "--dataset", "x/y"), "give one of them"),
        "empty prompt": ((*measure, "--prompt", ""), "prompt is empty"),
        "too long": ((*measure, "--length", 1000, "--inputs", "random"), "512 positions"),
        "no bos": (("measure", plain, "--bos", "add", "--out", tmp_path / "runs"), "no BOS token"),
        "no template": (("measure", plain, "--chat-template", "--out", tmp_path / "runs"), "chat template"),
        "something else there": (("measure", model, "--out", full), "holds something else"),
        "out is a file": (("measure", model, "--out", a_file), "is a file"),
        "no model": (("measure",), "MODEL"),
    }[name]


@pytest.mark.parametrize(
    "name",
    ["unknown model", "unknown option", "unknown command", "unknown input", "unknown definition", "unknown probe", "unknown bos", "unknown dtype",
     "no number", "zero length", "zero samples", "batch", "text too short", "no text", "empty text", "broken line", "text and data set",
     "empty prompt", "too long", "no bos", "no template", "something else there", "out is a file", "no model"],
)  # fmt: skip
def test_bad_input_gets_one_sentence(name, tmp_path):
    words, says = bad(tmp_path, name)
    done = sinklab_run(*words, cwd=tmp_path)
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    assert done.stdout == ""
    assert says in done.stderr
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("sinklab: ") and "Traceback" not in done.stderr


def test_a_full_disk_is_a_sentence(model, tmp_path):
    """The part that comes next is a link to /dev/full, which takes nothing."""
    words = ("measure", model, "--inputs", "random", "--samples", 2, "--out", tmp_path / "runs")
    assert sinklab_run(*words).returncode == 0
    (folder,) = (tmp_path / "runs").glob("tiny/*")
    for name in ("summary.json", "rows/part-00000.parquet", "tokens/part-00000.parquet"):
        (folder / name).unlink()
    (folder / "tokens" / ".part-00000.parquet.tmp").symlink_to("/dev/full")
    done = sinklab_run(*words)
    assert done.returncode == 2 and "No space left on device" in done.stderr and done.stderr.count("\n") == 1


def test_help_needs_no_torch_and_the_package_neither():
    script = "import sys, sinklab, sinklab.cli, sinklab.probe.rows, sinklab.report.page; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
    assert "measure" in sinklab_run("--help").stdout
    assert "--definition" in sinklab_run("measure", "--help").stdout
    assert sinklab_run("--version").stdout.startswith("sinklab ")


def test_two_processes_on_one_run(model, text, tmp_path):
    words = [sys.executable, "-m", "sinklab", *map(str, small(model, text, tmp_path / "runs", "--batch-size", 1))]
    first = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list((tmp_path / "runs").rglob("run.json")) and time.monotonic() < deadline:
        time.sleep(0.002)
    second = sinklab_run(*small(model, text, tmp_path / "runs", "--batch-size", 1))
    assert first.wait(60) == 0
    assert (second.returncode == 2 and "Another process" in second.stderr) or "has been measured" in second.stderr


def test_a_changed_checkpoint_under_the_same_path_is_another_run(text, tmp_path):
    path = save(tmp_path / "model", small_llama(0), small_tokenizer())
    words = ("measure", path, "--inputs", "random", "--samples", 2, "--out", tmp_path / "runs")
    assert sinklab_run(*words).returncode == 0
    save(path, small_llama(1))
    assert sinklab_run(*words).returncode == 0
    assert len(list((tmp_path / "runs").glob("model/*"))) == 2


def test_names_of_folders_stay_inside_the_root(tmp_path):
    from sinklab.runs import safe_name

    for name in ("meta-llama/Llama-3", "../../etc", "/", "a b", "..", "~/x", "C:\\x", "x/../../y", "\N{SNOWMAN}"):
        folder = safe_name(name)
        assert folder and "/" not in folder and folder not in (".", "..") and (tmp_path / folder).resolve().parent == tmp_path.resolve(), name
    assert safe_name("meta-llama/Llama-3") == "meta-llama--Llama-3"
    assert Path(safe_name("demo")).name == "demo"
