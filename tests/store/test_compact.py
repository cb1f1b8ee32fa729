from __future__ import annotations

import hashlib
from pathlib import Path

import pyarrow as pa
import pytest

from orderlens.errors import CorruptRunError, RunError
from orderlens.runs.loop import execute
from orderlens.store.compact import compact_run
from orderlens.store.folder import LocalFolder
from orderlens.store.reader import open_run
from orderlens.store.records import load_snapshot
from orderlens.store.verify import repair_run, verify_run
from orderlens.store.writer import open_writer


def one_order_units(worker) -> dict[str, tuple[int, str]]:
    return {f"{order}-{unit}": (unit, order) for unit in range(4) for order in worker.ORDERS}


def one_order_tables(worker, payload: tuple[int, str]) -> dict[str, pa.Table]:
    unit, order = payload
    tables = worker.tables(unit)
    chosen = {name: table.filter(pa.compute.equal(table["order"], order)) for name, table in tables.items()}
    return {
        name: table.append_column("task", pa.array(["a b"] * table.num_rows))
        for name, table in chosen.items()
    }


@pytest.fixture
def by_order(tmp_path, worker) -> Path:
    """A run whose units have one task and one order each."""
    folder = tmp_path / "by-order"
    with open_writer(folder, worker.spec(4)) as writer:
        execute(writer, one_order_units(worker), lambda payload: one_order_tables(worker, payload))
    return folder


def rows(folder: Path, name: str) -> list[dict]:
    found = open_run(folder).table(name).to_arrow().to_pylist()
    return sorted(found, key=lambda row: (row["order"], row["sample_id"], row.get("step", 0)))


def test_rows_survive_and_parts_are_partitioned_by_task_and_order(by_order) -> None:
    before = {name: rows(by_order, name) for name in ("reveals", "outputs")}
    samples = open_run(by_order).samples().to_arrow()
    done = compact_run(LocalFolder(by_order))
    assert (done.parts_before, done.parts_after) == (16, 4)
    assert done.bytes_after < done.bytes_before
    assert {name: rows(by_order, name) for name in before} == before
    assert open_run(by_order).samples().to_arrow().equals(samples)
    folders = {path.parent.relative_to(by_order).as_posix() for path in by_order.rglob("*.parquet")}
    assert "parts/reveals/task=a%20b/order=random" in folders
    assert len(folders) == 4
    assert len(list((by_order / "units").iterdir())) == 2
    report = verify_run(LocalFolder(by_order))
    assert report.ok, report.findings
    assert (report.units, report.leftovers) == (8, [])


def test_units_with_all_orders_are_split_where_the_orders_are_large(finished, monkeypatch) -> None:
    before = {name: rows(finished, name) for name in ("reveals", "outputs")}
    trace = open_run(finished).trace("s0003-1", "random").to_arrow()
    monkeypatch.setattr("orderlens.store.compact.PARTITION_ROWS", 200)
    compact_run(LocalFolder(finished))
    folders = sorted(path.parent.relative_to(finished).as_posix() for path in finished.rglob("*.parquet"))
    assert folders == ["parts/outputs", "parts/reveals/order=max-prob", "parts/reveals/order=random"]
    assert {name: rows(finished, name) for name in before} == before
    assert open_run(finished).trace("s0003-1", "random").to_arrow().equals(trace)
    assert verify_run(LocalFolder(finished)).ok
    next((finished / "parts" / "reveals" / "order=random").iterdir()).unlink()
    assert len(verify_run(LocalFolder(finished)).redo) == 6  # the other order's rows go with them
    repair_run(LocalFolder(finished))
    assert list(finished.glob("parts/**/*.parquet")) == []


def test_compacting_again_changes_nothing_and_resuming_computes_nothing(by_order, worker, content) -> None:
    compact_run(LocalFolder(by_order))
    before, files = content(by_order), sorted(path for path in by_order.rglob("*.parquet"))
    again = compact_run(LocalFolder(by_order))
    assert again.parts_before == again.parts_after
    computed: list[object] = []
    with open_writer(by_order, worker.spec(4)) as writer:
        execute(writer, one_order_units(worker), lambda payload: computed.append(payload) or {})
    assert computed == []
    assert content(by_order) == before
    assert sorted(path for path in by_order.rglob("*.parquet")) == files


