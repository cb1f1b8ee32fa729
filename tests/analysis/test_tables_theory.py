"""The theory's losses and its fit, as a table."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from orderlens.analysis import Options, Resampling, Study, tables_theory
from orderlens.figures import jensen
from orderlens.theory import d2, jensen_loss, success_k


def test_theory_table_has_the_exact_loss_and_a_fit(builders):
    rng = np.random.default_rng(0)
    logs = [-rng.gamma(0.7, 2.0, 128) for _ in range(6)]
    traces = [builders.trace(f"s{i}", "forced-ar", y) for i, y in enumerate(logs)]
    hits = [pa.array(rng.random(128) < success_k(np.exp(y), 10, 0.8)) for y in logs]
    place = traces[0].column_names.index("is_argmax")
    run = builders.make_run([t.set_column(place, "is_argmax", h) for t, h in zip(traces, hits, strict=True)])
    losses, fit = Study(run, builders.QUICK).tables(["theory"])
    for sigma in (0.1, 1.0):
        cell = losses.cell("jensen", order="forced-ar", sigma=f"{sigma:g}")
        assert cell.value == pytest.approx(np.mean([jensen_loss(y, sigma) for y in logs]), rel=1e-9)
        mean = np.array([y.mean() for y in logs])
        var = np.array([y.var() for y in logs])
        second = losses.cell("second_order", order="forced-ar", sigma=f"{sigma:g}").value
        assert second == pytest.approx(np.mean(-64 * d2(mean, sigma) * var), rel=1e-9)
    assert losses.cell("outside_radius", order="forced-ar", sigma="1").value == 1.0
    assert 0.4 < fit.cell("sigma", orders="deployable").value < 1.6
    assert fit.cell("n", orders="deployable") == 6 * 128
    assert fit.cell("sigma", orders="target-aware").why == "no such order was scored"
    assert any("q > 1/2" in note for note in fit.notes)


def test_table_and_figure_show_one_fit_which_is_made_once(builders, monkeypatch):
    import orderlens.theory

    calls, fit_noise = [], orderlens.theory.fit_noise
    monkeypatch.setattr(
        orderlens.theory, "fit_noise", lambda *given, **more: calls.append(more) or fit_noise(*given, **more)
    )
    tables_theory._fitted.cache_clear()
    rng = np.random.default_rng(1)
    traces = [builders.trace(f"s{i}", "forced-ar", -rng.gamma(0.7, 2.0, 64)) for i in range(4)]
    traces = [with_hits(trace, rng, gap=0) for trace in traces[:3]] + [with_hits(traces[3], rng, gap=5)]
    study = Study(builders.make_run(traces), builders.QUICK)
    (fit,) = [table for table in study.tables(["theory"]) if table.name == "theory-fit"]
    drawn = jensen.data(study)
    assert drawn["sigma"] == fit.cell("sigma", orders="deployable").value
    assert fit.cell("n", orders="deployable") == 4 * 64 - 5  # what is not known is left out
    assert len(drawn["traces"]) == 3  # the loss of a trace needs all of it
    assert calls == [{"level": 0.95}]
    wide = Study(study.run, Options(Resampling(30, level=0.5))).tables(["theory"])[-1]
    ours, half = (table.cell("sigma", orders="deployable") for table in (fit, wide))
    assert 0.2 < (half.high - half.low) / (ours.high - ours.low) < 0.5  # 0.34 of a normal one


def with_hits(trace, rng, gap):
    hits = [None] * gap + [bool(value) for value in rng.random(len(trace) - gap) < 0.4]
    return trace.set_column(trace.column_names.index("is_argmax"), "is_argmax", pa.array(hits, pa.bool_()))


def test_orders_that_are_not_installed_have_a_row_and_a_picture_of_their_own(builders):
    rng = np.random.default_rng(2)
    names = ("their-rule", "another+x=1")
    traces = [builders.trace(f"s{i}", name, -rng.gamma(0.7, 2.0, 64)) for i in range(3) for name in names]
    study = Study(builders.make_run([with_hits(trace, rng, gap=0) for trace in traces]), builders.QUICK)
    theory, fit = study.tables(["theory"])
    assert {row["order"] for row in theory.rows} == set(names)
    assert fit.cell("n", orders="unknown") == 6 * 64
    drawn = jensen.data(study)
    assert drawn["sigma"] == fit.cell("sigma", orders="unknown").value
    assert (drawn["tier"], {item["order"] for item in drawn["traces"]}) == ("unknown", set(names))
    assert jensen._note(drawn).startswith("Orders that are not installed here, 3 sequences")
