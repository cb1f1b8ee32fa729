"""Graded texts: which verdicts and statistics stand in the tables."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from orderlens.analysis import Options, Resampling, Study
from orderlens.errors import UserInputError


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
