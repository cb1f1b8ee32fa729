"""How workers find their units: dealt out, taken with one write, and looked into when all are held."""

from __future__ import annotations

from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from orderlens.runs import loop
from orderlens.runs.loop import WorkerRole, execute
from orderlens.runs.worker_log import Failures
from orderlens.store.leases import LeaseBook
from orderlens.store.writer import open_writer


class Member(WorkerRole):
    """One of several workers; notes what it begins, and failures."""

    closes = False

    def __init__(self, place: int, count: int, failures: Failures | None = None) -> None:
        self.place, self.count, self.begun, self._failures = place, count, list[str](), failures

    def on_begin(self, key: str) -> None:
        self.begun.append(key)

    def on_failure(self, key: str, payload: Any, error: Exception) -> None:
        assert self._failures is not None
        self._failures.record(key, str(error), "w")

    def set_aside(self) -> set[str]:
        return self._failures.set_aside() if self._failures else set()


@pytest.mark.parametrize(
    ("place", "count", "wanted"),
    [(0, 1, "abcdefg"), (0, 3, "adgbecf"), (1, 3, "becfadg"), (5, 3, "cfadgbe"), (9, 20, "abcdefg")],
)
def test_units_are_dealt_like_cards(place: int, count: int, wanted: str) -> None:
    dealt, own = loop._dealt(list("abcdefg"), place, count)
    assert "".join(dealt) == wanted
    assert own == set("abcdefg"[place % count :: count])


def test_a_worker_takes_its_own_and_asks_nobody_before_it_is_through(tmp_path, worker, monkeypatch) -> None:
    listed, looks, role = [], [], Member(1, 2)
    with open_writer(tmp_path, worker.spec(6)) as writer:
        names = writer.folder.names

        def counted(*where, **how):
            listed.append(where)
            return names(*where, **how)

        def work(unit: int):
            looks.append(len(listed))
            return worker.tables(unit)

        monkeypatch.setattr(writer.folder, "names", counted)
        execute(writer, worker.keyed_units(6), work, role=role)
    assert role.begun == [f"unit-{number:04d}" for number in (1, 3, 5, 0, 2, 4)]
    assert looks[:3] == [0, 0, 0]
    assert looks[3] == looks[5] > 0, "one look, then all that was free"


@pytest.mark.parametrize(("count", "watched"), [(1, 8), (50, 8), (100, 4), (1000, 1)])
def test_in_a_crowd_each_looks_into_fewer_claims(tmp_path, worker, count, watched) -> None:
    keys = list(worker.keyed_units(20))
    with open_writer(tmp_path, worker.spec(20)) as writer, closing(LeaseBook(writer.folder, 1000)) as others:
        assert all(others.acquire_new(key) for key in keys)
        assert len(list(loop._claims(writer, keys, Member(3, count)))) == watched


@pytest.mark.parametrize(
    ("count", "closes", "pause", "wanted"),
    [(2, False, 0.2, 0.2), (1000, False, 0.2, 4.0), (1000, False, 15.0, 300.0), (1000, True, 15.0, 15.0)],
)
def test_in_a_crowd_each_waits_longer_and_asks_for_the_end(count, closes, pause, wanted, monkeypatch) -> None:
    slept, queried = [], []
    monkeypatch.setattr(loop, "time", SimpleNamespace(sleep=slept.append))  # not for other threads
    writer = SimpleNamespace(finished=lambda keys: queried.append(keys))
    for place in range(100):
        role = Member(place, count)
        role.closes = closes
        assert not loop._rests(writer, ["u"], role, pause)
    assert max(slept) <= 15.0 * 1.25
    assert sum(slept) == pytest.approx(100 * wanted, rel=0.02)
    assert bool(queried) == (wanted > 15.0)
    closed = SimpleNamespace(finished=lambda keys: True)
    assert loop._rests(closed, ["u"], Member(0, 1000), 15.0)


def test_a_worker_that_is_done_with_its_own_helps_the_others(tmp_path, worker) -> None:
    role = Member(1, 2)
    with open_writer(tmp_path, worker.spec(4)) as writer:
        execute(writer, worker.keyed_units(4), worker.tables, role=role)
    assert role.begun == ["unit-0001", "unit-0003", "unit-0000", "unit-0002"]


def test_a_waiting_worker_looks_into_a_few_claims_only(tmp_path, worker, monkeypatch) -> None:
    keys = [f"unit-{number:04d}" for number in range(30)]
    with open_writer(tmp_path, worker.spec(30)) as writer:
        others = LeaseBook(writer.folder, 1000)
        assert all(others.acquire_new(key) for key in keys)
        read = []
        real = writer.folder.read
        monkeypatch.setattr(writer.folder, "read", lambda name: read.append(name) or real(name))
        for place in (0, 1):
            assert list(loop._claims(writer, keys, Member(place, 2))) == [None] * loop._WATCHED
        assert len(set(read)) == 2 * loop._WATCHED  # and not all the same ones
        others.close()


def test_a_failed_unit_is_tried_last_and_then_set_aside(tmp_path, worker) -> None:
    def breaks(unit: int):
        if unit == 0:
            raise ValueError("poisoned")
        return worker.tables(unit)

    with open_writer(tmp_path, worker.spec(3)) as writer:
        failures = Failures(writer.folder, 2)
        role = Member(0, 1, failures)
        execute(writer, worker.keyed_units(3), breaks, role=role)
        assert role.begun == ["unit-0000", "unit-0001", "unit-0002", "unit-0000"]
        assert failures.set_aside() == {"unit-0000"}
        assert writer.pending(worker.keyed_units(3)) == ["unit-0000"]
