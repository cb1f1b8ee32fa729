"""All orders of a span against plain enumeration: all quantities of small spans, ranks in large ones."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from orderlens.errors import UserInputError
from orderlens.metrics import census_front, ensemble_gap
from orderlens.metrics.census import SpanCensus, normal_range
from orderlens.metrics.census_front import front, greatest_variance, least_variance
from orderlens.theory import log_success

TOLERANCE = 1e-9


def random_table(size: int, seed: int = 0) -> np.ndarray:
    """Return log-probabilities [2^B, B] without any structure."""
    return -np.random.default_rng([seed, size]).exponential(2.0, (2**size, size))


def coherent_table(size: int, seed: int = 0) -> np.ndarray:
    """Return the conditionals of one random joint distribution of binary tokens at the text of all ones."""
    joint = np.random.default_rng([seed, size, 1]).dirichlet(np.ones(2**size))
    sets = np.arange(2**size)
    mass = np.array([joint[(sets & shown) == shown].sum() for shown in sets])
    table = np.full((2**size, size), np.nan)
    for shown in sets:
        for i in range(size):
            if not shown >> i & 1:
                table[shown, i] = math.log(mass[shown | 1 << i] / mass[shown])
    return table


class Listed:
    """All orders, one after another."""

    def __init__(self, table: np.ndarray) -> None:
        size = table.shape[1]
        self.orders = list(itertools.permutations(range(size)))
        self.log_q = np.array([self._path(table, order) for order in self.orders])
        self.log_p, self.var = self.log_q.sum(axis=1), self.log_q.var(axis=1)

    @staticmethod
    def _path(table: np.ndarray, order: tuple[int, ...]) -> list[float]:
        shown, values = 0, []
        for i in order:
            values.append(float(table[shown, i]))
            shown |= 1 << i
        return values

    def mean_where(self, holds: object) -> float:
        return float(self.log_p[np.array([holds(order) for order in self.orders])].mean())  # type: ignore[operator]


CASES = [(size, seed) for size in range(1, 8) for seed in range(2)]


@pytest.fixture(params=CASES, ids=lambda case: f"B{case[0]}-{case[1]}")
def case(request: pytest.FixtureRequest) -> tuple[SpanCensus, Listed]:
    table = random_table(*request.param)
    return SpanCensus(table), Listed(table)


def test_best_worst_mean_sd_and_mixture_are_those_of_all_orders(case: tuple[SpanCensus, Listed]) -> None:
    census, listed = case
    assert census.best.log_p == pytest.approx(listed.log_p.max(), abs=TOLERANCE)
    assert census.worst.log_p == pytest.approx(listed.log_p.min(), abs=TOLERANCE)
    assert census.path(census.best.order).log_p == census.best.log_p
    assert census.mean == pytest.approx(listed.log_p.mean(), abs=TOLERANCE)
    assert census.sd == pytest.approx(listed.log_p.std(), abs=TOLERANCE)
    top = listed.log_p.max()
    mixture = top + math.log(np.exp(listed.log_p - top).mean())
    assert census.mixture == pytest.approx(mixture, abs=TOLERANCE)


def test_mixture_minus_mean_is_the_limit_of_the_ensemble_gap() -> None:
    table = random_table(5)
    census, listed = SpanCensus(table), Listed(table)
    (gap,) = ensemble_gap(listed.log_p[None], [5])
    assert (census.mixture - census.mean) / 5 == pytest.approx(gap, abs=TOLERANCE)


def test_least_and_greatest_variance_are_those_of_all_orders(case: tuple[SpanCensus, Listed]) -> None:
    census, listed = case
    least = least_variance(census)
    assert least.var == pytest.approx(listed.var.min(), abs=TOLERANCE)
    assert census.path(least.order).var == least.var
    reached, bound = greatest_variance(census)
    assert reached == bound == pytest.approx(listed.var.max(), abs=TOLERANCE)


def test_bounds_of_large_spans_hold_the_greatest_variance(
    case: tuple[SpanCensus, Listed], monkeypatch: pytest.MonkeyPatch
) -> None:
    census, listed = case
    monkeypatch.setattr(census_front, "LARGEST_LISTED", 0)
    reached, bound = greatest_variance(census)
    assert reached <= listed.var.max() + TOLERANCE <= bound + 2 * TOLERANCE


def test_front_runs_from_least_variance_to_best(
    case: tuple[SpanCensus, Listed],
) -> None:
    census, listed = case
    found = front(census)
    assert found[0].var == pytest.approx(listed.var.min(), abs=TOLERANCE)
    assert found[-1].log_p == pytest.approx(listed.log_p.max(), abs=TOLERANCE)
    log_p, var = [path.log_p for path in found], [path.var for path in found]
    assert log_p == sorted(log_p)
    assert var == sorted(var)


@pytest.mark.parametrize("seed", range(12))
def test_front_is_the_orders_that_are_best_for_some_weight_also_where_orders_tie(seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = -(rng.integers(0, 3, (32, 5)).astype(np.float64) if seed < 6 else rng.exponential(3, (32, 5)))
    listed, found = Listed(table), front(SpanCensus(table))
    log_p, var = np.array([[path.log_p, path.var] for path in found]).T
    slopes = np.diff(var) / np.diff(log_p)
    assert (np.diff(slopes) >= -TOLERANCE).all()
    for weight in (0.01, 0.1, 0.5, 1, 2, 5, *slopes):
        assert (var - weight * log_p).min() == pytest.approx(
            (listed.var - weight * listed.log_p).min(), abs=1e-8
        )
    for mine, other in zip(log_p, var, strict=True):
        assert not ((listed.log_p > mine + 1e-8) & (listed.var <= other)).any()


def test_best_recoverability_is_that_of_all_orders(case: tuple[SpanCensus, Listed]) -> None:
    census, listed = case

    def gain(y: np.ndarray) -> np.ndarray:
        return np.asarray(log_success(y, 0.8))

    best, path = census.best_sum(gain)
    assert best == pytest.approx(max(gain(row).sum() for row in listed.log_q), abs=1e-8)
    assert gain(census.log_q(path.order)).sum() == pytest.approx(best, abs=TOLERANCE)


def test_share_below_counts_the_orders_that_are_worse(case: tuple[SpanCensus, Listed]) -> None:
    census, listed = case
    values = np.concatenate([listed.log_p[:5], np.quantile(listed.log_p, [0.1, 0.5, 0.9])])
    shares, error = census.share_below(values)
    assert not error.any()
    truth = [(listed.log_p < value - TOLERANCE).mean() for value in values]
    np.testing.assert_allclose(shares, truth, atol=1e-12)


def test_distribution_is_the_histogram_of_all_orders(case: tuple[SpanCensus, Listed]) -> None:
    census, listed = case
    edges, share = census.distribution(16)
    assert share.sum() == pytest.approx(1.0)
    if len(share) == 1:
        assert len(listed.orders) == 1
        return
    counts, _ = np.histogram(listed.log_p, edges)
    # An order on an edge may fall to either side.
    np.testing.assert_allclose(share, counts / len(listed.orders), atol=2.1 / len(listed.orders))


def test_shares_are_the_variances_of_conditional_means(case: tuple[SpanCensus, Listed]) -> None:
    census, listed = case
    size, found, total = census.size, census.shares(), listed.log_p.var()
    if size == 1:
        assert math.isnan(found.first_choice)
        assert math.isnan(found.pair)
        return
    first = np.var([listed.mean_where(lambda order, i=i: order[0] == i) for i in range(size)])
    steps = [
        [listed.mean_where(lambda order, i=i, k=k: order[k] == i) for k in range(size)] for i in range(size)
    ]
    pairs = [
        (listed.mean_where(lambda order, i=i, j=j: order.index(i) < order.index(j)) - listed.log_p.mean())
        ** 2
        for i, j in itertools.combinations(range(size), 2)
    ]
    assert found.first_choice == pytest.approx(first / total, abs=TOLERANCE)
    assert found.position == pytest.approx(np.var(steps, axis=1).max() / total, abs=TOLERANCE)
    assert found.pair == pytest.approx(max(pairs) / total, abs=TOLERANCE)


@pytest.mark.parametrize("count", [2, 5])
def test_range_of_few_sampled_orders_is_its_expectation(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    table = random_table(4)
    census, sums = SpanCensus(table), Listed(table).log_p
    drawn = sums[np.random.default_rng(0).integers(len(sums), size=(200_000, count))]
    expected = np.ptp(drawn, axis=1)
    assert census.sampled_range(count) == pytest.approx(expected.mean(), abs=4 * expected.std() / 440)
    wide = SpanCensus(random_table(8))
    listed = wide.sampled_range(count)
    monkeypatch.setattr("orderlens.metrics.census.LARGEST_LISTED", 0)
    drawn_range = SpanCensus(random_table(8)).sampled_range(count)
    assert drawn_range != listed
    assert drawn_range == pytest.approx(listed, rel=0.01)


def test_a_range_is_extrapolated_as_that_of_normal_numbers() -> None:
    known = {1: 0.0, 2: 2 / math.sqrt(math.pi), 3: 3 / math.sqrt(math.pi), 8: 2.8472, 100: 5.0152}
    for count, expected in known.items():
        assert normal_range(count) == pytest.approx(expected, abs=1e-4)
    assert 17 < normal_range(math.factorial(20)) < 18
    census = SpanCensus(random_table(5))
    factor = normal_range(120) / 2.8472
    assert census.extrapolated_range(8) == pytest.approx(census.sampled_range(8) * factor, rel=1e-4)


def test_circulations_are_those_of_all_squares(case: tuple[SpanCensus, Listed]) -> None:
    census, _ = case
    table, size, (count, mean) = census.flat.reshape(-1, census.size), census.size, census.circulations()
    groups: dict[tuple[int, int], list[float]] = {}
    for i, j in itertools.combinations(range(size), 2):
        for shown in range(2**size):
            if shown >> i & 1 or shown >> j & 1:
                continue
            gamma = table[shown, i] + table[shown | 1 << i, j] - table[shown, j] - table[shown | 1 << j, i]
            groups.setdefault((j - i, shown.bit_count()), []).append(abs(gamma))
    assert count.sum() == math.comb(size, 2) * 2 ** max(size - 2, 0)
    for (distance, revealed), values in groups.items():
        at = distance - 1, revealed
        assert count[at] == len(values)
        assert mean[at] == pytest.approx(np.mean(values), abs=TOLERANCE)
    if groups:
        assert census.circulation == pytest.approx(
            np.mean([value for values in groups.values() for value in values]), abs=TOLERANCE
        )


def test_distances_of_scattered_offsets_are_those_of_their_positions() -> None:
    census = SpanCensus(random_table(4))
    count, mean = census.circulations([2, 4, 9, 10])
    assert count.shape == (8, 3)
    assert count.sum(axis=1).tolist() == [4, 4, 0, 0, 4, 4, 4, 4]
    (gamma,) = (gamma for i, j, gamma in census._squares() if (i, j) == (1, 2))
    assert np.nansum(mean[4] * count[4]) == pytest.approx(np.abs(gamma).sum(), abs=TOLERANCE)
    alone = SpanCensus(random_table(1)).circulations([7])
    assert [values.shape for values in alone] == [(0, 0)] * 2


def test_a_set_is_compared_with_every_order_of_its_tokens() -> None:
    table = random_table(6)
    found = SpanCensus(table).after([1, 4], [0, 5, 2])
    before, sums = 0b010010, []
    for order in itertools.permutations([0, 5, 2]):
        shown, total = before, 0.0
        for i in order:
            total += table[shown, i]
            shown |= 1 << i
        sums.append(total)
    assert found.joint == pytest.approx(table[before, [0, 5, 2]].sum(), abs=TOLERANCE)
    expected = (max(sums), min(sums), np.mean(sums))
    assert (found.best.log_p, found.worst.log_p, found.mean) == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.parametrize("size", [1, 4, 8])
def test_conditionals_of_one_joint_give_every_order_the_same_log_p(size: int) -> None:
    census = SpanCensus(coherent_table(size))
    assert census.best.log_p - census.worst.log_p <= TOLERANCE
    assert not census.varies
    assert census.circulation <= TOLERANCE or size == 1
    shares, _ = census.share_below([census.mean])
    assert shares.tolist() == [0.0]
    assert least_variance(census).var >= 0.0


@pytest.mark.parametrize("size", [9, 10, 11])
def test_random_orders_of_large_spans_agree_with_the_exact_count(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    census = SpanCensus(random_table(size))
    values = census.mean + census.sd * np.linspace(-3, 3, 25)
    exact, _ = census.share_below(values)
    monkeypatch.setattr("orderlens.metrics.census.LARGEST_EXACT", 1)
    shares, error = census.share_below(values)
    assert (error > 0).all()
    assert error.max() < 0.0015
    assert (np.abs(shares - exact) < 4 * error).all()
    assert census.share_below([census.worst.log_p, census.best.log_p + 1])[0].tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    "table",
    [np.zeros((4, 3)), np.zeros(4), np.full((4, 2), -np.inf), np.zeros((1, 0)), np.zeros((2**21, 21), bool)],
)
def test_what_is_no_table_of_all_states_is_refused(table: np.ndarray) -> None:
    with pytest.raises(UserInputError, match="a census needs"):
        SpanCensus(table)


def test_entries_of_revealed_offsets_are_ignored() -> None:
    table = random_table(4)
    holes = table.copy()
    revealed = (np.arange(16)[:, None] >> np.arange(4)) & 1 == 1
    holes[revealed] = np.nan
    assert SpanCensus(holes).best == SpanCensus(table).best
    assert SpanCensus(holes).shares() == SpanCensus(table).shares()


def test_a_path_that_is_no_order_is_refused() -> None:
    with pytest.raises(UserInputError, match="not an order of the offsets 0 to 2"):
        SpanCensus(random_table(3)).path([0, 1, 1])
