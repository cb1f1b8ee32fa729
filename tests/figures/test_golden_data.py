"""What every figure shows of fixed small runs of the exact control, against stored numbers.

To renew them after a deliberate change, run this file with ORDERLENS_RENEW_GOLDEN=1.
"""

from __future__ import annotations

import pytest

from orderlens.common.plaintext import plain
from orderlens.figures.catalogue import FIGURES


@pytest.mark.parametrize("name", FIGURES.names())
def test_every_figure_shows_the_stored_numbers(name, golden_studies, golden):
    recipe = FIGURES.get(name)
    found = plain(recipe.data(golden_studies[recipe.traces]))
    assert golden.differences("figures", name, found) == []


def test_the_comparison_notices_a_small_change(golden):
    stored = {"points": [{"mean": {"value": -1.5, "low": None}}]}
    assert not list(golden.close({"points": [{"mean": {"value": -1.5 - 1e-9, "low": None}}]}, stored))
    assert list(golden.close({"points": [{"mean": {"value": -1.501, "low": None}}]}, stored))
    assert list(golden.close({"points": [{"mean": {"value": -1.5, "low": 0.0}}]}, stored))
    assert list(golden.close({"points": []}, stored))


def test_golden_data_stay_small(golden):
    assert sum(path.stat().st_size for path in (golden.HERE / "figures").glob("*.json")) < 120_000
