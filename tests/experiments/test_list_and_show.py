"""`sinklab list` and `sinklab show`, in real processes where the process matters."""

import json
import subprocess
import sys

import pytest

from sinklab import catalogue, experiments
from sinklab.config import identity
from sinklab.errors import SinklabError


def sinklab_run(*words):
    return subprocess.run([sys.executable, "-m", "sinklab", *words], capture_output=True, text=True, timeout=60, check=False)


def printed(capsys, function, *arguments):
    function(*arguments)
    return capsys.readouterr().out


def test_list_in_a_process():
    done = sinklab_run("list", "window", "paper/")
    assert done.returncode == 0 and not done.stderr
    rows = [line for line in done.stdout.splitlines() if "paper/window" in line]
    assert len(rows) == 6 and "model.mask=Window(size=256)" in rows[3] and "first token" in rows[3]
    assert "6 experiments (6 paper) in 1 group." in done.stdout
    found = json.loads(sinklab_run("list", "--json").stdout)
    assert [one["name"] for one in found] == list(experiments.every())


def test_bad_input_in_a_process():
    for words, sentence in (
        (("list", "windw"), "sinklab: No experiment has `windw` in its name, group or difference. Did you mean `window`?"),
        (("show", "paper/windw-256"), "sinklab: There is no experiment `paper/windw-256`. Did you mean `paper/window-256`?"),
        (("show", "gpu/default", "model.width=3"),
         "sinklab: `model.width` is neither under `experiment.` nor under `machine.`. Did you mean `experiment.model.width`?"),
    ):  # fmt: skip
        done = sinklab_run(*words)
        assert (done.returncode, done.stderr.strip(), done.stdout) == (2, sentence, "")


def test_nothing_heavy_is_loaded_for_it():
    code = "import sys; from sinklab import catalogue; catalogue.print_list((), False); print({'transformers', 'datasets'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_every_experiment_is_listed_once(capsys):
    words = printed(capsys, catalogue.print_list, (), False).split()
    assert {name: words.count(name) for name in experiments.every()} == dict.fromkeys(experiments.every(), 1)


def test_words_narrow_the_list(capsys):
    found = json.loads(printed(capsys, catalogue.print_list, ("gpu/", "Weight", "DECAY"), True))
    assert [one["name"] for one in found] == [f"gpu/decay-{x}" for x in ("0", "0.001", "0.01", "0.5", "1", "2", "5")]
    one = found[3]
    assert one["difference"] == {"optimiser.decay": 0.5} and one["base"] == "gpu/default"
    assert one["paper"]["run"] == "paper/decay-0.5" and one["paper"]["numbers"] == {"Sink_1": 41.08, "valid loss": 3.80}
    with pytest.raises(SinklabError, match=r"`sigmoid` and `gpuu`.*Did you mean `gpu`"):
        catalogue.print_list(("sigmoid", "gpuu"), False)


def test_what_is_shown(capsys):
    text = printed(capsys, catalogue.print_shown, "paper/sigmoid-lr-1e-3", (), False)
    assert "Differs from paper/sigmoid in optimiser.lr=0.001." in text
    assert "sigmoid(s) / Z." in text and "Z_i = 1: the weights of a row do not compete." in text and "w -= lr" in text
    assert "Parameters: 136,462,080, without token embedding and output matrix 58,998,528." in text
    assert "Sink_1 0.81 %*, valid loss 3.68 (table 14). A star marks proxy scores." in text
    assert identity(experiments.named("paper/sigmoid-lr-1e-3").experiment) in text


def test_overrides_are_shown_and_counted(capsys):
    name = "gpu/k-bias"
    text = printed(capsys, catalogue.print_shown, name, ("experiment.model.weights.alpha=2", "machine.device=cuda"), False)
    assert "Overridden: model.weights.alpha=2." in text and "The paper for paper/k-bias: Sink_* 73.34 %" in text
    plain, machine, other = (catalogue.shown(name, words)["identity"] for words in ((), ("machine.device=cuda",), ("experiment.clip=2",)))
    assert plain == machine != other
    assert catalogue.shown("paper/default", ("experiment.steps=10",))["tokens"] == 10 * 512 * 2048
    with pytest.raises(SinklabError, match="Two slots are KeyBias"):
        catalogue.shown(name, ("experiment.model.slots=KeyBias,KeyBias",))


def test_the_notes_of_the_paper_and_what_is_not_in_it(capsys):
    assert "raw" not in printed(capsys, catalogue.print_shown, "paper/relative", (), False)
    assert "alpha_1 = 0.334" in printed(capsys, catalogue.print_shown, "gpu/relative", (), False).replace("\n", " ")
    assert "The paper has no such run." in printed(capsys, catalogue.print_shown, "gpu/softpick", (), False)


def test_sizes_by_hand():
    facts = catalogue.shown("laptop/window-4")
    blocks = 8 * (4 * 96 * 96 + 3 * 96 * 192 + 2 * 96) + 96
    assert facts["parameters"] == {"all": blocks + 2 * 4096 * 96, "without_embeddings": blocks, "multiplied": blocks + 4096 * 96}
    keys = (1 + 2 + 3 + 4 * 61) / 64
    assert facts["keys_seen"] == keys and facts["tokens"] == 6000 * 32 * 64
    assert facts["flops"]["per_token"] == 6 * (blocks + 4096 * 96) + 12 * 8 * 96 * keys
    assert facts["flops"]["all"] == facts["flops"]["per_token"] * facts["tokens"]
    assert catalogue.shown("paper/default")["keys_seen"] == 1024.5
    assert catalogue.shown("paper/prefix-5")["keys_seen"] == 1024.5 + 10 / 2048
    assert catalogue.shown("paper/1b")["parameters"]["all"] == pytest.approx(1337.1e6, rel=1e-4)


def test_every_part_has_a_formula_of_its_own():
    formulas = {}
    for entry in experiments.every().values():
        for part in catalogue.parts(entry.experiment, "experiment"):
            assert part["formula"].endswith((".", ":", ")")), part
            formulas.setdefault(part["formula"], set()).add(part["part"])
    assert {formula: parts for formula, parts in formulas.items() if len(parts) > 1} == {}


def test_json_of_what_is_shown(capsys):
    facts = json.loads(printed(capsys, catalogue.print_shown, "laptop/backcopy", (), True))
    assert facts["experiment"]["data"]["corpus"] == {"kind": "BigramBackcopy", "characters": 64, "triggers": 3}
    assert {part["path"] for part in facts["parts"]} >= {
        "experiment",
        "experiment.model.weights",
        "experiment.data.corpus",
        "experiment.optimiser.on",
    }
