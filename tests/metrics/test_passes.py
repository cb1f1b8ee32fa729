"""Parts of Var over passes: worked examples, and the identities for any numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest

import orderlens as ol
from orderlens.errors import UserInputError
from orderlens.metrics.passes import coupling, entropy_bound, pass_variance, segment_pass_variance
from orderlens.metrics.segments import Segments


def random_trace(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A trace, its passes, and a sequential trace that agrees with it at the first token of every pass."""
    rng = np.random.default_rng(seed)
    forward = np.repeat(np.arange(rng.integers(1, 9)), rng.integers(1, 5))
    y = np.log(rng.uniform(0.01, 1, len(forward)))
    first = np.append(True, forward[1:] != forward[:-1])
    return y, forward, np.where(first, y, y + rng.normal(0, 1, len(y)))


def test_two_coins_that_always_agree() -> None:
    """The page's example: both in one pass look perfectly even, at twice the loss."""
    half = math.log(0.5)
    together = pass_variance([half, half], [0, 0], [half, 0.0])
    one_by_one = pass_variance([half, 0.0], [0, 1], [half, 0.0])
    assert together.var == 0.0
    assert one_by_one.var == pytest.approx(half**2 / 4, abs=1e-14)
    assert together.coupling_inside == pytest.approx(half**2 / 4, abs=1e-14)
    assert together.coupling_between == 0.0
    assert together.sequential_var == pytest.approx(one_by_one.var, abs=1e-14)
    assert coupling([half, 0.0], [half, half]) == pytest.approx(math.log(2), abs=1e-14)


def test_by_hand() -> None:
    """Passes (−1, −3) and (−2): means −2 and −2, inside (2·1 + 1·0)/3; one token per pass (−1, −4, −2)."""
    found = pass_variance([-1, -3, -2], [0, 0, 1], [-1, -4, -2])
    assert (found.between, found.inside) == (0.0, pytest.approx(2 / 3))
    assert found.sequential_var == pytest.approx(np.var([-1, -4, -2]))
    assert found.coupling_between == pytest.approx(2 / 3 * (-2.5 + 7 / 3) ** 2 + 1 / 3 * (-2 + 7 / 3) ** 2)


@pytest.mark.parametrize("seed", range(20))
def test_the_parts_add_up(seed: int) -> None:
    y, forward, z = random_trace(seed)
    found = pass_variance(y, forward, z)
    assert found.var == pytest.approx(np.var(y), abs=1e-12)
    assert found.sequential_var == pytest.approx(np.var(z), abs=1e-12)
    parts = found.between + found.inside + found.coupling_between + found.coupling_inside
    assert parts == pytest.approx(np.var(z), abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_the_part_between_passes_follows_from_the_couplings_alone(seed: int) -> None:
    y, forward, z = random_trace(seed)
    size = np.bincount(forward)
    mean, shift = np.bincount(forward, y) / size, np.bincount(forward, z - y) / size
    weight = size / size.sum()
    centred = mean - weight @ mean, shift - weight @ shift
    expected = 2 * weight @ (centred[0] * centred[1]) + weight @ centred[1] ** 2
    assert pass_variance(y, forward, z).coupling_between == pytest.approx(expected, abs=1e-12)


def test_one_token_per_pass_has_no_inside_and_no_coupling() -> None:
    y = np.log([0.5, 0.25, 0.9])
    found = pass_variance(y, [0, 1, 2], y)
    assert (found.inside, found.coupling) == (0.0, 0.0)
    assert found.between == pytest.approx(np.var(y))


def test_many_traces_at_once() -> None:
    traces = [random_trace(seed) for seed in range(6)]
    segments = Segments.of_lengths([len(y) for y, _, _ in traces])
    between, inside = segment_pass_variance(
        np.concatenate([y for y, _, _ in traces]), np.concatenate([f for _, f, _ in traces]), segments
    )
    for place, (y, forward, _) in enumerate(traces):
        one = pass_variance(y, forward)
        assert (between[place], inside[place]) == pytest.approx((one.between, one.inside), abs=1e-12)
        assert math.isnan(one.coupling)
        assert math.isnan(one.sequential_var)


def test_an_empty_or_impossible_trace_has_no_parts() -> None:
    between, inside = segment_pass_variance(
        np.array([-1.0, -np.inf]), np.array([0, 1]), Segments.of_lengths([1, 1, 0])
    )
    assert (between[0], inside[0]) == (0.0, 0.0)
    assert np.isnan(between[1:]).all()
    assert np.isnan(inside[1:]).all()


def test_entropy_bound() -> None:
    assert ol.metrics.entropy_bound([0.5, 2.0, 1.0]) == 1.5
    assert entropy_bound([0.7]) == 0.0
    assert math.isnan(entropy_bound([]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([-1.0], [0, 1]), "of equal length"),
        (([-1.0, -2.0], [1, 0]), "in reveal order"),
        (([-1.0, -2.0], [0, 1], [-1.0]), "1 sequential values for 2"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(UserInputError, match=message):
        pass_variance(*arguments)
