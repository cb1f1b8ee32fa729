from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orderlens.errors import CorruptRunError, RunError
from orderlens.store.folder import LocalFolder
from orderlens.store.overview import details, overview
from orderlens.store.parts import trace_problem
from orderlens.store.reader import open_run
from orderlens.store.records import seal, unseal
from orderlens.store.verify import repair_run, verify_run
from orderlens.store.writer import open_writer


def rewrite(folder: Path, unit: str, change) -> None:
    """Change a part's rows and make its record match, as a faulty program would."""
    record = folder / "units" / f"{unit}.json"
    for path in folder.glob("catalog-*.json"):
        path.unlink()
    body = unseal(record.read_bytes())
    assert body is not None
    entry = next(item for item in body["parts"] if item["table"] == "reveals")
    path = folder / entry["path"]
    table = pq.read_table(path)
    changed = change(table).replace_schema_metadata(table.schema.metadata)
    pq.write_table(changed, path)
    data = path.read_bytes()
    entry |= {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    record.write_bytes(seal({name: value for name, value in body.items() if name != "version"}))


def with_value(column: str, row: int, value: object):
    def change(table: pa.Table) -> pa.Table:
        values = table[column].to_pylist()
        values[row] = value
        kind = table.schema.field(column).type
        return table.set_column(table.column_names.index(column), column, pa.array(values, kind))

    return change


@pytest.mark.parametrize(
    ("column", "row", "value", "words"),
    [
        ("logq", 3, 0.25, "logq = 0.25"),
        ("logq", 3, float("nan"), "logq = nan"),
        ("step", 5, 7, "step 7 instead of 5"),
        ("position", 5, None, "position .* is revealed twice"),
    ],
)
def test_impossible_values_are_found_although_the_digest_fits(finished, column, row, value, words) -> None:
    def repeated(table: pa.Table) -> pa.Table:
        return with_value("position", row, table["position"][row - 1].as_py())(table)

    rewrite(finished, "unit-0003", repeated if value is None else with_value(column, row, value))
    (finding,) = verify_run(LocalFolder(finished)).findings
    assert finding.kind == "values"
    assert pytest.importorskip("re").search(words, finding.message), finding.message
    assert finding.units == ("unit-0003",)
    assert "s0003" in finding.message


def test_the_message_about_a_damaged_part_does_not_repeat_its_path(finished) -> None:
    part = next((finished / "parts/reveals").glob("unit-0003*.parquet"))
    size = part.stat().st_size
    part.write_bytes(part.read_bytes()[:-9])
    (finding,) = verify_run(LocalFolder(finished)).findings
    assert (finding.kind, finding.message) == ("damaged", f"{size - 9} bytes instead of {size}")


def test_a_trace_in_two_units_is_found(tmp_path, worker) -> None:
    with open_writer(tmp_path, worker.spec(2)) as writer:
        writer.commit("one", {"reveals": worker.reveals(0)})
        writer.commit("two", {"reveals": worker.reveals(0)})
    findings = verify_run(LocalFolder(tmp_path)).findings
    assert {finding.kind for finding in findings} == {"duplicate"}
    assert len(findings) == 4


def test_rows_that_do_not_fit_the_record_are_found(finished) -> None:
    record = finished / "units" / "unit-0001.json"
    for path in finished.glob("catalog-*.json"):
        path.unlink()
    body = unseal(record.read_bytes())
    assert body is not None
    del body["version"]
    body["units"]["unit-0001"]["reveals"] += 1
    record.write_bytes(seal(body))
    (finding,) = verify_run(LocalFolder(finished)).findings
    assert "committed 97 rows of 'reveals', the parts contain 96" in finding.message


def test_an_edited_spec_is_reported_and_not_repaired(finished) -> None:
    path = finished / "spec.json"
    body = json.loads(path.read_text())
    body["spec"]["units"] = 99
    path.write_text(json.dumps(body))
    assert [finding.kind for finding in verify_run(LocalFolder(finished)).findings] == ["spec"]
    with pytest.raises(CorruptRunError, match="edited"):
        repair_run(LocalFolder(finished))


def test_damage_beside_the_spec_is_reported_and_repaired(finished, worker, content) -> None:
    before, path = content(finished), finished / "spec.json"
    path.write_text(path.read_text().replace('"provenance"', '"provenancf"'))
    (environment,) = (finished / "environments").iterdir()
    environment.write_bytes(environment.read_bytes().replace(b"python", b"pythoo"))
    report = verify_run(LocalFolder(finished))
    assert sorted(finding.kind for finding in report.findings) == ["environment", "spec"]
    assert report.redo == []
    with pytest.raises(CorruptRunError, match=r"spec\.json is damaged.*--repair"):
        worker.compute(str(finished), 6)
    with pytest.raises(CorruptRunError, match=r"environments/.*is damaged"):
        details(LocalFolder(finished))
    assert content(finished) == before
    repair_run(LocalFolder(finished))
    assert open_run(finished).is_complete
    worker.compute(str(finished), 6)
    assert verify_run(LocalFolder(finished)).ok
    assert content(finished) == before


def test_a_record_in_the_place_of_another_is_damage(finished) -> None:
    for path in finished.glob("catalog-*.json"):
        path.unlink()
    units = finished / "units"
    (units / "unit-0002.json").write_bytes((units / "unit-0001.json").read_bytes())
    with pytest.raises(CorruptRunError, match=r"unit-0002\.json is damaged"):
        open_run(finished)
    kinds = {(finding.kind, finding.path) for finding in verify_run(LocalFolder(finished)).findings}
    assert ("record", "units/unit-0002.json") in kinds


def test_a_damaged_completion_is_said_not_taken_for_an_unfinished_run(finished) -> None:
    path = finished / "complete.json"
    path.write_bytes(path.read_bytes().replace(b"unit-0001", b"unit-0009"))
    with pytest.raises(CorruptRunError, match=r"complete\.json is damaged"):
        _ = open_run(finished).is_complete
    assert overview(LocalFolder(finished))["state"] == "damaged"


def test_a_sound_run_is_ok_and_quick_looks_at_sizes_only(finished) -> None:
    report = verify_run(LocalFolder(finished))
    assert report.ok
    assert report.complete
    assert (report.units, report.parts) == (6, 12)
    assert report.rows == {"outputs": 24, "reveals": 576}
    path = next((finished / "parts" / "reveals").iterdir())
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    assert verify_run(LocalFolder(finished), quick=True).ok
    assert not verify_run(LocalFolder(finished)).ok
    path.write_bytes(bytes(data[:-1]))
    assert not verify_run(LocalFolder(finished), quick=True).ok


def test_expected_units_that_are_gone_are_named(finished, worker, content) -> None:
    before = content(finished)
    for path in finished.glob("catalog-*.json"):
        path.unlink()
    (finished / "units" / "unit-0005.json").unlink()
    report = verify_run(LocalFolder(finished))
    assert report.redo == ["unit-0005"]
    assert len(report.leftovers) == 2  # its parts, written but no longer committed
    assert not open_run(finished).is_complete
    repair_run(LocalFolder(finished))
    worker.compute(str(finished), 6)
    assert content(finished) == before
    assert verify_run(LocalFolder(finished)).ok


def test_a_working_worker_does_not_look_like_damage_and_stops_a_repair(tmp_path, worker) -> None:
    with open_writer(tmp_path, worker.spec(3)) as writer:
        writer.commit("unit-0000", worker.tables(0))
        claim = writer.claim("unit-0001")
        parts, _ = writer._encode("unit-0001", worker.tables(1))
        writer.folder.put(parts[0][0].path, parts[0][1])  # half a commit
        report = verify_run(LocalFolder(tmp_path))
        assert report.ok, report.findings
        assert report.leftovers == [parts[0][0].path]
        with pytest.raises(RunError, match=r"1 claims of workers that may be active.*--force"):
            repair_run(LocalFolder(tmp_path))
        repair_run(LocalFolder(tmp_path), force=True)
        assert claim
        claim.release()


def test_other_foreign_files_are_named_too(finished) -> None:
    (finished / "notes.txt").write_text("mine")
    (finding,) = verify_run(LocalFolder(finished)).findings
    assert (finding.kind, finding.path) == ("foreign", "notes.txt")


def test_positions_may_repeat_between_traces_only() -> None:
    columns = {
        "sample_id": ["a", "a", "b", "b"],
        "order": ["random"] * 4,
        "seed": pa.nulls(4, pa.int64()),
        "step": np.array([0, 1, 0, 1]),
        "position": np.array([5, 6, 6, 5]),
    }
    assert trace_problem(pa.table(columns)) is None
    columns["position"] = np.array([5, 6, 5, 5])
    assert "position 5 is revealed twice at sample_id b" in str(trace_problem(pa.table(columns)))
