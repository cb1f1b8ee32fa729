"""Tables written for other programs: every format holds the same rows, and refuses what it cannot do."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest

from orderlens.errors import OrderLensError
from orderlens.store.export import WRITERS, export_table
from orderlens.store.reader import Run
from orderlens.testing import make_run, make_trace

KEY = {"sample_id": 'a "quoted", one', "order": "max-prob", "temperature": 0.0}


@pytest.fixture(scope="module")
def run() -> Run:
    traces = [
        make_trace(KEY["sample_id"], "max-prob", [-0.5, -math.inf, math.nan], temperature=0.0),
        make_trace("b\nline", "random", [-1.0], seed=3, temperature=0.0),
    ]
    endings = [
        KEY | {"ending": 0, "n_bytes": 3, "token_logprobs": [-1.5, -math.inf, math.nan]},
        KEY | {"ending": 1, "n_bytes": 0, "token_logprobs": []},
        KEY | {"ending": 2, "n_bytes": 1, "token_logprobs": None},
    ]
    outputs = [KEY | {"text": "ein ä, \u2028 zwei", "token_ids": [5, 6, 7]}]
    tokens = [{"token_id": number, "piece": f"t{number}"} for number in range(9)]
    return make_run(traces, endings=endings, outputs=outputs, tokens=tokens)


def strict(text: str) -> object:
    """Parse JSON as other programs do: NaN and Infinity are not JSON."""

    def refuse(name: str) -> object:
        raise ValueError(name)

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("name", ["reveals", "samples", "outputs", "endings"])
@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_binary_formats_hold_the_table_bit_by_bit(run: Run, tmp_path: Path, name: str, kind: str) -> None:
    place = tmp_path / f"t.{kind}"
    assert export_table(run, name, place) == len(run.table(name))
    read = pq.read_table(place) if kind == "parquet" else ipc.open_file(place).read_all()
    expected = run.table(name).to_arrow()
    assert read.schema.names == expected.schema.names
    assert repr(read.to_pylist()) == repr(expected.to_pylist()), "NaN is NaN and null is null"


@pytest.mark.parametrize("name", ["reveals", "samples", "outputs", "endings"])
def test_json_lines_are_json_everywhere(run: Run, tmp_path: Path, name: str) -> None:
    place = tmp_path / "t.jsonl"
    export_table(run, name, place)
    rows = [strict(line) for line in place.read_text(encoding="utf-8").split("\n")[:-1]]
    expected = run.table(name).to_arrow().to_pylist()
    assert len(rows) == len(expected)
    for row, stored in zip(rows, expected, strict=True):
        assert set(row) == set(stored)
        for column, value in stored.items():
            if isinstance(value, float):
                assert row[column] == (value if math.isfinite(value) else None)
            elif isinstance(value, list):
                assert row[column] == [v if math.isfinite(v) else None for v in value]
            else:
                assert row[column] == value


def test_csv_keeps_quotes_lines_and_lists(run: Run, tmp_path: Path) -> None:
    place = tmp_path / "t.csv"
    export_table(run, "endings", place)
    with place.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["sample_id"] for row in rows] == [KEY["sample_id"]] * 3
    assert strict(rows[0]["token_logprobs"]) == [-1.5, None, None]
    assert strict(rows[1]["token_logprobs"]) == []
    assert rows[2]["token_logprobs"] == ""
    export_table(run, "reveals", tmp_path / "r.csv")
    options = pacsv.ParseOptions(newlines_in_values=True)
    read = pacsv.read_csv(tmp_path / "r.csv", parse_options=options)
    assert read.num_rows == 4
    assert read["logq"].to_pylist()[0] == pytest.approx(-0.5)
    assert set(read["sample_id"].to_pylist()) == {KEY["sample_id"], "b\nline"}


def test_tokens_come_with_their_text(run: Run, tmp_path: Path) -> None:
    place = tmp_path / "t.parquet"
    export_table(run, "reveals", place, tokens=True)
    read = pq.read_table(place)
    names = read.column_names
    assert names[names.index("token_id") + 1] == "text"
    assert read["text"].to_pylist() == [f"t{number}" for number in read["token_id"].to_pylist()]


def test_a_kind_that_is_named_wins_over_the_suffix(run: Run, tmp_path: Path) -> None:
    place = tmp_path / "t.csv"
    export_table(run, "samples", place, "jsonl")
    assert place.read_text(encoding="utf-8").startswith("{")


@pytest.mark.parametrize(
    ("name", "file", "more", "message"),
    [
        ("samples", "t.xlsx", {}, f"cannot export as 'xlsx'; use one of: {', '.join(WRITERS)}"),
        ("samples", "t", {}, "cannot export as ''"),
        ("samples", "there.csv", {}, "there.csv exists; choose another place"),
        (
            "samples",
            "t.csv",
            {"tokens": True},
            "--tokens does not apply to --table samples",
        ),
        ("sample", "t.csv", {}, "unknown table 'sample'; did you mean 'samples'"),
    ],
)
def test_what_cannot_be_written_is_refused_and_leaves_nothing(
    run: Run, tmp_path: Path, name: str, file: str, more: dict, message: str
) -> None:
    (tmp_path / "there.csv").write_text("mine")
    with pytest.raises(OrderLensError, match=message):
        export_table(run, name, tmp_path / file, **more)
    assert [path.name for path in tmp_path.iterdir()] == ["there.csv"]
    assert (tmp_path / "there.csv").read_text() == "mine"


def test_a_file_is_replaced_only_when_asked_for_and_only_whole(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "t.csv"
    place.write_text("old")

    def breaks(*given: object) -> int:
        raise pa.ArrowInvalid("no")

    monkeypatch.setitem(WRITERS, "csv", breaks)
    with pytest.raises(pa.ArrowInvalid):
        export_table(run, "samples", place, overwrite=True)
    assert place.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]
    monkeypatch.undo()
    assert export_table(run, "samples", place, overwrite=True) == 2
    assert place.read_text() != "old"


def test_a_folder_that_is_not_there_is_made(run: Run, tmp_path: Path) -> None:
    assert export_table(run, "samples", tmp_path / "new" / "t.csv") == 2
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["t.csv"]
