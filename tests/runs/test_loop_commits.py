"""A unit is written while the next one is computed: the same rows, claims held until then, nothing lost."""

from __future__ import annotations

import threading

import pytest

from orderlens.errors import StorageError
from orderlens.runs.loop import MAX_QUEUED, WorkerRole, execute
from orderlens.store.reader import open_run
from orderlens.store.writer import RunWriter, open_writer

KEYS = [f"unit-{number:04d}" for number in range(6)]


class Notes(WorkerRole):
    """Notes what is begun, ends and fails; goes on after a failure."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def on_begin(self, key: str) -> None:
        self.lines.append(("begins", key))

    def on_commit(self, key: str) -> None:
        self.lines.append(("ends", key))

    def on_failure(self, key: str, payload: object, error: Exception) -> None:
        self.lines.append((str(error), key))


@pytest.fixture
def writer(tmp_path, worker):
    with open_writer(tmp_path / "run", worker.spec(6)) as found:
        yield found


def commit_with(writer: RunWriter, monkeypatch, before) -> None:
    """Let ``before`` see each key ahead of its commit, in the thread that commits."""
    commit = writer.commit
    monkeypatch.setattr(writer, "commit", lambda key, tables: before(key) or commit(key, tables))


def test_the_next_unit_is_computed_while_one_is_written(writer, worker, monkeypatch) -> None:
    begun = [threading.Event() for _ in KEYS]
    late = []

    def work(unit: int):
        begun[unit].set()
        return worker.tables(unit)

    def waits_for_the_next(key: str) -> None:
        number = KEYS.index(key)
        if number + 1 < len(KEYS) and not begun[number + 1].wait(30):
            late.append(key)

    commit_with(writer, monkeypatch, waits_for_the_next)
    execute(writer, worker.keyed_units(6), work, role=(notes := Notes()))
    assert late == []
    assert [key for what, key in notes.lines if what == "ends"] == KEYS
    assert open_run(writer.folder.root).is_complete


def test_computing_is_never_far_ahead_of_writing(writer, worker, monkeypatch) -> None:
    gate, computed, ahead = threading.Event(), [], []

    def work(unit: int):
        computed.append(unit)
        if len(computed) == MAX_QUEUED + 1:
            threading.Timer(0.05, gate.set).start()
        return worker.tables(unit)

    commit_with(writer, monkeypatch, lambda key: gate.wait(30) and ahead.append(len(computed)))
    execute(writer, worker.keyed_units(6), work)
    assert ahead[0] == MAX_QUEUED + 1
    assert len(computed) == 6


def test_what_is_waited_for_is_waited_for_while_writing(writer, worker) -> None:
    threads = set()

    def work(unit: int):
        def wait():
            threads.add(threading.current_thread().name)
            return worker.tables(unit)

        return wait

    execute(writer, worker.keyed_units(6), work)
    assert threads == {"orderlens-commits_0"}
    assert open_run(writer.folder.root).is_complete


def test_an_interrupt_keeps_what_was_computed_and_gives_back_the_rest(writer, worker, monkeypatch) -> None:
    begun = threading.Event()

    def work(unit: int):
        if unit == 2:
            begun.set()
            raise KeyboardInterrupt
        return worker.tables(unit)

    commit_with(writer, monkeypatch, lambda key: begun.wait(30) and None)
    with pytest.raises(KeyboardInterrupt):
        execute(writer, worker.keyed_units(6), work, role=(notes := Notes()))
    assert [key for what, key in notes.lines if what == "ends"] == KEYS[:2]
    assert writer.pending(KEYS) == KEYS[2:]
    assert writer.claim_new(KEYS[2]) is not None


def test_a_unit_that_cannot_be_committed_fails_and_the_others_go_on(writer, worker, monkeypatch) -> None:
    broken = {KEYS[1]: 1}

    def before(key: str) -> None:
        if broken.pop(key, None):
            raise ValueError("poisoned")

    commit_with(writer, monkeypatch, before)
    execute(writer, worker.keyed_units(6), worker.tables, role=(notes := Notes()))
    assert ("poisoned", KEYS[1]) in notes.lines
    assert notes.lines[-1] == ("ends", KEYS[1]), "tried again when nothing else was left"
    assert open_run(writer.folder.root).is_complete


def test_a_store_that_cannot_be_written_to_ends_the_work(writer, worker, monkeypatch) -> None:
    def before(key: str) -> None:
        if key == KEYS[1]:
            raise StorageError("disk full")

    commit_with(writer, monkeypatch, before)
    with pytest.raises(StorageError, match="disk full"):
        execute(writer, worker.keyed_units(6), worker.tables)
    assert KEYS[1] in writer.pending(KEYS)
    assert KEYS[0] not in writer.pending(KEYS)
