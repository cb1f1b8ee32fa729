"""How far a pass moved from the one before, per chain and offset."""

from __future__ import annotations

import numpy as np
import pytest

from orderlens.decode.extra_inputs import RowHistory
from orderlens.models.protocol import LogProbRows


def made(n, seed):
    logits = np.random.default_rng(seed).normal(size=(n, 5))
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def kl(now, before):
    return float((np.exp(now) * (now - before)).sum())


def at(history, chains, offsets, passes, rows, *, keep=True):
    kl_R, remember = history.compare(
        np.array(chains), np.array(offsets), np.full(len(chains), passes), LogProbRows(rows)
    )
    if keep:
        remember()
    return kl_R


def test_the_first_pass_of_a_block_has_nothing_before_it():
    history = RowHistory(3, 4)
    assert np.isinf(at(history, [0, 0, 2], [0, 3, 1], 0, made(3, 0))).all()


def test_divergence_from_the_same_place_one_pass_earlier():
    history = RowHistory(3, 4)
    chains, offsets = [0, 0, 2, 2], [0, 3, 1, 2]
    first, second = made(4, 0), made(4, 1)
    at(history, chains, offsets, 0, first)
    found = at(history, chains[1:], offsets[1:], 1, second[1:])
    assert found == pytest.approx([kl(second[i], first[i]) for i in (1, 2, 3)])
    third = made(2, 2)
    found = at(history, [2, 2], [1, 2], 2, third)
    assert found == pytest.approx([kl(third[i], second[2 + i]) for i in (0, 1)])


def test_a_row_that_was_not_there_last_time_is_unknown():
    history = RowHistory(2, 4)
    at(history, [0, 1], [0, 0], 0, made(2, 0))
    at(history, [1], [0], 1, made(1, 1))
    found = at(history, [0, 1, 1], [0, 0, 3], 2, made(3, 2))
    assert np.isinf(found).tolist() == [True, False, True]


def test_a_pass_that_does_not_count_leaves_no_trace():
    history, first, now = RowHistory(1, 2), made(2, 0), made(2, 1)
    at(history, [0, 0], [0, 1], 0, first)
    at(history, [0, 0], [0, 1], 1, made(2, 9), keep=False)
    found = at(history, [0, 0], [0, 1], 1, now)
    assert found == pytest.approx([kl(now[i], first[i]) for i in (0, 1)])


def test_a_new_block_forgets_and_only_for_its_chain():
    history, rows = RowHistory(2, 2), made(2, 0)
    at(history, [0, 1], [0, 0], 0, rows)
    history.forget(np.array([0]))
    later = made(2, 1)
    found = at(history, [0, 1], [0, 0], 1, later)
    assert np.isinf(found[0])
    assert found[1] == pytest.approx(kl(later[1], rows[1]))
    fresh = RowHistory(1, 1)
    fresh.forget(np.array([0]))  # before anything was kept


def test_chains_that_join_later_do_not_move_the_others():
    history, first = RowHistory(4, 3), made(2, 0)
    at(history, [3, 3], [0, 2], 0, first)
    at(history, [0, 1], [1, 1], 0, made(2, 5))
    now = made(2, 1)
    assert at(history, [3, 3], [0, 2], 1, now) == pytest.approx([kl(now[i], first[i]) for i in (0, 1)])
