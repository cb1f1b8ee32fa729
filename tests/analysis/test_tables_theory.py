"""The theory's losses and its fit, as a table."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from orderlens.analysis import Study
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
