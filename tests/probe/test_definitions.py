"""The room's contract: every definition equals its formula, written as loops over whole maps."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sinklab
from sinklab.errors import SinklabError
from sinklab.probe.definitions import ALL
from sinklab.probe.probes import Alpha, Contribution, Own, Tail, Virtual
from small import small_llama

PROBES = [Alpha(), Virtual(), Own(), Tail(), Contribution()]
MODEL = small_llama(num_hidden_layers=3, initializer_range=0.5)


def maps_and_values(ids):
    """(N, L, H, T, T) maps and (N, L, H, T) norms of v_k W_O, from the eager model and its own weights."""
    values = {}
    hooks = [
        layer.self_attn.v_proj.register_forward_hook(lambda m, a, out, i=i: values.__setitem__(i, out)) for i, layer in enumerate(MODEL.model.layers)
    ]
    MODEL.set_attn_implementation("eager")
    with torch.no_grad():
        maps = MODEL(ids, output_attentions=True).attentions
    MODEL.set_attn_implementation("sdpa")
    for hook in hooks:
        hook.remove()
    norms = []
    for i, layer in enumerate(MODEL.model.layers):
        v = values[i].unflatten(-1, (2, 8)).repeat_interleave(2, 2)  # (N, T, H, D)
        w = layer.self_attn.o_proj.weight.unflatten(1, (4, 8))  # (d, H, D)
        norms.append(torch.einsum("nthd,ehd->nhte", v, w).norm(dim=-1))
    return torch.stack(maps, 1).double().numpy(), torch.stack(norms, 1).double().detach().numpy()


def by_hand(name, maps, norms, k, epsilon):
    """Percent, one loop per definition; k counts from 1."""
    n, layers, heads, t, _ = maps.shape
    shares, masses, by_head = [], [], {}
    for i in range(n):
        for la in range(layers):
            for h in range(heads):
                a = maps[i, la, h]
                column = a[:, k - 1]
                value = {
                    "gu2024": sum(column) / (t - k + 1),
                    "first_row_excluded": sum(column[k:]) / (t - k),
                    "tail_window": sum(a[q, j] for q in range(max(0, t - 64), t) for j in range(k)) / min(64, t),
                    "mass>0.5": sum(column) / (t - k + 1),
                    "softpick": sum(column) / t,
                    "bos_score": sum(column) / t,
                    "column_mean_all_rows": sum(column) / t,
                    "output_share": sum(column) * norms[i, la, h, k - 1] / sum(sum(a[:, j]) * norms[i, la, h, j] for j in range(t)),
                }[name]
                masses.append(value)
                by_head.setdefault((la, h), []).append(value)
                shares.append(epsilon is not None and value > epsilon)
    if name == "mass>0.5":
        return 100 * np.mean([np.mean(values) > epsilon for values in by_head.values()])
    return 100 * np.mean(masses if epsilon is None else shares)


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=8, deadline=None)
@given(length=st.integers(20, 80), position=st.integers(1, 4), seed=st.integers(0, 99), threshold=st.floats(0.02, 0.2))
def test_every_definition_equals_its_formula(name, length, position, seed, threshold):
    ids = torch.randint(3, 200, (3, length), generator=torch.Generator().manual_seed(seed))
    result = sinklab.measure(MODEL, ids, probes=PROBES)
    epsilon = None if ALL[name].epsilon is None else threshold
    expected = by_hand(name, *maps_and_values(ids), position, epsilon)
    assert result.sink(position, epsilon, name).percent == pytest.approx(expected, abs=1e-3 if epsilon is None else 1e-9)


def test_a_definition_of_ones_own_name_is_refused_with_the_nearest():
    result = sinklab.measure(MODEL, torch.randint(3, 200, (2, 20)))
    with pytest.raises(SinklabError, match="Did you mean `gu2024`"):
        result.sink(definition="gu2023")
    with pytest.raises(SinklabError, match="no threshold"):
        result.sink(epsilon=0.3, definition="bos_score")
    with pytest.raises(SinklabError, match=r"norm\.output"):
        result.sink(definition="output_share")


def test_the_threshold_is_strict():
    result = sinklab.measure(MODEL, torch.randint(3, 200, (2, 20)))
    largest = float(result.alpha[..., 0].max())
    assert result.sink(epsilon=largest).percent == 0
    assert result.sink(epsilon=np.nextafter(np.float32(largest), np.float32(0))).percent > 0


def test_no_sink_is_named_where_fewer_than_sixteen_queries_see_the_key():
    result = sinklab.measure(MODEL, torch.randint(3, 200, (2, 40)))
    assert not math.isnan(result.sink(position=25).percent)  # 16 queries
    late = result.sink(position=26)
    assert math.isnan(late.percent) and late.queries == 15 and late.layers == 0
    assert math.isnan(result.sink(position=41).percent) and result.sink(position=41).queries == 0
    assert late.percent != result.sink(position=26, least_queries=1).percent  # who asks all the same is answered
    assert all(token.position <= 25 for token in result.sink_tokens(epsilon=0.05, least=0))
    assert np.nanmax(result.number("queries")) == 40 and result.number("queries")[0, 0, 0, -1] == 1


def test_the_interval_is_over_sequences_and_holds_the_percentage():
    ids = torch.randint(3, 200, (30, 40))
    result = sinklab.measure(MODEL, ids)
    sink = result.sink(epsilon=0.06)
    assert sink.low < sink.percent < sink.high
    same = sinklab.measure(MODEL, ids[:1].expand(30, -1)).sink(epsilon=0.06)
    assert same.low == pytest.approx(same.percent) == pytest.approx(same.high)  # thirty times the same text says nothing about others
    assert math.isnan(sinklab.measure(MODEL, ids[:1]).sink().low)


def test_the_sweep_falls_with_the_threshold():
    result = sinklab.measure(MODEL, torch.randint(3, 200, (5, 40)))
    percents = [sink.percent for sink in result.sweep((0.02, 0.05, 0.1, 0.4), (1, 2))]
    assert percents[:4] == sorted(percents[:4], reverse=True) and percents[4:] == sorted(percents[4:], reverse=True)
    assert percents[0] > percents[3]


def test_packed_documents_each_have_a_first_position():
    ids = torch.randint(3, 200, (2, 45))
    positions = torch.cat([torch.arange(20), torch.arange(25)])[None].expand(2, -1)
    packed = sinklab.measure(MODEL, ids, position_ids=positions, probes=PROBES)
    parts = [sinklab.measure(MODEL, ids[:, a:b], probes=PROBES) for a, b in ((0, 20), (20, 45))]
    for name in ("gu2024", "first_row_excluded", "softpick", "bos_score", "mass>0.5", "output_share"):
        epsilon = None if ALL[name].epsilon is None else 0.06
        alone = [part.sink(2, epsilon, name).percent for part in parts]
        if name == "mass>0.5":
            continue  # a mean over texts first: not a mean of the two
        assert packed.sink(2, epsilon, name).percent == pytest.approx(np.mean(alone), abs=1e-3)
    with pytest.raises(SinklabError, match="packed"):
        packed.sink(definition="tail_window")
