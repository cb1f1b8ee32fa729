"""Faults that really happen: kill −9, crashes at every step, full and read-only disks, rivals, clocks."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from orderlens.errors import CorruptRunError, RunError, StorageError
from orderlens.runs.loop import execute
from orderlens.store.compact import compact_run
from orderlens.store.folder import LocalFolder
from orderlens.store.reader import open_run
from orderlens.store.records import load_snapshot
from orderlens.store.verify import repair_run, verify_run
from orderlens.store.writer import open_writer

SCRIPT = Path(__file__).with_name("worker.py")
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked workers")


@pytest.fixture
def reference(straight, content):
    """The rows of an uninterrupted run, by number of units."""
    return lambda units: content(straight(units))


@needs_fork
def test_nothing_is_lost_or_doubled_by_thirty_kills(tmp_path, program, content, reference) -> None:
    done = program("kill", tmp_path / "killed", 50, 30, 1)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["kills"] >= 30
    for run in report["runs"]:
        assert content(run) == reference(50)
        verified = verify_run(LocalFolder(run))
        assert verified.ok, verified.findings
        assert verified.leftovers == []
        assert [path for path in Path(run).rglob("*") if ".tmp-" in path.name] == []


@needs_fork
@pytest.mark.parametrize(("what", "units"), [("run", 2), ("compact", 3), ("repair", 3)])
def test_a_crash_at_any_operation_is_survived(tmp_path, program, straight, what, units) -> None:
    done = program("crash", what, straight(units), tmp_path / "crashed", units)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["failed"] == [], done.stderr
    assert report["completed"]
    assert report["died"] > 10


def part(folder: Path, unit: str, table: str = "reveals") -> Path:
    (found,) = (folder / "parts" / table).glob(f"{unit}-*.parquet")
    return found


def flip(path: Path, place: float = 0.4) -> None:
    data = bytearray(path.read_bytes())
    data[int(len(data) * place)] ^= 16
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("damage", ["flip", "truncate", "delete", "empty"])
def test_a_damaged_part_is_named_set_aside_and_computed_again(finished, worker, content, damage) -> None:
    before = content(finished)
    path = part(finished, "unit-0002")
    {
        "flip": lambda: flip(path),
        "truncate": lambda: path.write_bytes(path.read_bytes()[:-100]),
        "delete": path.unlink,
        "empty": lambda: path.write_bytes(b""),
    }[damage]()
    report = verify_run(LocalFolder(finished))
    assert [finding.path for finding in report.findings] == [path.relative_to(finished).as_posix()]
    assert report.redo == ["unit-0002"]
    with pytest.raises(CorruptRunError, match="orderlens runs verify"):
        open_run(finished).reveals().to_arrow()
    repair_run(LocalFolder(finished))
    assert not open_run(finished).is_complete
    assert load_snapshot(LocalFolder(finished)).unit_keys() == set(worker.keyed_units(6)) - {"unit-0002"}
    computed: list[int] = []
    with open_writer(finished, worker.spec(6)) as writer:
        execute(writer, worker.keyed_units(6), lambda unit: computed.append(unit) or worker.tables(unit))
    assert computed == [2]
    assert content(finished) == before
    assert verify_run(LocalFolder(finished)).ok
    kept = [item for item in (finished / "quarantine").rglob("*") if item.is_file()]
    assert len(kept) == (1 if damage == "delete" else 2)  # the damaged part and its unit's other table


def test_sql_refuses_a_truncated_part(finished) -> None:
    pytest.importorskip("duckdb")
    path = part(finished, "unit-0002")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CorruptRunError, match="bytes instead of"):
        open_run(finished).sql("SELECT count(*) FROM reveals")


def test_a_foreign_parquet_file_is_never_read_and_is_reported(finished, content) -> None:
    before = content(finished)
    foreign = finished / "parts" / "reveals" / "extra.parquet"
    pq.write_table(open_run(finished).reveals().to_arrow(), foreign)
    copied = (
        finished / "parts" / "reveals" / part(finished, "unit-0001").name.replace("unit-0001", "unit-0009")
    )
    flip(part(finished, "unit-0001"), 0.5)  # not the same bytes any more, so no part of ours by its name
    copied.write_bytes(part(finished, "unit-0001").read_bytes())
    flip(part(finished, "unit-0001"), 0.5)
    assert content(finished) == before
    report = verify_run(LocalFolder(finished))
    assert {(finding.kind, Path(finding.path).name) for finding in report.findings} == {
        ("foreign", "extra.parquet"),
        ("foreign", copied.name),
    }
    assert report.redo == []
    repair_run(LocalFolder(finished))
    assert not foreign.exists()
    assert (finished / "quarantine" / "parts" / "reveals" / "extra.parquet").exists()
    assert open_run(finished).is_complete
    assert content(finished) == before


def test_a_part_of_another_run_is_foreign(finished, tmp_path, worker) -> None:
    other = tmp_path / "other"
    worker.compute(str(other), 5)
    stray = part(other, "unit-0004")
    (finished / "parts" / "reveals" / stray.name.replace("unit-0004", "unit-0044")).write_bytes(
        stray.read_bytes()
    )
    (finding,) = verify_run(LocalFolder(finished)).findings
    assert finding.kind == "foreign"


@needs_fork
def test_processes_that_start_the_same_run_at_once_share_it(tmp_path, content, reference) -> None:
    command = [sys.executable, str(SCRIPT), "run", str(tmp_path / "shared"), "24"]
    workers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    errors = [worker.communicate(timeout=300)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0, 0], errors
    assert content(tmp_path / "shared") == reference(24)
    report = verify_run(LocalFolder(tmp_path / "shared"))
    assert report.ok
    assert (report.units, report.parts) == (24, 48)


@contextmanager
def mounted(folder: Path, *options: str) -> Iterator[Path]:
    """Mount a small file system, or skip where that is not allowed."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if done.returncode != 0:
        pytest.skip(f"may not mount a tmpfs: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_stops_the_run_with_a_remedy_and_keeps_it_intact(
    tmp_path, worker, content, reference
) -> None:
    with mounted(tmp_path / "small", "size=300k") as small:
        with pytest.raises(StorageError, match=r"the disk is full.*free some space.*same command again"):
            worker.compute(str(small / "run"), 24)
        committed = load_snapshot(LocalFolder(small / "run")).unit_keys()
        assert 0 < len(committed) < 24
        report = verify_run(LocalFolder(small / "run"))
        assert report.ok, report.findings
        assert len(open_run(small / "run").outputs()) == 4 * len(committed)
        subprocess.run(["mount", "-o", "remount,size=8m", str(small)], check=True)
        worker.compute(str(small / "run"), 24)
        assert content(small / "run") == reference(24)
        assert verify_run(LocalFolder(small / "run")).leftovers == []


