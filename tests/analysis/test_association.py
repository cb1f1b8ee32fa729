"""The tables of graded samples: worked examples, degenerate cells, and a known effect against no effect."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy import stats

from orderlens.analysis import (
    Resampling,
    Study,
    controls,
    mean_only_null,
    order_differences,
    quadrants,
    selectors,
    simulate_study,
    within_cell,
)
from orderlens.analysis.association import POOLED
from orderlens.analysis.tables_controls import _auroc_table, _rival_table
from orderlens.errors import UserInputError
from orderlens.metrics.estimate import Clusters
from orderlens.metrics.significance import accuracy

QUICK = Resampling(reps=50)


def study(rows):
    return pd.DataFrame(rows, columns=["task", "order", "item_id", "correct", "mean", "var", "n"])


@pytest.fixture
def five():
    values = zip([0.1, 0.2, 0.3, 0.4, 0.5], [1, 1, 0, 1, 0], strict=True)
    return study([("t", "max-prob", i, bool(c), -v, v, 9) for i, (v, c) in enumerate(values)])


def test_within_cell_worked_example(five):
    row = within_cell(five, QUICK).iloc[0]
    assert (row.n_correct, row.n_incorrect) == (3, 2)
    assert row.var_correct == pytest.approx(0.7 / 3)
    assert row.var_incorrect == pytest.approx(0.4)
    assert row.gap == pytest.approx(0.4 - 0.7 / 3)
    assert row.mw_p == pytest.approx(0.2)
    assert row.mw_u == 1.0
    assert row.rho == pytest.approx(-0.5773503, abs=1e-7)
    assert row.rho_mean == pytest.approx(0.5773503, abs=1e-7)
    assert math.isnan(row.partial_rho)
    assert row.why == "too few samples, or mean and length determine Var"


def test_draws_of_one_item_are_not_items_of_their_own(builders):
    """Three copies of every answer tell nothing new: no smaller p, no narrower interval."""
    once = simulate_study(50, n_tokens=8)
    thrice = pd.concat([once] * 3, ignore_index=True)
    cells = within_cell(thrice, QUICK)
    assert cells["mw_p"].isna().all()
    assert cells["why"].str.contains("items repeat").all()
    np.testing.assert_allclose(cells["rho"], within_cell(once, QUICK)["rho"])
    ours, theirs = controls(thrice, QUICK), controls(once, QUICK)
    assert ours[["partial_p", "auroc_var_minus_mean_p"]].isna().all().all()
    alone = theirs["order"] != "(all, order held fixed)"
    width = (ours["var_coefficient_high"] - ours["var_coefficient_low"])[alone]
    expected = (theirs["var_coefficient_high"] - theirs["var_coefficient_low"])[alone]
    assert (width > 0.75 * expected).all()  # as independent rows it would be 0.58
    keys = {"task": "t", "temperature": 0.5, "order": "max-prob"}
    rows = [{**keys, "sample_id": f"s{i}", "sample_seed": k} for i in range(20) for k in range(3)]
    traces = [builders.trace(logq=[-1.0, -2.0], **row) for row in rows]
    verdicts = [row | {"correct": int(row["sample_id"][1:]) % 2 == 0, "grader": "g"} for row in rows]
    found = builders.table(builders.make_run(traces, verdicts=verdicts), "downstream")
    cell = found.cell("accuracy", task="t", order="max-prob")
    assert cell.value == 50.0
    assert cell.high - cell.low > 30  # Wilson's of sixty: 24.5


def test_few_correct_answers_have_statistics_without_intervals():
    """Seven answers are too few for an interval or DeLong's test; eight are enough."""
    from orderlens.analysis.table import cells_of

    n = 40
    var = np.exp(np.random.default_rng(1).normal(size=n))
    for yes, known in ((7, False), (8, True)):
        rows = [("t", "max-prob", i, i < yes, -((3 * i) % n), var[i], 5 + i % 7) for i in range(n)]
        within, control = (function(study(rows), QUICK) for function in (within_cell, controls))
        reason = None if known else "no interval: a group has fewer than 8 prompts"
        for frame, name in ((within, "gap"), (within, "rho"), (control, "auroc_var")):
            (cell,) = cells_of(frame, name)
            assert cell.is_defined
            assert (math.isfinite(cell.low), cell.why) == (known, reason)
        assert math.isfinite(within["mw_p"][0]), "an exact test"
        assert math.isfinite(control["auroc_var_minus_mean_p"][0]) == known
        assert (within["why"][0], control["why"][0]) == (None, reason)
        again = controls(pd.concat([study(rows)] * 2, ignore_index=True), QUICK)
        (cell,) = cells_of(again, "var_coefficient")
        assert (math.isfinite(cell.low), cell.why) == (known, reason), "errors clustered by item"
        assert math.isfinite(again["lr_p"][0]) == known


