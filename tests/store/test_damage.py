"""Damage is never read: for every flipped bit the rows are those that were committed, or an error says so."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orderlens.errors import CorruptRunError
from orderlens.store import codec, parts
from orderlens.store import folder as folder_module
from orderlens.store.compact import compact_run
from orderlens.store.folder import LocalFolder
from orderlens.store.overview import details
from orderlens.store.reader import Run, open_run
from orderlens.store.records import load_snapshot
from orderlens.store.verify import verify_run

TABLES = ("reveals", "outputs")


def arrow_rows(run: Run) -> object:
    return [run.table(name).to_arrow().to_pylist() for name in TABLES], run.tables, run.is_complete


def sql_rows(run: Run) -> object:
    pytest.importorskip("duckdb")
    return [
        sorted(map(repr, run.sql(f"FROM {name}").to_arrow().to_pylist())) for name in (*TABLES, "samples")
    ]


def sample_rows(run: Run) -> object:
    return run.samples().to_arrow().to_pylist(), run.spec


def trace_rows(run: Run) -> object:
    return run.trace("s0001-0", "random").to_arrow().to_pylist()


READERS = (arrow_rows, sql_rows, sample_rows, trace_rows)


def original(folder: Path) -> dict[Callable[[Run], object], object]:
    return {reader: reader(open_run(folder)) for reader in READERS}


def flips(folder: Path, count: int, seed: int) -> Iterator[tuple[Path, int, int]]:
    """Yield (file, byte, bit): every file equally often, a part's footer as often as its pages."""
    dice = random.Random(seed)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for number in range(count):
        path = files[number % len(files)]
        size = path.stat().st_size
        footer = path.suffix == ".parquet" and number % 2
        yield path, dice.randrange(max(0, size - 2400) if footer else 0, size), dice.randrange(8)


def outcome(action: Callable[[], Any]) -> tuple[str | None, Any]:
    """Return (None, result), or the damage that was reported; anything else is a failure."""
    try:
        return None, action()
    except CorruptRunError as error:
        return str(error), None


def is_one_clear_line(problem: str) -> bool:
    return "damaged" in problem and "\n" not in problem


def campaign(folder: Path, count: int, seed: int) -> dict[str, int]:
    """Flip one bit at a time and read in every way; return how often damage was reported."""
    expected = original(folder)
    seen = dict.fromkeys(("flips", "damage", "identical"), 0)
    for path, place, bit in flips(folder, count, seed):
        sound = path.read_bytes()
        broken = bytearray(sound)
        broken[place] ^= 1 << bit
        path.write_bytes(broken)
        where = f"{path.name}, byte {place}, bit {bit}"
        for reader in READERS:
            problem, found = outcome(lambda reader=reader: reader(open_run(folder)))
            seen["damage" if problem else "identical"] += 1
            assert is_one_clear_line(problem) if problem else found == expected[reader], where
        problem, report = outcome(lambda: verify_run(LocalFolder(folder)))
        assert is_one_clear_line(problem) if problem else not report.ok, where
        path.write_bytes(sound)
        seen["flips"] += 1
    assert original(folder) == expected
    return seen


@pytest.mark.parametrize("state", ["finished", "unfinished", "compacted"])
def test_no_flipped_bit_is_read(tmp_path, straight, state) -> None:
    folder = shutil.copytree(straight(2), tmp_path / "run")
    if state == "unfinished":
        for path in (*folder.glob("catalog-*.json"), folder / "complete.json"):
            path.unlink()
    if state == "compacted":
        compact_run(LocalFolder(folder))
    seen = campaign(folder, 16, seed=len(state))
    assert seen["damage"] > 8


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_no_flipped_bit_of_thousands_is_read(tmp_path, straight, seed) -> None:
    folder = shutil.copytree(straight(2), tmp_path / "run")
    if seed % 2:
        compact_run(LocalFolder(folder))
    seen = campaign(folder, 800, seed=100 + seed)
    assert seen["flips"] == 800


