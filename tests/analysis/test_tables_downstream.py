"""Graded texts: which verdicts and statistics the tables show."""

from __future__ import annotations

import json
import math

import numpy as np
import pyarrow as pa
import pytest

from orderlens.analysis import Options, Resampling, Study, render
from orderlens.analysis.tables_downstream import guessing_level, guessing_levels
from orderlens.errors import UserInputError
from orderlens.tasks.graders import NAMED_GRADER


def test_downstream_joins_verdicts_and_shows_paired_tests(graded, builders):
    first, paired, chosen = Study(graded, builders.QUICK).tables(["downstream"])
    verdicts = graded.table("verdicts").to_pandas()
    expected = 100 * verdicts.query("task == 'arith' and order == 'random'")["correct"].mean()
    cell = first.cell("accuracy", task="arith", order="random")
    assert cell.value == pytest.approx(expected)
    assert (cell.n, cell.n_undefined) == (60, 0)
    assert len(paired.rows) == 6
    assert paired.cell("n", task="arith", first="forced-ar", second="random") == 60
    assert any("structured − random" in note for note in first.notes)
    assert {row["scope"] for row in chosen.rows} == {"all orders", "structured orders"}


def test_content_statistics_stand_in_the_correctness_tables(graded, builders):
    study = Study(graded, builders.QUICK, ())
    samples = graded.samples().to_pandas()
    row = study.graded.iloc[0]
    match = samples.query(f"task == '{row.task}' and order == '{row.order}'")
    assert np.isclose(match["content_var"], row["var"]).any()
    assert not np.isclose(match["var"], row["var"]).any()


def test_length_and_mean_are_cross_validated_alone(graded, builders):
    held_out = Study(graded, builders.QUICK).tables(["controls"])[3]
    rows = {row["predictor"]: row for row in held_out.rows if row["order"] == "forced-ar"}
    for name in ("mean", "n"):
        assert np.isfinite(rows[name]["alone"].value)
        assert rows[name]["added"] is rows[name]["gain"] is None, "both models hold them"
    assert np.isfinite(rows["var"]["gain"].value)


def test_single_instructions_have_a_column_where_a_task_has_them(graded, builders):
    assert "instruction_strict" not in {c.name for c in builders.table(graded, "downstream").columns}
    followed = {"a": [True, False, True], "b": [False], "c": None}
    traces, rows = [], []
    for item, strict in followed.items():
        key = {"task": "plain" if strict is None else "ifeval", "temperature": 0.0}
        traces.append(builders.trace(item, "random", -np.arange(1.0, 9.0), **key))
        text = None if strict is None else json.dumps({"strict": strict, "loose": strict})
        rows.append(
            {"sample_id": item, "order": "random", "correct": False, "grader": "g", "per_instruction": text}
            | key
        )
    found = builders.table(builders.make_run(traces, verdicts=rows), "downstream")
    assert found.cell("instruction_strict", task="ifeval", order="random").value == pytest.approx(50.0)
    assert (
        found.cell("instruction_strict", task="plain", order="random").why == "the task has no instructions"
    )
    assert "instruction_strict_low" in render([found], "csv")


def test_several_seeds_become_separate_cells(builders):
    rng = np.random.default_rng(0)
    traces, rows = [], []
    for item in range(6):
        for seed in (0, 1):
            key = {"task": "t", "seed": seed, "temperature": 0.0}
            traces.append(builders.trace(f"i{item}", "random", -rng.gamma(0.5, size=20), **key))
            rows.append(
                {"sample_id": f"i{item}", "order": "random", "correct": bool(item % 2), "grader": "g", **key}
            )
    run = builders.make_run(traces, verdicts=rows)
    assert [row["order"] for row in builders.table(run, "within-cell").rows] == ["random:0", "random:1"]


def test_one_grader_is_chosen_and_named(graded, builders):
    verdicts = graded.table("verdicts").to_arrow()
    other = verdicts.set_column(
        verdicts.column_names.index("grader"), "grader", pa.array(["h"] * verdicts.num_rows)
    )
    other = other.set_column(
        verdicts.column_names.index("correct"), "correct", pa.array([True] * verdicts.num_rows)
    )
    both = builders.make_run([graded.reveals().to_arrow()], verdicts=pa.concat_tables([verdicts, other]))
    assert Study(both, builders.QUICK, ()).graders == ["g"]
    chosen = Study(both, Options(resampling=Resampling(5), grader="h"), ())
    assert chosen.graded["correct"].all()
    assert len(chosen.graded) == verdicts.num_rows


def test_choices_that_do_not_exist_are_refused(graded, builders):
    with pytest.raises(UserInputError, match=r"temperature 0\.4 \(present: 0\)"):
        builders.table(graded, "generation", Options(temperature=0.4))
    with pytest.raises(UserInputError, match="grader 'x' \\(present: g\\)"):
        builders.table(graded, "downstream", Options(grader="x"))


@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        ([{"options": list("ABCD")}], 25.0),
        ([{"options": list("AB")}, {"options": list("ABCDEFGHIJ")}], 100 * (1 / 2 + 1 / 10) / 2),
        ([{"endings": ["x", "y", "z", "w"]}, {"answer": "7"}], 25.0),
        ([{"options": [], "endings": ["x", "y"]}], 50.0),
        ([{"options": ["only"]}], math.nan),
        ([{"answer": "7"}], math.nan),
        ([], math.nan),
    ],
)
def test_one_over_the_number_of_options_on_average(documents, expected):
    assert guessing_level(documents) == pytest.approx(expected, nan_ok=True)


def test_levels_are_per_task_and_left_out_where_options_are_named(builders):
    keys = [{"sample_id": task, "order": "max-prob", "task": task, "temperature": 0.0} for task in "abc"]
    traces = [
        builders.trace(k["sample_id"], "max-prob", [-1.0], task=k["task"], temperature=0.0) for k in keys
    ]
    graders = ["letter", NAMED_GRADER, "number"]
    verdicts = [k | {"correct": True, "grader": g} for k, g in zip(keys, graders, strict=True)]
    given = [{"options": list("ABCDE")}, {"options": list("AB")}, {"answer": 3}]
    documents = [
        {"task": task, "sample_id": task, "document": json.dumps(d)}
        for task, d in zip("abc", given, strict=True)
    ]
    run = builders.make_run(traces, verdicts=verdicts, documents=documents)
    levels = guessing_levels(Study(run, builders.QUICK))
    assert levels == pytest.approx({"a": 20.0, "c": math.nan}, nan_ok=True)
    assert guessing_levels(Study(builders.make_run(traces, verdicts=verdicts), builders.QUICK)) == {}