def test_undefined_comparisons_of_rivals_have_their_own_reason(builders):
    """Not that of the regression, which is undefined because the mean determines Var."""
    keys = [{"task": "t", "order": "max-prob", "sample_id": f"s{i}", "temperature": 0.0} for i in range(6)]
    traces = [builders.trace(logq=[-1.0, -2.0 - i], **key) for i, key in enumerate(keys)]
    verdicts = [{**key, "grader": "g", "correct": i < 3} for i, key in enumerate(keys)]
    tables = Study(builders.make_run(traces, verdicts=verdicts), builders.QUICK).tables(["controls"])
    found = {table.name: table for table in tables}
    reasons = {
        "controls": ("lr_p", {}, "the predictor is a combination of the others"),
        "controls-rivals": ("p", {"rival": "mean"}, "no interval: a group has fewer than 8 prompts"),
    }
    for name, (column, rival, reason) in reasons.items():
        assert found[name].cell(column, task="t", order="max-prob", **rival).why == reason


def test_shares_of_nothing_have_wilsons_interval():
    """Resamples of equal verdicts agree, but 0 of 10 items does not show that the accuracy is 0."""
    keys = [(order, i) for order in ("max-prob", "random") for i in range(10)]
    frame = study([("t", order, i, False, -((3 * i) % 10), 0.1 * i, 9) for order, i in keys])
    limit = 100 * stats.binomtest(0, 10).proportion_ci(method="wilson").high
    chosen = selectors(frame.assign(min=-1.0), QUICK).iloc[0]
    assert (chosen["min_v"], chosen["min_v_low"], chosen["min_v_high"]) == (0, 0, pytest.approx(limit))
    assert chosen["delta_pp_high"] == 0, "a difference, not a share"
    split = quadrants(frame, QUICK).iloc[0]
    n_items = split["n_hi_mean_lo_var"] // 2
    wide = 100 * stats.binomtest(0, int(n_items)).proportion_ci(method="wilson").high
    assert split["hi_mean_lo_var_high"] == pytest.approx(wide)
    again = accuracy([0, 0] * 10, Clusters([0, 0, 1, 1, 2] * 4, QUICK))
    assert again.high == pytest.approx(100 * stats.binomtest(0, 3).proportion_ci(method="wilson").high)


def test_arrow_in_arrow_out(five):
    for function in (within_cell, quadrants, selectors, controls, mean_only_null):
        table = function(pa.Table.from_pandas(five))
        assert isinstance(table, pa.Table)
        expected = function(five)
        assert table.column_names == list(expected.columns)


def test_column_order_of_the_paper(five):
    names = [
        "task",
        "order",
        "n_correct",
        "n_incorrect",
        "var_correct",
        "var_incorrect",
        "gap",
        "mw_p",
        "rho",
    ]
    assert list(within_cell(five).columns[: len(names)]) == names


def test_cells_that_cannot_be_tested_still_come(five):
    frame = pd.concat(
        [
            five,
            study([("all-right", "random", i, True, -0.1 * i, 0.1 * i, 5) for i in range(4)]),
            study([("all-wrong", "random", i, False, -0.1 * i, 0.1 * i, 5) for i in range(4)]),
            study([("no-var", "random", i, i % 2 == 0, np.nan, np.nan, 0) for i in range(4)]),
            study([("ungraded", "random", i, None, -0.1, 0.1, 5) for i in range(2)]),
        ]
    )
    table = within_cell(frame, QUICK).set_index("task")
    assert table.loc["all-right", "why"] == "all 4 samples are correct"
    assert table.loc["all-wrong", "why"] == "all 4 samples are incorrect"
    assert table.loc["no-var", "n_undefined"] == 4
    assert "no graded sample" in table.loc["no-var", "why"]
    assert table.loc["ungraded", "n_undefined"] == 2
    assert np.isnan(table.loc[["all-right", "all-wrong", "no-var"], ["mw_p", "rho"]].astype(float)).all(
        axis=None
    )
    assert table.loc["t", "mw_p_holm"] == pytest.approx(0.2)  # undefined cells do not count as tests
    done = controls(frame, QUICK).set_index("task")
    assert done.loc["all-right", "why"] == "all 4 samples are correct"
    assert math.isnan(done.loc["no-var", "lr_p"])
    assert len(quadrants(frame, QUICK)) == len(selectors(frame, QUICK)) == 5


