"""Transforms: positions counted from 1, nothing else touched, random tokens of a block the same in every epoch; every member found by its room."""

import numpy as np
import pytest

from sinklab.config import parse, plain
from sinklab.data.transforms import FixedToken, RandomTokens, Transform

V = 50432
TOKENS = np.arange(2, 2 + 6 * 9, dtype=np.uint16).reshape(6, 9)
BLOCKS = np.array([7, 0, 3, 12345678, 3, 1])
EXAMPLES = {"FixedToken": FixedToken(position=3), "RandomTokens": RandomTokens(first=2, last=4)}


@pytest.mark.parametrize("kind", Transform.members())
def test_the_contract(kind):
    transform = EXAMPLES[kind]
    before = TOKENS.copy()
    after = transform.apply(TOKENS, BLOCKS, V)
    assert (before == TOKENS).all() and after.dtype == TOKENS.dtype and after.shape == TOKENS.shape
    changed = (after != TOKENS).any(0).nonzero()[0]
    assert len(changed) and changed.max() + 1 == transform.reaches
    assert (transform.apply(TOKENS, BLOCKS, V) == after).all()
    alone = np.concatenate([transform.apply(TOKENS[i : i + 1], BLOCKS[i : i + 1], V) for i in range(6)])
    assert (alone == after).all()
    assert parse(Transform, plain(transform)) == transform


def test_the_fixed_token_stands_where_the_paper_counts():
    after = FixedToken(position=2).apply(TOKENS, BLOCKS, V)
    assert (after[:, 1] == 1).all() and (after[:, 0] == TOKENS[:, 0]).all() and (after[:, 2:] == TOKENS[:, 2:]).all()


def test_random_tokens_are_of_block_position_and_seed():
    after = RandomTokens(first=1, last=4).apply(TOKENS, BLOCKS, V)
    assert (after[2, :4] == after[4, :4]).all() and (after[:, 4:] == TOKENS[:, 4:]).all()
    assert len(np.unique(after[[0, 1, 2, 3, 5], :4])) == 20
    assert (RandomTokens(first=1, last=2).apply(TOKENS, BLOCKS, V)[:, :2] == after[:, :2]).all()
    assert (RandomTokens(first=1, last=4, seed=1).apply(TOKENS, BLOCKS, V)[:, :4] != after[:, :4]).any()


def test_random_tokens_are_uniform_and_independent():
    many, kinds = 40_000, 16
    drawn = RandomTokens(first=1, last=2).apply(np.zeros((many, 3), np.int64), np.arange(many), kinds)[:, :2]
    assert drawn.min() == 0 and drawn.max() == kinds - 1
    pairs = np.bincount(drawn[:, 0] * kinds + drawn[:, 1], minlength=kinds * kinds)
    expected = many / kinds**2
    chi = ((pairs - expected) ** 2 / expected).sum()
    assert 180 < chi < 345  # 255 degrees of freedom
    follow = np.bincount(drawn[:-1, 0] * kinds + drawn[1:, 0], minlength=kinds * kinds)
    assert 180 < ((follow - expected) ** 2 / expected).sum() < 345


def test_random_tokens_have_not_changed():
    """Against SplitMix64 in whole numbers."""

    def mixed(x):
        x = (x + 0x9E3779B97F4A7C15) % 2**64
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        return x ^ (x >> 31)

    drawn = RandomTokens(first=2, last=4, seed=5).apply(np.zeros((2, 5), np.int64), np.array([0, 99]), V)[:, 1:4]
    assert drawn.tolist() == [[mixed(mixed((block + mixed(5)) % 2**64) + position) % V for position in (2, 3, 4)] for block in (0, 99)]
