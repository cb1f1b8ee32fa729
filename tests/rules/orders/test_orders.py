"""Order rules against hand-worked cases, and the registry's manners."""

from __future__ import annotations

import numpy as np
import pytest

from orderlens.decode.choose import choose
from orderlens.decode.extra_inputs import PolicyMemory
from orderlens.errors import ModelOutputError, UnknownNameError, UserInputError
from orderlens.rules import Policy, parse_order, parse_policies
from orderlens.rules.catalogue import ORDERS
from orderlens.rules.orders import ConfidenceOrder, OracleOrder, StaticOrder, check_path
from orderlens.rules.stats import DrawStats, PositionStats, TargetStats
from orderlens.rules.view import StepView


def position_stats(p1, p2, entropy):
    n = len(p1)
    return PositionStats(
        np.zeros(n, np.int64), np.log(p1), np.log(p2), np.array(entropy), np.full(n, -np.inf)
    )


STATS = position_stats([0.6, 0.5, 0.55], [0.4, 0.1, 0.3], [0.67, 1.3, 0.9])


def best(order, stats=STATS):
    return int(np.argmax(order.scores(StepView.of(stats))))


def test_confidence_orders_read_different_things():
    assert best(parse_order("max-prob")) == 0
    assert best(parse_order("top-margin")) == 1
    assert best(parse_order("entropy")) == 0
    assert parse_order("top-margin").scores(StepView.of(STATS)) == pytest.approx([0.2, 0.4, 0.25])


def test_oracles_read_the_target():
    stats = TargetStats(STATS, np.log([0.4, 0.1, 0.3]), np.log([0.6, 0.5, 0.31]))
    assert best(parse_order("oracle-max-q"), stats) == 0
    assert best(parse_order("oracle-min-q"), stats) == 1
    assert best(parse_order("oracle-margin"), stats) == 2
    assert parse_order("oracle-margin").scores(StepView.of(stats)) == pytest.approx([-0.2, -0.4, -0.01])


def test_a_deployable_order_is_never_handed_a_target():
    for name in ORDERS.names():
        kind = ORDERS.get(name)
        assert sum(issubclass(kind, base) for base in (StaticOrder, ConfidenceOrder, OracleOrder)) == 1
    assert not any(field.startswith("target") for field in PositionStats.__dataclass_fields__)


def test_max_prob_compares_draws_or_maxima():
    draws = DrawStats(STATS, np.array([1, 2, 3]), np.log([0.1, 0.2, 0.55]), np.zeros(3))
    assert int(np.argmax(parse_order("max-prob").draw_scores(StepView.of(draws)))) == 2
    assert Policy(parse_order("max-prob")).draws_first(1.0)
    assert not Policy(parse_order("max-prob:select=argmax")).draws_first(1.0)


def test_probabilities_near_one_stay_apart():
    stats = position_stats([0.9985, 0.99990, 0.99991], [0.001, 0.0001, 0.00009], [0.1, 0.1, 0.1])
    assert best(parse_order("max-prob"), stats) == best(parse_order("top-margin"), stats) == 2


def test_static_paths():
    assert parse_order("forced-ar").path(4, "a", 0).tolist() == [0, 1, 2, 3]
    assert parse_order("reverse-ar").path(4, "a", 0).tolist() == [3, 2, 1, 0]


def test_random_paths_are_permutations_keyed_by_seed_sample_and_block():
    order = parse_order("random:3")
    path = order.path(32, "a", 0)
    assert sorted(path.tolist()) == list(range(32))
    assert path.tolist() == parse_order("random:3").path(32, "a", 0).tolist()
    others = [order.path(32, "b", 0), order.path(32, "a", 1), parse_order("random").path(32, "a", 0)]
    assert all(path.tolist() != other.tolist() for other in others)
    assert (order.seed, order.label, order.spec) == (3, "random", "random:3")
    assert parse_order("random").seed == 0


def test_random_paths_are_uniform():
    first = [int(parse_order("random").path(5, f"s{i}", 0)[0]) for i in range(2000)]
    assert np.abs(np.bincount(first, minlength=5) - 400).max() < 80


class ByEntropy(ConfidenceOrder):
    id, summary = "by-entropy", "the entropies as they are"

    def scores(self, view):
        return view.stats.entropy


def chosen_first(entropy, chain):
    chain = np.array(chain)
    stats = position_stats([0.5] * len(chain), [0.1] * len(chain), entropy)
    n_chains, offset = int(chain.max()) + 1, np.arange(len(chain))
    zero, memory = np.zeros(n_chains, np.int64), PolicyMemory.empty(n_chains, len(chain))
    filling, table = np.bincount(chain), memory.order.at(np.arange(n_chains), chain, offset)
    view = StepView(
        chain, offset, offset, zero, zero, zero, filling, stats, table, lambda: np.zeros(len(chain))
    )
    return choose(Policy(ByEntropy()), view, memory, np.arange(n_chains), None)


def test_ties_go_to_the_leftmost_and_are_counted():
    choice = chosen_first([1.0, 3.0, 3.0, 2.0, 7.0, 5.0], [0, 0, 0, 0, 1, 1])
    assert np.flatnonzero(choice.chosen_R).tolist() == [1, 4]
    assert choice.tied_R[choice.chosen_R].tolist() == [2, 1]


def test_nan_scores_are_refused():
    with pytest.raises(ModelOutputError, match="without NaN"):
        chosen_first([np.nan, 1.0], [0, 0])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("forced", "did you mean 'forced-ar'"),
        ("random:x", "seed must be a non-negative integer"),
        ("random:-1", "seed must be"),
        ("forced-ar:2", "takes no argument"),
        ("max-prob:select=best", "select=sampled and select=argmax"),
        ("", "no order given"),
        ("random,random:0", "both mean"),
    ],
)
def test_bad_specs_are_named(spec, message):
    with pytest.raises((UnknownNameError, UserInputError), match=message):
        parse_policies(spec)


@pytest.mark.parametrize(
    "path", [[0, 0, 1], [0, 1], [0, 1, 2, 3], [1, 2, 3], [0.0, 1.0, 2.0], [True, False, True], []]
)
def test_a_static_path_must_be_a_permutation(path):
    class Given(StaticOrder):
        id, summary = "given", "a fixed list"

        def path(self, n_positions, sample_id, block):
            return np.array(path)

    with pytest.raises(UserInputError, match=r"'given': its path over 3 positions.*not a permutation"):
        check_path(Given(), 3, "a", 0)


def test_a_right_path_is_passed_on():
    assert sorted(check_path(parse_order("random:4"), 9, "a", 2)) == list(range(9))
    assert check_path(parse_order("reverse-ar"), 3, "a", 0).tolist() == [2, 1, 0]
