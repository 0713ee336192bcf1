"""summary.json: what is in it is what the rows say, and its schema catches what is not right."""

import copy
import json
from dataclasses import replace

import jsonschema
import numpy as np
import pytest
from synthetic import TEXTS, entry, made, three, with_everything, with_norms

from sinklab.errors import SinklabError
from sinklab.probe import rows
from sinklab.probe.definitions import ALL, LEAST_QUERIES
from sinklab.report.summary import Asked, plain, schema, summarise, summarise_input, whole

CHECK = jsonschema.Draft202012Validator(schema())
EVERY = Asked(tuple(ALL), (0.2, 0.3), (1, 2, 60))


def padded():
    result = with_norms(made(sequences=3))
    for x in result.numbers.values():
        if x.shape[-1] == 64:
            x[1, ..., 50:] = np.nan
    result.tokens[1, 50:] = -1
    return result


def packed():
    starts = np.zeros((3, 64), bool)
    starts[:, [0, 30]] = True
    return replace(made(sequences=3), starts=starts)


def sparse():
    """Two of four layers attend."""
    result = with_everything(made(sequences=4))
    for name in ("alpha", "queries", "virtual", "own", "tail", "norm.value", "norm.key", "norm.output"):
        result.numbers[name][:, :2] = np.nan
    return replace(result, ways=("", "", "chunks", "kernel"))


def learned():
    result = made(0.05, sequences=5)
    result.numbers["virtual"][:, :2] = 0.8
    return result


def selected():
    result = made(sequences=5)
    result.numbers["alpha"][..., 1:] = np.nan
    return result


CASES = {
    "plain": made,
    "everything": lambda: with_everything(made(sequences=4)),
    "padded": padded,
    "packed": packed,
    "sparse": sparse,
    "learned": learned,
    "selected": selected,
    "single": lambda: made(sequences=1),
    "one token": lambda: made(sequences=3, length=1),
    "no sink": lambda: made(0.05),
    "no tokens": lambda: replace(made(sequences=3), tokens=np.full((3, 64), -1), texts=None, loss=None),
}


@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_result_fits_the_schema_and_is_plain_json(name):
    found = whole([entry({"natural": CASES[name]()})])
    CHECK.validate(found)
    assert json.loads(json.dumps(found, allow_nan=False)) == found


@pytest.mark.parametrize("name", ["plain", "everything", "sparse", "learned"])
def test_every_definition_and_position_fits_the_schema(name):
    CHECK.validate(whole([entry({"natural": CASES[name](), "natural@64": CASES[name]()}, replace(EVERY, definitions=_possible(CASES[name]())))]))


def _possible(result):
    return tuple(d for d in ALL if d != "output_share" or "norm.output" in result.numbers)


def paths(value, path=()):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, key)
            yield from paths(inner, (*path, key))
    elif isinstance(value, list) and value:
        yield from paths(value[0], (*path, 0))


def at(value, path):
    for key in path:
        value = value[key]
    return value


FREE = ("settings", "ways", "inputs")  # what the names in there are is up to others


def test_the_schema_catches_a_missing_and_a_misspelt_key_everywhere():
    good = whole([entry({"natural": with_everything(made(sequences=4))}, Asked(("gu2024", "tail_window"), (0.3,), (1,)))])
    tried = [path for path in paths(good) if path[-2:-1] == () or path[-2] not in FREE]
    assert len({path[-1] for path in tried}) >= 60
    for path in tried:
        bad = copy.deepcopy(good)
        value = at(bad, path[:-1]).pop(path[-1])
        assert path[-1] == "boost" or not CHECK.is_valid(bad), f"{path} can be left out"
        at(bad, path[:-1])[f"{path[-1]}s"] = value
        assert not CHECK.is_valid(bad), f"{path} can be misspelt"


@pytest.mark.parametrize("change", [{"percent": "67"}, {"percent": 167}, {"position": -1}, {"proxy": None}, {"queries": 1.5}, {"definition": 3}])
def test_the_schema_catches_wrong_values(change):
    good = whole([entry()])
    good["models"][0]["inputs"]["natural"]["sinks"][0] |= change
    assert not CHECK.is_valid(good)


