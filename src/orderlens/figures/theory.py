"""Figures of the uniform-spreading theory: one data function and one drawing function each.

The data functions return plain arrays, which are tested and saved with the figure; the drawing functions
only draw them. Does not read runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orderlens import theory
from orderlens.figures.catalogue import FORMATS, save_figure
from orderlens.figures.style import WIDTH_ONE_COLUMN, WIDTH_TEXT, look, new_figure, panel_letters, ramp

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Data = dict[str, Any]
Array = NDArray[np.float64]

SIGMAS = (0.1, 0.3, 0.5, 1.0, 2.0)
MARGIN_SIGMAS = (0.1, 0.5, 1.0, 1.0525827, 1.2, 2.0)
COMPETITORS = (1, 2, 3, 5, 10, 30, 100, 300, 1000, 5000, 31_999, 157_183)

_INK, _RED, _BLUE = "#222222", "#ac530f", "#558cef"


def curvature_data(sigmas: Sequence[float] = SIGMAS, points: int = 400) -> Data:
    """Return q [Q] and, for every σ [S], g and g'' as [S, Q]."""
    y = _log_grid(points)
    noise = np.asarray(sigmas, dtype=np.float64)[:, None]
    return {
        "q": np.exp(y),
        "sigma": list(sigmas),
        "g": theory.log_success(y, noise),
        "g_second": theory.d2(y, noise),
    }


def margin_data(sigmas: Sequence[float] = MARGIN_SIGMAS, points: int = 400) -> Data:
    """Return q [Q], margin and ratio [S, Q] of the concavity criterion, and where it fails at each σ."""
    y = _log_grid(points)
    noise = np.asarray(sigmas, dtype=np.float64)[:, None]
    failing = [theory.violation_intervals(sigma) for sigma in sigmas]
    return {
        "q": np.exp(y),
        "sigma": list(sigmas),
        "margin": theory.concavity_margin(y, noise),
        "ratio": theory.concavity_ratio(y, noise),
        "convex_q": [[[part.q_low, part.q_high] for part in parts] for parts in failing],
        "critical": {"sigma": theory.critical_sigma(), "q": theory.critical_point().q},
    }


def critical_data(competitors: Sequence[int] = COMPETITORS) -> Data:
    """Return k, σ₀(k) and the q at which concavity fails first, all [K]."""
    points = [theory.critical_point(k) for k in competitors]
    return {"k": list(competitors), "sigma0": [p.sigma for p in points], "q": [p.q for p in points]}


def variance_data(n: int = 99, mean: float = -0.35, sigma: float = 0.1, points: int = 60) -> Data:
    """Return Var and log A along families of profiles that share length, mean and noise.

    Families: one step sinks while the others rise; a third of the steps rises towards certainty while the
    rest sinks; random profiles. Each holds lists of Var and log A, as does the line n·g + (n/2) g'' Var.
    """
    deepest = min(1.2, 0.999 * (n - 1) * -mean)
    sink = [_one_low(n, mean, depth) for depth in np.linspace(0.0, deepest, points)]
    split = [_split(n, mean, share) for share in np.linspace(0.0, 0.999999, points)]
    rng = np.random.default_rng(0)
    mixed = [n * mean * rng.dirichlet(np.full(n, shape)) for shape in np.geomspace(1.0, 300.0, 4 * points)]
    families = {"one step sinks": sink, "a third rises to certainty": split, "random profiles": mixed}
    curve = float(theory.d2(mean, sigma))
    top = n * float(theory.log_success(mean, sigma))
    variance = np.linspace(0.0, max(float(profile.var()) for profile in split), points)
    return {
        "n": n,
        "mean": mean,
        "sigma": sigma,
        "families": {name: _measure(profiles, sigma) for name, profiles in families.items()},
        "second_order": {"var": variance, "log_a": top + 0.5 * n * curve * variance},
        "examples": _measure([_one_low(n, mean, 0.5), _split(n, mean, 0.999999)], sigma),
    }


def _log_grid(points: int) -> Array:
    """Return log q for q evenly spaced in (0, 1), with extra points close to both ends."""
    q = np.linspace(0.0, 1.0, points + 2)[1:-1]
    ends = np.geomspace(1e-4, q[0], 30)[:-1]
    return np.asarray(np.log(np.concatenate([ends, q, 1.0 - ends[::-1]])))


def _one_low(n: int, mean: float, depth: float) -> Array:
    """One step ``depth`` below the mean, the others equally above it."""
    return np.append(np.full(n - 1, mean + depth / (n - 1)), mean - depth)


def _split(n: int, mean: float, share: float) -> Array:
    """A third of the steps at (1 − share)·mean, the others lower, so that the mean stays."""
    high = n // 3
    top = (1.0 - share) * mean
    return np.concatenate([np.full(n - high, (n * mean - high * top) / (n - high)), np.full(high, top)])


def _measure(profiles: Sequence[Array], sigma: float) -> Data:
    log_a = [float(theory.log_recoverability(profile, sigma)) for profile in profiles]
    return {"var": [float(profile.var()) for profile in profiles], "log_a": log_a}


def draw_curvature(data: Mapping[str, Any]) -> Figure:
    """Draw g and g'' against q: where g bends up, uniform spreading is not the best."""
    figure, (left, right) = new_figure(1, 2, width=WIDTH_TEXT, height=2.7)
    for i, (color, dash) in enumerate(ramp(len(data["sigma"]))):
        label = f"σ = {data['sigma'][i]:g}"
        left.plot(data["q"], data["g"][i], color=color, linestyle=dash, label=label)
        right.plot(data["q"], data["g_second"][i], color=color, linestyle=dash, label=label)
    left.set(ylim=(-10, 0.3), ylabel="g = log f  (nats)", title="log-probability of being the argmax")
    right.set_yscale("symlog", linthresh=0.1, linscale=0.5)
    right.axhspan(0, 1e3, color="#f4e3d3", zorder=0, linewidth=0)
    right.axhline(0, color=_INK, linewidth=0.8)
    right.set(ylim=(-2e2, 2e2), ylabel="g″ (symmetric log scale)", title="its curvature in log q")
    right.text(0.03, 60, "convex: spreading evenly is not optimal", fontsize=7, color=_RED)
    for axes in (left, right):
        axes.set(xlim=(0, 1), xlabel="probability of the target, q")
    left.legend(loc="lower right")
    panel_letters([left, right])
    return figure


def draw_margin(data: Mapping[str, Any]) -> Figure:
    """The concavity margin and ratio against q, with the convex stretches marked."""
    figure, (left, right) = new_figure(1, 2, width=WIDTH_TEXT, height=2.9)
    for i, (color, dash) in enumerate(ramp(len(data["sigma"]))):
        sigma = data["sigma"][i]
        is_critical = abs(sigma - data["critical"]["sigma"]) < 1e-6
        label = f"σ = σ₀ ≈ {sigma:.4f}" if is_critical else f"σ = {sigma:g}"
        left.plot(data["q"], data["margin"][i], color=color, linestyle=dash, label=label)
        right.plot(data["q"], data["ratio"][i], color=color, linestyle=dash, label=label)
        for low, high in data["convex_q"][i]:
            left.plot([low, high], [-0.62 - 0.06 * i] * 2, color=color, linewidth=3, solid_capstyle="butt")
    left.axhline(0, color=_INK, linewidth=0.8)
    right.axhline(1, color=_INK, linewidth=0.8)
    left.set(ylim=(-1.05, 2.2), ylabel="z + r − √2 σ q", title="margin (bars: convex stretch)")
    right.set(yscale="log", ylim=(0.3, 300), ylabel="(z + r) / (√2 σ q)", title="ratio")
    for axes in (left, right):
        axes.set(xlim=(0, 1), xlabel="probability of the target, q")
        axes.plot(data["critical"]["q"], float(axes is right), "o", color=_RED, markersize=4, zorder=5)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=len(data["sigma"]))
    panel_letters([left, right])
    return figure


def draw_critical(data: Mapping[str, Any]) -> Figure:
    """σ₀ against the number of equal competitors."""
    figure, (axes,) = new_figure(width=WIDTH_ONE_COLUMN, height=2.5)
    axes.plot(data["k"], data["sigma0"], color=_INK, marker="o")
    axes.fill_between(data["k"], data["sigma0"], 0.9, color="#e6ecf7", linewidth=0)
    axes.set(xscale="log", xlabel="equal competitors, k", ylabel="critical noise σ₀", ylim=(0.9, 2.3))
    axes.set(xlim=(0.8, 2.5 * max(data["k"])))
    inside: Any = {"fontsize": 7.5, "transform": axes.transAxes}
    axes.text(0.38, 0.1, "uniform profile is best", color="#35527d", **inside)
    axes.text(0.04, 0.82, "uniform profile can lose", color=_RED, **inside)
    for place in (0, -1):
        text, point = f"{data['sigma0'][place]:.4f}", (data["k"][place], data["sigma0"][place])
        offset = (6, -9) if place == 0 else (-22, 6)
        axes.annotate(text, point, xytext=offset, textcoords="offset points", fontsize=7)
    return figure


def draw_variance(data: Mapping[str, Any]) -> Figure:
    """Draw log A against Var at one mean, for families of profiles that Var ranks in the wrong order."""
    figure, (axes,) = new_figure(width=WIDTH_TEXT * 0.62, height=3.0)
    looks = (("-", "o", _RED), ("--", "s", _BLUE), ("none", ".", "#9a9a9a"))
    for (name, family), (dash, marker, color) in zip(data["families"].items(), looks, strict=True):
        every = max(len(family["var"]) // 10, 1) if dash != "none" else 1
        axes.plot(
            *(family["var"], family["log_a"]),
            linestyle=dash,
            marker=marker,
            color=color,
            label=name,
            markevery=every,
        )
    line = data["second_order"]
    axes.plot(line["var"], line["log_a"], color=_INK, linestyle=":", label="second order, n·g + (n/2) g″ Var")
    axes.plot(data["examples"]["var"], data["examples"]["log_a"], "o", mfc="none", mec=_INK, markersize=9)
    for var, log_a, dx in zip(*data["examples"].values(), (12, -74), strict=True):
        text = f"Var {var:.3g}\nlog A {log_a:.3f}".replace("-", "−")
        axes.annotate(text, (var, log_a), xytext=(dx, -22), textcoords="offset points", fontsize=7)
    axes.set(
        ylim=(-9, 0.5),
        xlim=(-0.002, 1.05 * max(line["var"])),
        xlabel="Var(log q) (nats²)",
        ylabel="log A  (nats)",
    )
    title = f"n = {data['n']}, mean log q = {data['mean']:g}, σ = {data['sigma']:g}"
    axes.set_title(title.replace("-", "−"))
    axes.legend(loc="center right", bbox_to_anchor=(1.0, 0.42))
    return figure


class TheoryFigure(NamedTuple):
    """Data and drawing function of one figure."""

    data: Callable[[], Data]
    draw: Callable[[Mapping[str, Any]], Figure]


FIGURES: dict[str, TheoryFigure] = {
    "theory-curvature": TheoryFigure(curvature_data, draw_curvature),
    "theory-margin": TheoryFigure(margin_data, draw_margin),
    "theory-critical-sigma": TheoryFigure(critical_data, draw_critical),
    "theory-variance": TheoryFigure(variance_data, draw_variance),
}


def save_theory_figures(folder: str | Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Compute, draw and write all figures of the theory into ``folder``; return the written paths."""
    written: list[Path] = []
    for name, (compute, draw) in FIGURES.items():
        data = compute()
        with look():
            figure = draw(data)
        written += save_figure(figure, data, folder, name, formats)
    return written
