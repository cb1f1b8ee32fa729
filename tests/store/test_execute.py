"""How workers find their units: dealt out, taken with one write, and looked into when all are held."""

from __future__ import annotations

from typing import Any

import pytest

from orderlens.store import execute as executing
from orderlens.store.execute import Shift, execute
from orderlens.store.failures import Failures
from orderlens.store.leases import LeaseBook
from orderlens.store.writer import open_writer


class Member(Shift):
    """One of several workers; notes what it begins, and failures."""

    closes = False

    def __init__(self, place: int, count: int, failures: Failures | None = None) -> None:
        self.place, self.count, self.begun, self._failures = place, count, list[str](), failures

    def begins(self, key: str) -> None:
        self.begun.append(key)

    def fails(self, key: str, payload: Any, error: Exception) -> None:
        assert self._failures is not None
        self._failures.note(key, str(error), "w")

    def set_aside(self) -> set[str]:
        return self._failures.set_aside() if self._failures else set()


@pytest.mark.parametrize(
    ("place", "count", "wanted"),
    [(0, 1, "abcdefg"), (0, 3, "adgbecf"), (1, 3, "becfadg"), (5, 3, "cfadgbe"), (9, 20, "abcdefg")],
)
def test_units_are_dealt_like_cards(place: int, count: int, wanted: str) -> None:
    assert "".join(executing._dealt(list("abcdefg"), Member(place, count))) == wanted


def test_workers_that_start_together_take_no_unit_of_each_other(tmp_path, worker) -> None:
    keys = list(worker.keyed_units(6))
    writers = [open_writer(tmp_path, worker.spec(6)) for _ in range(2)]
    turns = [
        executing._claims(writer, executing._dealt(keys, Member(place, 2)), Member(place, 2))
        for place, writer in enumerate(writers)
    ]
    taken = [next(turns[number % 2]) for number in range(6)]
    assert None not in taken
    assert sorted(claim.key for claim in taken if claim) == keys
    for writer in writers:
        writer.close()


def test_a_worker_that_is_done_with_its_own_helps_the_others(tmp_path, worker) -> None:
    shift = Member(1, 2)
    with open_writer(tmp_path, worker.spec(4)) as writer:
        execute(writer, worker.keyed_units(4), worker.tables, shift=shift)
    assert shift.begun == ["unit-0001", "unit-0003", "unit-0000", "unit-0002"]


def test_a_waiting_worker_looks_into_a_few_claims_only(tmp_path, worker, monkeypatch) -> None:
    keys = [f"unit-{number:04d}" for number in range(30)]
    with open_writer(tmp_path, worker.spec(30)) as writer:
        others = LeaseBook(writer.folder, 1000)
        assert all(others.take(key) for key in keys)
        read = []
        real = writer.folder.read
        monkeypatch.setattr(writer.folder, "read", lambda name: read.append(name) or real(name))
        for place in (0, 1):
            assert list(executing._claims(writer, keys, Member(place, 2))) == [None] * executing._WATCHED
        assert len(set(read)) == 2 * executing._WATCHED  # and not all the same ones
        others.close()


def test_a_failed_unit_is_tried_last_and_then_set_aside(tmp_path, worker) -> None:
    def breaks(unit: int):
        if unit == 0:
            raise ValueError("poisoned")
        return worker.tables(unit)

    with open_writer(tmp_path, worker.spec(3)) as writer:
        failures = Failures(writer.folder, 2)
        shift = Member(0, 1, failures)
        execute(writer, worker.keyed_units(3), breaks, shift=shift)
        assert shift.begun == ["unit-0000", "unit-0001", "unit-0002", "unit-0000"]
        assert failures.set_aside() == {"unit-0000"}
        assert writer.pending(worker.keyed_units(3)) == ["unit-0000"]
