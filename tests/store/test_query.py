"""SQL over runs: every table, every layout, names that need quotes, and which parts a query concerns."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from orderlens.errors import CorruptRunError, UserInputError
from orderlens.store import query as queries
from orderlens.store.query import named_tables
from orderlens.store.reader import Run, open_run
from orderlens.testing import make_run, make_trace

pytest.importorskip("duckdb")

KEY = {"sample_id": "a", "order": "max-prob", "temperature": 0.0}


def saved(place: Path, traces: list[pa.Table], **tables: object) -> Run:
    return make_run(traces, spec={"place": place.name}, **tables).save(place)


@pytest.fixture
def rich(tmp_path: Path) -> Run:
    """A run with several tables, lists and nulls among them."""
    return saved(
        tmp_path / 'it\'s "one"',
        [
            make_trace("a", "max-prob", [-1.0, -2.0], temperature=0.0),
            make_trace("é\n'b", "random", [-4.0], seed=2),
        ],
        outputs=[KEY | {"text": 'it\'s "fine"', "token_ids": [4, 5]}],
        verdicts=[KEY | {"correct": True, "grader": "g"}, KEY | {"sample_id": "z", "correct": None}],
        external=[{"evaluator": "e", "text_key": "k", "logprobs": [-1.0, -2.5]}],
    )


@pytest.mark.parametrize("name", ["reveals", "outputs", "verdicts", "external"])
def test_views_hold_the_rows_of_the_tables(rich: Run, name: str) -> None:
    expected = rich.table(name).to_arrow()
    found = rich.sql(f'SELECT * EXCLUDE (run) FROM "{name}"').to_arrow()
    assert sorted(found.column_names) == sorted(expected.column_names)
    key = [column for column in ("sample_id", "step", "text_key") if column in expected.column_names]

    def rows(table: pa.Table) -> list[dict]:
        return sorted(
            table.select(expected.column_names).to_pylist(), key=lambda row: str([row[part] for part in key])
        )

    assert rows(found) == rows(expected)


def test_samples_are_those_of_the_runs_read_together(tmp_path: Path) -> None:
    for name, kind in (("one", "exact"), ("two", "none")):
        traces = [make_trace("a", "mine", [-1.0, -2.5]), make_trace("b", "mine", [-4.0], seed=2)]
        make_run(traces, spec={"name": name, "likelihood": {"mine": kind}}).save(tmp_path / name)
    run = open_run([tmp_path / "one", tmp_path / "two"])
    expected = run.samples().to_arrow()
    found = run.sql("FROM samples ORDER BY run, sample_id").to_arrow()
    assert found.equals(expected.sort_by([("run", "ascending"), ("sample_id", "ascending")]))
    assert run.samples().to_duckdb().to_arrow_table().schema == expected.schema


def test_samples_are_computed_when_they_are_read_and_once(rich: Run, monkeypatch) -> None:
    read: list[list[str]] = []

    def watched(sources):
        read.append(list(sources))
        return sample_chunks(sources)

    sample_chunks = queries.sample_chunks
    monkeypatch.setattr(queries, "sample_chunks", watched)
    frame = rich.sql("SELECT sample_id, var FROM samples ORDER BY mean DESC")
    assert rich.sql("SELECT count(*) AS n FROM outputs").to_arrow()["n"].to_pylist() == [1]
    assert (frame.columns, read) == (["sample_id", "var"], [])
    for _ in range(2):
        assert frame.to_arrow().to_pydict() == {"sample_id": ["a", "é\n'b"], "var": [0.25, 0.0]}
    assert read == [rich.names]


@pytest.mark.parametrize("name", ["circulation", "noise", "couplings", "revisions", "states", "tokens"])
def test_tables_that_a_run_lacks_are_empty_views_with_their_columns(rich: Run, name: str) -> None:
    found = rich.sql(f"SELECT * FROM {name}").to_arrow()
    assert found.num_rows == 0
    assert {"run", *rich.table(name).columns} == set(found.column_names)


def test_texts_with_quotes_are_found_by_their_own_text(rich: Run) -> None:
    found = rich.sql(
        "SELECT run, count(*) AS n FROM reveals WHERE sample_id = 'é\n''b' GROUP BY run"
    ).to_arrow()
    assert found.to_pylist() == [{"run": 'it\'s "one"', "n": 1}]


def test_parts_of_different_layouts_are_one_table(tmp_path: Path) -> None:
    """One run stores a column that the other one implies: the views restore both."""
    plain = make_trace("a", "max-prob", [-0.1, -0.2])  # the argmax throughout: much is implied
    other = make_trace("b", "max-prob", [-0.1, -3.0], is_argmax=[True, False])
    saved(tmp_path / "one", [plain])
    saved(tmp_path / "two", [other])
    both = open_run([tmp_path / "one", tmp_path / "two"])
    names = [
        "run",
        "sample_id",
        "step",
        "logq",
        "max_logprob",
        "second_logprob",
        "is_argmax",
        "competitor_logprob",
    ]
    found = both.sql(f"SELECT {', '.join(names)} FROM reveals ORDER BY run, step").to_arrow().to_pylist()
    expected = both.reveals().to_arrow(names).to_pylist()
    assert found == sorted(expected, key=lambda row: (row["run"], row["step"]))
    assert [row["is_argmax"] for row in found] == [True, True, True, False]


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("SELECT * FROM reveals", ["reveals"]),
        ("select avg(mean) from SAMPLES", ["outputs", "reveals"]),
        ("SELECT 1", ["external", "outputs", "reveals", "verdicts"]),
        ("SELECT * FROM verdicts JOIN outputs USING (sample_id)", ["outputs", "verdicts"]),
    ],
)
def test_the_parts_that_a_query_concerns(query: str, named: list[str]) -> None:
    held = (["reveals", "outputs", "verdicts"], ["reveals", "external"])
    sources = [SimpleNamespace(tables=lambda names=names: names) for names in held]
    assert named_tables(query, sources) == named


def test_a_damaged_part_is_refused_and_named(rich: Run, tmp_path: Path) -> None:
    (folder,) = tmp_path.iterdir()
    (part,) = (folder / "parts" / "verdicts").glob("*.parquet")
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(bytes(data))
    with pytest.raises(CorruptRunError, match=f"{part.name} is damaged .*orderlens runs verify"):
        open_run(folder).sql("SELECT * FROM verdicts").to_arrow()


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELEC 1", "the query failed: .*syntax error"),
        ("SELECT nothing FROM reveals", "the query failed: .*nothing"),
        ("CREATE VIEW x AS SELECT 1", "the query is a CREATE statement; only SELECT is allowed"),
        ("DROP VIEW reveals", "the query is a DROP statement"),
        ("SELECT 1; SET threads = 1", "the query is a SELECT, SET statement"),
        ("", "the query is empty"),
        ("SELECT logq + sample_id FROM reveals", "the query failed"),
    ],
)
def test_wrong_queries_are_one_line(rich: Run, query: str, message: str) -> None:
    with pytest.raises(UserInputError, match=message) as refused:
        rich.sql(query).to_arrow()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("FROM outputs SELECT text", [{"text": 'it\'s "fine"'}]),
        ("WITH x AS (SELECT step FROM reveals) SELECT max(step) AS most FROM x", [{"most": 1}]),
        ("VALUES (1)", [{"col0": 1}]),
        ("PIVOT reveals ON step USING count(*) GROUP BY run", None),
        ("DESCRIBE reveals", None),
    ],
)
def test_everything_that_only_reads_is_allowed(rich: Run, query: str, rows: list[dict] | None) -> None:
    found = rich.sql(query).to_arrow().to_pylist()
    assert found == rows if rows is not None else len(found) > 0


def test_columns_of_a_result_are_chosen_lazily(rich: Run) -> None:
    frame = rich.sql('SELECT logq AS "log q", step FROM reveals ORDER BY logq')
    assert frame.columns == ["log q", "step"]
    assert frame.to_arrow(["log q"]).to_pydict() == {"log q": [-4.0, -2.0, -1.0]}
    assert len(frame) == 3
