"""What the theory refuses, one line per mistake: which value, its index, and what is allowed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from orderlens import theory
from orderlens.theory import CompetitorError, NoiseError, ProbabilityError, ProfileError, TheoryError

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("q", [0.0, 1.0, -0.1, 1.5, NAN, INF])
@pytest.mark.parametrize("call", [lambda q: theory.success(q, 1.0), lambda q: theory.success_k(q, 3, 1.0)])
def test_probabilities_lie_strictly_between_0_and_1(call, q):
    with pytest.raises(ProbabilityError, match="q must lie strictly between 0 and 1; got"):
        call(q)


@pytest.mark.parametrize("y", [0.0, 0.5, -INF, NAN, INF])
@pytest.mark.parametrize(
    "function", [theory.log_success, theory.log_failure, theory.d1, theory.d2, theory.concavity_margin]
)
def test_log_probabilities_are_finite_and_negative(function, y):
    with pytest.raises(ProbabilityError, match=r"y = log q must be finite and negative .*; got"):
        function(y, 1.0)


@pytest.mark.parametrize("sigma", [0.0, -1.0, NAN, INF])
@pytest.mark.parametrize(
    "call",
    [
        lambda s: theory.success(0.5, s),
        lambda s: theory.log_success(-1.0, s),
        lambda s: theory.log_recoverability([-1.0], s),
        lambda s: theory.jensen_loss([-1.0, -2.0], s),
        lambda s: theory.best_profile(-1.0, 2, s),
        lambda s: theory.violation_intervals(s),
        lambda s: theory.success_k(0.5, 3, s),
    ],
)
def test_the_noise_is_positive_and_finite(call, sigma):
    with pytest.raises(NoiseError, match=f"sigma must be positive and finite; got {sigma}"):
        call(sigma)


@pytest.mark.parametrize("k", [0, 0.5, -1, NAN, INF])
@pytest.mark.parametrize(
    "call",
    [
        lambda k: theory.success_k(0.5, k, 1.0),
        lambda k: theory.log_success_k(-1.0, k, 1.0),
        lambda k: theory.d1_k(-1.0, k, 1.0),
        lambda k: theory.d2_k(-1.0, k, 1.0),
        lambda k: theory.critical_sigma(k),
    ],
)
def test_there_is_at_least_one_competitor(call, k):
    with pytest.raises(CompetitorError, match="k must be finite and at least 1"):
        call(k)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0.5, 0.2, 1.5, 2.0], r"got 1\.5 at index 2 \(2 of 4 values\)"),
        ([[0.5, 0.5], [-1.0, 0.5]], r"got -1\.0 at index 1, 0 \(1 of 4 values\)"),
        (3.0, r"got 3\.0$"),
        ([7.0], r"got 7\.0 at index 0$"),
    ],
)
def test_the_first_wrong_value_is_named_with_its_place(values, message):
    with pytest.raises(ProbabilityError, match=message):
        theory.success(values, 1.0)


@pytest.mark.parametrize("value", ["half", None, 1 + 2j, [[0.1], [0.2, 0.3]], object()])
def test_what_is_no_number_is_refused_in_one_line(value):
    with pytest.raises(TheoryError, match="must be real numbers; got") as caught:
        theory.success(value, 1.0)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 160


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: theory.success([0.1, 0.2], [1.0, 2.0, 3.0]),
            TheoryError,
            r"shapes \(2,\), \(3,\) do not broadcast",
        ),
        (
            lambda: theory.violation_intervals([1.0, 2.0]),
            NoiseError,
            "sigma must be one number here; got shape",
        ),
        (lambda: theory.critical_sigma([1, 2]), CompetitorError, "k must be one number here"),
        (lambda: theory.log_recoverability([], 1.0), ProfileError, "at least one step; got shape"),
        (lambda: theory.log_recoverability(-1.0, 1.0), ProfileError, r"at least one step; got shape \(\)"),
        (lambda: theory.log_recoverability([-1.0, 0.1], 1.0), ProfileError, "at most 0; got 0.1 at index 1"),
        (lambda: theory.best_profile(-1.0, 0, 1.0), ProfileError, "at least one step; got n = 0"),
        (lambda: theory.best_profile(0.0, 2, 1.0), ProbabilityError, "log P must be negative; got 0.0"),
        (lambda: theory.best_profile(-INF, 2, 1.0), TheoryError, "log P must be finite; got -inf"),
        (lambda: theory.compare_spread([-1.0], [-0.5, -0.5]), ProfileError, "same length to compare"),
        (
            lambda: theory.compare_spread([-1.0, -1.0], [-1.0, -2.0]),
            ProfileError,
            "same total log-probability",
        ),
        (
            lambda: theory.compare_spread([[-1.0]], [[-1.0]]),
            ProfileError,
            "same length to compare; got shapes",
        ),
    ],
)
def test_shapes_and_totals_must_fit(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_every_refusal_is_a_value_error():
    for kind in (CompetitorError, NoiseError, ProbabilityError, ProfileError):
        assert issubclass(kind, TheoryError)
    assert issubclass(TheoryError, ValueError)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3), (0,), (2, 0)])
def test_results_have_the_shape_of_their_arguments(shape):
    q = np.full(shape, 0.3)
    found = theory.success(q, 0.7)
    assert np.shape(found) == shape
    if shape == ():
        assert isinstance(found, np.float64)
    np.testing.assert_array_equal(theory.success(q, np.full(shape, 0.7)), found)
    assert np.shape(theory.success(q[..., None], np.array([0.5, 1.0]))) == (*shape, 2)


def test_long_arrays_are_worked_on_in_pieces_without_a_seam():
    q = np.linspace(0.001, 0.999, 40_001)
    sigma = np.linspace(0.2, 3.0, 40_001)
    whole = theory.success(q, sigma)
    for place in (0, 16_383, 16_384, 16_385, 32_768, 40_000):
        assert whole[place] == theory.success(q[place], sigma[place])