def test_missing_columns_and_nonsense_are_named(five):
    with pytest.raises(UserInputError, match="lacks the columns var, n"):
        within_cell(five.drop(columns=["var", "n"]))
    with pytest.raises(UserInputError, match="pandas or Arrow"):
        within_cell(object())


def test_quadrants_split_at_the_median_with_ties_low():
    rows = [
        ("t", "o", i, c, m, v, 9)
        for i, (m, v, c) in enumerate([(-1, 1, 1), (-2, 2, 0), (-1, 3, 1), (-2, 1, 1)])
    ]
    row = quadrants(study(rows), QUICK).iloc[0]
    # medians: mean −1.5, var 1.5
    assert (row.hi_mean_lo_var, row.hi_mean_hi_var, row.lo_mean_lo_var, row.lo_mean_hi_var) == (
        100,
        100,
        100,
        0,
    )
    assert (row.n_hi_mean_lo_var, row.n_lo_mean_hi_var) == (1, 1)
    assert bool(row.low_var_never_worse)
    tied = quadrants(study([("t", "o", i, True, -1.0, 1.0, 9) for i in range(3)]), QUICK).iloc[0]
    assert tied.n_lo_mean_lo_var == 3
    assert tied.why.startswith("no sample in hi_mean_lo_var")
    assert tied.low_var_never_worse is None


def test_selectors_by_hand():
    rows = [
        ("t", "forced-ar", "a", 1, -0.2, 0.1, 9),
        ("t", "max-prob", "a", 0, -0.1, 0.2, 9),
        ("t", "random", "a", 0, -0.9, 0.9, 9),
        ("t", "forced-ar", "b", 1, -0.2, 0.3, 9),
        ("t", "max-prob", "b", 0, -0.3, 0.3, 9),
        ("t", "random", "b", 0, -0.9, 0.0, 1),  # one token: var 0, must not be picked
        ("t", "forced-ar", "c", 0, np.nan, np.nan, 0),
        ("t", "max-prob", "c", 1, -0.3, 0.0, 1),
        ("t", "random", "c", 1, np.nan, np.nan, 0),
    ]
    row = selectors(study(rows), QUICK).iloc[0]
    assert row.n_items == 2
    assert row.n_undefined == 1  # item c has no candidate
    assert row.min_v == pytest.approx(75.0)  # a: 1, b: tie of 1 and 0
    assert row.max_v == pytest.approx(25.0)  # a: 0, b: the same tie
    assert row.delta_pp == pytest.approx(50.0)
    assert row.max_mean == pytest.approx(50.0)
    assert row.shortest == pytest.approx(100 * (1 / 3 + 1 / 2) / 2)  # all candidates are equally long
    assert math.isnan(row.max_min)
    assert row.random == pytest.approx(100 * (1 / 3 + 1 / 2) / 2)
    assert row.oracle == pytest.approx(100.0)
    assert (row.best_fixed_order, row.best_fixed) == ("forced-ar", 100.0)
    assert row.max_v_structured == pytest.approx(25.0)
    assert row.random_structured == pytest.approx(50.0)


def test_selectors_need_a_choice():
    row = selectors(study([("t", "random", i, True, -0.1, 0.1, 9) for i in range(3)]), QUICK).iloc[0]
    assert math.isnan(row.min_v)
    assert row.why == "1 order: nothing to choose from"
    assert row.why_structured == "0 orders: nothing to choose from"


def test_items_are_keyed_by_row_id():
    # Two items may share their text; only ids tell them apart.
    rows = [("t", o, i, True, -0.1, 0.1, 9) for i in (7, 8) for o in ("forced-ar", "random")]
    assert selectors(study(rows), QUICK).iloc[0].n_items == 2


