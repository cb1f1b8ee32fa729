"""Commit rules against hand-worked cases."""

from __future__ import annotations

import numpy as np

from orderlens.rules import parse_policy
from orderlens.rules.protocol import Schedule
from orderlens.rules.stats import DrawStats, PositionStats
from orderlens.rules.view import StepView

P = [0.95, 0.2, 0.9, 0.5, 0.89]


def view(p=P):
    n = len(p)
    blank = np.full(n, -np.inf)
    return StepView.of(PositionStats(np.zeros(n, np.int64), np.log(p), blank, np.zeros(n), blank))


def chosen(spec, seen, scores):
    return np.flatnonzero(parse_policy(f"max-prob+{spec}").commit.select(seen, np.asarray(scores))).tolist()


def test_threshold_takes_all_that_reach_it_and_at_least_the_first():
    assert chosen("threshold=0.9", view(), np.log(P)) == [0, 2]
    assert chosen("threshold=1", view(), np.log(P)) == [0]
    assert chosen("threshold=0.99", view(), [0, 5, 0, 0, 0]) == [1], "the order's first, not the surest"
    assert chosen("threshold=0", view(), np.log(P)) == [0, 1, 2, 3, 4]


def test_threshold_reads_the_drawn_token_where_the_policy_draws_first():
    seen = view()
    draws = DrawStats(seen.stats, np.zeros(5, np.int64), np.log([0.01, 0.2, 0.93, 0.5, 0.05]), np.zeros(5))
    assert chosen("threshold=0.9", seen.seeing(draws), draws.logprob) == [2]


def test_top_takes_the_best_and_breaks_ties_to_the_left():
    assert chosen("top=2", view(), [1, 3, 3, 3, 0]) == [1, 2]
    assert chosen("top=9", view(), np.log(P)) == [0, 1, 2, 3, 4]


class Halves(Schedule):
    """Half of what is left at every pass: 4, 2, 1, 1 of 8."""

    id, summary, spec = "halves", "", "halves"

    @classmethod
    def parse(cls, values):
        return cls()

    def passes(self, n_positions):
        return np.array([0, 0, 0, 0, 1, 1, 2, 3])


def test_a_schedule_counts_what_is_due():
    seen = view([0.1] * 8)
    rule, taken = Halves(), []
    left = np.arange(8)
    for forward in range(4):
        stats = seen.stats.take(left)
        now = StepView.of(stats, left)
        now = StepView(
            now.chain_R, left, left, now.block_C, now.step_C, now.forward_C + forward, np.array([8]), stats,
            now.memory, now.numbers,
        )  # fmt: skip
        mask = rule.select(now, -left.astype(float))
        taken.append(left[mask].tolist())
        left = left[~mask]
    assert taken == [[0, 1, 2, 3], [4, 5], [6], [7]]
