"""Studies of small made runs with everything a report shows."""

from __future__ import annotations

import pytest

from orderlens.analysis import Options, Study
from orderlens.metrics.estimate import Resampling


@pytest.fixture(scope="session")
def study(made_run):
    return Study(made_run(), Options(resampling=Resampling(50, 0)))


@pytest.fixture(scope="session")
def evil_study(made_run):
    return Study(made_run(4, evil=True, scored=False), Options(resampling=Resampling(20, 0)))
