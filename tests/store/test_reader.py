from __future__ import annotations

import math
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from orderlens.errors import RunError, UnknownNameError, UserInputError
from orderlens.runs.loop import execute
from orderlens.store.codec import trace_starts
from orderlens.store.reader import memory_run, open_run
from orderlens.store.schema import SCHEMAS
from orderlens.store.writer import open_writer


def slow_statistics(rows: list[dict]) -> dict[str, float]:
    """Return the path statistics of one trace the obvious way."""
    counted = [row for row in rows if not row["is_overflow"]]
    content = [row for row in counted if not row["is_eos"] and not row["is_special"]]

    def moments(chosen: list[dict]) -> tuple[int, float, float, float]:
        values = [float(row["logq"]) for row in chosen]
        n = len(values)
        if n == 0:
            return 0, math.nan, math.nan, math.nan
        mean = math.fsum(values) / n
        return n, mean, math.fsum((value - mean) ** 2 for value in values) / n, math.fsum(values)

    n, mean, var, log_prob = moments(counted)
    n_content, content_mean, content_var, _ = moments(content)
    return {
        "n": n,
        "mean": mean,
        "var": var,
        "n_content": n_content,
        "content_mean": content_mean,
        "content_var": content_var,
        "log_prob": log_prob,
    }


def check_samples(samples: pa.Table, reveals: pa.Table) -> None:
    traces: dict[tuple, list[dict]] = {}
    for row in reveals.to_pylist():
        traces.setdefault((row["sample_id"], row["order"], row["seed"]), []).append(row)
    assert samples.num_rows == len(traces)
    for row in samples.to_pylist():
        expected = slow_statistics(traces[row["sample_id"], row["order"], row["seed"]])
        for name, value in expected.items():
            assert row[name] == pytest.approx(value, rel=1e-12, abs=1e-12, nan_ok=True), name


def test_samples_agree_with_a_plain_loop(finished) -> None:
    run = open_run(finished)
    check_samples(run.samples().to_arrow(), run.reveals().to_arrow())


def test_the_worked_example() -> None:
    q = np.log([0.5, 0.25])
    table = pa.table(
        {
            "sample_id": ["a", "a"],
            "order": ["random"] * 2,
            "block": [0, 0],
            "step": [0, 1],
            "position": [0, 1],
            "token_id": [1, 2],
            "logq": q,
        }
    )
    (row,) = memory_run({"reveals": table}, {}).samples().to_arrow().to_pylist()
    assert row["var"] == pytest.approx(0.12011325347955035, abs=1e-14)
    assert row["mean"] == pytest.approx(q.mean())
    assert row["log_prob"] == pytest.approx(q.sum())
    assert row["n_content"] == 2


def test_undefined_is_nan_and_counted() -> None:
    base = {"order": ["random"], "block": [0], "step": [0], "position": [0], "token_id": [1], "logq": [-1.0]}
    only_eos = pa.table({"sample_id": ["a"], **base, "is_eos": [True], "is_overflow": [False]})
    only_overflow = pa.table({"sample_id": ["b"], **base, "is_eos": [False], "is_overflow": [True]})
    run = memory_run({"reveals": pa.concat_tables([only_eos, only_overflow])}, {})
    eos, overflow = run.samples().to_arrow().to_pylist()
    assert (eos["n"], eos["n_content"], eos["n_eos"]) == (1, 0, 1)
    assert math.isnan(eos["content_mean"])
    assert eos["var"] == 0.0
    assert (overflow["n"], overflow["n_overflow"]) == (0, 1)
    assert math.isnan(overflow["mean"])
    assert math.isnan(overflow["log_prob"])


def test_memory_and_folder_give_the_same_run(finished, worker) -> None:
    parts = [worker.tables(unit) for unit in range(6)]
    joined = {name: pa.concat_tables([part[name] for part in parts]) for name in parts[0]}
    memory, folder = memory_run(joined, worker.spec(6)), open_run(finished)
    assert memory.spec == folder.spec
    assert memory.samples().to_arrow().equals(folder.samples().to_arrow())
    assert memory.outputs().to_arrow().equals(folder.outputs().to_arrow())
    by = [("order", "ascending"), ("sample_id", "ascending"), ("step", "ascending")]
    assert memory.reveals().to_arrow().sort_by(by).equals(folder.reveals().to_arrow().sort_by(by))
    assert memory.tables == folder.tables == ["outputs", "reveals"]
    assert memory.is_complete


def test_sql_shows_the_same_rows_as_arrow(finished, worker) -> None:
    pytest.importorskip("duckdb")
    for run in (open_run(finished), memory_run(worker.tables(0), {})):
        names = ", ".join(f'"{name}"' for name in run.reveals().columns)
        query = f'SELECT {names} FROM reveals ORDER BY "order", sample_id, step'
        by = [("order", "ascending"), ("sample_id", "ascending"), ("step", "ascending")]
        expected = run.reveals().to_arrow().sort_by(by)
        assert run.sql(query).to_arrow().cast(expected.schema).equals(expected)
        assert run.sql("SELECT count(*) AS n FROM verdicts").to_arrow()["n"].to_pylist() == [0]


