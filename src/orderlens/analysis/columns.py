"""What a study adds to the statistics of its traces: labels, Var about a held-out mean, verdicts, reasons.

Frames in, frames out; knows neither tables nor files.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from orderlens.analysis.estimate import Estimate
from orderlens.analysis.frames import cells, joined_keys
from orderlens.analysis.orders import in_paper_order, label
from orderlens.errors import UserInputError
from orderlens.store.reader import Run
from orderlens.store.samples import KEYS


def order_labels(frame: pd.DataFrame) -> list[str]:
    """Return the order of each trace, with its seed where there are several."""
    seeds = frame.groupby(["model", "order"], dropna=False)["seed"].transform("nunique")
    return [
        label(str(order), seed, count > 1)
        for order, seed, count in zip(frame["order"], frame["seed"], seeds, strict=True)
    ]


def var_about(frame: pd.DataFrame, prefix: str) -> pd.Series:
    """Return the mean square of log q about the mean per token of the other prompts of the same cell.

    The reference is held out: a prompt's own traces never enter it.
    """
    mean, var = frame[f"{prefix}mean"], frame[f"{prefix}var"]
    known = np.isfinite(mean)
    count = frame["n_content" if prefix else "n"].where(known, 0.0)
    total = mean.where(known, 0.0) * count
    cell = joined_keys(frame, ("model", "task", "order", "temperature"))
    own = joined_keys(frame, ("model", "task", "order", "temperature", "prompt"))
    sums = [
        column.groupby(cell).transform("sum") - column.groupby(own).transform("sum")
        for column in (total, count)
    ]
    reference = sums[0] / sums[1].where(sums[1] > 0)
    return var + (mean - reference) ** 2


def with_reason(cell: Estimate, frame: pd.DataFrame, column: str) -> Estimate:
    """Return the cell with the reason why rows of ``column`` are undefined, if any are."""
    if not cell.n_undefined:
        return cell
    missing = frame[~np.isfinite(frame[column].astype(float))]
    reasons = []
    broken = int((missing["n_nonfinite"] > 0).sum())
    if broken:
        reasons.append(f"{broken} with NaN or −inf in the trace")
    rest = missing[missing["n_nonfinite"] == 0]
    empty = int((rest["n_content"] == 0).sum())
    if empty:
        reasons.append(f"{empty} without content tokens")
    short = int(((rest["n_content"] > 0) & (rest["n_content"] < 3)).sum())
    if short:
        reasons.append(f"{short} too short")
    if other := len(rest) - empty - short:
        reasons.append(f"{other} not recorded")
    return Estimate(cell.value, cell.low, cell.high, cell.n, cell.n_undefined, ", ".join(reasons))


def chosen_verdicts(run: Run, grader: str | None) -> pd.DataFrame:
    """Return one verdict per generated text: of the named grader, or of the first of each task by name."""
    frame = run.table("verdicts").to_pandas()
    if "run" not in frame.columns:
        frame["run"] = run.names[0]
    if "generation" in frame.columns:
        frame = _newest(frame, per_grader=grader is not None)
    keep = np.zeros(len(frame), np.bool_)
    for _, rows in cells(frame.reset_index(drop=True), ("task",)):
        chosen = _choose_grader(rows["grader"], grader)
        keep[rows.index] = rows["grader"].isna() if chosen is None else rows["grader"] == chosen
    return frame[keep]


def _choose_grader(names: pd.Series, wanted: str | None) -> str | None:
    known = sorted(str(name) for name in names.dropna().unique())
    if wanted is not None and wanted not in known:
        raise UserInputError(f"no verdicts of grader '{wanted}' (present: {', '.join(known) or 'none'})")
    return wanted or (known[0] if known else None)


def _newest(verdicts: pd.DataFrame, *, per_grader: bool) -> pd.DataFrame:
    """Keep the verdicts of each response's latest grading (a run may have been graded again)."""
    keys = ["run", *KEYS, *(["grader"] if per_grader else [])]
    generation = verdicts["generation"].fillna(0)
    latest = generation.groupby([verdicts[key] for key in keys], dropna=False).transform("max")
    return verdicts[generation == latest].reset_index(drop=True)


def graded_samples(decoded: pd.DataFrame, verdicts: pd.DataFrame) -> pd.DataFrame:
    """Return the graded ones of generated traces, with content statistics under plain names."""
    on = ["run", *KEYS]
    known = verdicts[[*on, "correct"]].drop_duplicates(on)
    joined = decoded.drop(columns=["mean", "var", "n", "min", "bottleneck_rate"]).merge(
        known, on=on, how="inner"
    )
    names = {name: f"content_{name}" for name in ("mean", "var", "min", "bottleneck_rate")}
    names |= {"n": "n_content"}
    out = pd.DataFrame({"task": joined["task"].astype(object).where(joined["task"].notna(), "(none)")})
    out["order"] = joined["label"]
    out["base_order"] = joined["order"]
    out["item_id"] = joined["prompt_key"]
    out["correct"] = joined["correct"]
    for name, source in names.items():
        out[name] = joined[source]
    if "content_jensen_0.5" in joined.columns:
        out["jensen"] = joined["content_jensen_0.5"]
    return _sorted_by_order(out)


def _sorted_by_order(frame: pd.DataFrame) -> pd.DataFrame:
    rank = {name: place for place, name in enumerate(in_paper_order(frame["order"].unique()))}
    return (
        frame.assign(_rank=frame["order"].map(rank))
        .sort_values(["task", "_rank"], kind="stable")
        .drop(columns="_rank")
    )
