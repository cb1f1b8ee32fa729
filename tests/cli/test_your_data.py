"""Files of every kind through the verbs, and what each of them says about the rows it left out."""

from __future__ import annotations

import gzip
import json
import lzma

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orderlens.cli.main import main

LONG, SHORT = "the cat sat on the mat and the dog sat too", "the cat"
ROWS = [{"id": f"r{i}", "text": LONG if i % 4 == 0 else SHORT} for i in range(20)]
SPLIT = ["--prefix-tokens", "4", "--target-tokens", "12"]


def run(capsys, *arguments):
    code = main([str(item) for item in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def csv_text(rows):
    return "\n".join([",".join(rows[0]), *(",".join(row.values()) for row in rows)]) + "\n"


@pytest.fixture
def files(tmp_path):
    """The same rows as every kind of file."""
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    content = {
        "d.jsonl": lines.encode(), "d.jsonl.gz": gzip.compress(lines.encode()),
        "d.jsonl.xz": lzma.compress(lines.encode()), "d.json": json.dumps(ROWS).encode(),
        "d.csv": csv_text(ROWS).encode(), "d.csv.gz": gzip.compress(csv_text(ROWS).encode()),
    }  # fmt: skip
    for name, data in content.items():
        (tmp_path / name).write_bytes(data)
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "d.parquet")
    return {name: tmp_path / name for name in (*content, "d.parquet")}


def test_every_kind_of_file_gives_the_same_scores_and_the_same_count(capsys, files, tmp_path):
    found = {}
    for name, path in files.items():
        out = tmp_path / f"run-{name}"
        code, text, err = run(
            capsys,
            "score",
            "--model",
            "hmm",
            "--data",
            path,
            "--orders",
            "forced-ar",
            *SPLIT,
            "--out",
            out,
            "--json",
        )
        assert code == 0, err
        report = json.loads(text)
        assert report["data"]["left_out"] == {"too short": 15}
        assert (report["data"]["n_rows"], report["data"]["n_samples"]) == (20, 5)
        found[name] = report["orders"]
    assert all(orders == found["d.jsonl"] for orders in found.values())


def test_summaries_say_what_was_left_out_and_analyze_repeats_it(capsys, files, tmp_path):
    line = "5 of 20 rows used; left out: 15 too short (fewer than 4 + 12 tokens: --prefix-tokens"
    out = tmp_path / "scored"
    arguments = [
        "score",
        "--model",
        "hmm",
        "--data",
        files["d.csv"],
        "--orders",
        "forced-ar",
        *SPLIT,
        "--out",
        out,
    ]
    code, text, _ = run(capsys, *arguments)
    assert code == 0
    assert line in text
    code, text, _ = run(capsys, *arguments)  # a finished run says it again
    assert line in text
    code, _, err = run(capsys, "analyze", out, "--table", "fixed-sequence", "--bootstrap", "0")
    assert code == 0
    assert line in err
    code, text, _ = run(capsys, "analyze", out, "--table", "fixed-sequence", "--bootstrap", "0", "--json")
    assert line in json.loads(text)["data"][str(out)]


@pytest.mark.parametrize("verb", [["generate"], ["sweep", "--temperatures", "0,1"]])
def test_generate_and_sweep_count_prompts_that_are_too_short(capsys, files, tmp_path, verb):
    arguments = [*verb, "--model", "hmm", "--data", files["d.csv"], "--orders", "forced-ar"]
    arguments += ["--prefix-tokens", "10", "--max-new-tokens", "4", "--limit", "20"]
    code, text, _ = run(capsys, *arguments, "--out", tmp_path / "a")
    assert code == 0
    assert (
        "5 of 20 rows used; left out: 15 too short (fewer than 10 tokens: --prefix-tokens, --allow-short)"
        in text
    )
    code, text, _ = run(capsys, *arguments, "--allow-short", "--out", tmp_path / "b", "--json")
    assert json.loads(text)["data"]["left_out"] == {}


def test_a_text_file_is_read_as_asked_and_said(capsys, tmp_path):
    path = tmp_path / "story.txt"
    path.write_text(f"{LONG}\n{LONG}\n\n{LONG}\n")
    arguments = ["score", "--model", "hmm", "--data", path, "--orders", "forced-ar", *SPLIT]
    code, text, _ = run(capsys, *arguments, "--out", tmp_path / "whole")
    assert code == 0
    assert "1 of 1 rows used" in text
    assert (
        "read as one text (it has 2 paragraphs and 3 lines; --split paragraphs or --split lines splits it)"
        in text
    )
    code, text, _ = run(capsys, *arguments, "--split", "lines", "--out", tmp_path / "lines")
    assert "3 of 3 rows used" in text
    assert "one text per line" in text
    code, _, err = run(capsys, *arguments, "--split", "words", "--out", tmp_path / "words")
    assert code == 2
    assert "--split 'words' is unknown; allowed: none, lines, paragraphs" in err


def test_a_short_text_file_is_refused_and_not_shortened(capsys, tmp_path):
    path = tmp_path / "story.txt"
    path.write_text(SHORT)
    arguments = ["score", "--model", "hmm", "--data", path, "--orders", "forced-ar", *SPLIT]
    code, _, err = run(capsys, *arguments, "--out", tmp_path / "run")
    assert code == 2
    assert "none of 1 rows has 4 + 12 tokens (the longest has 7)" in err
    code, text, _ = run(capsys, *arguments, "--allow-short", "--out", tmp_path / "run")
    assert code == 0
    assert "1 of 1 rows used" in text


def test_evaluate_takes_a_csv_and_says_how_many_items(capsys, tmp_path):
    path = tmp_path / "cmath.csv"
    path.write_text("question,golden\n1+1?,2\n2+2?,4\n")
    arguments = ["evaluate", "--model", "hmm", "--tasks", "cmath", "--source", f"cmath={path}"]
    arguments += ["--orders", "forced-ar", "--max-new-tokens", "8"]
    code, text, err = run(capsys, *arguments, "--out", tmp_path / "run")
    assert code == 0, err
    assert "data: cmath, 2 of 2 items used" in text
    assert "at most 8 tokens" in text
    path.write_text("question,golden\n1+1?,two\n")
    code, _, err = run(capsys, *arguments, "--out", tmp_path / "other")
    assert code == 2
    assert "cmath, row 1: 'golden' holds no reference number" in err


@pytest.mark.needs_torch
def test_train_takes_the_same_files_and_counts_empty_documents(capsys, tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "a.csv").write_text("text\n" + f"{LONG}\n" * 30 + '" "\n')
    arguments = ["--data", tmp_path / "a.csv", "--out", tmp_path / "model", "--steps", "2", "--layers", "1"]
    arguments += [
        "--width",
        "16",
        "--heads",
        "2",
        "--vocab-size",
        "300",
        "--window",
        "32",
        "--block-size",
        "8",
    ]
    code, text, err = run(capsys, "train", *arguments)
    assert code == 0, err
    assert "data: 30 documents; left out: 1 empty" in text
