"""What workers write down about themselves, by a clock of the test's own."""

from __future__ import annotations

import pytest

from orderlens.errors import StorageError
from orderlens.runs.worker_log import (
    LOCAL_EVERY_S,
    WorkerLog,
    WorkerState,
    read_log,
    read_states,
    remove_ended_workers,
)
from orderlens.store.folder import open_folder


@pytest.fixture
def now():
    return [100.0]


@pytest.fixture
def folder(tmp_path):
    return open_folder(tmp_path)


def notebook(folder, now, name="w", session="s"):
    return WorkerLog(folder, name, session, "cpu", lambda: now[0])


def test_progress_is_shown_now_and_then_and_changes_at_once(folder, now):
    note = notebook(folder, now)
    assert read_states(folder) == []
    note.set_state("working", unit="u")
    now[0] += LOCAL_EVERY_S / 2
    note.advance(5)
    assert read_states(folder)[0].tokens == 0
    now[0] += LOCAL_EVERY_S / 2
    note.advance(2)
    (state,) = read_states(folder)
    assert (state.tokens, state.unit, state.seconds, state.time) == (7, "u", LOCAL_EVERY_S, 101.0)
    assert state.rate == pytest.approx(7 / LOCAL_EVERY_S)
    now[0] += 0.25
    note.set_state("done", unit=None)
    assert read_states(folder)[0].state == "done"
    assert WorkerState("w", "s", tokens=3).rate == 0.0


def test_events_stand_in_their_order_and_a_cut_line_is_left_out(folder, now):
    note = notebook(folder, now)
    now[0] = 100.12345
    note.log_event("committed", unit="u", log={"tokens": 4})
    folder.append("logs/w.jsonl", b'{"time": 1, "ev')
    first, second = read_log(folder, "w")
    assert (first["event"], first["device"]) == ("started", "cpu")
    assert second == {"time": 100.123, "event": "committed", "unit": "u", "tokens": 4}


def test_states_of_one_session_by_name(folder, now):
    for name, session in (("b", "s"), ("a", "s"), ("c", "t")):
        notebook(folder, now, name, session).set_state("working")
    folder.put("workers/broken.json", b"{")
    folder.put("workers/newer.json", b'{"name": "n", "session": "s", "moons": 3}')
    assert [state.name for state in read_states(folder)] == ["a", "b", "c"]
    assert [state.name for state in read_states(folder, "s")] == ["a", "b"]
    assert read_states(folder, "nobody") == []


def test_only_the_ended_and_the_dead_are_forgotten(folder, now):
    for name in ("done", "failed", "stopped", "waiting"):
        notebook(folder, now, name).set_state(name)
    dead = notebook(folder, now, "dead")
    machine, _, _ = dead.state.process.split("-")
    dead.set_state("working", process=f"{machine}-4194304999-1")
    notebook(folder, now, "elsewhere").set_state("working", process="other-1-1")
    remove_ended_workers(folder)
    assert [state.name for state in read_states(folder)] == ["elsewhere", "waiting"]
    assert read_log(folder, "dead"), "logs stay"


def test_a_diary_that_cannot_be_written_is_no_failure(folder, now, monkeypatch):
    note = notebook(folder, now)

    def full(*_, **__):
        raise StorageError("no space left")

    monkeypatch.setattr(type(folder), "put", full)
    monkeypatch.setattr(type(folder), "append", full)
    note.set_state("working", units=2)
    note.log_event("committed")
    assert note.state.units == 2
