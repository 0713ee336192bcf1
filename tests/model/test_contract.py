"""The contract of the decoder's rooms: every clause, for every member that the package has, and for members of all rooms thrown together."""

import contract
import pytest
from contract import CLAUSES
from examples import any_design, designs, members, parts, rooms
from hypothesis import given, settings

DESIGNS = designs()


@pytest.mark.parametrize("clause", CLAUSES, ids=lambda clause: clause.__name__)
@pytest.mark.parametrize("name", DESIGNS)
def test_every_member(clause, name):
    clause(DESIGNS[name])


def test_no_member_is_left_out():
    tried = {type(part) for _, part in parts()}
    assert {kind for room in rooms().values() for kind in members(room).values()} == tried
    said = " ".join(DESIGNS)
    of_default = {"Narrow", "Unnormalised", "FirstAxis", "Swish"}  # short names leave them out
    assert all(kind.__name__ in said for kind in tried if kind.__name__ not in of_default)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(design=any_design())
def test_any_parts_together(design):
    for clause in CLAUSES:
        if clause not in (contract.bears_bfloat16, contract.learns):  # of which a part that is worse than others has its own measure
            clause(design)
