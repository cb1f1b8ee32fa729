"""Tests of association against scipy and statsmodels, the paper's own p-values, and hand-made cases."""

from __future__ import annotations

import math

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar as sm_mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint

from orderlens.analysis.paper import printed
from orderlens.metrics.estimate import Clusters, Resampling
from orderlens.metrics.significance import (
    BinaryRanks,
    adjust,
    delong,
    mann_whitney_less,
    mcnemar,
    nested_logistic,
    partial_spearman,
    wilson,
)


def z_of_rho(rho: float, n: int) -> float:
    """ρ√(N − 1) is the Mann–Whitney z without continuity correction when Var has no ties."""
    return rho * math.sqrt(n - 1)


def p_of_rho(rho: float, n: int) -> float:
    """One-sided p of a negative Spearman ρ against a yes/no outcome, from ρ and N alone."""
    return float(stats.norm.cdf(z_of_rho(rho, n)))


def test_mann_whitney_worked_example():
    var, correct = np.array([0.1, 0.2, 0.3, 0.4, 0.5]), np.array([1, 1, 0, 1, 0], bool)
    test = mann_whitney_less(var[correct], var[~correct])
    assert (test.statistic, test.p) == (1.0, pytest.approx(0.2))
    rho = BinaryRanks.of(var, correct).estimates(Clusters(range(5), Resampling(0)))[0]
    assert rho.value == pytest.approx(-0.5773503, abs=1e-7)
    assert math.isnan(mann_whitney_less([], [1.0]).p)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.integers(6, 200))
def test_z_of_mann_whitney_is_rho_times_root_n_minus_1(seed, n):
    rng = np.random.default_rng(seed)
    var, yes = rng.permutation(n).astype(float), rng.random(n) < 0.5
    if yes.all() or not yes.any():
        return
    a, b = yes.sum(), n - yes.sum()
    u = mann_whitney_less(var[yes], var[~yes]).statistic
    z = (u - a * b / 2) / math.sqrt(a * b * (n + 1) / 12)
    rho = stats.spearmanr(var, yes).statistic
    assert z_of_rho(rho, n) == pytest.approx(z, abs=1e-10)
    asymptotic = stats.mannwhitneyu(
        var[yes], var[~yes], alternative="less", method="asymptotic", use_continuity=False
    )
    assert p_of_rho(rho, n) == pytest.approx(asymptotic.pvalue, abs=1e-10)


def test_table_3_p_values_follow_from_n_and_rho():
    values = printed("within-cell")
    cells = {key[:2] for key in values}
    assert len(cells) == 16
    for task, order in cells:
        n = values[task, order, "n_correct"] + values[task, order, "n_incorrect"]
        rho, shown = values[task, order, "rho"], values[task, order, "mw_p"]
        low, high = p_of_rho(rho - 0.0005, n), p_of_rho(rho + 0.0005, n)
        if shown == "<1e-4":
            assert low < 1e-4
        else:
            half = 0.5 * 10 ** (math.floor(math.log10(shown)) - 1)  # two printed digits
            assert low - half <= shown <= high + half, (task, order)


def test_paper_audit_of_table_3():
    values = printed("within-cell")
    cells = sorted({key[:2] for key in values})
    p = []
    for task, order in cells:
        n = values[task, order, "n_correct"] + values[task, order, "n_incorrect"]
        p.append(p_of_rho(values[task, order, "rho"], n))
    assert sum(np.array(p) >= 0.05) == 2
    assert sum(adjust(p, "holm") < 0.05) == 13
    assert sum(adjust(p, "bh") < 0.05) == 14
    total = sum(values[(*c, k)] for c in cells for k in ("n_correct", "n_incorrect"))
    assert total == 94_852


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31))
def test_partial_spearman_equals_regression_residuals(seed):
    rng = np.random.default_rng(seed)
    x, y, a = rng.normal(size=(3, 40))
    b = rng.integers(0, 4, 40)  # ties
    ranks = [stats.rankdata(c) for c in (x, y, a, b)]
    design = sm.add_constant(np.column_stack(ranks[2:]))
    left = [sm.OLS(r, design).fit().resid for r in ranks[:2]]
    mine = partial_spearman(x, y, [a, b])
    assert mine.statistic == pytest.approx(stats.pearsonr(*left).statistic, abs=1e-10)
    full = sm.OLS(ranks[0], np.column_stack([design, ranks[1]])).fit()
    assert mine.p == pytest.approx(full.pvalues[-1], abs=1e-10)


