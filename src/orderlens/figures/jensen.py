"""The theory on traces: noise fitted to argmax hits, cost of uneven confidence, recovery of whole spans."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from orderlens.analysis.tables_theory import TraceHits, fit_hits, read_hits
from orderlens.errors import UndefinedFigureError
from orderlens.figures.catalogue import Recipe
from orderlens.figures.style import (
    GREY,
    OrderStyle,
    centre,
    error_bars,
    footnote,
    interval,
    is_drawable,
    log_scale,
    look,
    new_figure,
    order_styles,
    panel_letters,
    real,
    short,
)
from orderlens.metrics.order_shape import rank_correlation
from orderlens.metrics.path import SIGMAS, segment_jensen_loss
from orderlens.metrics.segments import FloatArray, Segments
from orderlens.rules.cards import display_name, in_paper_order, kind_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from orderlens.analysis.study import Study
    from orderlens.theory import NoiseFit


CURVE_POINTS = 61


def data(study: Study) -> dict[str, Any]:
    """Return the fit of σ and k, binned hits, and per trace Var and the exact Jensen loss at the fitted σ.

    The fit uses deployable orders only (if there are none: orders that are not installed here), because an
    oracle chooses its hits by looking at the target.
    """
    frame = study.scored
    if not len(frame):
        raise UndefinedFigureError("nothing was scored: the run holds no fixed targets")
    traces, n_sequences = read_hits(study, frame)
    whole = [item for item in traces if item.is_whole]
    if not whole:
        raise UndefinedFigureError("no trace has a finite log q and is_argmax at every reveal")
    kinds = {item.order: kind_of(item.order) for item in traces}
    tier = "deployable" if "deployable" in kinds.values() else "unknown"
    own = [item for item in traces if kinds[item.order] == tier]
    fit = _fit(own, study.options.resampling.level)
    losses = _losses(whole, fit.sigma_one)
    return {
        **_fit_record(fit),
        "curves": _curves(fit.sigma, fit.k, fit.sigma_one, min(item.q_low for item in fit.bins)),
        "traces": losses,
        "correlations": _correlations(study.scored, losses, fit.sigma_one, tier),
        **({} if tier == "deployable" else {"tier": tier}),
        "n_sequences": n_sequences,
    }


def _fit(traces: Sequence[TraceHits], level: float) -> NoiseFit:
    from orderlens.theory import TheoryError

    try:
        return fit_hits(traces, level)
    except TheoryError as error:
        raise UndefinedFigureError(f"no noise can be fitted: {error}") from error


def _fit_record(fit: NoiseFit) -> dict[str, Any]:
    from orderlens.theory import critical_sigma

    bins = [
        {"q": math.sqrt(item.q_low * item.q_high), "n": item.n, "observed": item.observed}
        for item in fit.bins
    ]
    return {
        "sigma": fit.sigma,
        "sigma_interval": list(fit.sigma_interval),
        "k": fit.k,
        "k_interval": list(fit.k_interval),
        "sigma_one": fit.sigma_one,
        "sigma0_one": critical_sigma(),
        "p_misfit": fit.p_value,
        "remarks": fit.remarks,
        "bins": bins,
    }


def _losses(traces: Sequence[TraceHits], sigma: float) -> list[dict[str, Any]]:
    """Return order, Var, min, bottleneck rate and Jensen loss per token of every whole trace."""
    segments = Segments.of_lengths([len(item.logq) for item in traces])
    logq = np.concatenate([item.logq for item in traces])
    loss = segment_jensen_loss(logq, segments, sigma) / segments.lengths
    return [
        {
            "order": item.order,
            "var": float(np.var(item.logq)),
            "min": float(item.logq.min()),
            "bottleneck_rate": float(np.mean(item.logq < math.log(0.5))),
            "loss": float(value),
        }
        for item, value in zip(traces, loss, strict=True)
    ]


def _curves(sigma: float, k: float, sigma_one: float, lowest: float) -> dict[str, list[float]]:
    from orderlens.theory import success, success_k

    q = np.geomspace(max(lowest, 1e-6), 0.999, CURVE_POINTS)
    return {
        "q": q.tolist(),
        "fitted": np.asarray(success_k(q, k, sigma)).tolist(),
        "one_competitor": np.asarray(success(q, sigma_one)).tolist(),
    }


def _correlations(
    frame: pd.DataFrame, losses: list[dict[str, Any]], fitted: float, tier: str
) -> list[dict[str, Any]]:
    """Return Spearman of Var, −min and bottleneck rate with the loss per token, by σ, orders of one tier."""
    mine = frame[[kind_of(str(order)) == tier for order in frame["order"]]]
    n = mine["n"].to_numpy(np.float64)
    found = [
        _rho(sigma, {name: mine[name].to_numpy(np.float64) for name in _MEASURES}, mine[column] / n)
        for sigma in SIGMAS
        if (column := f"jensen_{sigma:g}") in mine.columns
    ]
    own = [item for item in losses if kind_of(item["order"]) == tier]
    columns = {name: np.array([item[name] for item in own]) for name in _MEASURES}
    at_fit = _rho(fitted, columns, np.array([item["loss"] for item in own])) | {"is_fitted": True}
    return sorted([*found, at_fit], key=lambda item: item["sigma"])


_MEASURES = ("var", "min", "bottleneck_rate")


def _rho(sigma: float, columns: Mapping[str, FloatArray], loss: FloatArray | pd.Series) -> dict[str, Any]:
    losses = np.asarray(loss, np.float64)
    out: dict[str, Any] = {"sigma": sigma}
    for name, values in columns.items():
        known = np.isfinite(values) & np.isfinite(losses)
        sign = -1.0 if name == "min" else 1.0
        out[name] = rank_correlation(sign * values[known], losses[known])
    return out


def draw(data: Mapping[str, Any]) -> Figure:
    """Draw hits against q with the fits, loss against Var, and the correlations by σ."""
    with look():
        figure, panels = new_figure(1, 3, height=2.9, gridspec_kw={"width_ratios": [1, 1.1, 0.9]})
        _draw_hits(panels[0], data)
        _draw_losses(panels[1], data)
        _draw_correlations(panels[2], data)
        panel_letters(panels, "hits against q", "loss against Var", "ranking of the loss")
        footnote(figure, _note(data))
    return figure


def _draw_hits(panel: Axes, data: Mapping[str, Any]) -> None:
    curves = data["curves"]
    panel.plot(curves["q"], curves["fitted"], "-", color="#1a273f", label="fitted σ, k")
    panel.plot(curves["q"], curves["one_competitor"], "--", color="#ac530f", label="fitted σ, k = 1")
    panel.plot(
        [real(item["q"]) for item in data["bins"]],
        [real(item["observed"]) for item in data["bins"]],
        "o",
        color="#558cef",
        markersize=3.8,
        label="observed",
    )
    panel.axvline(0.5, color="#b9b9b9", linewidth=0.8, linestyle=(0, (4, 3)))
    log_scale(panel)
    panel.set_xlim(max(min(curves["q"]), 1e-5), 1.15)
    panel.set_ylim(-0.03, 1.03)
    panel.set_xlabel("q of the target")
    panel.set_ylabel("share that is the argmax")
    panel.legend(loc="upper left", handlelength=2.0, borderpad=0.2)


def _draw_losses(panel: Axes, data: Mapping[str, Any]) -> None:
    orders = in_paper_order(item["order"] for item in data["traces"])
    for order, style in order_styles(orders).items():
        mine = [item for item in data["traces"] if item["order"] == order]
        panel.plot(
            [real(item["var"]) for item in mine],
            [real(item["loss"]) for item in mine],
            linestyle="none",
            marker=style.marker,
            markersize=2.8,
            alpha=0.55,
            markeredgewidth=0,
            color=style.color,
            label=display_name(order),
        )
    panel.axhline(0, color="#b9b9b9", linewidth=0.8)
    panel.set_xlabel("Var(log q) (nats²)")
    panel.set_ylabel("Jensen loss per token (nats)")
    legend = panel.legend(loc="best", fontsize=5.8, handletextpad=0.1, labelspacing=0.25, markerscale=1.3)
    legend.set_frame_on(True)  # the zero line stops at the names
    legend.get_frame().set(edgecolor="none", alpha=0.85)


def _draw_correlations(panel: Axes, data: Mapping[str, Any]) -> None:
    looks = {
        "var": ("o-", "#1a273f", "Var"),
        "min": ("s--", "#ac530f", "−min log q"),
        "bottleneck_rate": ("^:", "#7c7c7c", "share q < ½"),
    }
    sigmas = [real(item["sigma"]) for item in data["correlations"]]
    for name, (mark, color, label) in looks.items():
        values = [real(item[name]) for item in data["correlations"]]
        panel.plot(sigmas, values, mark, color=color, label=label, markersize=3.8)
    for item in data["correlations"]:
        if item.get("is_fitted"):
            panel.axvline(real(item["sigma"]), color="#b9b9b9", linewidth=0.8, linestyle=(0, (4, 3)))
    log_scale(panel)
    panel.set_ylim(-1.05, 1.05)
    panel.set_xlabel("noise scale σ")
    panel.set_ylabel("Spearman with the loss")
    panel.legend(loc="best", handlelength=2.0, fontsize=6.4)


def _note(data: Mapping[str, Any]) -> str:
    side = "below" if real(data["sigma_one"]) < real(data["sigma0_one"]) else "above"
    low, high = (real(value) for value in data["sigma_interval"])
    k_one = f"with k = 1: σ = {real(data['sigma_one']):.2f}, {side} σ₀ = {real(data['sigma0_one']):.3f}"
    orders = "Orders that are not installed here" if "tier" in data else "Deployable orders"
    return (
        f"{orders}, {data['n_sequences']} sequences: σ = {real(data['sigma']):.2f} "
        f"[{low:.2f}, {high:.2f}] with k = {real(data['k']):.1f} equal competitors; "
        f"{k_one}; p of misfit {_p(data['p_misfit'])}.\n"
        "(b) exact loss n·g(mean) − Σ g(log q) at the fitted σ with k = 1; above σ₀ uneven confidence "
        "can help (values below 0).\n"
        "With q > ½ the target is always the argmax; no fit with k = 1 can express it."
    )


def _p(value: Any) -> str:
    number = real(value)
    return "< 0.001" if number < 0.001 else short(number, 2)


RECIPE = Recipe("Uniform spreading: fitted noise and the cost of uneven confidence", data, draw, "score")


SHARES = {
    "observed": ("observed", "o", "#1a273f"),
    "by_rate": ("product of hit rates", "s", "#1f8a99"),
    "fitted": ("product of fitted f(q)", "^", "#a33a5b"),
}
"""Share of whole spans → name, marker and colour."""
LEAST_SHARE = 1e-6
"""Smaller shares are not drawn: they would squeeze the others."""


def hits_data(study: Study) -> dict[str, Any]:
    """Return by deployable order, and pooled, the recovery by span and the autocorrelation by lag."""
    from orderlens.analysis.tables_assumptions import ALL, measure_hits

    found = study.shared(measure_hits)
    if not found:
        raise UndefinedFigureError("no whole trace of a deployable order was scored")

    def spans(order: str) -> list[dict[str, Any]]:
        names = (*SHARES, "log_excess")
        return [
            {"span": span, **{name: interval(getattr(cells, name)) for name in names}}
            for span, cells in found[order].spans.items()
        ]

    def lags(order: str) -> list[dict[str, Any]]:
        return [{"lag": lag, "correlation": interval(cell)} for lag, cell in found[order].lags.items()]

    orders = [order for order in found if order != ALL]
    return {
        "pooled": spans(ALL),
        "orders": [{"order": order, "spans": spans(order), "lags": lags(order)} for order in orders],
    }


def draw_hits(data: Mapping[str, Any]) -> Figure:
    """Draw recovery of all orders pooled, and by order its excess over independence and the correlation."""
    with look():
        figure, panels = new_figure(1, 3, height=2.9)
        pooled = data["pooled"]
        for name, (label, marker, color) in SHARES.items():
            shown = [point for point in pooled if centre(point[name]) >= LEAST_SHARE]
            _line(panels[0], shown, "span", name, {"marker": marker, "color": color, "label": label})
        values = [centre(point[name]) for point in pooled for name in SHARES]
        drawn = [value for value in values if value >= LEAST_SHARE]
        if drawn:
            panels[0].set_yscale("log")
            low, high = min(drawn) / 3, max(drawn)  # bars may end at 0
            panels[0].set_ylim(low, high * max(30, (high / low) ** 0.6))  # room for the legend
        panels[0].set_ylabel("share of spans recovered")
        panels[0].legend(loc="upper right")
        styles: dict[str, OrderStyle] = order_styles(item["order"] for item in data["orders"])
        for item in data["orders"]:
            line = styles[item["order"]].line() | {"label": display_name(item["order"])}
            _line(panels[1], item["spans"], "span", "log_excess", line)
            _line(panels[2], item["lags"], "lag", "correlation", line)
        for panel in panels[1:]:
            panel.axhline(0.0, color=GREY, linewidth=0.8, linestyle=(0, (4, 2)))
        panels[1].set_ylabel("log(recovered / product)")
        panels[2].set_ylabel("correlation of hits given q")
        spans, lags = (
            [point["span"] for point in pooled],
            [point["lag"] for point in data["orders"][0]["lags"]],
        )
        for panel, ticks in zip(panels, (spans, spans, lags), strict=True):
            panel.set_xlim(ticks[0] / 1.3, ticks[-1] * 1.3)
            panel.set_xscale("log", base=2)
            panel.set_xticks(ticks, [str(tick) for tick in ticks])
            panel.set_xlabel("lag (reveals)" if ticks is lags else "span (tokens)")
        panel_letters(panels, "whole spans", "excess by span", "correlation by lag")
        handles, labels = panels[2].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 5))
        footnote(
            figure,
            "A hit: the target was the most probable token. (a) all deployable orders; shares below 10⁻⁶ are "
            "not drawn.\n(b), (c): 0 if hits are independent given q. Bars: 95 % intervals over texts.",
        )
    return figure


def _line(
    panel: Axes, points: Sequence[Mapping[str, Any]], x: str, y: str, look_of_line: Mapping[str, Any]
) -> None:
    shown = [point for point in points if is_drawable(point[y])]
    panel.errorbar(
        [point[x] for point in shown],
        [centre(point[y]) for point in shown],
        yerr=error_bars(point[y] for point in shown),
        elinewidth=0.8,
        **look_of_line,
    )


HITS = Recipe("Are greedy successes independent given q?", hits_data, draw_hits, "score")
