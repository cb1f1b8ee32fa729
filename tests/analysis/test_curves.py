"""Lorenz curves of a run."""

from __future__ import annotations

import numpy as np
import pytest

from orderlens.analysis.curves import lorenz_curves
from orderlens.metrics import gini, lorenz


def test_lorenz_curves_average_block_0(builders):
    rng = np.random.default_rng(0)
    logs = [-rng.gamma(0.5, size=40) for _ in range(3)]
    run = builders.make_run([builders.trace(f"s{i}", "forced-ar", y) for i, y in enumerate(logs)])
    curves = lorenz_curves(run)
    assert curves["length"].unique().tolist() == [32]
    np.testing.assert_allclose(curves["lorenz"], np.mean([lorenz(-y[:32]) for y in logs], axis=0))
    assert curves["gini"].iloc[0] == pytest.approx(np.mean([gini(-y[:32]) for y in logs]))
    everything = lorenz_curves(run, block=None)
    assert sorted(everything["length"].unique()) == [8, 32]
    broken = builders.make_run([builders.trace("s", "forced-ar", [-0.1, np.nan])])
    assert lorenz_curves(broken)["n_undefined"].iloc[0] == 1
