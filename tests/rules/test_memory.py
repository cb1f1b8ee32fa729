"""What a rule remembers: by chain and offset, until the block ends, whatever shares the pass."""

from __future__ import annotations

import numpy as np
import pytest

from orderlens.errors import UserInputError
from orderlens.rules.stats import PositionStats
from orderlens.rules.view import MemoryTable, StepView, nothing_kept

ALL = np.arange(3)


def at(table, chains, rows):
    """A pass with the given chains; rows as (place of the chain in the pass, offset)."""
    chain_R, offset_R = np.array(rows).T
    return table.at(np.array(chains), chain_R, offset_R)


def test_values_come_back_to_their_chain_and_offset():
    table = MemoryTable(3, 4)
    first = at(table, [2, 0], [(0, 1), (0, 3), (1, 2)])
    first.keep_rows("p", np.array([0.1, 0.3, 0.2]))
    first.keep_chains("n", np.array([20, 0]))
    first.commit()
    again = at(table, [0, 1, 2], [(2, 3), (0, 2), (1, 1), (2, 0)])
    assert again.rows("p", -1.0).tolist() == [0.3, 0.2, 0.0, 0.0]
    assert again.chains("n", 7).tolist() == [0, 0, 20]


def test_nothing_is_stored_before_the_pass_counts():
    table = MemoryTable(1, 2)
    tried = at(table, [0], [(0, 0), (0, 1)])
    assert tried.rows("p", 5.0).tolist() == [5.0, 5.0]
    tried.keep_rows("p", np.array([1.0, 2.0]))
    assert at(table, [0], [(0, 0), (0, 1)]).rows("p", 5.0).tolist() == [5.0, 5.0]
    tried.commit()
    assert at(table, [0], [(0, 1)]).rows("p", 5.0).tolist() == [2.0]


def test_a_new_block_starts_with_the_default_and_other_chains_keep_theirs():
    table = MemoryTable(3, 2)
    memory = at(table, [0, 1, 2], [(0, 0), (1, 0), (2, 0)])
    assert memory.rows("p", -1.0).tolist() == [-1.0] * 3
    assert memory.chains("n", 9).tolist() == [9] * 3
    memory.keep_rows("p", np.array([1.0, 2.0, 3.0]))
    memory.keep_chains("n", np.array([1, 2, 3]))
    memory.commit()
    table.forget(np.array([1]))
    later = at(table, [0, 1, 2], [(0, 0), (1, 0), (2, 0)])
    assert later.rows("p", 0.0).tolist() == [1.0, -1.0, 3.0], "the default of the first use stays"
    assert later.chains("n", 0).tolist() == [1, 9, 3]


def test_a_position_may_remember_a_row_of_values():
    table = MemoryTable(2, 3)
    memory = at(table, [1], [(0, 2), (0, 0)])
    memory.keep_rows("history", np.array([[1, 2], [3, 4]]))
    memory.commit()
    found = at(table, [0, 1], [(1, 0), (1, 2), (0, 0)]).rows("history", [0, 0])
    assert found.tolist() == [[3, 4], [1, 2], [0, 0]]
    wrong = at(table, [1], [(0, 0)])
    wrong.keep_rows("history", np.array([[1, 2, 3]]))
    with pytest.raises(ValueError, match="shape"):
        wrong.commit()


def test_what_is_read_cannot_change_the_table():
    table = MemoryTable(1, 2)
    memory = at(table, [0], [(0, 0)])
    memory.rows("p", 1.0)[:] = 8.0
    memory.chains("n", 1.0)[:] = 8.0
    assert memory.rows("p", 1.0).tolist() == [1.0]
    assert memory.chains("n", 1.0).tolist() == [1.0]


def test_a_view_made_by_hand_has_an_empty_memory():
    memory = nothing_kept(2, np.array([0, 1, 1]), np.array([4, 0, 2]))
    assert memory.rows("p", 3).tolist() == [3, 3, 3]
    assert memory.chains("n", 4).tolist() == [4, 4]
    empty = np.zeros(0, np.int64)
    assert nothing_kept(0, empty, empty).rows("p", 3).tolist() == []


def test_a_rule_must_name_what_it_asks_for():
    stats = PositionStats(np.zeros(1, np.int64), np.zeros(1), np.zeros(1), np.zeros(1), np.zeros(1))
    with pytest.raises(UserInputError, match="must list 'token_logprobs' in its needs"):
        StepView.of(stats).logprob_of(np.array([0]), np.array([0]))
