"""Looking after workers, without processes: a pool that works, falls silent or dies as it is told."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import orderlens as ol
from orderlens.errors import DataFileError, OrderLensError, RunError, WorkersLostError
from orderlens.runs import extend, pool, ray_actors, run
from orderlens.runs.pool import LOADING_S, MOST_RESTARTS, Supervisor
from orderlens.runs.worker import WorkerResult, WorkerSlot, work
from orderlens.runs.worker_log import WorkerLog, read_failures
from orderlens.store.folder import open_folder
from orderlens.testing import assert_same_rows

SAMPLES = [ol.Sample(f"s{i}", "the ", "a text of some length"[: 8 + i]) for i in range(4)]


class Inline:
    """Workers that do all they do when they are started; ``script`` says who dies before."""

    def __init__(self, task, script):
        self.task, self.script, self.started, self.stopped, self.killed = task, list(script), [], 0, []
        self.results = {}

    def start(self, place, name):
        self.started.append(name)
        told = self.script.pop(0) if self.script else "work"
        self.results[place] = work(self.task, WorkerSlot(name, place, 2, None)) if told == "work" else told

    def result(self, place):
        return self.results[place]

    def kill(self, place):
        self.killed.append(place)

    def stop(self):
        self.stopped += 1


@pytest.fixture
def score(tmp_path, monkeypatch):
    """Return a function that scores with two such workers, and the pool that did it."""
    made = []

    def call(script=()):
        def pool_of(task, options, slots, on_gpu):
            made.append(Inline(task, script))
            return made[-1]

        monkeypatch.setattr(run, "_pool", pool_of)
        monkeypatch.setattr(pool, "pace", lambda _: 0.0)
        return ol.score("hmm", SAMPLES, ["random"], batch_size=1, out=tmp_path / "run", workers=2)

    return call, made


def test_nobody_dies_and_everybody_is_dismissed(score):
    call, made = score
    found = call()
    assert found.is_complete
    assert_same_rows(found, ol.score("hmm", SAMPLES, ["random"], batch_size=1))
    session = made[0].task.session
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
    monkeypatch.setattr(run, "_pool", lambda task, *_: Inline(task, ()))
    monkeypatch.setattr(pool, "pace", lambda _: 0.0)
    shared = score(tmp_path / "pool", workers=2)
    monkeypatch.setattr(run, "_CLOSING_S", 0.0)
    for rank in "10":
        for name, value in {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": rank}.items():
            monkeypatch.setenv(name, value)
        ranks = score(tmp_path / "ranks")
    monkeypatch.delenv("RANK")
    for found in (shared, ranks):
        assert found.spec["batch_size"] == 2
        assert_same_rows(found, alone, ordered=False, atol=1e-12)
    assert score(tmp_path / "pool").spec["batch_size"] == 2
    with pytest.raises(RunError, match="batch_size"):
        score(tmp_path / "pool", workers=2, batch_size=4)


def test_a_run_that_another_machine_started_meanwhile_keeps_its_units(tmp_path, monkeypatch):
    real, calls = extend._plan, []

    def late(job, folder, extending):
        found = real(job, folder, extending)
        if not calls.append(1) and len(calls) == 1:  # it has more GPUs, and was faster
            ol.score("hmm", SAMPLES, ["random"], batch_size=1, out=tmp_path / "run")
        return found

    monkeypatch.setattr(extend, "_plan", late)
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
    assert ray_actors.slots(engine, on_gpu) == wanted
    assert joined == (["in", "out"] if engine.address else [])


def test_a_worker_that_dies_is_replaced_under_a_new_name(score):
    call, made = score
    assert call([WorkerResult("killed by signal 9"), "work", "work"]).is_complete
    session = made[0].task.session
    assert made[0].started == [f"{session}-{number:03d}" for number in range(3)]


def test_workers_that_always_die_end_the_command_and_the_next_one_goes_on(score, tmp_path):
    call, made = score
    with pytest.raises(
        WorkersLostError, match=r"4 of 4 units are left \(last: bad\); .*the same command resumes the run"
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
def slot(tmp_path):
    """Return a supervisor of one slot with a clock of its own, its pool, and a log for its worker."""
    now = [0.0]
    task = SimpleNamespace(
        session="x",
        attempts=2,
        units={"u": (0, {"samples": [{"id": "a"}, {"id": 7}]})},
        stored_spec={},
        out="",
    )
    folder = open_folder(tmp_path)
    people = Inline(task, [None] * 99)
    guard = Supervisor(people, 1, task, folder, 60.0, None, lambda: now[0])
    guard._watches[0].since = 0.0
    people.start(0, "x-000")
    note = WorkerLog(folder, "x-000", "x", "", lambda: now[0])
    return SimpleNamespace(now=now, guard=guard, pool=people, note=note, folder=folder)


@pytest.mark.parametrize(
    ("state", "patience"), [("working", 60.0), ("loading", LOADING_S), ("waiting", None), (None, LOADING_S)]
)
def test_silence_is_hanging_after_its_time(slot, state, patience):
    if state is not None:
        slot.note.set_state(state, unit="u")
    slot.guard._look()
    slot.now[0] = patience or 1e9
    slot.guard._look()
    assert slot.pool.killed == []
    slot.now[0] += 0.5
    slot.guard._look()
    assert slot.pool.killed == ([] if patience is None else [0])


def test_progress_is_a_sign_of_life_and_a_hanging_unit_counts_as_tried(slot):
    slot.note.set_state("working", unit="u")
    for slot.now[0] in (50.0, 100.0, 150.0):
        slot.note.advance(3)
        slot.guard._look()
    assert slot.pool.killed == []
    slot.now[0] = 211.0
    slot.guard._look()
    assert slot.pool.killed == [0]
    assert slot.pool.started == ["x-000", "x-001"]
    (found,) = read_failures(slot.folder)
    assert (found.key, found.worker, found.samples) == ("u", "x-000", ("a", "7"))
    assert found.error == "worker lost: no progress for 60 s, killed"
    slot.now[0] += 61.0
    slot.guard._look()
    assert len(slot.pool.killed) == 1, "the new worker loads: it has a time of its own"


def test_a_worker_that_did_something_may_die_as_often_as_it_likes(slot):
    watch = slot.guard._watches[0]
    for number in range(MOST_RESTARTS + 2):
        note = WorkerLog(slot.folder, watch.name, "x", "", lambda: 0.0)
        note.set_state("working", units=1 if number < 2 else 0)
        slot.pool.results[0] = WorkerResult("gone")
        slot.guard._look()
        slot.pool.results[0] = None
    assert watch.open
    assert watch.restarts == MOST_RESTARTS
    slot.pool.results[0] = WorkerResult("gone")
    slot.guard._look()
    assert not watch.open


def test_it_is_over_a_moment_after_the_last_unit(slot):
    assert not slot.guard._over()
    slot.folder.put("units/u.json", b"")
    slot.now[0] = 1.0
    assert not slot.guard._over()
    slot.now[0] = 4.0
    assert not slot.guard._over()
    slot.now[0] = 4.1
    assert slot.guard._over()
