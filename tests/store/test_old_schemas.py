"""Runs of other schema versions: older minor ones are read and go on, newer ones are read, others refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from orderlens.errors import RunError
from orderlens.store.codec import sort_rows
from orderlens.store.compact import compact_run
from orderlens.store.folder import LocalFolder
from orderlens.store.reader import memory_run, open_run
from orderlens.store.records import digest_of, load_snapshot
from orderlens.store.schema import SCHEMAS
from orderlens.store.verify import verify_run
from orderlens.store.writer import open_writer

OLD = Path(__file__).with_name("data") / "run-1.0"
"""A run that version 1.0 wrote: two units, of which the second did not store ``n_committed``."""


def test_a_run_of_schema_1_0_is_read_as_one_token_per_pass(worker) -> None:
    run = open_run(OLD)
    table = run.reveals().to_arrow()
    assert table.column_names == SCHEMAS["reveals"].names
    assert table["forward"].equals(table["step"])
    assert set(table["n_committed"].to_pylist()) == {1}  # also in the unit that did not store it
    fresh = memory_run({"reveals": pa.concat_tables(worker.reveals(unit) for unit in range(2))}, {})
    assert sort_rows(table, "reveals").equals(fresh.reveals().to_arrow())
    assert run.reveals().to_arrow(["n_committed", "forward"]).equals(table.select(["n_committed", "forward"]))
    rows = run.sql("SELECT forward = step AS ok, n_committed AS n, count(*) AS k FROM reveals GROUP BY ALL")
    assert rows.to_arrow().to_pylist() == [{"ok": True, "n": 1, "k": table.num_rows}]
    assert run.table("revisions").to_arrow().num_rows == run.sql("FROM revisions").to_arrow().num_rows == 0
    assert run.samples().to_arrow().equals(fresh.samples().to_arrow())
    assert len(run.trace("s0001-0", "max-prob").to_arrow(["forward"])) == 24
    report = verify_run(LocalFolder(OLD))
    assert report.ok, report.findings


def test_an_unfinished_run_of_schema_1_0_is_resumed_and_compacted(tmp_path, worker, content) -> None:
    folder = shutil.copytree(OLD, tmp_path / "old")
    for name in ("complete.json", "catalog-000001.json", "units/unit-0001.json"):
        (folder / name).unlink()
    worker.compute(str(folder), 2)
    parts = {part.layout for part in load_snapshot(LocalFolder(folder)).parts("reveals")}
    assert len(parts) == 2  # one part of each version
    assert content(folder) == content(OLD)
    assert sorted(open_run(folder).sql("FROM reveals").to_arrow().to_pylist(), key=str) == sorted(
        open_run(OLD).sql("SELECT 'old' AS run, * EXCLUDE run FROM reveals").to_arrow().to_pylist(), key=str
    )
    compact_run(LocalFolder(folder))
    before = sort_rows(open_run(OLD).reveals().to_arrow(), "reveals")
    assert open_run(folder).reveals().to_arrow().equals(before)
    assert verify_run(LocalFolder(folder)).ok


def test_a_run_of_schema_1_0_with_another_spec_is_refused_in_one_line(tmp_path, worker) -> None:
    folder = shutil.copytree(OLD, tmp_path / "old")
    with pytest.raises(
        RunError, match=r"older version \(schema 1\.0\).*likelihood: the run has nothing"
    ) as caught:
        open_writer(folder, {**worker.spec(2), "likelihood": {"random": "exact"}})
    assert "\n" not in str(caught.value)


def with_version(folder: Path, version: str) -> None:
    """Give a run another schema version, as another version of this package would have written it."""
    body = json.loads((folder / "spec.json").read_text())
    body = {**body, "schema_version": version}
    del body["digest"]
    (folder / "spec.json").write_text(json.dumps(body | {"digest": digest_of(body)}))


@pytest.mark.parametrize(
    ("version", "message"), [("0.1", "older than.*decode it again"), ("2.0", "newer than.*upgrade orderlens")]
)
def test_other_major_schemas_are_refused(finished, worker, version, message) -> None:
    with_version(finished, version)
    for action in (lambda: open_run(finished), lambda: worker.compute(str(finished), 6)):
        with pytest.raises(RunError, match=message):
            action()


def test_a_newer_minor_schema_is_read_and_not_changed(finished, worker) -> None:
    with_version(finished, "1.9")
    assert len(open_run(finished).samples()) == 24
    with pytest.raises(RunError, match=r"schema 1\.9, newer than .*can be read, not changed"):
        open_writer(finished, worker.spec(6))
