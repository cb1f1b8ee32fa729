"""The table at the end of ``score`` and ``generate``: averages over sequences, in the order asked for."""

from __future__ import annotations

import json

import numpy as np
import pytest

import orderlens as ol
from orderlens.cli.main import main
from orderlens.cli.summary import SHOWN_CHARACTERS, SHOWN_TEXTS, _number, show_summary, summarise
from orderlens.testing import make_run, make_trace

SPEC = {"kind": "generate", "model": {"name": "made"}, "data": {"n_samples": 2}}


def run_of(traces, orders=(), **tables):
    return make_run(traces, spec=SPEC | {"orders": list(orders)}, **tables)


def test_rows_stand_as_the_orders_were_asked_for() -> None:
    requested = ["random:1+top=2", "forced-ar", "random:0", "random:2", "max-prob+top=2"]
    run = ol.score("hmm", [ol.Sample("a", [1, 2], [3, 4, 5, 6])], requested)
    found = [(row["order"], row["seed"]) for row in summarise(run)]
    assert found == [
        ("random+top=2", 1),
        ("forced-ar", None),
        ("random", 0),
        ("random", 2),
        ("max-prob+top=2", None),
    ]


def test_each_sequence_counts_once_however_long_it_is() -> None:
    short, long = [-4.0], [-1.0] * 9
    run = run_of(
        [make_trace("a", "x", short), make_trace("b", "x", long), make_trace("a", "y", [-2.0, -6.0])]
    )
    one, other = summarise(run)
    assert (one["n_samples"], one["mean"], one["n"]) == (2, -2.5, 5.0)
    assert one["log_prob"] == pytest.approx((-4 - 9) / 2)
    assert (other["mean"], other["var"]) == (-4.0, 4.0)


def test_what_is_undefined_is_left_out_of_the_mean_and_said() -> None:
    eos = [0, 0]
    run = run_of([make_trace("a", "x", [-1.0, -3.0], tokens=eos), make_trace("b", "x", [-2.0, -2.0])])
    (row,) = summarise(run)
    assert row["mean"] == -2.0
    assert row["content_mean"] == -2.0  # of the one text that has content
    assert row["n_undefined"] == {"content_mean": 1, "content_var": 1}
    assert (_number(row, "mean"), _number(row, "content_mean")) == ("-2.0000", "-2.0000 (of 1)")
    traces = [make_trace("a", "x", [-1.0, -np.inf]), make_trace("b", "x", [-2.0, -2.0])]
    (impossible,) = summarise(run_of(traces))
    assert (impossible["mean"], impossible["n_undefined"]["mean"]) == (-2.0, 1)
    (empty,) = summarise(run_of([make_trace("a", "x", [-1.0, -3.0], tokens=eos)]))
    assert np.isnan(empty["content_mean"])


def test_temperatures_are_rows_of_their_own() -> None:
    traces = [make_trace("a", "x", [t - 1.0], temperature=t) for t in (0.0, 0.5)]
    found = [(row["temperature"], row["mean"]) for row in summarise(run_of(traces))]
    assert found == [(0.0, -1.0), (0.5, -0.5)]


def test_the_page_shows_undefined_texts_and_what_is_left(capsys) -> None:
    n = SHOWN_TEXTS + 2
    traces = [make_trace(f"s{i}", "x", [-1.0], tokens=[0], temperature=0.0) for i in range(n)]
    words = ["w" * (SHOWN_CHARACTERS + 1), "", None, "a\n b\x1b[31m"] + ["t"] * (n - 4)
    outputs = [
        {"sample_id": f"s{i}", "order": "x", "temperature": 0.0, "text": text} for i, text in enumerate(words)
    ]
    show_summary(run_of(traces, ["x"], outputs=outputs), out="runs/here", as_json=False)
    shown = capsys.readouterr().out
    assert "undefined" in shown
    assert "w" * SHOWN_CHARACTERS + "…" in shown
    assert shown.count("(empty)") == 2
    assert "a b\\x1b[31m" in shown
    assert "… and 2 more texts: orderlens runs export runs/here --table outputs --out texts.csv" in shown
    assert shown.rstrip().endswith(
        "run: runs/here\nnext: orderlens view runs/here\n      orderlens report runs/here"
    )


def test_a_temperature_schedule_is_named(capsys) -> None:
    """The column T shows one number, so a line says what it stands for."""
    settings = {"orders": "forced-ar", "max_new_tokens": 4}
    show_summary(ol.generate("hmm", "ab", temperature="0.8:0.4", **settings), out="r", as_json=False)
    line = "Temperature 0.8:0.4 within each block; the column T shows its mean."
    assert line in capsys.readouterr().out
    show_summary(ol.generate("hmm", "ab", temperature=0.6, **settings), out="r", as_json=False)
    assert "within each block" not in capsys.readouterr().out


def test_json_holds_the_same_numbers(tmp_path, capsys) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"id": "a", "prompt": "ab", "target": "cd"}\n')
    out = str(tmp_path / "run")
    requested = ["--data", str(rows), "--orders", "random:1,forced-ar", "--out", out, "--json"]
    assert main(["score", "--model", "hmm", *requested]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["run"], found["kind"], found["model"]) == (out, "score", "hmm")
    frame = ol.open_run(out).samples().to_pandas()
    for row in found["orders"]:
        mine = frame[frame["order"] == row["order"]]
        assert row["mean"] == pytest.approx(mine["mean"].mean())
        assert row["log_prob"] == pytest.approx(mine["log_prob"].mean())
    assert [row["order"] for row in found["orders"]] == ["random", "forced-ar"]


def test_a_preset_keeps_its_name_next_to_what_it_stands_for(tmp_path, capsys) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"id": "a", "prompt": "ab", "target": "cd"}\n')
    words = ["score", "--model", "hmm", "--data", str(rows), "--orders", "llada,random:1"]
    assert main([*words, "--out", str(tmp_path / "my run")]) == 0
    shown = capsys.readouterr().out
    assert "max-prob (llada)" in shown
    assert "random:1 " in shown
    place = f"'{tmp_path / 'my run'}'"
    assert shown.endswith(f"next: orderlens analyze {place}\n      orderlens report {place}\n")
    assert main([*words, "--out", str(tmp_path / "b"), "--json"]) == 0
    orders = json.loads(capsys.readouterr().out)["orders"]
    assert [(row["order"], row["preset"]) for row in orders] == [("max-prob", "llada"), ("random", None)]


def test_two_names_of_one_rule_are_both_named(tmp_path, capsys) -> None:
    words = ["score", "--model", "hmm", "--orders", "llada,max-prob", "--out", str(tmp_path / "run")]
    assert main(words) == 2
    assert "'llada' and 'max-prob' both mean 'max-prob'; name one of them" in capsys.readouterr().err
