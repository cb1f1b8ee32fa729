"""f, g, g', g'' against arbitrary precision, at the ends, and on bad input."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, log_ndtr

from orderlens import theory
from orderlens.theory import step

TOLERANCE = 1e-12

# Values of the specification.
LISTED = [
    (0.1, 0.3, 1.04084708787e-9, 62.1243024254, -72.9622134426),
    (0.5, 0.9, 0.999056119599, 0.0452012125108, -1.5815765381),
    (1.0, 0.05, 0.0186697383342, 1.82066584344, -0.397505133573),
    (1.1, 0.7, 0.707007580163, 1.0424097739, 0.129098923768),
    (2.0, 0.8, 0.687978716315, 0.909066283816, 2.02221771243),
]


def points() -> list[tuple[float, float]]:
    """(q, σ): random over the whole range, and where float64 arithmetic is most likely to fail."""
    rng = np.random.default_rng(20)
    found = []
    for _ in range(450):
        sigma = float(np.exp(rng.uniform(np.log(0.01), np.log(5.0))))
        edge = float(expit(rng.choice([-1, 1]) * rng.uniform(40, 54) * sigma))  # f or 1 − f near 1e-300
        tiny = float(np.exp(rng.uniform(np.log(1e-300), 0.0)))
        close = 1.0 - float(np.exp(rng.uniform(np.log(1e-15), 0.0)))
        found.append((float(rng.choice([edge, tiny, close, 0.5 + 1e-3 * rng.normal()])), sigma))
    hard_q = (
        1e-300,
        1e-16,
        0.25,
        0.3516,
        0.37,
        0.5,
        np.nextafter(0.5, 0),
        np.nextafter(0.5, 1),
        0.63,
        1 - 1e-15,
    )
    found += [(float(q), s) for q in hard_q for s in (0.01, 0.0101, 0.02, 0.05, 0.1, 1.0, 1.0525827, 5.0)]
    # Around the switch to the series of z + r and the switch of logit formulas.
    found += [
        (float(expit(-z * s * np.sqrt(2))), s) for z in (15.99, 16.01, 30.0) for s in (0.01, 0.1, 1.0, 5.0)
    ]
    found += [(float(np.exp(y)), s) for y in (-36.99, -37.01, -0.3432, -1.0432) for s in (0.01, 0.5, 5.0)]
    return [(q, s) for q, s in found if 1e-300 <= q <= 1 - 1e-15]


@pytest.fixture(scope="module")
def grid() -> list[tuple[float, float]]:
    return points()


def test_success_is_exact(grid, exact, error) -> None:
    worst = max((error(theory.success(q, s), exact(s, q=q).f), q, s) for q, s in grid)
    assert worst[0] < TOLERANCE, worst


def test_functions_of_log_q_are_exact(grid, exact, error) -> None:
    worst = (0.0,)
    for q, s in grid:
        y = float(np.log(q)) if q < 0.9 else float(np.log1p(-(1.0 - q)))
        want = exact(s, y=y)
        errors = (
            error(theory.log_success(y, s), want.g),
            error(theory.d1(y, s), want.d1),
            error(theory.d2(y, s), want.d2, want.d2_terms),
            error(theory.concavity_ratio(y, s), want.ratio),
        )
        worst = max(worst, (max(errors), errors, q, s))
    assert worst[0] < TOLERANCE, worst


@pytest.mark.parametrize(("sigma", "q", "f", "first", "second"), LISTED)
def test_listed_values(sigma: float, q: float, f: float, first: float, second: float) -> None:
    y = np.log(q)
    assert theory.success(q, sigma) == pytest.approx(f, rel=1e-11)
    assert theory.d1(y, sigma) == pytest.approx(first, rel=1e-11)
    assert theory.d2(y, sigma) == pytest.approx(second, rel=1e-10)


def test_close_to_certainty_y_knows_what_q_has_lost(exact, error) -> None:
    for y in (-1e-15, -1e-17, -1e-30, -1e-200, -5e-324):
        for sigma in (0.5, 2.0, 5.0, 20.0):
            want = exact(sigma, y=y)
            assert error(theory.d1(y, sigma), want.d1) < 1e-11
            assert error(theory.d2(y, sigma), want.d2, want.d2_terms) < 1e-11


def test_limits_at_the_ends() -> None:
    assert theory.success(5e-324, 0.3) == 0
    assert theory.success(1 - 1e-16, 0.01) == 1
    assert theory.log_success(-1e-300, 0.5) == 0
    assert theory.d1(-1e-300, 0.5) == 0
    assert theory.d2(-1e-300, 0.5) == 0
    # q → 0: g' ~ |y|/(2σ²) and g'' → −1/(2σ²).
    assert theory.d1(-1e6, 0.5) == pytest.approx(2e6, rel=1e-6)
    assert theory.d2(-1e6, 0.5) == pytest.approx(-2.0, rel=1e-6)
    assert theory.d2(-1e300, 1e-10) == pytest.approx(-0.5e20, rel=1e-12)
    assert theory.log_success(-1e200, 1e-10) == -np.inf


def test_no_warnings_anywhere() -> None:
    y = np.concatenate([-np.geomspace(5e-324, 1e308, 700), [-np.log(2.0)]])
    with np.errstate(all="raise"):
        for sigma in (1e-300, 1e-3, 0.1, 1.0, 5.0, 1e3, 1e300):
            for function in (
                theory.log_success,
                theory.log_failure,
                theory.d1,
                theory.d2,
                theory.concavity_margin,
            ):
                assert not np.isnan(function(y, sigma)).any(), (function, sigma)
            assert not np.isnan(theory.success(np.linspace(1e-9, 1 - 1e-9, 50), sigma)).any()


def test_closed_and_scipy_forms_agree_where_scipy_is_safe() -> None:
    q = np.linspace(0.01, 0.99, 99)
    z = np.log(q / (1 - q)) / np.sqrt(2)
    np.testing.assert_allclose(theory.log_success(np.log(q), 1.0), log_ndtr(z), rtol=1e-12)
    np.testing.assert_allclose(theory.log_failure(np.log(q), 1.0), log_ndtr(-z), rtol=1e-12)


def test_derivatives_are_derivatives() -> None:
    y, h = np.log(np.linspace(0.05, 0.95, 19)), 1e-5
    for sigma in (0.3, 1.0, 2.0):
        slope = (theory.log_success(y + h, sigma) - theory.log_success(y - h, sigma)) / (2 * h)
        bend = (theory.d1(y + h, sigma) - theory.d1(y - h, sigma)) / (2 * h)
        np.testing.assert_allclose(theory.d1(y, sigma), slope, rtol=1e-6, atol=1e-12)
        np.testing.assert_allclose(theory.d2(y, sigma), bend, rtol=1e-5, atol=1e-7)


def test_mills_functions(exact) -> None:
    import mpmath as mp

    for z in (-1e8, -100.0, -16.5, -15.5, -3.0, -1e-9, 0.0, 2.0, 9.0, 37.0):
        with mp.workdps(50):
            ratio = mp.npdf(mp.mpf(z)) / mp.ncdf(mp.mpf(z))
            assert float(abs(theory.inverse_mills(z) / ratio - 1)) < 1e-12
            assert float(abs(theory.mills_excess(z) / (ratio + mp.mpf(z)) - 1)) < 1e-12


@given(st.integers(0, 3), st.lists(st.integers(1, 4), max_size=3), st.booleans())
@settings(max_examples=25, deadline=None)
def test_shapes_are_kept(which: int, shape: list[int], per_element: bool) -> None:
    function = (theory.success, theory.log_success, theory.d1, theory.d2)[which]
    values = np.full(shape, 0.3 if which == 0 else -1.2)
    sigma = np.full(shape, 0.7) if per_element else 0.7
    result = function(values, sigma)
    assert np.shape(result) == tuple(shape)
    np.testing.assert_array_equal(result, function(float(values.flat[0]) if values.size else 0.3, 0.7))


def test_scalars_stay_scalars_and_noise_broadcasts() -> None:
    assert isinstance(theory.success(0.3, 1.0), float)
    assert theory.d2(-np.ones((3, 1)), np.array([0.5, 1.0])).shape == (3, 2)
    assert theory.success([], 1.0).shape == (0,)


def test_long_arrays_equal_single_values() -> None:
    y = -np.random.default_rng(1).exponential(1.0, 40_000)
    whole = theory.d2(y, 0.8)
    some = [0, 1, 16_383, 16_384, 39_999]
    np.testing.assert_array_equal(whole[some], [theory.d2(float(y[i]), 0.8) for i in some])
    per_element = theory.d2(y, np.full(y.shape, 0.8))
    np.testing.assert_array_equal(whole, per_element)


def test_an_element_does_not_depend_on_its_neighbours() -> None:
    y, sigma = np.full(9, -0.7), np.array([0.01, 0.05, 0.09, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0])
    for function in (theory.log_success, theory.d1, theory.d2):
        np.testing.assert_array_equal(function(y, sigma), [function(-0.7, float(s)) for s in sigma])


def test_inputs_are_not_changed() -> None:
    y = np.array([-0.3, -3.0, -300.0])
    before = y.copy()
    theory.d2(y, 0.4)
    np.testing.assert_array_equal(y, before)


@pytest.mark.parametrize("q", [0.0, 1.0, -0.1, 1.5, float("nan"), float("inf")])
def test_bad_probabilities(q: float) -> None:
    with pytest.raises(
        theory.ProbabilityError, match=r"strictly between 0 and 1; got " + repr(q).replace(".", r"\.")
    ):
        theory.success(q, 1.0)


@pytest.mark.parametrize("y", [0.0, 0.5, float("nan"), float("-inf")])
def test_bad_log_probabilities(y: float) -> None:
    with pytest.raises(theory.ProbabilityError, match="finite and negative"):
        theory.d2(y, 1.0)


@pytest.mark.parametrize("sigma", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_noise(sigma: float) -> None:
    with pytest.raises(theory.NoiseError, match="sigma must be positive and finite; got"):
        theory.log_success(-1.0, sigma)


def test_errors_name_the_place_and_are_value_errors() -> None:
    with pytest.raises(ValueError, match=r"got 2\.0 at index 1, 0 \(1 of 4 values\)") as caught:
        theory.success([[0.1, 0.2], [2.0, 0.3]], 1.0)
    assert caught.value.is_user_input_error
    with pytest.raises(theory.ProbabilityError, match="real numbers"):
        theory.success("high", 1.0)
    with pytest.raises(theory.TheoryError, match="do not broadcast"):
        theory.success([0.1, 0.2], [1.0, 1.0, 1.0])
    with pytest.raises(theory.TheoryError, match="z must be finite"):
        theory.inverse_mills(np.nan)


def test_logit_of_probability_is_exact_near_a_half() -> None:
    q = np.array([0.5 + 2.0**-40, 0.5 - 2.0**-40])
    np.testing.assert_allclose(step.logit_of_probability(q), [2.0**-38, -(2.0**-38)], rtol=1e-15)