def test_partial_spearman_ignores_constants_and_knows_when_nothing_is_left():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 30))
    assert partial_spearman(x, y, [np.ones(30)]).statistic == pytest.approx(stats.spearmanr(x, y).statistic)
    assert math.isnan(partial_spearman(x, y, [x]).statistic)
    assert math.isnan(partial_spearman(x, np.ones(30), [y]).statistic)
    assert math.isnan(partial_spearman(x[:3], y[:3], [x[:3] ** 2, y[:3] ** 2]).statistic)
    assert partial_spearman(x, 3 * x, []).p == 0.0


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**31))
def test_nested_logistic_equals_statsmodels(seed):
    rng = np.random.default_rng(seed)
    mean, n, var = rng.normal(size=(3, 200))
    yes = rng.random(200) < 1 / (1 + np.exp(-mean))
    mine = nested_logistic(yes, var, [mean, n])
    columns = [(c - c.mean()) / c.std() for c in (mean, n, var)]
    small = sm.Logit(yes.astype(float), sm.add_constant(np.column_stack(columns[:2]))).fit(disp=0, tol=1e-12)
    full = sm.Logit(yes.astype(float), sm.add_constant(np.column_stack(columns))).fit(disp=0, tol=1e-12)
    ratio = 2 * (full.llf - small.llf)
    assert mine.statistic == pytest.approx(ratio, abs=1e-10)
    assert mine.p == pytest.approx(stats.chi2.sf(ratio, 1), abs=1e-10)
    assert mine.coefficient == pytest.approx(full.params[-1], abs=1e-10)
    assert (mine.low, mine.high) == pytest.approx(tuple(full.conf_int()[-1]), abs=1e-9)
    wide = nested_logistic(yes, var, [mean, n], level=0.5)
    assert (wide.low, wide.high) == pytest.approx(tuple(full.conf_int(alpha=0.5)[-1]), abs=1e-9)


def test_nested_logistic_says_why_it_is_undefined():
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=(2, 50))
    assert nested_logistic(np.ones(50), x, [z]).why == "correctness is constant"
    assert nested_logistic(x > 0, np.ones(50), [z]).why == "the predictor is constant"
    assert "combination" in nested_logistic(x > 0, z, [z * 2]).why
    assert "separation" in nested_logistic(x > 0, x, [z]).why
    assert math.isnan(nested_logistic(x > 0, x, [z]).p)
    mixed = np.arange(50) % 2 == 0
    assert "too few" in nested_logistic(mixed[:3], x[:3], [z[:3]]).why
    assert "too few" in nested_logistic(mixed, x, [z], clusters=np.zeros(50)).why


def test_clustered_rows_get_a_wald_test_with_robust_errors(capsys):
    rng = np.random.default_rng(1)
    groups = np.repeat(np.arange(60), 4)
    x, m = np.repeat(rng.normal(size=(2, 60)), 4, axis=1)
    yes = rng.random(240) < 1 / (1 + np.exp(-m - np.repeat(rng.normal(size=60), 4)))
    plain, robust = nested_logistic(yes, x, [m]), nested_logistic(yes, x, [m], clusters=groups)
    assert robust.coefficient == pytest.approx(plain.coefficient)
    assert robust.high - robust.low > plain.high - plain.low
    columns = [(c - c.mean()) / c.std() for c in (m, x)]
    theirs = sm.Logit(yes.astype(float), sm.add_constant(np.column_stack(columns))).fit(
        disp=0, cov_type="cluster", cov_kwds={"groups": groups}
    )
    assert robust.statistic == pytest.approx((theirs.params[-1] / theirs.bse[-1]) ** 2, rel=1e-6)
    assert robust.p == pytest.approx(theirs.pvalues[-1], rel=1e-6)
    assert capsys.readouterr().out == "", "a fit says nothing on the screen"


