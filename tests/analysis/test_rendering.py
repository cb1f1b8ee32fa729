"""Every format shows values, intervals, counts and reasons; the paper's values appear next to ours."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

import pytest

from orderlens.analysis import paper
from orderlens.analysis.rendering import FORMATS, as_json, cell_text, number, render
from orderlens.analysis.table import TABLES, Column, Table, by_model, with_paper_values
from orderlens.errors import UnknownNameError
from orderlens.metrics.estimate import Estimate

SPEC = Path(__file__).parents[3] / "shared" / "spec" / "paper_tables.json"


@pytest.fixture
def table():
    rows = (
        {
            "task": "cmath",
            "order": "max-prob",
            "accuracy": Estimate(90.5, 88.6, 92.1, 1098, 3, "3 not graded"),
            "n": 1098,
        },
        {"task": "a|b_%", "order": "random", "accuracy": Estimate.undefined("all samples <EOS>", 7), "n": 7},
    )
    columns = (Column("accuracy", "accuracy %", 2), Column("n", "n"))
    return Table("downstream", "Accuracy & more", ("task", "order"), columns, rows, ("a note",))


def test_text_lists_reasons_below_and_keeps_counts(table):
    text = render([table], "text")
    assert "90.50" in text
    assert "[88.60, 92.10]" in text
    assert "3 undefined (1)" in text
    assert "undefined (2)" in text
    assert "n = 0 of 7" in text
    assert "(2) all samples <EOS>" in text
    assert "a note" in text


def test_text_says_once_why_a_column_is_empty():
    why = Estimate.undefined("not measured: score with --noise-floor")
    columns = (Column("a", "mean"), Column("b", "noise"), Column("n", "count"))
    rows = tuple({"order": order, "a": Estimate(1.0), "b": why, "n": 3} for order in ("x", "y"))
    text = render([Table("t", "T", ("order",), columns, rows)], "text")
    assert "Undefined in every row: noise (not measured: score with --noise-floor)." in text
    assert text.count("noise") == 2
    assert "1.000" in text
    nothing = render([Table("t", "T", ("order",), columns[1:], rows)], "text")
    assert nothing.split("\n")[:2] == ["T", ""]
    assert "count" not in nothing
    notes = tuple("x" * n + " --noise-floor" for n in range(80, 100))  # one of them ends a line at each place
    assert "--noise-\n" not in render([Table("t", "T", ("order",), columns, rows, notes)], "text")
    twice = (*columns[:2], Column("c", "noise"), Column("d", "mean, length"))
    both = tuple({**row, "c": why, "d": why} for row in rows)
    text = render([Table("t", "T", ("order",), twice, both)], "text")
    assert "Undefined in every row: noise; mean, length (not measured" in text
    mixed = ({"order": "x", "b": why}, {"order": "y", "b": Estimate.undefined("another reason")})
    text = render([Table("t", "T", ("order",), columns[1:2], mixed)], "text")
    assert "undefined (1)" in text
    assert "undefined (2)" in text


def test_models_without_a_tables_data_do_not_break_it():
    """Theirs has other keys, such as (task, order) for votes, which count sets of texts."""
    columns = (Column("a", "accuracy"),)
    none = {"order": "max-prob", "a": Estimate.undefined("not graded")}
    rows = ({"texts": "all", "k": k, "a": Estimate(0.5)} for k in (1, 2))
    absent = Table("votes", "no answers", ("order",), columns, (none,))
    full = Table("votes", "Votes", ("texts", "k"), columns, tuple(rows))
    for tables in ({"m": absent, "n": full}, {"n": full, "m": absent}):
        (found,) = by_model({name: [table] for name, table in tables.items()})
        assert (found.title, found.keys) == ("Votes", ("model", "texts", "k"))
        assert [found.cell("a", model="n", texts="all", k=2).value] == [0.5]
        assert found.cell("a", model="m", texts="–", k="–").why == "not graded"
        assert all("not graded" in render([found], form) for form in ("text", "csv", "markdown", "json"))


def test_text_fits_the_width_and_loses_nothing():
    columns = tuple(Column(f"c{i}", f"column {i}", 3) for i in range(12))
    key = "policy:" + "very-long-name-" * 8
    row = {"order": key, **{column.name: Estimate(1.25, -10.5, 20.75, 9) for column in columns}}
    wide = Table("wide", "Title " * 40, ("order",), columns, (row,), ("note " * 60,))
    text = render([wide], "text")
    assert max(map(len, text.splitlines())) <= 100
    assert all(f"column {i}" in text for i in range(12))
    assert text.count("[-10.500, 20.750]") == 12
    assert text.count("policy:very") > 1  # every part begins with the key
    whole = render([wide], "text", None)
    assert whole.count("column 0") == 1
    assert max(map(len, whole.splitlines())) > 200


def test_paper_values_and_differences(table):
    both = with_paper_values(table)
    text = render([both], "text")
    assert "paper 90.26, +0.24" in text
    assert "Paper: " in text
    cell = as_json(both)["rows"][0]["accuracy"]
    assert (cell["paper"], round(cell["difference"], 6)) == (90.26, 0.24)
    assert "paper" not in as_json(both)["rows"][1]["accuracy"]
    assert "accuracy %: paper" in render([both], "markdown")


def test_every_seed_of_random_has_the_paper_value_of_random():
    orders = ("random:0", "random:12", "max-prob:select=argmax")
    rows = tuple({"task": "cmath", "order": order, "accuracy": Estimate(70.0)} for order in orders)
    table = Table("downstream", "t", ("task", "order"), (Column("accuracy", "accuracy %"),), rows)
    theirs = paper.value("downstream", "cmath", "random", "accuracy")
    found = {place: cell.value for place, cell in with_paper_values(table).printed.items()}
    assert found == {(0, "accuracy"): theirs, (1, "accuracy"): theirs}


def test_csv_has_every_number(table):
    rows = list(csv.DictReader(io.StringIO(render([with_paper_values(table)], "csv"))))
    assert rows[0]["accuracy"] == "90.5"
    assert rows[0]["accuracy_low"] == "88.6"
    assert rows[0]["accuracy_n_undefined"] == "3"
    assert rows[0]["accuracy_paper"] == "90.26"
    assert (rows[1]["accuracy"], rows[1]["accuracy_why"]) == ("", "all samples <EOS>")


def test_json_is_strict(table):
    content = json.loads(render([table], "json"))
    row = content["tables"][0]["rows"][1]
    assert row["accuracy"] == {
        "value": None, "low": None, "high": None, "n": 0, "n_undefined": 7, "why": "all samples <EOS>"
    }  # fmt: skip


def test_latex_and_markdown_escape(table):
    latex = render([table], "latex")
    assert r"a|b\_\%" in latex
    assert r"Accuracy \& more" in latex
    assert r"$<$EOS$>$" in latex
    assert latex.count(r"\\") == 3
    assert "a\\|b_%" in render([table], "markdown")


def test_numbers_never_print_as_zero_when_they_are_not():
    assert number(0.00001, 3) == "1.0e-05"
    assert number(0.0, 3) == "0.000"
    assert number(math.nan, 3) == "–"
    assert cell_text(Estimate(1.0)) == "1.000"
    assert cell_text(None) == ""
    assert cell_text(Estimate.undefined("why")) == "undefined: why"


def test_unknown_format(table):
    with pytest.raises(UnknownNameError, match="did you mean 'latex'"):
        render([table], "latx")
    assert set(FORMATS) == {"text", "csv", "latex", "markdown", "json"}


def test_paper_cells_name_real_tables_and_columns(builders):
    from orderlens.analysis import Options, Resampling, Study

    run = builders.graded_run(
        n_items=8, orders=("forced-ar", "max-prob", "top-margin", "random"), tasks=("cmath",)
    )
    options = Options(resampling=Resampling(2), null_reps=2)
    for name in paper.tables():
        assert name in TABLES.names()
        first = next(t for t in Study(run, options).tables([name]) if t.name == name)
        known = {column.name for column in first.columns}
        assert {key[-1] for key in paper.printed(name)} <= known
        assert all(len(key) == len(first.keys) + 1 for key in paper.printed(name))
    within = with_paper_values(Study(run, options).table("within-cell"))
    assert len(within.printed) == 4 * 7
    assert within.printed[0, "mw_p"].value == 0.0015
    assert within.printed[1, "mw_p"].value == "<1e-4"
    assert math.isnan(within.printed[1, "mw_p"].difference(within.rows[1]["mw_p"]))


@pytest.mark.skipif(not SPEC.exists(), reason="the shared specification is not there")
def test_our_copy_of_the_paper_agrees_with_the_specification():
    spec = json.loads(SPEC.read_text())
    orders = spec["order_of_lists"]
    generation = paper.printed("generation")
    # The paper's external perplexity is of prompt and text as one text.
    columns = {"external_ppl": "external_ppl_whole"}
    for name, values in spec["table1_generation"].items():
        if name != "orders":
            assert [generation[columns.get(name, name), order] for order in orders] == values
    within = paper.printed("within-cell")
    for row in spec["table3_within_cell"]:
        for name in ("n_correct", "n_incorrect", "var_correct", "var_incorrect", "gap", "mw_p", "rho"):
            assert within[row["task"], row["order"], name] == row[name]
    downstream, selectors = paper.printed("downstream"), paper.printed("selectors")
    for task, row in spec["table2_downstream"].items():
        assert [downstream[task, order, "accuracy"] for order in orders] == row["accuracy"]
        assert [downstream[task, order, "var"] for order in orders] == row["var"]
        assert [selectors[task, "all orders", n] for n in ("min_v", "max_v", "delta_pp")] == [
            row["min_v"], row["max_v"], row["delta_pp"]
        ]  # fmt: skip
    quadrants = spec["table4_quadrants"]
    for task in spec["table2_downstream"]:
        assert [paper.printed("quadrants")[task, c] for c in quadrants["columns"]] == quadrants[task]
    names = {"mean_logq": "content_mean", "var": "content_var", "n_tok": "n_content"}
    for name, column in names.items():
        for task, values in spec["tableS1_content"][name].items():
            assert [paper.printed("content")[task, order, column] for order in orders] == values


def test_paper_audit_items_are_remarked():
    remarks = " ".join(remark for table in paper.tables().values() for remark in table["remarks"])
    for fact in (
        "64.7 < 67.3",
        "79.1",
        "996 and 758",
        "2.6 to 35.2",
        "13 remain after Holm, 14 after BH",
        "unpaired",
        "3 of 4",
    ):
        assert fact in remarks
