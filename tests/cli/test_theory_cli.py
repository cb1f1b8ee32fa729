"""``orderlens theory`` end to end."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from orderlens import theory
from orderlens.claims import audit as claims
from orderlens.cli.main import main
from orderlens.texts.foreign.series import Series, SeriesColumns, read_series, texts_of


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    code = main(["theory", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def run_json(capsys, *arguments: str):
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def test_alone_it_prints_its_help(capsys) -> None:
    code, out, _ = run(capsys)
    assert code == 0
    assert "uniform-spreading" in out
    assert "sigma0" in out


def test_sigma0_prints_twelve_digits(capsys) -> None:
    code, out, _ = run(capsys, "sigma0")
    assert code == 0
    assert "1.052582699429" in out
    rows = run_json(capsys, "sigma0", "--k", "1,2")
    assert [row["k"] for row in rows] == [1, 2]
    assert rows[1]["sigma0"] == pytest.approx(1.16685, abs=5e-6)


def test_curve_rows_are_the_library(capsys, tmp_path) -> None:
    rows = run_json(capsys, "curve", "--sigma", "0.5,2", "--points", "5")["rows"]
    assert len(rows) == 10
    for row in rows:
        assert row["f"] == pytest.approx(theory.success(row["q"], row["sigma"]), rel=1e-9)
        assert row["d2"] == pytest.approx(theory.d2(np.log(row["q"]), row["sigma"]), rel=1e-6, abs=1e-12)
        assert row["convex"] == (row["d2"] > 0)
    code, out, _ = run(capsys, "curve", "--sigma", "1", "--points", "3", "--k", "4")
    assert code == 0
    assert out.split()[:4] == ["sigma", "k", "q", "f"]


def test_curve_writes_figures(capsys, tmp_path, monkeypatch) -> None:
    from orderlens.figures import theory as figures

    few = {"theory-curvature": figures.FIGURES["theory-curvature"]}
    monkeypatch.setattr(figures, "FIGURES", few)
    code, out, _ = run(capsys, "curve", "--points", "3", "--figures", tmp_path / "figs")
    assert code == 0
    assert sorted(path.suffix for path in (tmp_path / "figs").iterdir()) == [".json", ".pdf", ".png", ".svg"]
    assert "theory-curvature.svg" in out


def test_check_prints_paper_ours_and_what_stands(capsys, monkeypatch) -> None:
    made = list(claims.check_claims())
    monkeypatch.setattr(claims, "check_claims", lambda: made)
    code, out, _ = run(capsys, "check")
    assert code == 0
    assert "[holds] critical-sigma" in out
    assert "[fails] second-order-sign" in out
    assert "paper  1.05\n    ours   1.052582699429" in out
    data = run_json(capsys, "check")
    assert sum(data["counts"].values()) == len(data["claims"]) >= 30


def test_profile_of_a_list_of_numbers(capsys, tmp_path) -> None:
    y = np.log([0.9, 0.05, 0.6])
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(list(y)))
    report = run_json(capsys, "profile", file, "--sigma", "0.5")
    (trace,) = report["traces"]
    (row,) = trace["by_sigma"]
    assert trace["n"] == 3
    assert row["log_a"] == pytest.approx(theory.log_recoverability(y, 0.5))
    assert row["jensen_loss"] == pytest.approx(theory.jensen_loss(y, 0.5))
    assert row["second_order_loss"] == pytest.approx(theory.second_order(y, 0.5).loss)
    assert row["bottlenecks"][0]["step"] == 1
    code, out, _ = run(capsys, "profile", file)
    assert code == 0
    assert "Jensen loss" in out
    assert "1 (9" in out  # step 1 takes nearly all


ROWS = pd.DataFrame(
    {
        "sample_id": ["a", "a", "b", "a", "b"],
        "order": ["random"] * 3 + ["max-prob"] * 2,
        "step": [1, 0, 0, 0, 0],
        "logq": [-2.0, -1.0, -0.5, -0.25, 0.0],
        "is_argmax": [False, True, True, True, True],
        "is_overflow": [False] * 4 + [False],
    }
)


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "parquet", "jsonl", "jsonl.gz", "json"])
def test_tables_of_many_traces(tmp_path, kind: str) -> None:
    path = tmp_path / f"rows.{kind}"
    text = ROWS.to_json(orient="records", lines=kind.startswith("jsonl"))
    if kind.startswith("csv"):
        ROWS.to_csv(path, index=False)
    elif kind == "parquet":
        ROWS.to_parquet(path)
    else:
        path.write_bytes(gzip.compress(text.encode()) if kind.endswith("gz") else text.encode())
    traces = list(read_series(path))
    assert [trace.name["sample_id"] for trace in traces] == ["a", "b", "a", "b"]
    np.testing.assert_array_equal(traces[0].values, [-1.0, -2.0])  # by step
    np.testing.assert_array_equal(traces[0].hits, [True, False])
    only = list(read_series(path, sample="a", order="max-prob"))
    assert [trace.values.tolist() for trace in only] == [[-0.25]]


def test_lists_in_rows_and_plain_text(tmp_path) -> None:
    lines = tmp_path / "t.jsonl"
    lines.write_text('{"id": 1, "logq": [-1, -2]}\n{"id": 2, "logq": [-3]}\n')
    assert [trace.values.tolist() for trace in read_series(lines)] == [[-1.0, -2.0], [-3.0]]
    single = tmp_path / "o.json"
    single.write_text('{"logq": [-1, -0.5], "note": "x"}')
    assert [trace.values.tolist() for trace in read_series(single)] == [[-1.0, -0.5]]
    text = tmp_path / "t.txt"
    text.write_text("-1\n\n-0.25\n")
    assert [trace.values.tolist() for trace in read_series(text)] == [[-1.0, -0.25]]


def test_documents_of_a_csv_are_never_merged_silently(capsys, tmp_path) -> None:
    path = tmp_path / "my.csv"
    path.write_text("doc,pos,lp\none,2,-3\none,1,-1\ntwo,1,-2\ntwo,2,-2\n")
    code, _, err = run(capsys, "profile", path, "--column", "logq=lp")
    assert code == 2
    assert "may contain several traces" in err
    assert "--by doc" in err
    report = run_json(capsys, "profile", path, "--column", "logq=lp", "--by", "doc", "--column", "step=pos")
    assert [trace["name"] for trace in report["traces"]] == [{"doc": "one"}, {"doc": "two"}]
    assert (report["n_traces"], report["traces"][0]["mean"]) == (2, -2.0)
    columns = SeriesColumns("lp", step="pos", by=("doc",))
    assert next(read_series(path, columns)).values.tolist() == [-1.0, -3.0]
    code, out, _ = run(capsys, "profile", path, "--column", "logq=lp", "--by", "none", "--sigma", "1")
    assert code == 0
    assert "my.csv: 1 trace found" in out
    assert "n = 4" in out
    code, _, err = run(capsys, "profile", path, "--column", "logq=lp", "--by", "document")
    assert code == 2
    assert "no column 'document'; it has doc, pos, lp" in err


def test_two_lists_with_one_name_stay_two_traces(tmp_path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"order": "random", "logq": [-1, -2]}\n{"order": "random", "logq": [-3]}\n')
    assert [trace.values.tolist() for trace in read_series(path)] == [[-1.0, -2.0], [-3.0]]


def test_overflow_rows_do_not_count(tmp_path) -> None:
    rows = ROWS.assign(is_overflow=[False, True, False, False, False])
    rows.to_csv(tmp_path / "r.csv", index=False)
    assert next(read_series(tmp_path / "r.csv")).values.tolist() == [-2.0]


def test_a_run_folder(capsys, tmp_path) -> None:
    from orderlens.store.schema import empty_table
    from orderlens.store.writer import open_writer

    schema = empty_table("reveals").schema
    n = 6
    given = {
        "sample_id": ["s"] * n, "order": ["forced-ar"] * n, "block": [0] * n, "step": list(range(n)),
        "forward": list(range(n)), "n_committed": [1] * n,
        "position": list(range(n)), "token_id": [1] * n, "logq": [-0.5, -1.0, -3.0, -0.1, -0.2, -9.0],
        "is_argmax": [True, True, False, True, True, False], "is_overflow": [False] * 5 + [True],
    }  # fmt: skip
    table = pa.table(
        {name: pa.array(given.get(name, [None] * n), schema.field(name).type) for name in schema.names}
    )
    writer = open_writer(tmp_path / "run", {"kind": "score"})
    writer.claim("u")
    writer.commit("u", {"reveals": table.cast(schema)})
    writer.finish(["u"])
    report = run_json(capsys, "profile", tmp_path / "run", "--sigma", "0.5")
    assert report["n_traces"] == 1
    assert report["traces"][0]["n"] == 5
    assert report["traces"][0]["by_sigma"][0]["bottlenecks"][0]["step"] == 2
    code, _, err = run(capsys, "profile", tmp_path / "run", "--column", "logq=nonsense")
    assert code == 2
    assert "allowed: " in err


def test_limit_says_what_is_left_out(capsys, tmp_path) -> None:
    ROWS.to_csv(tmp_path / "r.csv", index=False)
    code, out, _ = run(capsys, "profile", tmp_path / "r.csv", "--limit", "1", "--sigma", "1")
    assert code == 0
    assert "3 more traces" in out


def test_resamples_draw_texts_not_traces() -> None:
    """Orders of one text are repetitions; a trace without a sample id stands alone."""
    names = [
        {"sample_id": "a", "order": "random"},
        {"sample_id": "a", "order": "max-prob"},
        {"sample_id": "a", "task": "t"},
        {"order": "random"},
        {"sample_id": "b"},
        {},
    ]
    traces = [Series(name, np.zeros(1), None) for name in names]
    assert texts_of(traces).tolist() == [0, 0, 1, 2, 3, 4]


def test_fit_reports_intervals_and_misfit(capsys, tmp_path) -> None:
    rng = np.random.default_rng(0)
    q = np.clip(rng.beta(0.5, 0.8, 600), 1e-6, 1 - 1e-6)
    hits = rng.random(600) < theory.success_k(q, 6, 0.7)
    frame = pd.DataFrame({"sample_id": np.arange(600) // 20, "logq": np.log(q), "is_argmax": hits})
    frame.to_parquet(tmp_path / "r.parquet")
    code, out, err = run(capsys, "fit", tmp_path / "r.parquet", "--bootstrap", "20")
    assert code == 0, err
    assert out.startswith("sigma = 0.")
    assert "bootstrap" in out
    assert "deviance" in out
    assert "always the argmax" in out
    frame.rename(columns={"is_argmax": "hit"}).to_parquet(tmp_path / "h.parquet")
    renamed = run(capsys, "fit", tmp_path / "h.parquet", "--bootstrap", "20", "--column", "is_argmax=hit")[1]
    assert renamed == out
    frame.drop(columns="is_argmax").to_csv(tmp_path / "r.csv", index=False)
    code, _, err = run(capsys, "fit", tmp_path / "r.csv")
    assert code == 2
    assert "lacks the column 'is_argmax'" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sigma0", "--k", "0"], "k must be finite and at least 1; got 0.0"),
        (["sigma0", "--k", "one"], "--k 'one' must be a number"),
        (["curve", "--sigma", "-1"], "sigma must be positive and finite; got -1.0"),
        (["curve", "--points", "1"], "--points 1 must be at least 2"),
        (["profile", "/does/not/exist.csv"], "'/does/not/exist.csv' does not exist"),
        (["nonsense"], "nonsense"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(capsys, arguments: list[str], message: str) -> None:
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert message in err
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", "a,b\n1,2\n", "no column 'logq'; it has a, b"),
        ("t.csv", "logq\n-1\n0.5\n", "logq of row 1 is '0.5'; a log-probability is finite and at most 0"),
        ("t.csv", "logq\n-1\nnan\n", "logq of row 1 is 'nan'"),
        ("t.txt", "-1\nx\n", "line 2: 'x' is not a number"),
        ("t.jsonl", "-1\n{\n", "line 2: not valid JSON"),
        ("t.json", '"text"', "expected numbers, or objects with 'logq'"),
        ("t.json", "{", "not valid JSON"),
        ("t.json", "[]", "has no trace"),
        ("t.xyz", "-1", "unknown file format"),
        ("t.parquet", "junk", "not a readable Parquet file"),
    ],
)
def test_bad_files_name_the_problem(capsys, tmp_path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    code, _, err = run(capsys, "profile", tmp_path / name)
    assert code == 2
    assert message in err
    assert "Traceback" not in err
