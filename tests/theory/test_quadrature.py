"""Integrals of log-concave functions: bells in closed form, others against scipy's adaptive rule."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, special, stats

from orderlens.theory._competition import around_peak, bisect_peak, newton_peak, panel_rule


@pytest.mark.parametrize(
    ("edges", "points"), [((0.0, 1.0), 3), ((-1.0, 0.5, 2.0), 5), ((0.0, 0.1, 0.2, 4.0), 8)]
)
def test_panels_integrate_polynomials_exactly(edges, points):
    nodes, weights = panel_rule(edges, points)
    assert len(nodes) == points * (len(edges) - 1)
    for power in range(2 * points):
        exact = (edges[-1] ** (power + 1) - edges[0] ** (power + 1)) / (power + 1)
        assert weights @ nodes**power == pytest.approx(exact, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("centre", [0.0, -3.0, 40.0, 2e6])
@pytest.mark.parametrize("width", [0.05, 1.0, 7.0])
def test_a_bell_has_its_own_mass_mean_and_variance(centre, width):
    mean = np.array([centre])

    def value(t):
        return -0.5 * ((t - centre) / width) ** 2

    def slope(t):
        return -(t - centre) / width**2

    found = around_peak(value, slope, mean, 1 / width**2)
    assert found.log_value[0] == pytest.approx(math.log(width), abs=1e-9)
    assert found.mean[0] == pytest.approx(centre, abs=1e-6 * max(1, abs(centre)))
    assert found.variance[0] == pytest.approx(width**2, rel=1e-6)


@pytest.mark.parametrize("k", [1.0, 4.0, 300.0, 1e6])
def test_the_crowds_integrand_equals_scipys_rule(k):
    """φ(t) Φ(t)^k: the mass is 1/(k + 1) exactly, the mean that of a largest order statistic."""

    def value(t):
        return -0.5 * t * t + k * special.log_ndtr(t)

    def slope(t):
        return -t + k * np.exp(stats.norm.logpdf(t) - special.log_ndtr(t))

    def steepness(t):
        ratio = np.exp(stats.norm.logpdf(t) - special.log_ndtr(t))
        return 1 + k * ratio * (t + ratio)

    peak = newton_peak(slope, steepness, np.array([-1.0]))
    assert slope(peak)[0] == pytest.approx(0, abs=1e-5 * (1 + math.log(k)))
    assert bisect_peak(slope, np.array([-2.0]), np.array([9.0]))[0] == pytest.approx(peak[0], abs=1e-3)
    found = around_peak(value, slope, peak, 1.0)
    assert found.log_value[0] == pytest.approx(-math.log(k + 1), abs=1e-10)

    def moment(power):
        return integrate.quad(
            lambda t: t**power * math.exp(float(value(t) - value(peak[0]))),
            peak[0] - 9,
            peak[0] + 9,
            limit=200,
        )[0]

    mean = moment(1) / moment(0)
    assert found.mean[0] == pytest.approx(mean, abs=1e-7)
    assert found.variance[0] == pytest.approx(moment(2) / moment(0) - mean**2, abs=1e-6)


def test_rows_are_integrated_independently():
    centres, widths = np.array([-5.0, 0.0, 12.0]), np.array([0.3, 1.0, 2.0])

    def shaped(t):
        return (centres, widths) if t.ndim == 1 else (centres[:, None], widths[:, None])

    def value(t):
        centre, width = shaped(t)
        return -0.5 * ((t - centre) / width) ** 2

    def slope(t):
        centre, width = shaped(t)
        return -(t - centre) / width**2

    found = around_peak(value, slope, centres, 0.25)
    np.testing.assert_allclose(found.log_value, np.log(widths), atol=1e-9)
    np.testing.assert_allclose(found.variance, widths**2, rtol=1e-6)
    without = around_peak(value, slope, centres, 0.25, moments=False)
    np.testing.assert_array_equal(without.log_value, found.log_value)