def test_traces_and_sql_work_after_compaction(by_order) -> None:
    expected = open_run(by_order).trace("s0002-1", "max-prob").to_arrow()
    compact_run(LocalFolder(by_order), target_rows=100)
    run = open_run(by_order)
    assert run.trace("s0002-1", "max-prob").to_arrow().equals(expected)
    pytest.importorskip("duckdb")
    query = "SELECT count(*) AS n, sum(logq::DOUBLE) AS s, sum(competitor_logprob::DOUBLE) AS c FROM reveals"
    (row,) = run.sql(query).to_arrow().to_pylist()
    table = run.reveals().to_arrow()
    assert row["n"] == table.num_rows
    assert row["s"] == pytest.approx(sum(table["logq"].to_pylist()), rel=1e-9)
    assert row["c"] == pytest.approx(sum(table["competitor_logprob"].to_pylist()), rel=1e-9)


def test_target_size_bounds_the_parts(finished) -> None:
    compact_run(LocalFolder(finished), target_rows=200)
    sizes = [part.rows for part in load_snapshot(LocalFolder(finished)).parts("reveals")]
    assert sizes == [192, 192, 192]


def test_units_added_later_are_compacted_with_the_rest(by_order, worker) -> None:
    compact_run(LocalFolder(by_order))
    with open_writer(by_order, worker.spec(4)) as writer:
        execute(writer, {"late": (9, "random")}, lambda payload: one_order_tables(worker, payload))
    assert len(open_run(by_order).samples()) == 18
    compact_run(LocalFolder(by_order))
    assert len(open_run(by_order).samples()) == 18
    assert len(load_snapshot(LocalFolder(by_order)).bundles) == 2
    assert verify_run(LocalFolder(by_order)).ok


def test_a_damaged_compacted_part_requeues_exactly_its_units(by_order, worker) -> None:
    before = rows(by_order, "reveals")
    compact_run(LocalFolder(by_order))
    (path,) = (by_order / "parts" / "reveals" / "task=a%20b" / "order=random").iterdir()
    path.write_bytes(path.read_bytes()[:-7])
    report = repair_run(LocalFolder(by_order))
    assert report.redo == [f"random-{unit}" for unit in range(4)]
    computed: list[str] = []
    with open_writer(by_order, worker.spec(4)) as writer:
        execute(
            writer,
            one_order_units(worker),
            lambda payload: computed.append(payload[1]) or one_order_tables(worker, payload),
        )
    assert computed == ["random"] * 4
    assert rows(by_order, "reveals") == before
    assert verify_run(LocalFolder(by_order)).ok


def test_damage_is_not_compacted_away(by_order) -> None:
    path = next((by_order / "parts" / "reveals").iterdir())
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(bytes(data))
    files = {item: item.read_bytes() for item in by_order.rglob("*") if item.is_file()}
    with pytest.raises(CorruptRunError, match=r"digest does not match.*--repair"):
        compact_run(LocalFolder(by_order))
    assert {item: item.read_bytes() for item in files if item.exists()} == files


def test_an_unfinished_run_is_not_compacted(tmp_path, worker) -> None:
    with open_writer(tmp_path, worker.spec(2)) as writer:
        writer.commit("unit-0000", worker.tables(0))
    with pytest.raises(RunError, match="not complete"):
        compact_run(LocalFolder(tmp_path))


def test_a_reader_opened_before_a_compaction_is_told_to_open_again(by_order) -> None:
    run = open_run(by_order)
    compact_run(LocalFolder(by_order))
    with pytest.raises(CorruptRunError, match="was compacted or repaired during reading; open it again"):
        run.reveals().to_arrow()


def test_a_late_commit_of_a_compacted_unit_adds_nothing(by_order, worker) -> None:
    late = open_writer(by_order, worker.spec(4))
    before = rows(by_order, "reveals")
    compact_run(LocalFolder(by_order))
    late.commit("random-1", one_order_tables(worker, (1, "random")))
    assert rows(by_order, "reveals") == before
    assert late.claim("random-1") is None
    late.close()
    compact_run(LocalFolder(by_order))
    assert verify_run(LocalFolder(by_order)).leftovers == []


def test_compacted_bytes_do_not_depend_on_who_committed_when(tmp_path, worker) -> None:
    digests = []
    for name, keys in (("forward", range(5)), ("backward", reversed(range(5)))):
        folder = tmp_path / name
        with open_writer(folder, worker.spec(5)) as writer:
            for unit in keys:
                writer.commit(f"unit-{unit:04d}", worker.tables(unit))
            writer.finish(worker.keyed_units(5))
        compact_run(LocalFolder(folder))
        files = sorted(folder.rglob("*.parquet"))
        digests.append(
            [(path.relative_to(folder), hashlib.sha256(path.read_bytes()).digest()) for path in files]
        )
    assert digests[0] == digests[1]