def test_order_differences_are_paired():
    rows = [("t", "a", i, i < 6, -0.1, 0.1, 9) for i in range(8)] + [
        ("t", "b", i, i < 3, -0.1, 0.1, 9) for i in range(7)
    ]
    row = order_differences(study(rows)).iloc[0]
    assert (row.n, row.only_first, row.only_second) == (7, 3, 0)
    assert row.mcnemar_p == pytest.approx(0.25)
    assert row.difference_pp == pytest.approx(300 / 7)


def test_several_answers_to_an_item_are_a_majority_and_a_tie_is_incorrect():
    answers = {"a": ["11", "10", "110", "100"], "b": ["00", "00", "000", "000"]}
    rows = [
        ("t", order, item, mark == "1", -0.1, 0.1, 9)
        for order, marks in answers.items()
        for item, mine in enumerate(marks)
        for mark in mine
    ]
    row = order_differences(study(rows)).iloc[0]
    assert (row.n, row.only_first, row.only_second) == (4, 2, 0)


def test_rows_without_a_verdict_or_a_number_are_counted_in_every_table():
    frame = simulate_study(12, n_tokens=8).query("order in ('random', 'max-prob')").reset_index(drop=True)
    frame["correct"] = frame["correct"].astype(object)
    first = frame.index[frame["order"] == "random"]
    frame.loc[first[:2], "correct"] = None
    frame.loc[first[2], "var"] = np.nan
    frame.loc[first[3:6], "mean"] = np.nan
    within = within_cell(frame, QUICK).set_index("order")
    assert within["n_undefined"].to_dict() == {"random": 3, "max-prob": 0}
    assert within.loc["random", ["n_correct", "n_incorrect"]].sum() == 9
    assert quadrants(frame, QUICK)["n_undefined"].tolist() == [6]
    checked = controls(frame, QUICK).set_index("order")
    assert checked["n_undefined"].to_dict() == {"random": 6, "max-prob": 0, "(all, order held fixed)": 6}
    assert checked["n"].to_dict() == {"random": 6, "max-prob": 12, "(all, order held fixed)": 18}


def test_repeated_items_get_bootstrap_intervals():
    frame = simulate_study(60, seed=2).query("order == 'random'")
    once = controls(frame, QUICK).iloc[0]
    twice = controls(pd.concat([frame, frame]), QUICK).iloc[0]
    assert twice.auroc_var == pytest.approx(once.auroc_var)
    assert twice.auroc_var_high - twice.auroc_var_low > 0.7 * (once.auroc_var_high - once.auroc_var_low)


@pytest.fixture(scope="module")
def with_effect():
    return simulate_study(800, var_effect=0.5, seed=4)


@pytest.fixture(scope="module")
def without():
    return simulate_study(800, var_effect=0.0, seed=4)


def test_the_null_study_looks_like_the_papers_findings(without):
    cells = within_cell(without, QUICK)
    assert cells["rho"].between(-0.40, -0.2).all()  # the mean alone makes Var look predictive
    assert (cells["mw_p_holm"] < 1e-4).all()
    assert quadrants(without, QUICK).iloc[0].low_var_never_worse
    assert selectors(without, QUICK).iloc[0].delta_pp > 10
    assert cells["partial_rho"].abs().max() < 0.1  # and the controls see through it


def test_controls_tell_a_var_effect_from_none(with_effect, without):
    found, nothing = controls(with_effect, QUICK), controls(without, QUICK)
    assert (found["lr_p"].dropna() < 1e-4).all()
    assert (found["var_coefficient"] < 0).all()
    assert (found["partial_p_holm"].dropna() < 1e-4).all()
    assert (nothing["lr_p_holm"].dropna() > 0.05).all()
    assert (nothing["partial_p_holm"].dropna() > 0.05).all()


def test_the_mean_only_null_tells_them_apart_too(with_effect, without):
    found, nothing = mean_only_null(with_effect, reps=100), mean_only_null(without, reps=100)
    partial = found["statistic"] == "partial_rho"
    assert (found.loc[partial, "p"] < 0.02).all()
    assert (found.loc[partial, "observed"] < found.loc[partial, "null_low"]).all()
    assert (nothing.loc[nothing["statistic"] == "partial_rho", "p"] > 0.01).all()
    rho = nothing[nothing["statistic"] == "rho"]
    assert (rho["null_mean"] < -0.2).all()  # what "Var predicts correctness" is worth without any Var effect
    assert rho["observed"].between(rho["null_low"], rho["null_high"]).all()