def brute_delong(scores, yes):
    """The textbook double loop."""
    pos, neg = scores[:, yes], scores[:, ~yes]
    kernel = (pos[:, :, None] > neg[:, None, :]) + 0.5 * (pos[:, :, None] == neg[:, None, :])
    v10, v01 = kernel.mean(axis=2), kernel.mean(axis=1)
    cov = np.atleast_2d(np.cov(v10)) / pos.shape[1] + np.atleast_2d(np.cov(v01)) / neg.shape[1]
    return kernel.mean(axis=(1, 2)), cov


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31))
def test_delong_equals_the_double_loop(seed):
    rng = np.random.default_rng(seed)
    yes = np.arange(30) % 3 == 0
    scores = np.round(rng.normal(size=(3, 30)), 1)
    auroc, cov = brute_delong(scores, yes)
    mine = delong(scores, yes)
    np.testing.assert_allclose(mine.auroc, auroc, atol=1e-12)
    np.testing.assert_allclose(mine.covariance, cov, atol=1e-12)
    difference, p = mine.compare(0, 1)
    variance = cov[0, 0] + cov[1, 1] - 2 * cov[0, 1]
    assert difference == pytest.approx(auroc[0] - auroc[1])
    assert p == pytest.approx(2 * stats.norm.sf(abs(difference) / math.sqrt(variance)), abs=1e-10)


def test_delong_edge_cases():
    assert np.isnan(delong([[1.0, 2.0]], [True, True]).auroc).all()
    one_each = delong([[1.0, 2.0]], [False, True])
    assert one_each.auroc[0] == 1.0
    assert math.isnan(one_each.estimate(0, 2).low)
    same = delong([[1.0, 2.0, 3.0, 4.0]] * 2, [False, True, False, True])
    assert same.compare(0, 1)[0] == 0.0
    assert math.isnan(same.compare(0, 1)[1])


def test_mcnemar_and_wilson_equal_statsmodels():
    rng = np.random.default_rng(0)
    a, b = rng.random((2, 80)) < [[0.7], [0.5]]
    mine = mcnemar(a, b)
    table = [[(a & b).sum(), (a & ~b).sum()], [(~a & b).sum(), (~a & ~b).sum()]]
    assert mine.p == pytest.approx(sm_mcnemar(table, exact=True).pvalue, abs=1e-10)
    assert mcnemar(a, a).p == 1.0
    assert math.isnan(mcnemar([], []).p)
    cell = wilson(int(a.sum()), 80)
    assert (cell.low, cell.high) == pytest.approx(proportion_confint(a.sum(), 80, method="wilson"), abs=1e-10)
    assert wilson(0, 0).why == "no graded item"


def test_holm_and_bh_by_hand():
    p = [0.01, np.nan, 0.04, 0.03]
    np.testing.assert_allclose(adjust(p, "holm"), [0.03, np.nan, 0.06, 0.06])
    np.testing.assert_allclose(adjust(p, "bh"), [0.03, np.nan, 0.04, 0.04])
    many = np.random.default_rng(0).random(40) ** 4
    many[5] = many[7]
    for method, name in (("holm", "holm"), ("bh", "fdr_bh")):
        np.testing.assert_allclose(adjust(many, method), multipletests(many, method=name)[1], rtol=1e-12)
    assert np.isnan(adjust([np.nan], "holm")).all()