def test_a_flip_between_opening_and_reading_is_noticed(finished) -> None:
    run = open_run(finished)
    before = [reader(run) for reader in READERS]
    (path,) = (finished / "parts" / "reveals").glob("unit-0001-*.parquet")
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 2
    path.write_bytes(data)
    for reader in READERS[:3]:
        with pytest.raises(CorruptRunError, match=r"unit-0001-.* is damaged .*runs verify"):
            reader(run)
    data[len(data) // 3] ^= 2
    path.write_bytes(data)
    assert [reader(run) for reader in READERS] == before


@pytest.mark.parametrize("table", TABLES)
def test_parts_that_were_swapped_are_noticed(finished, table) -> None:
    one, two = ((finished / "parts" / table).glob(f"unit-000{unit}-*.parquet") for unit in (1, 2))
    first, second = next(one), next(two)
    assert pq.ParquetFile(first).metadata.num_rows == pq.ParquetFile(second).metadata.num_rows
    aside = finished / "aside"
    for source, target in ((first, aside), (second, first), (aside, second)):
        source.replace(target)
    for reader in (arrow_rows, sql_rows):
        with pytest.raises(CorruptRunError, match="is damaged"):
            reader(open_run(finished))
    assert {finding.kind for finding in verify_run(LocalFolder(finished)).findings} == {"damaged"}


def test_a_part_of_the_same_size_with_its_times_kept_is_noticed(finished, monkeypatch) -> None:
    monkeypatch.setattr(folder_module, "SETTLED_NS", 0)
    run = open_run(finished)
    arrow_rows(run)
    (path,) = (finished / "parts" / "reveals").glob("unit-0001-*.parquet")
    times, data = path.stat(), bytearray(path.read_bytes())
    data[100] ^= 1
    while (finished / "clock").touch() or (finished / "clock").stat().st_ctime_ns == times.st_ctime_ns:
        time.sleep(0.001)  # the disk counts in steps
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(CorruptRunError, match="digest"):
        arrow_rows(run)


def test_a_part_is_compared_once_per_process_while_it_does_not_change(finished, monkeypatch) -> None:
    compared: list[str] = []
    plain = parts._compare

    def counted(handle: pa.NativeFile, part: Any) -> None:
        compared.append(part.path)
        plain(handle, part)

    monkeypatch.setattr(parts, "_compare", counted)
    monkeypatch.setattr(folder_module, "SETTLED_NS", 10**15)  # written this second, however slow we are
    arrow_rows(open_run(finished))
    fresh = len(compared)
    arrow_rows(open_run(finished))
    assert len(compared) == 2 * fresh  # times cannot tell versions apart yet
    monkeypatch.setattr(folder_module, "SETTLED_NS", 0)
    compared.clear()
    for reader in (*READERS, arrow_rows):
        reader(open_run(finished))
    assert sorted(compared) == sorted(part.path for part in load_snapshot(LocalFolder(finished)).parts())


def test_sql_compares_only_the_tables_that_a_query_names(finished, monkeypatch) -> None:
    pytest.importorskip("duckdb")
    (path,) = (finished / "parts" / "reveals").glob("unit-0003-*.parquet")
    path.write_bytes(path.read_bytes()[::-1])
    run = open_run(finished)
    assert run.sql("SELECT count(*) AS n FROM outputs").to_arrow()["n"].to_pylist() == [24]
    for query in ("SELECT count(*) FROM Reveals", 'SELECT max(mean) FROM "samples"', "SELECT 1"):
        with pytest.raises(CorruptRunError, match=r"unit-0003-.* is damaged"):
            run.sql(query)
    for action in (run.connection, run.reveals().to_duckdb, run.samples().to_duckdb):
        with pytest.raises(CorruptRunError, match=r"unit-0003-.* is damaged"):
            action()


def test_local_parts_are_opened_without_python_files(finished, monkeypatch) -> None:
    """A Python file that an Arrow thread lets go while the interpreter ends aborts the process."""
    opened: list[type] = []
    plain = pq.ParquetFile

    def watched(source: object, **options: Any) -> pq.ParquetFile:
        opened.append(type(source))
        return plain(source, **options)

    monkeypatch.setattr(codec.pq, "ParquetFile", watched)
    run = open_run(finished)
    for reader in READERS:
        reader(run)
    list(run.iter_traces())
    verify_run(LocalFolder(finished))
    compact_run(LocalFolder(finished))
    details(LocalFolder(finished))
    assert set(opened) == {pa.OSFile}
    assert len(opened) > 40