def test_no_space_anywhere_is_reported_the_same_way_without_a_mount(tmp_path, worker, monkeypatch) -> None:
    writer = open_writer(tmp_path, worker.spec(1))

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match="the disk is full"):
        writer.commit("unit-0000", worker.tables(0))
    monkeypatch.undo()
    assert [path.name for path in tmp_path.rglob("*") if ".tmp-" in path.name] == []
    writer.commit("unit-0000", worker.tables(0))
    writer.finish(["unit-0000"])
    writer.close()
    assert verify_run(LocalFolder(tmp_path)).ok


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Make a folder read-only, also for root (who ignores permissions but not a read-only mount)."""
    if os.geteuid() != 0:
        for path in [*folder.rglob("*"), folder]:
            path.chmod(path.stat().st_mode & ~0o222)
        try:
            yield
        finally:
            for path in [folder, *folder.rglob("*")]:
                path.chmod(path.stat().st_mode | 0o200)
        return
    bound = subprocess.run(
        ["mount", "--bind", str(folder), str(folder)], capture_output=True, text=True, check=False
    )
    if bound.returncode != 0:
        pytest.skip(f"may not bind-mount: {bound.stderr.strip()}")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_read_only_folder_can_be_read_verified_and_not_written(finished, worker, content) -> None:
    before = content(finished)
    (finished / "units" / "unit-0001.json").unlink()
    (finished / "complete.json").unlink()
    for path in finished.glob("catalog-*.json"):
        path.unlink()
    with read_only(finished):
        with pytest.raises(StorageError, match="read-only"):
            worker.compute(str(finished), 6)
        assert len(open_run(finished).samples()) == 20
        assert verify_run(LocalFolder(finished)).ok
    worker.compute(str(finished), 6)
    assert content(finished) == before


def test_a_clock_that_runs_backwards_changes_nothing(
    tmp_path, worker, content, reference, monkeypatch
) -> None:
    clock = iter(np.arange(2e9, 0, -1e4))
    monkeypatch.setattr(time, "time", lambda: float(next(clock)))
    monkeypatch.setattr(time, "time_ns", lambda: int(next(clock)) * 10**9)
    folder = tmp_path / "run"
    with open_writer(folder, worker.spec(6)) as first, open_writer(folder, worker.spec(6)) as second:
        claim = first.claim("unit-0003")
        assert claim
        for path in (folder / "claims").iterdir():
            os.utime(path, (1, 1))  # written in 1970, says the disk
        assert second.claim("unit-0003") is None
        first.commit("unit-0003", worker.tables(3))
        claim.release()
        execute(second, worker.keyed_units(6), worker.tables)
    assert content(folder) == reference(6)


def test_damaged_records_are_refused_by_readers_and_repaired(finished, worker, content) -> None:
    before = content(finished)
    (catalog,) = finished.glob("catalog-*.json")
    flip(catalog)
    with pytest.raises(CorruptRunError, match=r"catalog-000001\.json is damaged.*--repair"):
        open_run(finished)
    with pytest.raises(CorruptRunError, match="--repair"):
        worker.compute(str(finished), 6)
    report = repair_run(LocalFolder(finished))
    assert [finding.path for finding in report.findings] == ["catalog-000001.json"]
    worker.compute(str(finished), 6)
    assert content(finished) == before
    flip(finished / "units" / "unit-0001.json")
    assert content(finished) == before  # the catalog repeats it
    assert not verify_run(LocalFolder(finished)).ok
    repair_run(LocalFolder(finished))
    worker.compute(str(finished), 6)
    assert verify_run(LocalFolder(finished)).ok
    assert content(finished) == before


def test_a_damaged_catalog_of_a_compacted_run_is_rebuilt(finished, worker, content) -> None:
    compact_run(LocalFolder(finished))
    before = content(finished)
    (catalog,) = finished.glob("catalog-*.json")
    flip(catalog)
    repair_run(LocalFolder(finished))
    computed: list[int] = []
    with open_writer(finished, worker.spec(6)) as writer:
        execute(writer, worker.keyed_units(6), lambda unit: computed.append(unit) or worker.tables(unit))
    assert computed == []
    assert content(finished) == before
    assert verify_run(LocalFolder(finished)).ok


def test_a_run_without_its_spec_is_not_taken_over(finished, worker) -> None:
    (finished / "spec.json").unlink()
    with pytest.raises(RunError, match="not empty and not a run"):
        worker.compute(str(finished), 6)
    (finished / "spec.json").write_text("{")
    with pytest.raises(CorruptRunError, match=r"spec\.json is damaged"):
        open_run(finished)
