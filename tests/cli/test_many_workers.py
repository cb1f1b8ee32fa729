"""Every verb that decodes gives the same rows whoever computes them.

One process against two local workers here; Ray and torchrun cost seconds per stage: ``pytest -m slow``.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import orderlens as ol
from orderlens.cli.main import main
from orderlens.runs import pool
from orderlens.runs.worker_log import read_states
from orderlens.store.folder import open_folder

SHORT = ["--limit", "3", "--prefix-tokens", "8", "--target-tokens", "8"]
ORDERS = ["--orders", "forced-ar,random"]
VERBS: dict[str, list[str]] = {
    "score": [*SHORT, *ORDERS],
    "generate": ["--limit", "3", "--max-new-tokens", "8", *ORDERS],
    "sweep": ["--limit", "2", "--max-new-tokens", "8", "--temperatures", "0,1", *ORDERS],
    "evaluate": ["--tasks", "arith", "--limit", "3", "--max-new-tokens", "8", *ORDERS],
    "replicate": ["--preset", "demo", "--limit", "2", "--stages", "generate", "--decode-only"],
    "frontier": [*SHORT, "--policies", "max-prob+top=2", "--rungs", "1", "--parts", "likelihood"],
}
DIFFERENT = ("score", "evaluate", "replicate")
"""Verbs that reach the workers by ways of their own; the others go one of these."""
SLOW = pytest.mark.slow
ENGINES = {
    "local": ["--engine", "local", "--workers", "2"],
    "ray": ["--engine", "ray", "--workers", "2"],
}


def command(verb: str, out: Path) -> list[str]:
    data = [] if verb == "evaluate" else ["--data", "passages"]
    return [verb, "--model", "hmm", *data, *VERBS[verb], "--batch-size", "1", "--out", str(out)]


def rows(out: Path) -> dict[str, pa.Table]:
    """Return all tables of all runs under a folder."""
    found = {}
    for spec in sorted(out.rglob("spec.json")):
        run, name = ol.open_run(spec.parent), spec.parent.relative_to(out)
        assert run.is_complete, name
        found |= {f"{name}/{table}": run.table(table).to_arrow() for table in run.tables}
    return found


def assert_same(out: Path, alone: dict[str, pa.Table]) -> None:
    shared = rows(out)
    assert list(shared) == list(alone)
    assert [name for name, table in alone.items() if not shared[name].equals(table)] == []
    assert all(table.num_rows for table in alone.values())


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, pa.Table]]:
    """What one process computes, by verb."""

    @functools.cache
    def found(verb: str) -> dict[str, pa.Table]:
        out = tmp_path_factory.mktemp(verb) / "run"
        assert main(command(verb, out)) == 0
        return rows(out)

    return found


@pytest.mark.parametrize(
    ("verb", "engine"),
    [
        pytest.param(verb, engine, marks=[] if engine == "local" and verb in DIFFERENT else [SLOW])
        for engine in ENGINES
        for verb in VERBS
    ],
)
def test_several_workers_give_the_rows_of_one(
    verb: str,
    engine: str,
    alone: Callable[[str], dict[str, pa.Table]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool, "_GRACE_S", 120.0)  # one may still load when the other has done everything
    if engine == "ray":
        pytest.importorskip("ray", reason="the extra [ray] is not installed")
    assert main([*command(verb, tmp_path / "run"), *ENGINES[engine]]) == 0
    assert_same(tmp_path / "run", alone(verb))
    crews = [read_states(open_folder(spec.parent)) for spec in (tmp_path / "run").rglob("spec.json")]
    assert all(len(states) == 2 for states in crews)


@SLOW
@pytest.mark.parametrize("verb", VERBS)
def test_two_ranks_of_torchrun_give_the_rows_of_one(
    verb: str, alone: Callable[[str], dict[str, pa.Table]], tmp_path: Path
) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    subprocess.run(
        [*launcher, "-m", "orderlens", *command(verb, tmp_path / "run")],
        check=True,
        capture_output=True,
        timeout=600,
    )
    assert_same(tmp_path / "run", alone(verb))
