"""Control analyses: does Var add information to mean log q and length? Rivals and the mean-only null.

``simulate_study`` simulates a study in which correctness depends on the mean of log q, and optionally on Var
given the mean. ``mean_only_null`` keeps the traces of a real study and redraws only the verdicts, from the
probability of a correct answer given the mean alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import scipy
from scipy.special import expit

from orderlens.analysis.association import DIRECTIONS, POOLED, QUADRANTS, controls, quadrant_flags
from orderlens.analysis.frames import as_frame, cells, finite_rows, graded_rows, same_kind
from orderlens.analysis.predictors import FOLDS, held_out_aurocs, pooled_cells
from orderlens.analysis.selecting import is_candidate, pick_weights
from orderlens.analysis.study import Options, Study
from orderlens.analysis.table import Cell, Column, Table, has_verdicts, rows_of, table
from orderlens.analysis.tables_downstream import ungraded_table
from orderlens.common.rng import keyed_generator
from orderlens.errors import UserInputError
from orderlens.metrics.estimate import Estimate
from orderlens.metrics.segments import FloatArray, divide
from orderlens.metrics.significance import adjust, natural_spline_basis, orthonormal_basis, residuals

SIMULATED_ORDERS = {"forced-ar": 1.0, "max-prob": 0.9, "top-margin": 0.95, "random": 2.0}
"""Orders of a simulated study and the factor by which each raises the self-information of a prompt."""


def simulate_study(
    n_items: int = 1000,
    *,
    var_effect: float = 0.0,
    mean_effect: float = 0.8,
    n_tokens: int = 128,
    task: str = "simulated",
    seed: int = 0,
) -> pd.DataFrame:
    """Return a simulated table of graded samples.

    Each trace draws −log q_t from a gamma distribution whose mean depends on the prompt, the order and
    chance, so Var rises as the mean falls, as in real traces; its shape varies too, so traces of equal mean
    differ in Var. The log-odds of a correct answer are ``mean_effect`` per standard deviation of the mean (on
    a log scale) minus ``var_effect`` per standard deviation of log Var at given mean.

    Args:
        n_items: prompts; each is answered under four orders.
        var_effect: effect of Var given the mean; 0 gives the mean-only null.
        mean_effect: strength of the mean.
        n_tokens: tokens per trace.
        task: name of the task.
        seed: seed of the simulation.
    """
    rng = keyed_generator(seed, "simulated study", task)
    prompt = rng.normal(size=n_items)
    parts = []
    for order, factor in SIMULATED_ORDERS.items():
        scale = factor * np.exp(-1.2 + 0.5 * prompt + 0.4 * rng.normal(size=n_items))
        shape = np.exp(-0.7 + 0.5 * rng.normal(size=n_items))
        # A gamma with this shape and mean `scale`: traces of equal mean differ in how uneven they are.
        y = -rng.gamma(shape[:, None], (scale / shape)[:, None], size=(n_items, n_tokens))
        parts.append(pd.DataFrame({"task": task, "order": order, "item_id": np.arange(n_items)}))
        parts[-1] = parts[-1].assign(mean=y.mean(axis=1), var=y.var(axis=1), min=y.min(axis=1), n=n_tokens)
    frame = pd.concat(parts, ignore_index=True)
    beyond = _standard(_beyond(np.log(frame["var"].to_numpy()), np.log(-frame["mean"].to_numpy())))
    odds = 0.3 + mean_effect * _standard(-np.log(-frame["mean"].to_numpy())) - var_effect * beyond
    frame["correct"] = rng.random(len(frame)) < expit(odds)
    return frame


def mean_only_null(data: Any, reps: int = 500, seed: int = 0, level: float = 0.95) -> Any:
    """Return every Var statistic of a study and its distribution under the mean-only null.

    For each (task, order) the probability of a correct answer given the mean is fitted by a natural spline;
    verdicts are redrawn from it ``reps`` times while mean, Var and length stay as they are.

    Returns:
        One row per statistic: task, order, statistic (``rho``, ``partial_rho``, the quadrants' advantage of
        low Var in percentage points, ``delta_pp`` of the selectors), observed, null_mean, null_low,
        null_high, p (two-sided, how often the null is at least as far from its own mean), n.
    """
    if reps < 1:
        raise UserInputError(f"the null simulation needs at least 1 repetition, got {reps}")
    rows = []
    for (task,), part in cells(as_frame(data), ("task",)):
        graded, _ = graded_rows(part)
        known = finite_rows(graded, ["mean", "var", "n"]).reset_index(drop=True)
        if len(known):
            rows += _task_null(str(task), known, reps, seed, level)
    columns = ["task", "order", "statistic", "observed", "null_mean", "null_low", "null_high", "p", "n"]
    return same_kind(data)(pd.DataFrame(rows, columns=columns))


def _task_null(task: str, rows: pd.DataFrame, reps: int, seed: int, level: float) -> list[dict[str, Any]]:
    chance = np.empty(len(rows))
    for _, cell in cells(rows, ("order",)):
        chance[cell.index] = probability_given_mean(
            cell["mean"].to_numpy(np.float64), cell["correct"].to_numpy()
        )
    rng = keyed_generator(seed, "mean-only null", task)
    draws_RN = (rng.random((reps, len(rows))) < chance).astype(np.float64)
    verdicts_RN = np.concatenate([rows["correct"].to_numpy(np.float64)[None], draws_RN])
    out = []
    for (order,), cell in cells(rows, ("order",)):
        place = cell.index.to_numpy()
        for name, values in _cell_statistics(cell, verdicts_RN[:, place]).items():
            out.append(_row(task, str(order), name, values, len(cell), level))
    for name, values in _pooled_statistics(rows, verdicts_RN).items():
        out.append(_row(task, "(all)", name, values, len(rows), level))
    return out


def probability_given_mean(mean: FloatArray, correct: FloatArray) -> FloatArray:
    """Return the fitted chance of a correct answer of each sample, a smooth function of its mean log q.

    It need not be monotone: if medium means are best, a monotone fit would attribute an effect of the mean
    to Var.
    """
    basis = orthonormal_basis(natural_spline_basis(mean), len(mean))
    fitted = basis @ (basis.T @ np.asarray(correct, np.float64))
    return np.asarray(np.clip(fitted, 0.0, 1.0))


def _cell_statistics(cell: pd.DataFrame, verdicts_RN: FloatArray) -> dict[str, FloatArray]:
    """Return rho and partial rho of Var for every row of verdicts: ranks of 0/1 are linear in 0/1."""
    ranks = [scipy.stats.rankdata(cell[name].astype(float)) for name in ("var", "mean", "n")]
    out = {}
    for name, covariates in (("rho", []), ("partial_rho", ranks[1:])):
        basis = orthonormal_basis(covariates, len(cell))
        var = residuals(ranks[0], basis)
        left = np.sqrt(
            np.maximum((verdicts_RN**2).sum(axis=1) - ((verdicts_RN @ basis) ** 2).sum(axis=1), 0.0)
        )
        usable = np.where(left > 1e-6, left, 0.0) * math.sqrt(float(var @ var))
        out[name] = divide(verdicts_RN @ var, np.where(usable > 1e-6, usable, 0.0))
    return out


def _pooled_statistics(rows: pd.DataFrame, verdicts_RN: FloatArray) -> dict[str, FloatArray]:
    inside = quadrant_flags(rows["mean"].to_numpy(np.float64), rows["var"].to_numpy(np.float64)).astype(
        np.float64
    )
    accuracy = 100.0 * divide(verdicts_RN @ inside, inside.sum(axis=0)[None])
    of = {name: accuracy[:, place] for place, name in enumerate(QUADRANTS)}
    out = {
        "hi_mean: lo_var − hi_var (pp)": of["hi_mean_lo_var"] - of["hi_mean_hi_var"],
        "lo_mean: lo_var − hi_var (pp)": of["lo_mean_lo_var"] - of["lo_mean_hi_var"],
    }
    usable = is_candidate(rows)
    if rows["order"].nunique() > 1 and usable.any():
        item, items = pd.factorize(rows["item_id"][usable])
        weights = pick_weights(rows[usable], item)
        difference = weights["min_v"] - weights["max_v"]
        out["delta_pp (min-V − max-V)"] = 100.0 * verdicts_RN[:, usable] @ difference / len(items)
    return out


def _row(task: str, order: str, name: str, values: FloatArray, n: int, level: float) -> dict[str, Any]:
    observed, null = float(values[0]), values[1:][np.isfinite(values[1:])]
    out: dict[str, Any] = {"task": task, "order": order, "statistic": name, "observed": observed, "n": n}
    if not len(null):
        return {**out, "null_mean": math.nan, "null_low": math.nan, "null_high": math.nan, "p": math.nan}
    low, high = np.quantile(null, [(1 - level) / 2, (1 + level) / 2])
    far = np.abs(null - null.mean()) >= abs(observed - null.mean())
    p = (1 + int(far.sum())) / (1 + len(null)) if math.isfinite(observed) else math.nan
    return {**out, "null_mean": float(null.mean()), "null_low": float(low), "null_high": float(high), "p": p}


def _beyond(values: FloatArray, given: FloatArray) -> FloatArray:
    return residuals(values, orthonormal_basis([given, given**2], len(values)))


def _standard(values: FloatArray) -> FloatArray:
    return np.asarray((values - values.mean()) / values.std(), np.float64)


def null_summary(table: pd.DataFrame, alpha: float = 0.05) -> Sequence[str]:
    """Return notes on which Var statistics the mean alone does not explain."""
    cell = table[table["statistic"] == "rho"]
    if not cell["null_mean"].notna().any():
        return [
            "No cell has correct and incorrect answers with different Var, so there is nothing to compare."
        ]
    partial = table[table["statistic"] == "partial_rho"]
    beyond = int((partial["p"] < alpha).sum())
    null = f"{cell['null_mean'].min():.3f} to {cell['null_mean'].max():.3f}"
    seen = f"{cell['observed'].min():.3f} to {cell['observed'].max():.3f}"
    cells_beyond = f"{beyond} of {int(partial['p'].notna().sum())} cells (p < {alpha:g}, not adjusted)"
    return [
        f"If only the mean mattered, rho(Var, correct) would be {null} in these cells; observed: {seen}.",
        f"Partial rho given mean and length lies outside the null range in {cells_beyond}.",
    ]


@table("does Var add to mean and length?", needs=("jensen",), suits=has_verdicts)
def control_tables(study: Study) -> list[Table]:
    """Return tests of Var given mean and length, and the AUROC of every rival predictor."""
    tests = (
        Column("partial_rho", "ρ(Var | mean, n)"),
        Column("partial_p", "p", 4),
        Column("partial_p_holm", "Holm p", 4),
        Column("var_coefficient", "log-odds / sd of Var"),
        Column("lr_p", "LR p", 4),
        Column("lr_p_holm", "Holm p", 4),
        Column("lr_p_bh", "BH p", 4),
        Column("n", "n"),
        Column("n_undefined", "undefined"),
    )
    title = "Does Var add to mean and length? Partial Spearman and nested logistic regression"
    if not len(study.graded):
        return [ungraded_table(study, "controls", title, tests)]
    frame = controls(study.graded, study.options.resampling)
    rows = rows_of(frame, ("task", "order"), tests, ("n", "n_undefined"))
    for row in rows:
        if row["order"] == POOLED:  # the pooled row has one test only
            row.update(dict.fromkeys(("partial_rho", "partial_p", "partial_p_holm", "lr_p_holm", "lr_p_bh")))
    per_cell = frame[frame["order"] != POOLED]
    kept = int((per_cell["lr_p_holm"] < 0.05).sum())
    notes = (
        "Logistic: correct ~ mean + mean² + length, then + Var, as normal scores; likelihood-ratio test.",
        f"Row {POOLED}: orders pooled with fixed effects, Wald test with errors clustered by item.",
        f"Var adds to mean and length in {kept} of {int(per_cell['lr_p'].notna().sum())} cells (Holm, 0.05).",
    )
    first = Table("controls", title, ("task", "order"), tests, rows, notes)
    return [first, _auroc_table(per_cell), _rival_table(per_cell), _held_out_table(study)]


def _auroc_table(frame: pd.DataFrame) -> Table:
    names = [name for name in DIRECTIONS if f"auroc_{name}" in frame.columns]
    columns = (
        *(Column(f"auroc_{name}", name) for name in names),
        Column("n", "n"),
    )
    signs = ", ".join(f"{'lower' if DIRECTIONS[name] < 0 else 'higher'} {name}" for name in names)
    notes = (
        f"AUROC above 0.5 means: correct answers have {signs}. jensen: exact Jensen loss at σ = 0.5.",
        "Intervals: DeLong, or bootstrap over items when items repeat.",
        "self_certainty: mean KL(uniform‖p), as published; mean_entropy ranks as KL(p‖uniform).",
        "self_certainty and denoising_entropy need --states; a token with p = 0 leaves the first undefined.",
        "lowest_group: least mean log q of 16 neighbours; lowest_decile: mean of the lowest tenth of log q.",
    )
    title = "AUROC of correctness for Var and its rivals"
    rows = rows_of(frame, ("task", "order"), columns, ("n",))
    return Table("controls-auroc", title, ("task", "order"), columns, rows, notes)


def _rival_table(frame: pd.DataFrame) -> Table:
    """Return Var's AUROC minus each rival's, on the same samples."""
    parts = []
    for name in DIRECTIONS:
        if f"auroc_var_minus_{name}" in frame.columns:
            lead = f"auroc_var_minus_{name}"
            part = frame[["task", "order", "n", lead, f"{lead}_p"]].assign(
                rival=name, why=frame["leads_why"].combine_first(frame[f"auroc_{name}_why"])
            )
            source = {"difference": lead, "p": f"{lead}_p"}
            parts.append(part.rename(columns={old: new for new, old in source.items()}))
    long = pd.concat(parts, ignore_index=True)
    long["p_holm"] = adjust(long["p"], "holm")
    columns = (
        Column("difference", "AUROC(Var) − AUROC(rival)"),
        Column("p", "p", 4),
        Column("p_holm", "Holm p", 4),
        Column("n", "n"),
    )
    keys = ("task", "order", "rival")
    notes = ("DeLong's test of two correlated AUROCs, two-sided; Holm over all rows.",)
    title = "Var against each rival on the same samples"
    return Table("controls-rivals", title, keys, columns, rows_of(long, keys, columns, ("n",)), notes)


def _held_out_table(study: Study) -> Table:
    """Return cross-validated AUROCs of each predictor alone and added to mean and length."""
    columns = (
        Column("alone", "alone"),
        Column("base", "mean, length"),
        Column("added", "mean, length, predictor"),
        Column("gain", "gain"),
        Column("n", "n"),
    )
    rows: list[dict[str, Cell]] = []
    for cell in pooled_cells(study.graded, study.options.resampling):
        for name in (name for name in DIRECTIONS if name in cell.rows):
            if cell.rows[name].notna().any():
                found: dict[str, Cell] = dict(
                    zip(("alone", "base", "added", "gain"), held_out_aurocs(cell, name), strict=True)
                )
                if name in ("mean", "n"):  # already in the model without the predictor
                    found |= {"added": None, "gain": None}
                key: dict[str, Cell] = {"task": cell.task, "order": cell.order, "predictor": name}
                rows.append({**key, **found, "n": len(cell.rows)})
    notes = (
        f"Logistic models of normal scores, fitted on {FOLDS - 1} of {FOLDS} parts of the items.",
        "gain: AUROC with the predictor added minus that of mean and length. Seeds are pooled.",
    )
    title = "Cross-validated AUROC of Var and its rivals, alone and beyond mean and length"
    keys = ("task", "order", "predictor")
    return Table("controls-held-out", title, keys, columns, tuple(rows), notes)


_NULL = (
    Column("observed", "observed"),
    Column("null", "mean-only null"),
    Column("p", "p", 3),
    Column("n", "n"),
)


@table("the same statistics when only the mean matters", suits=has_verdicts)
def null(study: Study) -> list[Table]:
    """Return every Var statistic and its distribution when only the mean of log q matters."""
    simulated = not len(study.graded)
    data = simulate_study(seed=study.options.resampling.seed) if simulated else study.graded
    return [null_table(data, study.options, simulated)]


def null_table(data: pd.DataFrame, options: Options, simulated: bool) -> Table:
    """Return the null table of a study; ``simulated`` means that the verdicts are not real."""
    how = options.resampling
    frame = mean_only_null(data, options.null_reps, how.seed, how.level)
    rows: list[dict[str, Cell]] = []
    for row in frame.to_dict("records"):
        key: dict[str, Cell] = {name: str(row[name]) for name in ("task", "order", "statistic")}
        why = "correctness or Var is constant"
        observed = Estimate(
            float(row["observed"]), n=int(row["n"]), why=None if _known(row["observed"]) else why
        )
        middle = Estimate(
            float(row["null_mean"]), float(row["null_low"]), float(row["null_high"]), int(row["n"])
        )
        if not _known(row["null_mean"]):
            middle = Estimate.undefined(why)
        p = Estimate(float(row["p"]), why=None if _known(row["p"]) else why)
        rows.append(key | {"observed": observed, "null": middle, "p": p, "n": int(row["n"])})
    source = (
        "a simulated study in which only the mean matters"
        if simulated
        else "this run's traces, verdicts redrawn"
    )
    notes = (f"Source: {source}; {options.null_reps} repetitions.", *null_summary(frame))
    title = "What the tables would show if Var carried no information (correctness drawn from the mean alone)"
    return Table("null", title, ("task", "order", "statistic"), _NULL, tuple(rows), notes)


def _known(value: float) -> bool:
    return not math.isnan(float(value))
