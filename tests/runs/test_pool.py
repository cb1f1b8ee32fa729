"""Looking after workers, without processes: a crew that works, falls silent or dies as it is told."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import orderlens as ol
from orderlens.errors import DataFileError, OrderLensError, RunError, WorkersLostError
from orderlens.runs import crew, history, local, ray_actors, run
from orderlens.runs.pool import LOADING_S, MOST_RESTARTS, Supervisor
from orderlens.runs.worker import WorkerResult, WorkerSlot, work
from orderlens.runs.worker_log import WorkerLog, read_failures
from orderlens.store.folder import open_folder
from orderlens.testing import assert_same_rows

SAMPLES = [ol.Sample(f"s{i}", "the ", "a text of some length"[: 8 + i]) for i in range(4)]


class Inline:
    """Workers that do all they do when they are started; ``script`` says who dies before."""

    def __init__(self, brief, script):
        self.brief, self.script, self.started, self.stopped, self.killed = brief, list(script), [], 0, []
        self.endings = {}

    def start(self, place, name):
        self.started.append(name)
        told = self.script.pop(0) if self.script else "work"
        self.endings[place] = work(self.brief, WorkerSlot(name, place, 2, None)) if told == "work" else told

    def ending(self, place):
        return self.endings[place]

    def kill(self, place):
        self.killed.append(place)

    def stop(self):
        self.stopped += 1


@pytest.fixture
def score(tmp_path, monkeypatch):
    """Return a function that scores with two such workers, and the crew that did it."""
    made = []

    def call(script=()):
        def crew_of(brief, options, seats, on_gpu):
            made.append(Inline(brief, script))
            return made[-1]

        monkeypatch.setattr(run, "_crew", crew_of)
        monkeypatch.setattr(crew, "pace", lambda _: 0.0)
        return ol.score("hmm", SAMPLES, ["random"], batch_size=1, out=tmp_path / "run", workers=2)

    return call, made


def test_nobody_dies_and_everybody_is_dismissed(score):
    call, made = score
    found = call()
    assert found.is_complete
    assert_same_rows(found, ol.score("hmm", SAMPLES, ["random"], batch_size=1))
    session = made[0].brief.session
    assert made[0].started == [f"{session}-000", f"{session}-001"]
    assert (made[0].stopped, made[0].killed) == (1, [])
    call()
    assert len(made) == 1, "a complete run starts no worker"


def test_units_are_cut_for_the_workers_and_the_rows_are_the_same(tmp_path, monkeypatch):
    """Alone one unit would do; two workers, or two ranks, get one each, and whoever resumes keeps them."""

    def score(out=None, **more):
        return ol.score("hmm", SAMPLES, ["random", "forced-ar"], out=out, **more)

    alone = score()
    assert alone.spec["batch_size"] >= len(SAMPLES)
    monkeypatch.setattr(run, "_crew", lambda brief, *_: Inline(brief, ()))
    monkeypatch.setattr(crew, "pace", lambda _: 0.0)
    shared = score(tmp_path / "crew", workers=2)
    monkeypatch.setattr(local, "_CLOSING_S", 0.0)
    for rank in "10":
        for name, value in {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": rank}.items():
            monkeypatch.setenv(name, value)
        ranks = score(tmp_path / "ranks")
    monkeypatch.delenv("RANK")
    for found in (shared, ranks):
        assert found.spec["batch_size"] == 2
        assert_same_rows(found, alone, ordered=False, atol=1e-12)
    assert score(tmp_path / "crew").spec["batch_size"] == 2
    with pytest.raises(RunError, match="batch_size"):
        score(tmp_path / "crew", workers=2, batch_size=4)


def test_a_run_that_another_machine_started_meanwhile_keeps_its_units(tmp_path, monkeypatch):
    real, calls = history.plan_folder, []

    def late(job, folder, *, extend):
        found = real(job, folder, extend=extend)
        if not calls.append(1) and len(calls) == 1:  # it has more GPUs, and was faster
            ol.score("hmm", SAMPLES, ["random"], batch_size=1, out=tmp_path / "run")
        return found

    monkeypatch.setattr(history, "plan_folder", late)
    found = ol.score("hmm", SAMPLES, ["random"], out=tmp_path / "run")
    assert found.spec["batch_size"] == 1
    assert_same_rows(found, ol.score("hmm", SAMPLES, ["random"], batch_size=1))


@pytest.mark.parametrize(
    ("engine", "on_gpu", "wanted"),
    [
        (ol.Engine("ray", 3), True, 3),
        (ol.Engine("ray"), True, 5),
        (ol.Engine("ray", threads=2), False, 4),
        (ol.Engine("ray", address="auto"), True, 16),
        (ol.Engine("ray", address="auto", threads=8), False, 12),
    ],
)
def test_as_many_actors_as_there_is_room_for(engine, on_gpu, wanted, monkeypatch):
    """Room is that of the cluster, or of this machine where Ray is yet to be started on it."""
    joined = []
    ray = SimpleNamespace(
        is_initialized=lambda: False,
        init=lambda **_: joined.append("in"),
        shutdown=lambda: joined.append("out"),
        cluster_resources=lambda: {"GPU": 16.0, "CPU": 96.0},
    )
    monkeypatch.setattr(ray_actors, "_import_ray", lambda: ray)
    monkeypatch.setattr(ray_actors, "_gpus_here", lambda: 5)
    monkeypatch.setattr(ray_actors.os, "cpu_count", lambda: 8)
    assert ray_actors.seats(engine, on_gpu) == wanted
    assert joined == (["in", "out"] if engine.address else [])


def test_a_worker_that_dies_is_replaced_under_a_new_name(score):
    call, made = score
    assert call([WorkerResult("killed by signal 9"), "work", "work"]).is_complete
    session = made[0].brief.session
    assert made[0].started == [f"{session}-{number:03d}" for number in range(3)]


def test_workers_that_always_die_end_the_command_and_the_next_one_goes_on(score, tmp_path):
    call, made = score
    with pytest.raises(
        WorkersLostError, match=r"4 of 4 units are left \(last: bad\); .*the same command goes on"
    ):
        call([WorkerResult("bad")] * 99)
    assert len(made[0].started) == 2 * (1 + MOST_RESTARTS)
    assert made[0].stopped == 1
    assert call().is_complete


def test_an_error_with_a_remedy_is_raised_as_it_was(score):
    call, made = score
    full = WorkerResult("the disk is full", "DataFileError")
    with pytest.raises(DataFileError, match=r"^the disk is full$"):
        call([full, full])
    assert made[0].stopped == 1
    with pytest.raises(OrderLensError, match=r"^of a plug-in$") as caught:
        call([WorkerResult("of a plug-in", "TheirError")])
    assert type(caught.value) is OrderLensError


@pytest.fixture
def seat(tmp_path):
    """Return a supervisor of one seat with a clock of its own, its crew, and a notebook for its worker."""
    now = [0.0]
    brief = SimpleNamespace(
        session="x", attempts=2, units={"u": (0, {"samples": [{"id": "a"}, {"id": 7}]})}, stated={}, out=""
    )
    folder = open_folder(tmp_path)
    people = Inline(brief, [None] * 99)
    guard = Supervisor(people, 1, brief, folder, 60.0, None, lambda: now[0])
    guard._watches[0].since = 0.0
    people.start(0, "x-000")
    note = WorkerLog(folder, "x-000", "x", "", lambda: now[0])
    return SimpleNamespace(now=now, guard=guard, crew=people, note=note, folder=folder)


@pytest.mark.parametrize(
    ("state", "patience"), [("working", 60.0), ("loading", LOADING_S), ("waiting", None), (None, LOADING_S)]
)
def test_silence_is_hanging_after_its_time(seat, state, patience):
    if state is not None:
        seat.note.becomes(state, unit="u")
    seat.guard._look()
    seat.now[0] = patience or 1e9
    seat.guard._look()
    assert seat.crew.killed == []
    seat.now[0] += 0.5
    seat.guard._look()
    assert seat.crew.killed == ([] if patience is None else [0])


def test_progress_is_a_sign_of_life_and_a_hanging_unit_counts_as_tried(seat):
    seat.note.becomes("working", unit="u")
    for seat.now[0] in (50.0, 100.0, 150.0):
        seat.note.advance(3)
        seat.guard._look()
    assert seat.crew.killed == []
    seat.now[0] = 211.0
    seat.guard._look()
    assert seat.crew.killed == [0]
    assert seat.crew.started == ["x-000", "x-001"]
    (found,) = read_failures(seat.folder)
    assert (found.key, found.worker, found.samples) == ("u", "x-000", ("a", "7"))
    assert found.error == "worker lost: no progress for 60 s, killed"
    seat.now[0] += 61.0
    seat.guard._look()
    assert len(seat.crew.killed) == 1, "the new worker loads: it has a time of its own"


def test_a_worker_that_did_something_may_die_as_often_as_it_likes(seat):
    watch = seat.guard._watches[0]
    for number in range(MOST_RESTARTS + 2):
        note = WorkerLog(seat.folder, watch.name, "x", "", lambda: 0.0)
        note.becomes("working", units=1 if number < 2 else 0)
        seat.crew.endings[0] = WorkerResult("gone")
        seat.guard._look()
        seat.crew.endings[0] = None
    assert watch.open
    assert watch.restarts == MOST_RESTARTS
    seat.crew.endings[0] = WorkerResult("gone")
    seat.guard._look()
    assert not watch.open


def test_it_is_over_a_moment_after_the_last_unit(seat):
    assert not seat.guard._over()
    seat.folder.put("units/u.json", b"")
    seat.now[0] = 1.0
    assert not seat.guard._over()
    seat.now[0] = 4.0
    assert not seat.guard._over()
    seat.now[0] = 4.1
    assert seat.guard._over()
