"""Choosing: ties counted row by row, and rules with invalid results are named."""

from __future__ import annotations

import numpy as np
import pytest

from orderlens.decode.choose import choose, plugin_errors
from orderlens.decode.extra_inputs import PolicyMemory
from orderlens.errors import ModelOutputError, PluginError, UserInputError
from orderlens.rules import Commit, parse_policy
from orderlens.rules.orders import ConfidenceOrder, Order, StepView
from orderlens.rules.policy import Policy
from orderlens.rules.stats import PositionStats


class Table(ConfidenceOrder):
    """Scores that are given."""

    id, summary = "table", "scores that are given"

    def __init__(self, scores):
        self._scores = scores

    def scores(self, view):
        return self._scores


class Marked(Commit):
    """Positions that are given."""

    id, summary, spec = "marked", "positions that are given", "marked"

    def __init__(self, chosen):
        self._chosen = chosen

    @classmethod
    def parse(cls, values):
        raise NotImplementedError

    def select(self, view, scores_R):
        return self._chosen


def view_of(sizes, offsets=None):
    """A view of chains, given the number of masked positions of each."""
    chain = np.repeat(np.arange(len(sizes)), sizes)
    offset = np.concatenate([np.arange(n) for n in sizes]) if offsets is None else offsets
    zeros, n = np.zeros(len(sizes), np.int64), len(chain)
    stats = PositionStats(
        np.zeros(n, np.int64), np.full(n, -0.7), np.full(n, -0.9), np.ones(n), np.full(n, -np.inf)
    )
    memory = PolicyMemory.empty(len(sizes), 16)
    return (
        StepView(
            chain, offset, offset, zeros, zeros, zeros, np.array(sizes), stats,
            memory.order.at(np.arange(len(sizes)), chain, offset), lambda: np.zeros(n),
        ),
        memory,
    )  # fmt: skip


def chosen(policy, sizes):
    view, memory = view_of(sizes)
    return choose(policy, view, memory, np.arange(len(sizes)), None)


@pytest.mark.parametrize("rule", ["top=1", "top=2", "top=3"])
@pytest.mark.parametrize("seed", range(5))
def test_firsts_and_ties_chain_by_chain(rule, seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 7, 5)
    scores = rng.integers(0, 3, sizes.sum()).astype(float)
    found = chosen(Policy(Table(scores), parse_policy(f"max-prob+{rule}").commit), sizes)
    start, k = 0, int(rule[-1])
    for n in sizes:
        mine = scores[start : start + n]
        first = sorted(range(n), key=lambda i: (-mine[i], i))[:k]
        assert np.flatnonzero(found.chosen_R[start : start + n]).tolist() == sorted(first)
        for i in first:
            assert found.tied_R[start + i] == int((mine == mine[i]).sum())
        start += n


def test_scores_that_differ_in_the_thirteenth_digit_tie():
    scores = np.array([0.1 + 0.2, 0.3, 0.3 + 1e-9])
    found = chosen(Policy(Table(scores), parse_policy("max-prob+top=2").commit), [3])
    assert found.tied_R[found.chosen_R].tolist() == [2, 1]
    assert np.flatnonzero(found.chosen_R).tolist() == [0, 2]


@pytest.mark.parametrize(
    ("scores", "shape"),
    [(np.zeros(3), r"\(3,\)"), (np.zeros((2, 2)), r"\(2, 2\)"), (np.array([0.0, np.nan]), r"\(2,\)")],
)
def test_scores_must_be_numbers_one_per_position(scores, shape):
    with pytest.raises(ModelOutputError, match=rf"order 'table' returned scores of shape {shape}; .*\(2\)"):
        chosen(Policy(Table(scores)), [2])


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (np.array([True]), "commit rule 'marked' must return one boolean per masked position"),
        (np.array([1, 0, 0, 1]), "commit rule 'marked' must return one boolean per masked position"),
        (np.array([True, True, False, False]), "chose nothing in 1 of 2 chains"),
        (np.zeros(4, bool), "chose nothing in 2 of 2 chains; it must choose at least one position in each"),
    ],
)
def test_a_commit_rule_must_choose_somebody(answer, message):
    with pytest.raises(ModelOutputError, match=message):
        chosen(Policy(Table(np.zeros(4)), Marked(answer)), [2, 2])


def test_minus_infinity_is_a_score_and_the_last_one():
    found = chosen(
        Policy(Table(np.array([-np.inf, -5.0, -np.inf])), parse_policy("max-prob+top=2").commit), [3]
    )
    assert np.flatnonzero(found.chosen_R).tolist() == [0, 1]
    assert found.tied_R.tolist()[:2] == [2, 1]


def test_an_order_of_no_known_kind_is_refused():
    class Strange(Order):
        id, summary, spec, label = "strange", "neither", "strange", "strange"

    policy = Policy(Table(np.zeros(2)))
    object.__setattr__(policy, "order", object.__new__(Strange))
    with pytest.raises(
        UserInputError, match="order 'strange' is neither static, confidence-based nor an oracle"
    ):
        chosen(policy, [2])


class TestNaming:
    """Whose rule it was."""

    def test_a_foreign_rule_is_named_with_its_package(self):
        rule = type("Theirs", (), {"__module__": "their_package.rules"})()
        with (
            pytest.raises(PluginError, match=r"order 'x' of 'their_package.rules' failed: KeyError: 'gone'"),
            plugin_errors("order 'x'", rule),
        ):
            raise KeyError("gone")

    def test_our_own_faults_are_not_dressed_up(self):
        rule = type("Ours", (), {"__module__": "orderlens.rules.orders.basic"})()
        with pytest.raises(KeyError), plugin_errors("order 'x'", rule):
            raise KeyError("gone")

    @pytest.mark.parametrize("error", [UserInputError("bad value"), MemoryError()])
    def test_what_is_known_already_passes(self, error):
        with pytest.raises(type(error)) as caught, plugin_errors("order 'x'", object()):
            raise error
        assert caught.value is error
