from __future__ import annotations

import json
import os
import time
from types import SimpleNamespace

import pytest

from orderlens.common.machine import UNKNOWN, is_dead, process_tag
from orderlens.errors import RunError, StorageError
from orderlens.store import leases
from orderlens.store.folder import LocalFolder
from orderlens.store.leases import LeaseBook, live_leases, maintenance

ELSEWHERE = "0123456789ab-1-1"


@pytest.fixture
def folder(tmp_path) -> LocalFolder:
    return LocalFolder(tmp_path)


class Clock:
    """A monotonic clock under the test's control."""

    def __init__(self, monkeypatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(leases, "time", SimpleNamespace(monotonic=lambda: self.now))


@pytest.fixture
def clock(monkeypatch) -> Clock:
    return Clock(monkeypatch)


def foreign_lease(folder: LocalFolder, beat: int = 0, attempt: int = 0, process: str = ELSEWHERE) -> None:
    """Write a claim as a worker on another machine does."""
    content = {"key": "u", "owner": "other", "beat": beat, "lease_s": 10.0, "process": process}
    folder.put(f"claims/u.{attempt}.json", json.dumps(content).encode())


def test_a_live_claim_excludes_others_until_it_is_released(folder) -> None:
    one, two = LeaseBook(folder, 60), LeaseBook(folder, 60)
    claim = one.acquire("u")
    assert claim
    assert two.acquire("u") is None
    assert two.acquire("v")
    claim.release()
    assert two.acquire("u")
    one.close()
    two.close()
    assert folder.sizes("claims") == {}


def test_a_claim_expires_after_a_lease_without_a_beat_on_the_watchers_own_clock(folder, clock) -> None:
    foreign_lease(folder)
    book = LeaseBook(folder, 60)
    assert book.acquire("u") is None
    clock.now += 9
    assert book.acquire("u") is None
    clock.now += 2
    claim = book.acquire("u")  # 11 s since first seen; the claim's own lease of 10 s counts
    assert claim
    assert folder.names("claims") == ["claims/u.0.json", "claims/u.1.json"]
    book.close()
    assert folder.names("claims") == []


def test_a_beating_claim_never_expires(folder, clock) -> None:
    book = LeaseBook(folder, 10)
    for beat in range(10):
        foreign_lease(folder, beat)
        clock.now += 9
        assert book.acquire("u") is None
    book.close()


def test_wall_clocks_and_file_times_do_not_matter(folder, clock, monkeypatch) -> None:
    monkeypatch.setattr(time, "time", lambda: -1e9)
    foreign_lease(folder)
    os.utime(folder.root / "claims" / "u.0.json", (0, 0))
    book = LeaseBook(folder, 10)
    assert book.acquire("u") is None
    monkeypatch.setattr(time, "time", lambda: 9e9)
    assert book.acquire("u") is None
    book.close()


def test_only_one_of_several_rivals_takes_an_expired_claim_over(folder, clock) -> None:
    foreign_lease(folder)
    books = [LeaseBook(folder, 10) for _ in range(4)]
    assert [book.acquire("u") for book in books] == [None] * 4
    clock.now += 11
    assert sum(book.acquire("u") is not None for book in books) == 1
    for book in books:
        book.close()


def test_a_worker_that_wakes_up_late_does_not_disturb_the_new_owner(folder, clock) -> None:
    foreign_lease(folder)
    book, third = LeaseBook(folder, 10), LeaseBook(folder, 10)
    book.acquire("u")
    clock.now += 11
    assert book.acquire("u")
    foreign_lease(folder, beat=1)  # the old owner renews its own file
    assert third.acquire("u") is None
    book.close()
    third.close()


@pytest.mark.skipif(process_tag() == UNKNOWN, reason="needs /proc")
def test_a_dead_process_of_this_machine_is_noticed_at_once(folder, program) -> None:
    assert program("claim", folder.root, "u").returncode == 9
    assert len(folder.sizes("claims")) == 1
    assert live_leases(folder) == []
    book = LeaseBook(folder, 1000)
    assert book.acquire("u")
    book.close()


@pytest.mark.skipif(process_tag() == UNKNOWN, reason="needs /proc")
def test_death_is_never_guessed() -> None:
    machine, pid, _ = process_tag().split("-")
    assert not is_dead(process_tag())
    assert is_dead(f"{machine}-{pid}-1")  # the same number, but another process
    assert not is_dead(ELSEWHERE)
    assert not is_dead(UNKNOWN)
    assert not is_dead(None)


def test_the_thread_renews_what_is_held_and_survives_a_refusing_disk(folder, monkeypatch) -> None:
    real, refused = folder.put, []

    def moody(name: str, data: bytes, *, durable: bool = True) -> None:
        if len(refused) < 2:
            refused.append(name)
            raise StorageError("the disk is full")
        real(name, data, durable=durable)

    monkeypatch.setattr(folder, "put", moody)  # before the first renewal, however late this thread is
    book = LeaseBook(folder, 0.04)
    book.acquire("u")
    deadline = time.monotonic() + 60
    while (latest := leases.read_lease(folder, "claims/u.0.json")) and latest["beat"] == 0:
        assert time.monotonic() < deadline, "never renewed"
        time.sleep(0.005)
    assert latest is not None
    assert latest["beat"] > 2
    assert refused == ["claims/u.0.json"] * 2
    book.close()


def test_an_unreadable_claim_expires_too(folder, clock) -> None:
    folder.put("claims/u.0.json", b"")
    book = LeaseBook(folder, 10)
    assert book.acquire("u") is None
    clock.now += 11
    assert book.acquire("u")
    book.close()


def test_maintenance_is_for_one_at_a_time(folder) -> None:
    with maintenance(folder):
        with (
            pytest.raises(RunError, match="being compacted or repaired by another process"),
            maintenance(folder),
        ):
            pass
        assert live_leases(folder) == []
    with maintenance(folder):
        pass


def test_a_unit_is_taken_with_one_request_and_only_where_nobody_had_it(folder, clock, monkeypatch) -> None:
    book, other = LeaseBook(folder, 10), LeaseBook(folder, 10)
    with monkeypatch.context() as patched:
        for name in ("names", "sizes", "read", "exists"):
            patched.setattr(folder, name, lambda *_: pytest.fail("asked for more than the claim"))
        assert book.acquire_new("u")
        assert other.acquire_new("u") is None
        book.keep("u")  # committed: the claim stays and says so
        assert other.acquire_new("u") is None
    foreign_lease(folder, attempt=0)
    clock.now += 1
    assert other.acquire("u") is None
    clock.now += 11
    assert other.acquire("u")
    assert book.acquire_new("u") is None  # the first attempt's file stays below the second
    other.close()
    assert folder.names("claims") == []


def test_a_failed_unit_is_left_to_whoever_finds_no_fresh_one(folder) -> None:
    book, other = LeaseBook(folder, 1000), LeaseBook(folder, 1000)
    claim = book.acquire_new("u")
    assert claim
    claim.fail()
    claim.release()  # says no more
    assert live_leases(folder) == []
    assert other.acquire_new("u") is None
    assert other.acquire("u")
    other.close()


def test_claims_on_recorded_units_are_not_alive(folder) -> None:
    book = LeaseBook(folder, 1000)
    book.acquire_new("u")
    assert live_leases(folder) == ["claims/u.0.json"]
    folder.put("units/u.json", b"{}")
    assert live_leases(folder) == []
    book.close()
