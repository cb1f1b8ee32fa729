"""Predictors of correctness against slower, independent ways to the same numbers."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import scipy.optimize
from statsmodels.api import OLS, Logit, add_constant

from orderlens.analysis.association import normal_scores
from orderlens.analysis.predictors import (
    GradedCell,
    accuracy_by_var,
    auroc_lead,
    aurocs,
    held_out_aurocs,
    held_out_scores,
    pooled_cells,
    same_item_correlation,
    var_effect,
)
from orderlens.analysis.tables_controls import simulate_study
from orderlens.analysis.tables_downstream import guessing_level
from orderlens.common.rng import keyed_generator
from orderlens.metrics.estimate import Resampling

HOW = Resampling(reps=200)


def simulated(n_items: int = 80, seeds: int = 3, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    rows = []
    for item in range(n_items):
        ease = rng.normal()
        for draw in range(seeds):
            mean, var = -np.exp(0.4 * rng.normal() - ease / 3), np.exp(0.5 * rng.normal() - ease / 3)
            odds = ease + 0.5 * mean - 0.8 * np.log(var)
            rows.append(
                {"task": "t", "order": f"random:{draw}", "base_order": "random", "item_id": f"i{item}"}
                | {"mean": mean, "var": var, "n": int(rng.integers(5, 60))}
                | {"correct": bool(rng.random() < 1 / (1 + np.exp(-odds)))}
            )
    return pd.DataFrame(rows)


def cell_of(frame: pd.DataFrame) -> GradedCell:
    (cell,) = pooled_cells(frame, HOW)
    return cell


def test_seeds_are_pooled_and_undefined_samples_counted() -> None:
    frame = simulated()
    frame.loc[0, "var"] = math.nan
    frame["correct"] = frame["correct"].astype(object)
    frame.loc[1, "correct"] = None
    cell = cell_of(frame)
    assert (cell.order, len(cell.rows), cell.n_undefined) == ("random", 238, 2)
    assert cell.clusters.count == 80


def brute_auroc(score: np.ndarray, right: np.ndarray) -> float:
    pairs = np.sign(np.subtract.outer(score[right], score[~right]))
    return float((pairs + 1).mean() / 2)


def test_aurocs_are_shares_of_pairs() -> None:
    cell = cell_of(simulated())
    found = aurocs(cell)
    for name, sign in (("var", -1), ("mean", 1), ("n", -1)):
        assert found[name].value == pytest.approx(brute_auroc(sign * cell.column(name), cell.right))
        assert found[name].low < found[name].value < found[name].high


def test_a_rival_that_works_backwards_is_turned_round() -> None:
    frame = simulated()
    frame["n"] = 10 + 20 * frame["correct"]  # long answers are right: a perfect rival, in the other direction
    cell = cell_of(frame)
    lead = auroc_lead(cell, "n")
    assert lead.value == pytest.approx(brute_auroc(-cell.column("var"), cell.right) - 1.0)
    assert lead.high < 0
    assert auroc_lead(cell, "mean").value == pytest.approx(
        aurocs(cell)["var"].value - aurocs(cell)["mean"].value
    )


@pytest.mark.parametrize("given", [(), ("n",), ("mean", "n")])
def test_the_effect_of_var_is_a_clustered_logit(given: tuple[str, ...]) -> None:
    cell = cell_of(simulated())
    columns = []
    for name in given:
        scores = normal_scores(cell.rows[name])
        columns += [scores, scores**2] if name == "mean" else [scores]
    columns.append(normal_scores(cell.rows["var"]))
    z = [(column - column.mean()) / column.std() for column in columns]
    fit = Logit(cell.right.astype(float), add_constant(np.column_stack(z))).fit(
        disp=0, cov_type="cluster", cov_kwds={"groups": cell.clusters.codes}
    )
    found = var_effect(cell, given)
    assert found.value == pytest.approx(fit.params[-1], abs=1e-6)
    assert (found.low, found.high) == pytest.approx(tuple(fit.conf_int()[-1]), abs=1e-5)


def test_the_same_item_correlation_is_a_regression_with_item_dummies() -> None:
    cell = cell_of(simulated())
    dummies = pd.get_dummies(cell.rows["item_id"]).to_numpy(float)
    score, right = normal_scores(cell.rows["var"]), cell.right.astype(float)
    mean, n = normal_scores(cell.rows["mean"]), normal_scores(cell.rows["n"])
    for given, extra in (((), []), (("mean", "n"), [mean, mean**2, n])):
        design = np.column_stack([dummies, *extra])
        x, y = (OLS(values, design).fit().resid for values in (score, right))
        assert same_item_correlation(cell, given).value == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-9)


def test_without_mixed_items_there_is_no_same_item_correlation() -> None:
    frame = simulated().assign(correct=True)
    found = same_item_correlation(cell_of(frame))
    assert not found.is_defined
    assert found.why is not None


def test_bins_by_hand() -> None:
    n = 120
    frame = pd.DataFrame({"task": "t", "order": "forced-ar", "item_id": np.arange(n), "mean": -1.0, "n": 9})
    frame["var"] = np.arange(n)[::-1] / 10
    frame["correct"] = frame["var"] < 6  # the lower half is right
    bins = accuracy_by_var(cell_of(frame), n_bins=4)
    assert [item["accuracy"].value for item in bins] == [100, 100, 0, 0]
    assert [item["accuracy"].n for item in bins] == [30] * 4
    assert [item["var"] for item in bins] == pytest.approx([1.45, 4.45, 7.45, 10.45])
    assert [item["var_low"] for item in bins] == pytest.approx([0.0, 3.0, 6.0, 9.0])
    assert [item["var_high"] for item in bins] == pytest.approx([2.9, 5.9, 8.9, 11.9])
    assert bins[3]["accuracy"].high == pytest.approx(100 * 1.959964**2 / (30 + 1.959964**2))  # at 0 of 30
    assert bins[0]["accuracy"].low == pytest.approx(100 * 30 / (30 + 1.959964**2))  # Wilson at 30 of 30
    assert len(accuracy_by_var(cell_of(frame.head(30)), n_bins=4)) == 1  # too few for a second bin


def test_equal_values_share_a_bin() -> None:
    frame = simulated(60, 1).assign(var=[0.0] * 40 + [1.0] * 20)
    bins = accuracy_by_var(cell_of(frame), n_bins=3, per_bin=5)
    assert [(item["var"], item["accuracy"].n) for item in bins] == [(0.0, 40), (1.0, 20)]
    repeated = pd.concat([frame, frame], ignore_index=True)
    assert accuracy_by_var(cell_of(repeated), n_bins=3, per_bin=5)[0]["accuracy"].n == 80


def test_guessing() -> None:
    assert guessing_level([{"options": list("abcd")}, {"endings": ["x", "y"]}]) == pytest.approx(37.5)
    assert math.isnan(guessing_level([{"golden": "4"}, {"options": []}]))


def one_cell(frame, order="forced-ar"):
    return next(cell for cell in pooled_cells(frame, Resampling(reps=200)) if cell.order == order)


def test_held_out_scores_are_those_of_a_penalised_fit_on_the_other_folds():
    """The same folds, each fitted by a general optimiser."""
    cell = one_cell(simulate_study(200))
    columns = [normal_scores(cell.rows["var"]), normal_scores(cell.rows["mean"])]
    x = np.column_stack(columns)
    found = held_out_scores(cell, columns)
    rng = keyed_generator(cell.clusters.resampling.seed, "folds", cell.task)
    fold = (rng.permutation(len(set(cell.clusters.codes))) % 5)[cell.clusters.codes]
    for number in range(5):
        inside = fold == number
        sign = np.where(cell.right[~inside], 1.0, -1.0)

        def loss(beta, inside=inside, sign=sign):
            odds = beta[0] + x[~inside] @ beta[1:]
            return np.logaddexp(0, -sign * odds).sum() + 0.5 * beta[1:] @ beta[1:]

        best = scipy.optimize.minimize(loss, np.zeros(3), method="BFGS", tol=1e-10).x
        np.testing.assert_allclose(found[inside], x[inside] @ best[1:], atol=1e-4)


def test_var_gains_out_of_sample_only_where_it_matters():
    with_effect = held_out_aurocs(one_cell(simulate_study(1500, var_effect=1.0)), "var")[3]
    without = held_out_aurocs(one_cell(simulate_study(1500, var_effect=0.0)), "var")[3]
    assert with_effect.low > 0.01
    assert without.low < 0.0 < without.high + 0.005


def test_predictions_of_noise_are_at_chance():
    """Pooling the folds must not turn noise into a negative predictor."""
    frame = simulate_study(300)
    rng = np.random.default_rng(1)
    found = []
    for _ in range(20):
        redrawn = frame.assign(correct=rng.random(len(frame)) < 0.5)
        found.append(held_out_aurocs(one_cell(redrawn), "var")[2].value)
    assert abs(np.mean(found) - 0.5) < 0.03


def test_too_few_answers_have_no_held_out_auroc():
    frame = simulate_study(60).assign(correct=False)
    cells = held_out_aurocs(one_cell(frame), "var")
    assert {cell.why for cell in cells} == {"fewer than 5 correct or fewer than 5 incorrect answers"}
