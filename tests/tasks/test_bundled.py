"""The frozen items of the bundled tasks: how many there are, which a limit takes, and a damaged file."""

from __future__ import annotations

import pytest

from orderlens.errors import DataFileError
from orderlens.tasks import bundled
from orderlens.tasks.bundled import ARITH, CHOICE, frozen_items


@pytest.mark.parametrize("task", [ARITH, CHOICE])
def test_a_limit_takes_the_first_items_and_levels_alternate(task: bundled.BundledTask) -> None:
    everything = task.load(limit=10_000)
    assert len(everything) == 2400
    assert list(task.load(limit=7)) == list(everything)[:7]
    assert [doc["level"] for doc in task.load(limit=9).values()] == [1, 2, 3] * 3


def test_the_questions_of_the_demo_need_one_step() -> None:
    assert {item["level"] for item in frozen_items("questions")} == {1}
    assert frozen_items("questions")[0]["id"] == next(iter(ARITH.load(limit=1)))


def test_a_damaged_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bundled.DIGESTS, "arith", "0" * 64)
    frozen_items.cache_clear()
    with pytest.raises(DataFileError, match="'arith' are damaged"):
        frozen_items("arith")
    frozen_items.cache_clear()
