from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from orderlens.cli.main import main
from orderlens.store.reader import open_run
from orderlens.store.records import digest_of


@pytest.fixture
def run(tmp_path, worker) -> Path:
    folder = tmp_path / "runs" / "one"
    worker.compute(str(folder), 3)
    return folder


def answer(capsys, *arguments: object) -> tuple[int, str, str]:
    code = main([str(item) for item in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def answer_json(capsys, *arguments: object):
    code, out, _ = answer(capsys, *arguments, "--json")
    return code, json.loads(out)


def test_list_shows_state_size_and_orders(run, worker, capsys) -> None:
    with_stop = run.parent / "two"
    with worker.open_writer(with_stop, worker.spec(2)) as writer:
        writer.commit("unit-0000", worker.tables(0))
    code, found = answer_json(capsys, "runs", "list", run.parent)
    assert code == 0
    assert [(item["state"], item["units"]) for item in found] == [("complete", 3), ("incomplete", 1)]
    assert found[0]["rows"] == {"outputs": 12, "reveals": 288}
    assert found[0]["orders"] == ["max-prob", "random"]
    code, out, _ = answer(capsys, "runs", "list", run.parent)
    assert code == 0
    assert "complete" in out
    assert "288" in out


def test_list_shows_runs_that_cannot_be_read(run, capsys) -> None:
    body = {"format": "orderlens-run", "schema_version": "9.0", "spec": {}, "spec_digest": ""}
    (run / "spec.json").write_text(json.dumps(body | {"digest": digest_of(body)}))
    code, found = answer_json(capsys, "runs", "list", run.parent)
    assert code == 0
    assert found[0]["state"] == "unreadable"
    assert "written by another version of orderlens (schema 9.0)" in found[0]["problem"]


def test_show(run, capsys) -> None:
    code, facts = answer_json(capsys, "runs", "show", run)
    assert code == 0
    assert facts["spec"]["kind"] == "score"
    assert facts["provenance"]["versions"]["orderlens"]
    assert facts["environments"][0]["units"] == 3
    code, out, _ = answer(capsys, "runs", "show", run)
    assert code == 0
    assert "complete" in out
    assert '"kind": "score"' in out


def test_verify_says_what_is_wrong_and_repair_queues_it_again(run, worker, capsys) -> None:
    assert answer(capsys, "runs", "verify", run)[0] == 0
    (path,) = (run / "parts" / "reveals").glob("unit-0001-*")
    path.write_bytes(path.read_bytes()[:-20])
    code, out, _ = answer(capsys, "runs", "verify", run)
    assert code == 1
    assert path.name in out
    assert "units to redo: unit-0001" in out
    assert answer(capsys, "runs", "verify", run, "--quick")[0] == 1
    code, report = answer_json(capsys, "runs", "verify", run, "--repair")
    assert code == 0
    assert report["repaired"]
    assert report["redo"] == ["unit-0001"]
    worker.compute(str(run), 3)
    code, report = answer_json(capsys, "runs", "verify", run)
    assert (code, report["ok"], report["complete"]) == (0, True, True)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "arrow"])
@pytest.mark.parametrize("table", ["samples", "outputs", "reveals"])
def test_export(run, tmp_path, capsys, kind, table) -> None:
    target = tmp_path / f"{table}.{kind}"
    code, done = answer_json(capsys, "runs", "export", run, "--table", table, "--out", target)
    expected = open_run(run).table(table).to_arrow()
    assert (code, done["rows"]) == (0, expected.num_rows)
    if kind == "csv":
        with target.open(newline="", encoding="utf-8") as handle:
            rows = list(csv.DictReader(handle))
        assert len(rows) == expected.num_rows
        assert list(rows[0]) == expected.column_names
    elif kind == "jsonl":
        lines = [json.loads(line) for line in target.read_text(encoding="utf-8").splitlines()]
        assert [line["sample_id"] for line in lines] == expected["sample_id"].to_pylist()
    elif kind == "parquet":
        assert pq.read_table(target).equals(expected)
    else:
        assert pyarrow.feather.read_table(target).equals(expected)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_export_refuses_to_overwrite_and_unknown_formats(run, tmp_path, capsys) -> None:
    target = tmp_path / "x.csv"
    target.write_text("mine")
    code, _, err = answer(capsys, "runs", "export", run, "--out", target)
    assert code == 2
    assert "--overwrite" in err
    assert target.read_text() == "mine"
    assert answer(capsys, "runs", "export", run, "--out", target, "--overwrite")[0] == 0
    code, _, err = answer(capsys, "runs", "export", run, "--out", tmp_path / "x.xls")
    assert code == 2
    assert "parquet, csv, jsonl, arrow" in err
    code, _, err = answer(capsys, "runs", "export", run, "--out", tmp_path / "y.csv", "--table", "reveal")
    assert code == 2
    assert "did you mean 'reveals'" in err


def test_compact(run, capsys) -> None:
    code, done = answer_json(capsys, "runs", "compact", run)
    assert code == 0
    assert (done["parts_before"], done["parts_after"]) == (6, 2)
    assert answer(capsys, "runs", "verify", run)[0] == 0
    code, out, _ = answer(capsys, "runs", "compact", run)
    assert code == 0
    assert "2 parts" in out


@pytest.mark.parametrize("command", ["show", "verify", "compact", "list"])
def test_a_place_without_a_run_is_bad_input_in_one_line(tmp_path, capsys, command) -> None:
    code, _, err = answer(capsys, "runs", command, tmp_path / "nothing")
    assert code == 2
    assert "it does not exist" in err if command == "list" else "spec.json" in err
    assert len(err.strip().splitlines()) == 1
    assert "Traceback" not in err


def test_help_names_the_commands(capsys) -> None:
    code, out, _ = answer(capsys, "runs", "--help")
    assert code == 0
    for name in ("list", "show", "verify", "export", "compact"):
        assert name in out