def test_frames_come_as_arrow_pandas_and_polars(finished) -> None:
    frame = open_run(finished).reveals()
    columns = ["logq", "sample_id"]
    arrow = frame.to_arrow(columns)
    assert arrow.column_names == columns
    assert frame.to_pandas(columns)["logq"].tolist() == arrow["logq"].to_pylist()
    polars = pytest.importorskip("polars")
    assert isinstance(frame.to_polars(columns), polars.DataFrame)
    assert frame.to_polars()["logq"].to_list() == arrow["logq"].to_pylist()
    assert len(frame) == arrow.num_rows
    assert frame.columns == SCHEMAS["reveals"].names


def test_a_column_that_is_never_stored_can_be_read_alone(finished) -> None:
    run = open_run(finished)
    table = run.reveals().to_arrow(["tempered_logq", "n_tied"])
    assert table.num_rows == len(run.reveals())
    assert table["tempered_logq"].null_count == table.num_rows
    assert sum(chunk.num_rows for chunk in run.iter_traces(["tempered_logq"])) == table.num_rows


def test_sql_is_lazy_and_wrong_queries_are_user_errors(finished) -> None:
    duckdb = pytest.importorskip("duckdb")
    run = open_run(finished)
    relation = run.sql('SELECT DISTINCT "order" FROM reveals').to_duckdb()
    assert isinstance(relation, duckdb.DuckDBPyRelation)
    assert sorted(row[0] for row in relation.fetchall()) == ["max-prob", "random"]
    for frame in (run.reveals(), run.samples(), run.outputs()):
        lazy = frame.to_duckdb()
        assert lazy.columns == frame.columns
        assert len(lazy.fetchall()) == len(frame)
    with pytest.raises(UserInputError, match=r"the query failed.*nowhere"):
        run.sql("SELECT * FROM nowhere")
    with pytest.raises(UserInputError, match="the query failed"):
        run.sql("SELECT CAST('x' AS INTEGER) AS y FROM reveals").to_arrow()


@pytest.mark.parametrize("name", ["we[i]rd", "a*b", "what?", "it's", 'qu"ote', "per%20cent", "[0-9]"])
def test_sql_reads_runs_in_folders_with_odd_names(tmp_path, worker, name, monkeypatch) -> None:
    pytest.importorskip("duckdb")
    worker.compute(str(tmp_path / name), 1)
    worker.compute(str(tmp_path / "plain"), 2)
    monkeypatch.chdir(tmp_path)
    run = open_run(name)
    monkeypatch.chdir("/")  # the run stays where it was when it was opened
    assert run.sql("SELECT count(*) AS n FROM reveals").to_arrow()["n"].to_pylist() == [96]
    assert run.sql("SELECT DISTINCT run FROM samples").to_arrow()["run"].to_pylist() == [name]


