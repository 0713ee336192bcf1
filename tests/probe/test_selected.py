"""Sums of a few named keys against the formula in float64, on the CPU."""

import dataclasses

import pytest
import torch

from column_cases import Case, Inputs, excess, inputs, reference
from sinklab.probe import selected

CASES = [
    Case(f"{mask}, {layout}, {cap}, {dtype}", mask, 4, 2, 90, 90, 24, dtype, cap, batch=3, layout=layout)
    for mask in ("causal", "window", "padded", "scattered")
    for layout, cap in (("plain", None), ("transposed", 5.0), ("sliced", None))
    for dtype in (torch.float32, torch.bfloat16)
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("chunk", [1 << 22, 1 << 10])
def test_equals_the_formula(case, chunk, monkeypatch):
    monkeypatch.setattr(selected, "CHUNK_NUMBERS", chunk)
    given = inputs(case)
    assert excess(sums(given), reference(named(given))) <= 1


def test_a_broken_bound_is_noticed():
    given = inputs(CASES[0])
    assert excess(sums(dataclasses.replace(given, first=given.first + 1)), reference(named(given))) > 100


def named(given: Inputs) -> Inputs:
    """The same call with nine of its keys."""
    places = torch.tensor([0, 1, 2, 40, 41, 60, 87, 88, 89])
    return dataclasses.replace(given, k=given.k[:, :, places], first=given.first[:, places], last=given.last[:, places])


def sums(given: Inputs) -> torch.Tensor:
    few = named(given)
    return selected.column_sums(few.q, few.k, few.lse, few.first, few.last, few.scale, few.softcap)
