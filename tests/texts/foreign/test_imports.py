"""Traces of other decoders: what is read, what is refused, and that everything accepts the run."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from starlette.testclient import TestClient

import orderlens as ol
from orderlens.cli.main import main
from orderlens.show.viewer.app import make_app
from orderlens.store.reader import Run, open_run
from orderlens.texts.foreign import import_run

TEXTS = ["the", " sea", " is", " calm", " to", "night", "."]


def rows_of(sample: str, order: str, places: list[int], **more: object) -> list[dict[str, object]]:
    rng = np.random.default_rng([*sample.encode(), *order.encode()])
    return [
        {
            "sample": sample,
            "order": order,
            "step": step,
            "position": place + 4,
            "logq": -float(rng.gamma(0.5)),
        }
        | {"text": TEXTS[place]}
        | more
        for step, place in enumerate(places)
    ]


@pytest.fixture
def rows() -> list[dict[str, object]]:
    ahead, back = list(range(7)), [3, 1, 6, 0, 2, 5, 4]
    return [
        row
        for sample in "abcd"
        for order, path in (("forced-ar", ahead), ("max-prob", back), ("mine", back[::-1]))
        for row in rows_of(sample, order, path, prompt=f"tell {sample}")
    ]


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, list(rows[0]))
            table.writeheader()
            table.writerows(rows)
    return path


def imported(tmp_path: Path, rows: list[dict[str, object]], **options: object) -> Run:
    import_run(write(tmp_path / "t.jsonl", rows), str(tmp_path / "run"), **options)  # type: ignore[arg-type]
    return open_run(tmp_path / "run")


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_every_format_gives_the_same_run(tmp_path: Path, rows: list[dict[str, object]], kind: str) -> None:
    found = import_run(write(tmp_path / f"t.{kind}", rows), str(tmp_path / "run"), model="theirs")
    assert (found.n_samples, found.n_traces, found.n_reveals) == (4, 12, 84)
    run = open_run(tmp_path / "run")
    table = run.samples().to_pandas().set_index(["sample_id", "order"])
    mine = [row["logq"] for row in rows if row["sample"] == "b" and row["order"] == "mine"]
    assert table.loc[("b", "mine"), "mean"] == pytest.approx(np.mean(mine), abs=1e-12)
    assert table.loc[("b", "mine"), "var"] == pytest.approx(np.var(mine), abs=1e-12)
    assert list(table.xs("max-prob", level="order")["likelihood"]) == ["exact"] * 4
    assert table.xs("mine", level="order")["likelihood"].isna().all()
    trace = run.trace("b", "mine").to_pandas()
    assert trace["position"].tolist() == [8, 9, 6, 4, 10, 5, 7]
    sample = run.sample("b")
    assert sample.prompt == "tell b"
    assert sample.trace("mine").text == "the sea is calm tonight."
    assert run.spec["model"]["name"] == "theirs"


def test_rows_may_stand_in_any_order_and_steps_count_from_one(
    tmp_path: Path, rows: list[dict[str, object]]
) -> None:
    shuffled = [
        rows[i] | {"step": int(str(rows[i]["step"])) + 1} for i in np.random.default_rng(0).permutation(84)
    ]
    trace = imported(tmp_path, shuffled).trace("c", "max-prob").to_pandas()
    assert trace["step"].tolist() == list(range(7))
    assert trace["position"].tolist() == [7, 5, 10, 4, 6, 9, 8]


def test_one_row_may_hold_a_trace_and_one_pass_several_tokens(tmp_path: Path) -> None:
    trace = {"id": 1, "policy": "max-prob", "pass": [1, 1, 2, 4], "pos": [3, 1, 2, 0], "token": [5, 6, 5, 9]}
    run = imported(tmp_path, [trace | {"log_prob": [-0.5, -0.25, 0, -1], "temp": 0}], block_size=2)
    table = run.trace("1", "max-prob").to_pandas()
    assert table["forward"].tolist() == [0, 0, 1, 3]
    assert table["n_committed"].tolist() == [2, 2, 1, 1]
    assert table["block"].tolist() == [1, 0, 1, 0]
    assert table["token_id"].tolist() == [5, 6, 5, 9]
    assert run.outputs().to_pandas()["token_ids"][0].tolist() == [9, 6, 5, 5]
    found = run.samples().to_pandas().iloc[0]
    assert run.samples().to_arrow()["likelihood"].to_pylist() == [None]  # max-prob means one token per pass
    assert found["temperature"] == 0.0


def test_an_exported_run_comes_back_unchanged(tmp_path: Path) -> None:
    ol.score(
        "hmm",
        [ol.Sample(str(i), "the ", "sea is") for i in range(2)],
        "random:3,max-prob",
        out=tmp_path / "one",
    )
    assert main(["runs", "export", str(tmp_path / "one"), "--tokens", "--out", str(tmp_path / "t.csv")]) == 0
    import_run(tmp_path / "t.csv", str(tmp_path / "two"))
    one, two = (open_run(tmp_path / name) for name in ("one", "two"))
    assert one.reveals(text=True).to_pandas().equals(two.reveals(text=True).to_pandas())
    assert one.samples().to_pandas().equals(two.samples().to_pandas())


def test_verdicts_are_kept(tmp_path: Path, rows: list[dict[str, object]]) -> None:
    graded = [row | {"correct": row["sample"] in "ab", "task": "own", "temperature": 0} for row in rows]
    run = imported(tmp_path, graded)
    assert run.table("verdicts").to_pandas().groupby("sample_id")["correct"].all().tolist() == [1, 1, 0, 0]
    assert run.sample("a").traces[0].verdict is not None


@pytest.mark.parametrize(
    ("row", "change", "words"),
    [
        (3, {"step": 2}, "line 4 (sample 'a', order 'forced-ar'): step 2 also occurs in line 3"),
        (3, {"step": 9}, "line 5 (sample 'a', order 'forced-ar'): step 4 comes after step 2"),
        (0, {"step": 5}, "line 2"),
        (5, {"position": 4}, "line 6 (sample 'a', order 'forced-ar'): position 4 also occurs in line 1"),
        (5, {"position": -1}, "line 6: position is -1, not a whole number"),
        (5, {"position": None}, "line 6: position is missing; other rows have it"),
        (4, {"logq": 0.7}, "line 5: logq is 0.7; a log-probability is finite and at most 0; write"),
        (4, {"logq": float("nan")}, "line 5: logq is nan; a log-probability is finite"),
        (4, {"logq": "-inf"}, "line 5: logq is -inf"),
        (4, {"logq": "abc"}, "line 5: logq is 'abc', not a number"),
        (4, {"logq": None}, "line 5: logq is missing"),
        (4, {"order": " "}, "line 5: order is missing"),
        (4, {"prompt": "other"}, "line 5 (sample 'a', order 'forced-ar'): prompt differs"),
        (8, {"text": "x"}, "so the texts were generated; add --temperature T"),
        (4, {"is_eos": "maybe"}, "line 5: is_eos is 'maybe', neither true nor false"),
        (4, {"logq": [-1.0, -2.0], "position": [1]}, "line 5: the lists of a trace"),
        (4, {"logq": True}, "line 5: logq is True, not a number"),
        (4, {"seed": True}, "line 5: seed is True, not a whole number"),
        (4, {"log_prob": -1.0}, "columns 'logq' and 'log_prob' both mean logq"),
    ],
)
def test_what_does_not_add_up_is_one_line_with_its_place(
    tmp_path: Path, rows: list[dict[str, object]], row: int, change: dict[str, object], words: str
) -> None:
    rows[row] |= change
    with pytest.raises(ol.errors.DataFileError) as refused:
        imported(tmp_path, rows)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_empty_lists_are_no_trace(tmp_path: Path) -> None:
    with pytest.raises(ol.errors.DataFileError, match="has no reveals"):
        imported(tmp_path, [{"sample": "a", "order": "mine", "step": [], "logq": []}])


@pytest.mark.parametrize(
    ("left", "words"),
    [
        ("logq", "has no column logq, nor one called logprob"),
        ("sample", "has no column sample_id, nor one called sample"),
        ("order", "has no column order"),
        ("step position", "has no column step (or position)"),
    ],
)
def test_a_missing_column_is_named(
    tmp_path: Path, rows: list[dict[str, object]], left: str, words: str
) -> None:
    kept = [{name: value for name, value in row.items() if name not in left.split()} for row in rows]
    with pytest.raises(ol.errors.DataFileError, match="it has") as refused:
        imported(tmp_path, kept)
    assert words in str(refused.value)


def test_what_a_file_does_not_tell_is_said(tmp_path: Path) -> None:
    bare = [{"sample": "a", "order": "mine", "step": i, "logq": -0.5, "entrop": 1} for i in range(3)]
    found = import_run(write(tmp_path / "t.csv", bare), str(tmp_path / "run"))
    said = "\n".join(found.notes)
    sample = open_run(tmp_path / "run").sample("a")
    assert sample.piece(sample.traces[0], -1) == "?"
    for words in (
        "'entrop' is ignored; did you mean 'entropy'?",
        "no position",
        "no token text",
        "no temperature",
    ):
        assert words in said


def test_long_files_are_committed_in_units_and_the_viewer_reads_them(
    tmp_path: Path, rows: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orderlens.texts.foreign.save.UNIT_ROWS", 20)
    run = imported(tmp_path, rows)
    assert len(list((tmp_path / "run" / "units").glob("*.json"))) == 4  # three whole traces each
    assert run.reveals().to_arrow().num_rows == 84
    client = TestClient(
        make_app(run, "token", frozenset({"127.0.0.1:8000"})),
        base_url="http://127.0.0.1:8000",
        headers={"X-OrderLens-Token": "token"},
    )
    told = client.get("/api/sample", params={"id": "c"}).json()
    assert {trace["text"] for trace in told["traces"]} == {"the sea is calm tonight."}


def test_the_verb_takes_names_of_columns_and_everything_reads_the_run(
    tmp_path: Path, rows: list[dict[str, object]], capsys: pytest.CaptureFixture[str], quick_figures: Any
) -> None:
    renamed = [{"lp" if name == "logq" else name: value for name, value in row.items()} for row in rows]
    file, run = str(write(tmp_path / "t.csv", renamed)), str(tmp_path / "run")
    assert main(["runs", "import", file, "--out", run, "--column", "logq=lp", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["columns"]["logq"] == "lp"
    assert main(["runs", "import", file, "--out", run, "--column", "logq=lp"]) == 0  # again: nothing happens
    assert main(["runs", "verify", run]) == 0
    assert main(["analyze", run, "--table", "fixed-sequence", "--bootstrap", "0"]) == 0
    assert "mine" in capsys.readouterr().out
    assert (
        main(["figures", run, "--figure", "lorenz", "--format", "svg", "--out", str(tmp_path / "figures")])
        == 0
    )
    assert (tmp_path / "figures" / "lorenz.svg").exists()
    with quick_figures():
        assert main(["report", run, "--out", str(tmp_path / "r.html"), "--bootstrap", "0"]) == 0
    assert (tmp_path / "r.html").stat().st_size > 100_000
    assert main(["runs", "import", file, "--out", run, "--column", "logq"]) == 2
    assert "FIELD=COLUMN" in capsys.readouterr().err
    assert main(["runs", "import", file, "--out", run, "--column", "log=lp"]) == 2
    assert "unknown field 'log'" in capsys.readouterr().err
    assert main(["runs", "import", file, "--out", run, "--column", "logq=lp", "--column", "logq=x"]) == 2
    assert (
        "--column 'logq=x' gives a second value for logq; give each name one value" in capsys.readouterr().err
    )