def test_percentages_are_those_of_the_result():
    results = three()
    found = entry(results, replace(EVERY, positions=(1, 2)))["inputs"]
    for name, result in results.items():
        for one in found[name]["sinks"]:
            sink = result.sink(one["position"], one["epsilon"] if one["definition"] in {"gu2024", "softpick"} else None, one["definition"])
            assert (one["percent"], one["low"], one["high"]) == pytest.approx((sink.percent, sink.low, sink.high), rel=1e-6)
            assert (one["layers"], one["queries"]) == (sink.layers, sink.queries)
    assert found["natural"]["sinks"][0]["percent"] == 50
    assert found["repeat"]["sinks"][0]["percent"] == 0
    assert found["natural"]["loss"] == 3.5


def test_rows_on_a_disk_give_the_same_summary(tmp_path):
    results = {"natural": with_everything(made(sequences=4)), "random": replace(with_everything(made(0.4, sequences=4)), input="random")}
    for i, result in enumerate(results.values()):
        rows.write_part(result, tmp_path, 100 * i)
    assert entry(rows.load_all(tmp_path)) == entry(results)


def test_epsilons_go_with_the_papers_threshold_and_others_keep_their_own():
    found = entry({"natural": with_norms(made())}, Asked(tuple(ALL), (0.2, 0.4), (1,)))["inputs"]["natural"]["sinks"]
    epsilons = {name: [one["epsilon"] for one in found if one["definition"] == name] for name in ALL}
    assert epsilons["gu2024"] == epsilons["softpick"] == [0.2, 0.4]
    assert (epsilons["mass>0.5"], epsilons["column_mean_all_rows"]) == ([0.5], [0.1])
    assert epsilons["bos_score"] == epsilons["output_share"] == epsilons["tail_window"] == [None]
    assert [("boost" in one) == (one["definition"] == "tail_window") for one in found] == [True] * len(found)


def test_the_virtual_sink_is_there_where_the_model_has_one_or_it_was_asked_for():
    def positions(result, asked):
        return [one["position"] for one in summarise_input(result, asked)["sinks"]]

    assert positions(made(), Asked()) == [1]
    assert positions(learned(), Asked()) == [1, 0]
    assert positions(made(), Asked(positions=(0, 1))) == [0, 1]
    assert positions(learned(), Asked(positions=(0,))) == [0]
    found = entry({"natural": learned()})["inputs"]["natural"]
    assert found["virtual"] == pytest.approx(40, rel=1e-6)
    assert found["sinks"][1]["percent"] == 50
    assert entry()["inputs"]["natural"]["virtual"] is None
    tail = summarise_input(learned(), Asked(("tail_window",)))["sinks"]
    assert [one["position"] for one in tail] == [1]  # of its own accord only where it makes sense


def test_what_few_queries_see_is_null_and_says_how_many():
    late = entry(asked=Asked(positions=(60,)))["inputs"]["natural"]["sinks"][0]
    assert late["percent"] is None
    assert late["queries"] == 5 < LEAST_QUERIES
    single = entry({"natural": made(sequences=1)})["inputs"]["natural"]["sinks"][0]
    assert single["percent"] == 50
    assert single["low"] is single["high"] is None


def test_layers_without_attention_are_not_counted():
    found = entry({"natural": sparse()})["inputs"]["natural"]
    assert (found["layers"], found["attending_layers"], found["heads"]) == (4, 2, 8)
    assert found["sinks"][0]["layers"] == 2
    assert found["sinks"][0]["percent"] == 50
    assert found["by_layer"]["sink_percent"] == [None, None, 50, 50]
    assert found["ways"] == {"chunks": 1, "kernel": 1}


def test_norms_values_and_contributions_by_hand():
    found = entry({"natural": with_norms(made(sequences=4), long=30, value=0.25)})["inputs"]["natural"]
    assert found["norm_ratio"] == {"ratio": 30, "layer": 2, "first": 30, "others": 1}
    assert found["value_norm_ratio"] == {"ratio": 0.25, "small_percent": 100, "of": "norm.output"}
    assert found["by_layer"]["norm_first"] == [1, 1, 30, 30, 30]
    attention, output = found["contribution"]["attention_percent"], found["contribution"]["output_percent"]
    assert attention == pytest.approx(60, abs=1)
    assert output == pytest.approx(100 * 0.25 * attention / (0.25 * attention + 100 - attention), rel=0.01)


