"""McNemar, Wilson and corrections: by counting and by their defining inequalities."""

from __future__ import annotations

import math

import numpy as np
import pytest

from orderlens.metrics.significance import adjust, mcnemar, nested_logistic, wilson


@pytest.mark.parametrize(("only_first", "only_second"), [(0, 0), (3, 0), (0, 5), (4, 2), (6, 6), (1, 9)])
def test_mcnemar_is_a_fair_coin_over_the_disagreements(only_first, only_second):
    first = np.r_[np.ones(only_first), np.zeros(only_second), [1, 1, 0]].astype(bool)
    second = np.r_[np.zeros(only_first), np.ones(only_second), [1, 1, 0]].astype(bool)
    found = mcnemar(first, second)
    assert (found.n, found.only_first, found.only_second) == (len(first), only_first, only_second)
    total = only_first + only_second
    weight = [math.comb(total, k) for k in range(total + 1)]
    as_extreme = sum(w for w in weight if w <= weight[only_first])
    assert found.p == pytest.approx(as_extreme / 2**total)
    assert mcnemar(second, first).p == pytest.approx(found.p)


@pytest.mark.parametrize(
    ("right", "n", "level"), [(0, 10, 0.95), (10, 10, 0.95), (3, 7, 0.9), (500, 1000, 0.99)]
)
def test_wilson_ends_solve_its_equation(right, n, level):
    from scipy import stats

    cell, z = wilson(right, n, level), stats.norm.ppf((1 + level) / 2)
    assert (cell.value, cell.n) == (right / n, n)
    for end in (cell.low, cell.high):
        assert (cell.value - end) ** 2 == pytest.approx(z**2 * end * (1 - end) / n, abs=1e-12)
    assert cell.low <= cell.value <= cell.high


@pytest.mark.parametrize("seed", range(4))
def test_holm_is_the_smallest_level_at_which_the_step_down_rejects(seed):
    rng = np.random.default_rng(seed)
    p = np.round(rng.random(7) ** 2, 2)

    def rejected(level):
        out = set()
        for place, index in enumerate(np.argsort(p, kind="stable")):
            if p[index] * (len(p) - place) > level + 1e-12:
                break
            out.add(int(index))
        return out

    found = adjust(p, "holm")
    for index, value in enumerate(found):
        if value < 1:
            assert index in rejected(value)
            assert index not in rejected(value - 1e-6)


@pytest.mark.parametrize("method", ["holm", "bh"])
def test_corrections_only_raise_keep_the_ranking_and_stay_probabilities(method):
    p = np.array([0.5, 0.001, np.nan, 0.04, 0.9, 0.04, np.inf])
    found = adjust(p, method)
    known = np.isfinite(p)
    assert np.isnan(found[~known]).all()
    assert (found[known] >= p[known]).all()
    assert (found[known] <= 1).all()
    assert (np.diff(found[known][np.argsort(p[known])]) >= 0).all()
    assert adjust([0.3], method).tolist() == pytest.approx([0.3])
    np.testing.assert_allclose(adjust(p[known], method), found[known])


def test_holm_is_never_below_benjamini_hochberg_and_never_above_bonferroni():
    p = np.random.default_rng(9).random(25) ** 3
    holm, bh = adjust(p, "holm"), adjust(p, "bh")
    assert (holm >= bh - 1e-15).all()
    assert (holm <= np.minimum(25 * p, 1) + 1e-15).all()
    assert holm.min() == pytest.approx(min(1.0, 25 * p.min()))


def _rows(n=60):
    rng = np.random.default_rng(3)
    extra, base = rng.normal(size=n), rng.normal(size=n)
    return (rng.random(n) < 1 / (1 + np.exp(-extra))).astype(float), extra, base


def test_the_nested_test_is_a_likelihood_ratio_with_a_wald_interval():
    correct, extra, base = _rows()
    found = nested_logistic(correct, extra, [base])
    design = [
        np.column_stack([np.ones(60), base]),
        np.column_stack([np.ones(60), base, (extra - extra.mean()) / extra.std()]),
    ]

    def fitted(matrix):
        beta = np.zeros(matrix.shape[1])
        for _ in range(50):  # Newton steps
            p = 1 / (1 + np.exp(-matrix @ beta))
            beta += np.linalg.solve((matrix * (p * (1 - p))[:, None]).T @ matrix, matrix.T @ (correct - p))
        p = 1 / (1 + np.exp(-matrix @ beta))
        errors = np.sqrt(np.diag(np.linalg.inv((matrix * (p * (1 - p))[:, None]).T @ matrix)))
        return beta[-1], errors[-1], float(np.log(np.where(correct > 0, p, 1 - p)).sum())

    (_, _, small), (beta, error, full) = (fitted(matrix) for matrix in design)
    assert found.coefficient == pytest.approx(beta, rel=1e-5)
    assert (found.low, found.high) == pytest.approx(
        (beta - 1.959964 * error, beta + 1.959964 * error), rel=1e-4
    )
    assert found.statistic == pytest.approx(2 * (full - small), rel=1e-5)
    assert found.p == pytest.approx(math.erfc(math.sqrt(full - small)), rel=1e-4)


def test_a_large_constant_predictor_is_constant():
    correct, _, base = _rows()
    noise = 1e9 + 1e-7 * np.resize([0.0, 1.0], 60)
    assert "constant" in nested_logistic(correct, noise, [base]).why
    assert "too few" in nested_logistic(correct, base, [], clusters=np.zeros(60)).why
    assert np.isfinite(nested_logistic(correct, base, [], clusters=np.arange(60) // 2).p)
