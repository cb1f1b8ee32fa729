"""The check that two runs hold the same rows fails where they do not."""

from __future__ import annotations

import pytest

import orderlens as ol
from orderlens.testing import assert_same_rows

SAMPLES = [ol.Sample(f"s{i}", "the ", "a text of some length"[: 8 + i]) for i in range(3)]


def score(*samples: ol.Sample, batch_size: int = 1, orders: str = "forced-ar,random") -> ol.Run:
    return ol.score("hmm", samples, orders, batch_size=batch_size)


def test_the_cut_changes_the_order_of_rows_and_nothing_else() -> None:
    one, three = score(*SAMPLES), score(*SAMPLES, batch_size=3)
    assert_same_rows(one, score(*SAMPLES))
    assert_same_rows(one, three, ordered=False, atol=1e-12)
    with pytest.raises(AssertionError):
        assert_same_rows(one, three)


@pytest.mark.parametrize("atol", [0.0, 1e-12])
@pytest.mark.parametrize("ordered", [True, False])
def test_other_rows_are_refused(ordered: bool, atol: float) -> None:
    for other in (score(*SAMPLES[:2]), score(*SAMPLES, orders="forced-ar,random:1")):
        with pytest.raises(AssertionError):
            assert_same_rows(score(*SAMPLES), other, ordered=ordered, atol=atol)