def test_sql_works_from_several_threads(finished) -> None:
    pytest.importorskip("duckdb")
    run, counts = open_run(finished), []
    query = "SELECT count(*) AS n FROM reveals"
    threads = [
        threading.Thread(target=lambda: counts.append(run.sql(query).to_arrow()["n"][0].as_py()))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [len(run.reveals())] * 4


def test_traces_come_whole_contiguous_and_sorted(finished) -> None:
    run = open_run(finished)
    seen: list[tuple] = []
    for chunk in run.iter_traces(["sample_id", "order", "seed", "step"]):
        starts = [*trace_starts(chunk).tolist(), chunk.num_rows]
        for start, stop in pairwise(starts):
            trace = chunk.slice(start, stop - start)
            assert trace["step"].to_pylist() == list(range(24))
            seen.append(tuple(trace.to_pylist()[0].values())[:3])
    assert len(seen) == len(set(seen)) == 24


def test_memory_runs_are_chunked_at_trace_ends(monkeypatch, worker) -> None:
    monkeypatch.setattr("orderlens.store.sources.CHUNK_ROWS", 30)
    run = memory_run({"reveals": worker.reveals(0, traces=5)}, {})
    sizes = [chunk.num_rows for chunk in run.iter_traces()]
    assert sizes == [48] * 5
    assert run.samples().to_arrow().num_rows == 10


def test_one_trace(finished, worker) -> None:
    run = open_run(finished)
    trace = run.trace("s0004-1", "random").to_arrow()
    assert trace["step"].to_pylist() == list(range(24))
    source = worker.reveals(4).to_pylist()
    expected = [row["logq"] for row in source if row["sample_id"] == "s0004-1" and row["order"] == "random"]
    assert trace["logq"].to_pylist() == expected
    assert run.trace("s0004-1", "random:1").to_arrow().equals(trace)
    assert run.trace("s0004-1", "random", seed=1, task=None).to_arrow().equals(trace)


def test_traces_that_are_not_there_or_not_unique_are_explained(tmp_path, worker) -> None:
    table = worker.reveals(0, traces=1)
    half = table.filter(pa.compute.equal(table["order"], "random"))
    other = half.set_column(half.column_names.index("seed"), "seed", pa.array([8] * half.num_rows))
    run = memory_run({"reveals": pa.concat_tables([half, other])}, {})
    with pytest.raises(RunError, match="no trace of sample 'x' under order 'random'"):
        run.trace("x", "random")
    with pytest.raises(RunError, match="2 traces under order 'random'; they differ in seed"):
        run.trace("s0000-0", "random")
    assert len(run.trace("s0000-0", "random:8")) == 24
    with pytest.raises(UserInputError, match="'colour' is not part of a trace's key"):
        run.trace("s0000-0", "random", colour=1)


def test_several_runs_and_a_folder_of_runs_get_a_run_column(tmp_path, worker) -> None:
    for name, units in (("a", 2), ("deep/b", 3)):
        worker.compute(str(tmp_path / name), units)
    for run in (open_run(tmp_path), open_run([tmp_path / "a", tmp_path / "deep" / "b"])):
        assert run.names == ["a", "b"]
        assert run.spec["runs"]["b"]["units"] == 3
        assert run.samples().to_pandas()["run"].value_counts().to_dict() == {"a": 8, "b": 12}
        assert run.reveals().columns[0] == "run"
        assert set(run.reveals().to_arrow(["run"])["run"].to_pylist()) == {"a", "b"}
        assert {chunk["run"][0].as_py() for chunk in run.iter_traces()} == {"a", "b"}
        with pytest.raises(RunError, match="differ in run"):
            run.trace("s0000-0", "random")
        assert len(run.trace("s0000-0", "random", run="b")) == 24
        pytest.importorskip("duckdb")
        counts = run.sql("SELECT run, count(*) AS n FROM outputs GROUP BY run ORDER BY run").to_arrow()
        assert counts.to_pylist() == [{"run": "a", "n": 8}, {"run": "b", "n": 12}]


def test_runs_with_the_same_name_are_told_apart(tmp_path, worker) -> None:
    for name in ("x/run", "y/run"):
        worker.compute(str(tmp_path / name), 1)
    assert open_run(tmp_path).names == ["run", "run#2"]


def test_float64_and_float32_runs_are_read_together(tmp_path, worker) -> None:
    worker.compute(str(tmp_path / "narrow"), 1)
    table = worker.reveals(1)
    wide = table.set_column(
        table.column_names.index("logq"), "logq", pa.array(table["logq"].to_numpy().astype(float) / 3)
    )
    with open_writer(tmp_path / "wide", {"x": 1}) as writer:
        execute(writer, {"u": 0}, lambda unit: {"reveals": wide})
    run = open_run(tmp_path)
    assert run.reveals().schema.field("logq").type == pa.float64()
    logq = run.reveals().to_pandas().groupby("run")["logq"].sum()
    pytest.importorskip("duckdb")
    both = (
        run.sql("SELECT run, sum(logq) AS total FROM reveals GROUP BY run")
        .to_pandas()
        .set_index("run")["total"]
    )
    assert both["wide"] == pytest.approx(logq["wide"], rel=1e-12)
    assert open_run(tmp_path / "wide").reveals().to_arrow()["logq"].type == pa.float64()


def test_unknown_names_get_a_hint(finished, tmp_path) -> None:
    run = open_run(finished)
    with pytest.raises(UnknownNameError, match="unknown column 'logp'; did you mean 'logq'"):
        run.reveals().to_arrow(["logp"])
    with pytest.raises(UnknownNameError, match="unknown table 'reveal'; did you mean 'reveals'"):
        run.table("reveal")
    with pytest.raises(UnknownNameError, match=r"unknown table '3' \(known: samples, "):
        run.table(3)
    with pytest.raises(RunError, match="no run at"):
        open_run(tmp_path / "nothing")


def test_empty_tables_have_their_columns(finished) -> None:
    frame = open_run(finished).table("verdicts")
    assert frame.columns == SCHEMAS["verdicts"].names
    assert len(frame) == 0
    assert len(memory_run({}, {}).samples()) == 0
    assert list(memory_run({}, {}).iter_traces()) == []


def test_reading_and_writing_need_only_pyarrow_and_numpy(tmp_path, worker) -> None:
    code = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"duckdb", "polars", "fsspec", "s3fs", "torch", "scipy", "pandas"}:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
sys.meta_path.insert(0, Blocked())
import runpy
worker = runpy.run_path(sys.argv[1])
worker["compute"](sys.argv[2], 2)
from orderlens.errors import MissingPackageError
from orderlens.store.reader import open_run
from orderlens.store.folder import open_folder
from orderlens.store.verify import verify_run
run = open_run(sys.argv[2])
assert run.samples().to_arrow().num_rows == 8
assert sum(chunk.num_rows for chunk in run.iter_traces()) == run.reveals().to_arrow().num_rows
assert len(run.trace("s0001-0", "max-prob")) == 24
assert verify_run(open_folder(sys.argv[2])).ok
for action in (lambda: run.sql("SELECT 1"), lambda: run.reveals().to_polars(), lambda: open_run("s3://x/y")):
    try:
        action()
    except MissingPackageError as error:
        assert "pip install" in str(error)
    else:
        raise AssertionError
"""
    script = str(Path(__file__).with_name("worker.py"))
    command = [sys.executable, "-c", code, script, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
