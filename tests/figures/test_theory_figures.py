"""Data of the theory's figures, and that they can be drawn."""

from __future__ import annotations

import json

import numpy as np
import pytest

from orderlens import theory
from orderlens.figures import theory as figures
from orderlens.figures.style import look


def test_curvature_data_are_g_and_its_second_derivative() -> None:
    data = figures.curvature_data([0.5, 2.0], points=20)
    assert data["g"].shape == data["g_second"].shape == (2, len(data["q"]))
    i = int(np.argmin(np.abs(data["q"] - 0.8)))
    y = np.log(data["q"][i])
    assert data["g"][1, i] == pytest.approx(theory.log_success(y, 2.0))
    assert data["g_second"][1, i] == pytest.approx(theory.d2(y, 2.0))
    assert data["g_second"][0].max() < 0 < data["g_second"][1].max()
    assert np.all(np.diff(data["q"]) > 0)


def test_margin_data_touch_zero_at_the_critical_noise() -> None:
    data = figures.margin_data(points=300)
    at = data["sigma"].index(1.0525827)
    assert abs(data["margin"][at].min()) < 1e-4
    assert data["ratio"][at].min() == pytest.approx(1.0, abs=1e-4)
    convex = dict(zip(data["sigma"], data["convex_q"], strict=True))
    assert convex[1.0] == []
    ((low, high),) = convex[1.2]
    inside = (data["q"] > low) & (data["q"] < high)
    assert np.array_equal(data["margin"][data["sigma"].index(1.2)] < 0, inside)


def test_critical_data_rise_with_k() -> None:
    data = figures.critical_data([1, 2, 10])
    assert data["sigma0"] == sorted(data["sigma0"])
    assert data["sigma0"][0] == pytest.approx(1.0525827, abs=1e-7)
    assert all(0.6 < q < 0.8 for q in data["q"])


def test_variance_data_share_the_mean_and_disagree_with_var() -> None:
    data = figures.variance_data(points=12)
    (low_var, high_var), (low_a, high_a) = data["examples"]["var"], data["examples"]["log_a"]
    assert low_var < high_var
    assert low_a < high_a  # the higher variance is the safer profile
    assert low_a == pytest.approx(-3.946, abs=1e-3)
    assert high_a == pytest.approx(-0.292, abs=1e-3)
    top = data["n"] * theory.log_success(data["mean"], data["sigma"])
    for family in data["families"].values():
        assert max(family["log_a"]) <= top + 1e-12  # σ < σ₀: nothing beats uniform
    assert data["second_order"]["log_a"][0] == pytest.approx(top)


@pytest.mark.parametrize("n", [2, 5, 99])
def test_families_keep_the_mean(n: int) -> None:
    for profile in (figures._one_low(n, -0.4, 0.1), figures._split(n, -0.4, 0.9)):
        assert profile.shape == (n,)
        assert profile.mean() == pytest.approx(-0.4)
        assert np.all(profile < 0)


def test_every_figure_draws_and_saves_its_data(tmp_path, monkeypatch) -> None:
    quick = {**figures.FIGURES, "theory-critical-sigma": figures.FIGURES["theory-critical-sigma"]._replace(
        data=lambda: figures.critical_data([1, 2])
    )}  # fmt: skip
    monkeypatch.setattr(figures, "FIGURES", quick)
    written = figures.save_theory_figures(tmp_path, ["svg"])
    assert len(written) == 8
    for name in quick:
        assert (tmp_path / f"{name}.svg").read_text().startswith("<?xml")
        assert json.loads((tmp_path / f"{name}.json").read_text())


def test_drawing_needs_only_the_saved_data(tmp_path) -> None:
    figures.save_figure(_drawn(data := figures.curvature_data(points=10)), data, tmp_path, "a", ["png"])
    again = json.loads((tmp_path / "a.json").read_text())
    figures.save_figure(_drawn(again), again, tmp_path, "b", ["png"])
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def _drawn(data):
    with look():
        return figures.draw_curvature(data)
