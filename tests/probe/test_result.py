"""Results: what people ask of them, and that rows on a disk give everything back."""

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import sinklab
from sinklab.errors import SinklabError
from sinklab.probe import rows
from sinklab.probe.probes import ALL
from sinklab.probe.result import Result, joined
from small import small_llama

MODEL = small_llama(num_hidden_layers=3, initializer_range=0.5)


def ids(many=3, length=40, seed=0):
    return torch.randint(3, 200, (many, length), generator=torch.Generator().manual_seed(seed))


def same(a: Result, b: Result) -> None:
    assert set(a.numbers) == set(b.numbers)
    for name in a.numbers:
        np.testing.assert_array_equal(a.numbers[name], b.numbers[name], name)
    np.testing.assert_array_equal(a.tokens, b.tokens)
    np.testing.assert_array_equal(a.padding, b.padding)
    assert (a.loss is None) == (b.loss is None)
    if a.loss is not None:
        np.testing.assert_array_equal(a.loss, b.loss)
    assert (a.ways, a.texts, a.notes, a.model, a.input) == (b.ways, b.texts, b.notes, b.model, b.input)


def padded():
    mask = torch.ones_like(ids())
    mask[0, :9] = 0
    mask[1, 30:] = 0
    return sinklab.measure(MODEL, ids(), mask, probes=list(ALL.values()), loss=True)


def packed():
    positions = torch.cat([torch.arange(18), torch.arange(22)])[None].expand(3, -1)
    return sinklab.measure(MODEL, ids(), position_ids=positions)


@pytest.mark.parametrize("make", [padded, packed])
def test_saved_and_loaded_are_the_same(make, tmp_path):
    result = make()
    same(result, sinklab.load(result.save(tmp_path / "rows")))
    if result.starts is not None:
        np.testing.assert_array_equal(result.starts, sinklab.load(tmp_path / "rows").starts)


def test_parts_are_joined_in_their_order(tmp_path):
    result = padded()
    rows.write_part(result.select(slice(0, 2)), tmp_path, 0)
    rows.write_part(result.select(slice(2, 3)), tmp_path, 2)
    same(result, sinklab.load(tmp_path))
    assert rows.measured(tmp_path) == {"given": 3}


@settings(max_examples=30, deadline=None)
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 5)).flatmap(
        lambda shape: arrays(np.float32, shape, elements=st.one_of(st.floats(0, 1, width=32), st.just(float("nan"))))
    )
)
def test_rows_keep_any_array(tmp_path_factory, values):
    tokens = np.arange(values.shape[0] * values.shape[-1]).reshape(values.shape[0], -1)
    result = Result({"alpha": values, "norm.hidden": values[:, :, :1]}, tokens, np.zeros(len(tokens), np.int64))
    same(result, sinklab.load(result.save(tmp_path_factory.mktemp("rows"))))


def test_rows_have_the_documented_shape(tmp_path):
    table = padded().rows()
    assert table.schema.names == ["run", "input", "length", "step", "sequence", "layer", "head", "name", "value"]
    frame = table.to_pandas()
    assert not frame.duplicated(["run", "input", "length", "step", "sequence", "layer", "head", "name"]).any()
    alpha = frame[(frame.name == "alpha") & (frame["sequence"] == 0) & (frame.layer == 2) & (frame["head"] == 1)]
    np.testing.assert_array_equal(alpha.value.iloc[0], padded().alpha[0, 2, 1, :31])  # 9 of 40 were padding
    assert set(frame[frame.name == "loss"].layer) == {-1}
    assert set(frame[frame.name == "norm.hidden"].layer) == {0, 1, 2, 3}


def test_rows_that_are_there_are_not_overwritten(tmp_path):
    padded().save(tmp_path)
    with pytest.raises(SinklabError, match="not overwritten"):
        padded().save(tmp_path)


def test_folders_that_hold_no_rows_or_broken_ones_say_so(tmp_path):
    with pytest.raises(SinklabError, match="holds no rows"):
        sinklab.load(tmp_path)
    padded().save(tmp_path)
    part = next((tmp_path / "rows").iterdir())
    part.write_bytes(part.read_bytes()[: part.stat().st_size // 2])
    with pytest.raises(SinklabError, match="cannot be read as rows"):
        sinklab.load(tmp_path)


def test_rows_of_another_schema_are_refused(tmp_path):
    padded().save(tmp_path)
    part = next((tmp_path / "rows").iterdir())
    table = pq.read_table(part)
    facts = table.schema.metadata[b"sinklab"].replace(b'"schema": 1', b'"schema": 2')
    pq.write_table(table.replace_schema_metadata({b"sinklab": facts}), part)
    with pytest.raises(SinklabError, match="schema 2"):
        sinklab.load(tmp_path)


def test_several_inputs_in_a_folder_must_be_named(tmp_path):
    from dataclasses import replace

    for name in ("natural", "random"):
        rows.write_part(replace(padded(), input=name), tmp_path, 0)
    with pytest.raises(SinklabError, match="natural, random: say which"):
        sinklab.load(tmp_path)
    assert sinklab.load(tmp_path, "random").input == "random"
    assert list(sinklab.load_all(tmp_path)) == ["natural", "random"]


def test_heads_and_sink_tokens_are_those_of_the_arrays():
    result = padded()
    heads = result.heads(above=0.05)
    means = np.nanmean(result.numbers["alpha"][..., 0], 0)
    assert {(head.layer, head.head) for head in heads} == {(int(a), int(b)) for a, b in np.argwhere(means > 0.05)} != set()
    assert [head.alpha for head in heads] == sorted((head.alpha for head in heads), reverse=True)
    for token in result.sink_tokens(epsilon=0.08, least=5):
        column = result.numbers["alpha"][token.sequence, ..., token.position - 1]
        assert token.percent == pytest.approx(100 * np.mean(column > 0.08)) and token.percent >= 5
        assert token.index == token.position - 1 + (9 if token.sequence == 0 else 0)
        assert token.token == int(ids()[token.sequence, token.index])
        layers = np.flatnonzero((column > 0.08).any(-1))
        assert (token.first_layer, token.last_layer) == (layers[0], layers[-1])
    assert result.sink_tokens(epsilon=0.08, least=5)


def test_massive_activations_are_found_where_they_were_put():
    model = small_llama()
    with torch.no_grad():
        model.model.embed_tokens.weight[7] *= 0.01
        model.model.embed_tokens.weight[7, 5] = 4000.0
    tokens = ids(4, 30)
    tokens[:, 0] = 7
    tokens[:, 1:][tokens[:, 1:] == 7] = 8
    found = sinklab.measure(model, tokens, probes=list(ALL.values())).massive_activations()
    first = min(found)
    assert (first.layer, first.position, first.dimension, first.percent) == (0, 1, 5, 100) and first.value == pytest.approx(4000)
    assert {row.position for row in found} == {1} and {row.dimension for row in found} == {5}


def test_joined_results_are_the_whole():
    whole = padded()
    same(joined([whole.select(slice(0, 1)), whole.select(slice(1, 3))]), whole)