def test_null_statistics_equal_the_tables(without):
    table = mean_only_null(without, reps=5)
    cells = within_cell(without, QUICK).set_index("order")
    for name in ("rho", "partial_rho"):
        mine = table[table["statistic"] == name].set_index("order")["observed"]
        np.testing.assert_allclose(mine, cells.loc[mine.index, name], atol=1e-10)
    quad, chosen = quadrants(without, QUICK).iloc[0], selectors(without, QUICK).iloc[0]
    by_name = table[table["order"] == "(all)"].set_index("statistic")["observed"]
    assert by_name["delta_pp (min-V − max-V)"] == pytest.approx(chosen.delta_pp)
    assert by_name["hi_mean: lo_var − hi_var (pp)"] == pytest.approx(
        quad.hi_mean_lo_var - quad.hi_mean_hi_var
    )


def test_null_needs_repetitions_and_survives_constant_cells(five):
    with pytest.raises(UserInputError, match="got 0"):
        mean_only_null(five, reps=0)
    constant = mean_only_null(five.assign(correct=True), reps=10)
    assert np.isnan(constant.loc[constant["statistic"] == "rho", "p"]).all()
    assert len(mean_only_null(five.assign(var=np.nan), reps=3)) == 0


def test_simulation_is_seeded():
    pd.testing.assert_frame_equal(simulate_study(20, seed=1), simulate_study(20, seed=1))
    assert not simulate_study(20, seed=1).equals(simulate_study(20, seed=2))


def test_agreement_with_scipy_on_random_data():
    frame = simulate_study(150, seed=9).query("order == 'max-prob'")
    yes, var = frame["correct"].to_numpy(), frame["var"].to_numpy()
    row = within_cell(frame, QUICK).iloc[0]
    assert row.rho == pytest.approx(stats.spearmanr(var, yes).statistic, abs=1e-10)
    assert row.mw_p == pytest.approx(
        stats.mannwhitneyu(var[yes], var[~yes], alternative="less").pvalue, abs=1e-10
    )
    assert row.rho_mean == pytest.approx(stats.spearmanr(frame["mean"], yes).statistic, abs=1e-10)


def test_rival_selectors_use_their_own_column():
    rows = [("t", "forced-ar", "a", 1, -0.2, 0.1, 9), ("t", "max-prob", "a", 0, -0.1, 0.2, 4)]
    row = selectors(study(rows).assign(min=[-3.0, -1.0]), QUICK).iloc[0]
    assert (row.min_v, row.max_min, row.shortest, row.max_mean) == (100.0, 0.0, 0.0, 0.0)


def test_a_rival_that_some_answers_lack_is_undefined_with_the_reason():
    frame = simulate_study(60).assign(self_certainty=lambda part: part["mean"], lowest_group=np.nan)
    frame.loc[frame["order"].eq("forced-ar").idxmax(), "self_certainty"] = np.nan
    table = controls(frame, QUICK).set_index("order")
    assert np.isnan(table.loc["forced-ar", "auroc_self_certainty"])
    assert table.loc["forced-ar", "auroc_self_certainty_why"] == "1 of 60 answers have no self_certainty"
    assert table.loc["max-prob", "auroc_self_certainty"] == table.loc["max-prob", "auroc_mean"]
    assert "auroc_lowest_group" not in table
    cells = table.drop(index=POOLED).reset_index()
    shown = {row["order"]: row["auroc_self_certainty"] for row in _auroc_table(cells).rows}
    leads = {
        row["order"]: row["difference"]
        for row in _rival_table(cells).rows
        if row["rival"] == "self_certainty"
    }
    for found in (shown, leads):
        assert found["forced-ar"].why == "1 of 60 answers have no self_certainty"
        assert found["max-prob"].is_defined


def test_every_rival_is_compared_with_var(without):
    table = controls(without, QUICK)
    row = table.iloc[0]
    for name in ("mean", "min", "n"):
        assert row[f"auroc_var_minus_{name}"] == pytest.approx(row.auroc_var - row[f"auroc_{name}"])
        assert 0 <= row[f"auroc_var_minus_{name}_p"] <= 1