def test_values_of_grouped_heads_go_to_the_heads_that_share_them():
    result = with_norms(made(sequences=4, share=0.25))  # one head of four sinks
    del result.numbers["norm.output"]
    result.numbers["norm.value"][..., 0] = np.array([0.2, 0.9])  # heads 0 and 1, heads 2 and 3
    assert entry({"natural": result})["inputs"]["natural"]["value_norm_ratio"] == {"ratio": 0.2, "small_percent": 100, "of": "norm.value"}
    assert entry({"natural": with_norms(made(0.05))})["inputs"]["natural"]["value_norm_ratio"] is None


def test_massive_activations_are_listed_once_where_they_are_largest():
    found = entry({"natural": with_norms(made(sequences=4))})["inputs"]["natural"]["massive_activations"]
    expected = {"layer": 3, "position": 1, "dimension": 7, "value": -6000, "ratio": 2500, "percent": 100, "first_layer": 2, "last_layer": 4}
    assert found == [expected]
    assert entry({"natural": with_norms(made(), massive=False)})["inputs"]["natural"]["massive_activations"] == []
    assert entry()["inputs"]["natural"]["massive_activations"] is None


def test_other_sinks_are_found_by_place_and_by_token():
    result = made(sequences=10)
    for n, row in enumerate(result.tokens):
        place = int(np.flatnonzero(row == TEXTS.index(" the"))[2])
        result.numbers["alpha"][n, 1:3, 0, place] = 0.5
    found = entry({"natural": result})["inputs"]["natural"]
    assert [(t["token"], t["percent"], t["examples"], t["first_layer"], t["last_layer"]) for t in found["other_tokens"]] == [(4, 100, [" the"], 1, 2)]
    assert {place["position"] for place in found["sink_tokens"]} == {1, *(place["position"] for place in found["other_positions"])}
    assert len(found["other_positions"]) == 7  # the eight texts begin in turn with each of eight tokens, and 17 is seen twice
    assert found["sink_tokens"][0]["heads_percent"] == 50
    assert found["first_token"] == {"token": 0, "text": "The", "percent": 20}


def test_heads_are_counted_and_the_strongest_named():
    found = entry({"natural": made(layers=6)})["inputs"]["natural"]
    assert found["sink_heads"] == 12
    assert len(found["top_heads"]) == 8
    assert all(one["head"] < 2 and one["alpha"] > 0.55 for one in found["top_heads"])


def test_details_are_the_papers_where_they_were_asked_for():
    assert Asked(("gu2024",), (0.2, 0.3), (5, 1)).detail == (1, 0.3)
    assert Asked(("gu2024",), (0.4, 0.2), (0, 7)).detail == (7, 0.4)
    assert Asked(positions=(0,)).detail == (1, 0.3)


def test_an_unknown_definition_is_refused_and_a_missing_number_gives_no_percentage():
    with pytest.raises(SinklabError, match="Did you mean `gu2024`"):
        entry(asked=Asked(("gu2025",)))
    (sink,) = entry(asked=Asked(("output_share",)))["inputs"]["natural"]["sinks"]
    assert (sink["percent"], sink["layers"], sink["queries"]) == (None, 0, 0)


def test_notes_are_kept_once_and_settings_become_plain():
    results = {"natural": replace(made(), notes=("a", "b")), "random": replace(made(), notes=("b",))}
    found = summarise("m", {"notes": ["c", "a"], "x": np.float32(0.5), "none": float("nan"), "path": CASES.keys(), "many": (1, 2)}, results, Asked())
    assert found["notes"] == ["c", "a", "b"]
    assert found["settings"]["x"] == 0.5
    assert found["settings"]["none"] is None
    assert found["settings"]["many"] == [1, 2]


@pytest.mark.parametrize(
    ("value", "expected"), [(float("inf"), None), (np.nan, None), (1 / 3, 0.3333333), (np.int64(3), 3), (True, True), ("é", "é")]
)
def test_plain(value, expected):
    assert plain(value) == expected
