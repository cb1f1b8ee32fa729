"""Keyed numbers made some passes ahead are the numbers of the stream, pass by pass."""

from __future__ import annotations

import numpy as np
import pytest

from orderlens.common import rng
from orderlens.common.rng import NumberRows, draw_stream


def stream(chain: int) -> np.random.Generator:
    return draw_stream(3, f"sample {chain}", "max-prob", 0)


@pytest.mark.parametrize("ahead", [1, 12, 1024])
def test_rows_of_every_pass(monkeypatch, ahead):
    monkeypatch.setattr(rng, "BUFFERED_NUMBERS", ahead)
    rows, expected = NumberRows(4, 6, stream), [stream(n).random((9, 6)) for n in range(4)]
    for t in range(9):
        chains = np.array([2, 0]) if t % 2 else np.array([3, 2, 0])  # chain 3 leaves passes out
        found = rows.rows(chains, np.full(len(chains), t))
        for row, chain in zip(found, chains, strict=True):
            assert np.array_equal(row, expected[chain][t])


def test_chains_may_stand_at_different_passes_and_be_asked_again():
    rows, expected = NumberRows(2, 5, stream), [stream(n).random((7, 5)) for n in range(2)]
    for _ in range(2):
        found = rows.rows(np.array([0, 1]), np.array([6, 1]))
        assert np.array_equal(found, [expected[0][6], expected[1][1]])


def test_a_new_block_opens_a_new_stream():
    opened = []
    rows = NumberRows(1, 4, lambda n: (opened.append(n), stream(n))[1])
    first = rows.rows(np.array([0]), np.array([0])).copy()
    rows.rows(np.array([0]), np.array([3]))
    rows.enter_block(0)
    assert np.array_equal(rows.rows(np.array([0]), np.array([0])), first)
    assert opened == [0, 0]
