"""Every engine gives the same rows, and what goes wrong in a worker stays there."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import orderlens as ol
from orderlens.common.machine import Rank, this_rank
from orderlens.errors import MissingPackageError, UserInputError, WorkersLostError
from orderlens.rules import catalogue
from orderlens.rules.orders.basic import ForcedAR
from orderlens.runs import pool
from orderlens.runs import run as running
from orderlens.runs.worker_log import read_log, read_states
from orderlens.store.folder import open_folder
from orderlens.testing import StubModel, assert_same_rows

SAMPLES = [ol.Sample(f"s{i}", "the ", "a text of some length"[: 8 + i]) for i in range(6)]
ORDERS = ["forced-ar", "random", "max-prob+threshold=0.5"]


def score(out: Path, **more: Any) -> ol.Run:
    return ol.score("hmm", SAMPLES, ORDERS, batch_size=1, out=out, **more)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> ol.Run:
    """The run of one process."""
    return score(tmp_path_factory.mktemp("alone") / "run")


def test_two_processes_give_the_rows_of_one(
    alone: ol.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_GRACE_S", 120.0)  # one may still load when the other has done everything

    class Sink:
        def __init__(self) -> None:
            self.total, self.done, self.seen = 0, 0, set[str]()

        def __call__(self, steps: int = 1) -> None:
            self.done += steps

        def set_total(self, total: int) -> None:
            self.total = total

        def show_workers(self, states: Any) -> None:
            self.seen |= {state.name for state in states}

    sink = Sink()
    run = score(tmp_path / "run", workers=2, progress=sink)
    assert_same_rows(run, alone)
    assert sink.done == sink.total == len(ORDERS) * sum(len(sample.target) for sample in SAMPLES)
    assert len(sink.seen) == 2
    states = read_states(open_folder(tmp_path / "run"))
    assert {state.state for state in states} == {"done"}
    assert sum(state.units for state in states) == len(SAMPLES)
    events = [row["event"] for row in read_log(open_folder(tmp_path / "run"), states[0].name)]
    assert events[:2] == ["started", "loaded"]
    assert events[-1] == "done"
    from orderlens.store.verify import verify_run

    assert verify_run(open_folder(tmp_path / "run")).ok
    assert_same_rows(score(tmp_path / "run", workers=2), alone)  # nothing left to do


def test_two_ray_actors_give_the_rows_of_one(alone: ol.Run, tmp_path: Path) -> None:
    ray = pytest.importorskip("ray", reason="the extra [ray] is not installed")
    for attempt in range(3):  # Ray gives its own processes 30 s to start: not always enough on a busy machine
        try:
            run = score(tmp_path / "run", engine="ray", workers=2)
            break
        except WorkersLostError as error:
            if attempt == 2 or "Ray did not start" not in str(error):
                raise
    assert_same_rows(run, alone)
    assert not ray.is_initialized()


SCRIPT = textwrap.dedent(
    """
    import sys
    import orderlens as ol
    samples = [ol.Sample(f"s{i}", "the ", "a text of some length"[: 8 + i]) for i in range(6)]
    ol.score("hmm", samples, ["forced-ar", "random", "max-prob+threshold=0.5"], batch_size=1, out=sys.argv[1])
    """
)


def test_two_ranks_give_the_rows_of_one(alone: ol.Run, tmp_path: Path) -> None:
    """What torchrun sets is all that ranks look at; torchrun itself is started by the fault script."""
    script = tmp_path / "work.py"
    script.write_text(SCRIPT)
    ranks = [
        subprocess.Popen(
            [sys.executable, script, tmp_path / "run"],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    assert [rank.wait(timeout=300) for rank in ranks] == [0, 0]
    assert_same_rows(ol.open_run(tmp_path / "run"), alone)
    assert {state.name for state in read_states(open_folder(tmp_path / "run"))} == {"rank-000", "rank-001"}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, None),
        ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}, None),
        ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}, Rank(3, 4, 1)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"}, Rank(1, 2, 0)),
        ({"RANK": "x", "WORLD_SIZE": "2"}, None),
        ({"RANK": "²", "WORLD_SIZE": "²"}, None),
        ({"RANK": "7", "WORLD_SIZE": "2"}, None),  # left over: nobody would speak for such a process
    ],
)
def test_ranks_are_read_from_the_environment(given: dict[str, str], wanted: Rank | None) -> None:
    assert this_rank(given) == wanted


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"engine": "slurm"}, "engine='slurm' is unknown; allowed: local, ray"),
        ({"workers": 0}, "workers=0 must be at least 1"),
        ({"engine": ol.Engine(), "workers": 2}, "not as arguments"),
        ({"workers": 2}, "several workers need a run folder to share the work"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(wanted: dict[str, Any], words: str) -> None:
    with pytest.raises(UserInputError, match=words):
        ol.score("hmm", SAMPLES, ORDERS, **wanted)


def stub(name: str = "stub") -> StubModel:
    return StubModel(lambda visible, place: np.zeros(3), vocab_size=4, name=name, digest="d")


def test_a_model_of_this_process_is_refused_with_workers_before_anything_is_written(tmp_path: Path) -> None:
    samples = [ol.Sample("a", [0], [1, 2])]
    with pytest.raises(UserInputError, match="'stub' is in this process only, so workers cannot load it"):
        ol.score(stub(), samples, "forced-ar", workers=2, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_several_gpus_share_only_what_their_workers_can_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pooled: list[str] = []
    monkeypatch.setattr(running, "device_type", lambda model: "cuda")
    monkeypatch.setattr(running, "_gpus", lambda: 4)
    monkeypatch.setattr(running, "_run_pool", lambda job, *_, **__: pooled.append(job.model.name))
    samples = [ol.Sample("a", [0], [1, 2])]
    assert ol.score(stub(), samples, "forced-ar", out=tmp_path / "run").is_complete
    assert ol.score(stub(), samples, "forced-ar").is_complete
    assert ol.score("hmm", samples, "forced-ar").is_complete
    assert not pooled
    ol.score("hmm", samples, "forced-ar", out=tmp_path / "shared")
    assert pooled == ["hmm"]


def test_a_script_without_a_guard_may_use_workers(tmp_path: Path) -> None:
    """Workers do not run the caller's script again."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
            import sys
            import orderlens as ol
            samples = [ol.Sample(str(i), "a", "b c") for i in range(4)]
            run = ol.score("hmm", samples, "forced-ar", workers=2, batch_size=1, out=sys.argv[1])
            print(run.is_complete)
        """)
    )
    done = subprocess.run(
        [sys.executable, script, tmp_path / "run"], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_a_rule_that_only_this_process_has_is_refused_with_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = catalogue.ORDERS
    monkeypatch.setattr(known, "_objects", dict(known._objects))
    known.add("mine", type("Mine", (ForcedAR,), {"id": "mine"}))
    with pytest.raises(UserInputError, match="'mine' is not registered for other processes"):
        ol.score("hmm", SAMPLES, "mine", workers=2, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert ol.score("hmm", SAMPLES, "mine").is_complete


def test_an_address_needs_ray() -> None:
    with pytest.raises(UserInputError, match="add --engine ray"):
        ol.Engine(address="auto")


@pytest.mark.parametrize("address", ["ray://head:10001", "head", "http://head:8265", "head:port", ""])
def test_an_address_is_that_of_a_head(address: str) -> None:
    with pytest.raises(UserInputError, match=r"must be auto or HOST:PORT of the cluster's head"):
        ol.Engine("ray", address=address)


def test_nobody_at_the_address_is_said_at_once_and_leaves_no_folder(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra [ray] is not installed")
    with socket.socket() as deaf:  # bound, so that nobody else gets the port, but not listening
        deaf.bind(("127.0.0.1", 0))
        nowhere = f"127.0.0.1:{deaf.getsockname()[1]}"
        with pytest.raises(UserInputError, match=f"no Ray cluster answers at '{nowhere}'.*ray start --head"):
            score(tmp_path / "run", engine=ol.Engine("ray", 2, nowhere))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("address", "kind", "words"),
    [
        (None, WorkersLostError, "Ray did not start"),
        ("auto", UserInputError, "no Ray cluster answers at 'auto'"),
    ],
)
def test_a_ray_that_does_not_start_is_one_line(
    address: str | None, kind: type[Exception], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray", reason="the extra [ray] is not installed")

    def slow(**_: object) -> None:
        raise Exception("The current node timed out\nduring startup")

    monkeypatch.setattr(ray, "init", slow)
    with pytest.raises(kind, match=words) as raised:
        score(tmp_path / "run", engine=ol.Engine("ray", 2, address))
    assert "\n" not in str(raised.value)


def test_a_missing_ray_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'orderlens\[ray\]'"):
        score(tmp_path / "run", engine="ray", workers=2)
    assert not (tmp_path / "run").exists()


def test_an_order_that_no_registry_knows_stays_in_one_process(tmp_path: Path) -> None:
    from orderlens.rules.orders.basic import MaxProb

    class Mine(MaxProb):
        id = "mine"

    with pytest.raises(UserInputError, match="mine"):
        ol.score("hmm", SAMPLES, Mine(), out=tmp_path / "run", workers=2)
