"""Policies side by side on the same texts: likelihood of the sampler, passes, the trace, deviation."""

from __future__ import annotations

import numpy as np
import pandas as pd

from orderlens.analysis.compare import Paired
from orderlens.analysis.frames import side_by_side
from orderlens.analysis.study import Study
from orderlens.analysis.table import Cell, Column, Table, has_sets, table
from orderlens.analysis.tables_couplings import reference_of
from orderlens.analysis.traces import TRACE, all_passes, in_sets, trace_rows
from orderlens.metrics.coherence import order_range
from orderlens.metrics.estimate import Clusters, Estimate, function_of_sums
from orderlens.metrics.likelihood import TextBits
from orderlens.metrics.segments import FloatArray, divide
from orderlens.metrics.trace_table import overflow_note

_MEANS = (
    Column("mean", "mean log q"),
    Column("var", "Var(log q)"),
    Column("var_between", "between passes"),
    Column("gini_mean", "Gini (blocks)"),
)
_COLUMNS = (
    Column("likelihood", "likelihood"),
    Column("n", "n"),
    Column("seeds", "seeds"),
    Column("bits_per_byte", "bits/byte"),
    Column("over_seeds", "over seeds"),
    Column("tokens_per_pass", "tokens/pass", 2),
    Column("passes_per_token", "passes/token"),
    Column("lookahead", "look-ahead passes/text", 1),
    *_MEANS,
    Column("deviation", "Δ mean log q", 4),
)


NOT_SCORED = "generated: nothing was scored"


@table("policies: bits per byte, passes, Var, Gini, deviation", traces="score", suits=has_sets)
def policies(study: Study) -> list[Table]:
    """Return one row per policy, and how far apart the policies are."""
    frame = study.scored if len(study.scored) else study.decoded
    frame = frame.assign(n_bytes=text_bytes(study, frame))
    reference = reference_of(study, frame)
    wide = side_by_side(frame, "mean")
    rows = [_cells(study, frame[frame["order"] == order], wide, reference) for order in study.orders(frame)]
    what = "fixed texts" if len(study.scored) else "generated texts"
    title = f"Policies on {what}: likelihood of the sampler, passes, and the trace"
    notes = (*_notes(rows, reference), *filter(None, [overflow_note(frame["n_overflow_before"].to_numpy())]))
    first = Table("policies", title, ("order",), _COLUMNS, tuple(rows), notes)
    return [first, _deviation(study, frame, wide)]


def text_bytes(study: Study, frame: pd.DataFrame) -> pd.Series:
    """Return the UTF-8 bytes of each trace's text; NaN where the runs do not hold it."""
    if "outputs" not in study.run.tables:
        return pd.Series(np.nan, index=frame.index)
    texts = trace_rows(study.run, "outputs", "text").drop_duplicates(TRACE)
    n_bytes = texts["text"].map(lambda text: len(text.encode()) if isinstance(text, str) else np.nan)
    found = frame[TRACE].merge(texts.assign(n_bytes=n_bytes), on=TRACE, how="left")["n_bytes"]
    return pd.Series(found.to_numpy(np.float64), index=frame.index)


def _cells(study: Study, part: pd.DataFrame, wide: pd.DataFrame, reference: str) -> dict[str, Cell]:
    how = study.options.resampling
    order = str(part["order"].iloc[0])
    bits = TextBits.of(part)
    found: dict[str, Cell] = {
        "order": order,
        "likelihood": bits.kind,
        "n": int(part["prompt"].nunique()),
        "seeds": int(part["seed"].nunique()),
        "bits_per_byte": bits.per_byte(how),
        "over_seeds": bits.over_seeds(how.level) if bits.kind == "estimate" else None,
    }
    if not len(study.scored):
        found |= {"bits_per_byte": Estimate.undefined(NOT_SCORED), "over_seeds": None}
    found |= pace(study, part)
    names = [column.name for column in _MEANS]
    found |= dict(zip(names, study.estimates(part, names), strict=True))
    difference = (wide[order] - wide[reference]).dropna()
    gap = Paired.of(pd.DataFrame({"gap": difference}), how).mean("gap")
    found["deviation"] = gap if order != reference else None
    return found


def pace(study: Study, part: pd.DataFrame) -> dict[str, Cell]:
    """Return tokens per pass, passes per token (sums over sums) and look-ahead passes per text.

    Positions past the requested length that complete a block count, as the passes that fill them do.
    """
    revealed = part["n"] + part["n_overflow"]
    clusters = Clusters(part["prompt"], study.options.resampling)
    sums = clusters.sums(np.column_stack([revealed, all_passes(part)]).astype(np.float64))

    def both(total: FloatArray) -> FloatArray:
        return np.column_stack([divide(total[:, 0], total[:, 1]), divide(total[:, 1], total[:, 0])])

    fast, slow = function_of_sums(clusters, sums, both, len(part))
    lookahead = float(part["n_passes_lookahead"].mean())
    return {"tokens_per_pass": fast, "passes_per_token": slow, "lookahead": Estimate(lookahead, n=len(part))}


def _notes(rows: list[dict[str, Cell]], reference: str) -> tuple[str, ...]:
    kinds = {str(row["likelihood"]) for row in rows}
    notes = [
        "exact: bits/byte of the sampler itself, sets included (total bits over total bytes).",
        f"Δ mean log q: policy − {reference} on the same texts (nats/token); order-pairs lists all pairs.",
        "tokens/pass: total tokens over total passes, including look-ahead and revision passes.",
    ]
    if "estimate" in kinds:
        notes.append("estimate: −log of the mean P over seeds; with few seeds it overestimates the bits.")
        notes.append(
            "over seeds: the same value with an interval over seeds; that of bits/byte is over texts."
        )
    if "none" in kinds:
        notes.append(
            "none: the order sees the target, text was revised, or positions past the requested length were "
            "revealed first, so the sum of log q is not a likelihood."
        )
    sizes = {row["tokens_per_pass"].value for row in rows if isinstance(row["tokens_per_pass"], Estimate)}
    if max(sizes, default=1.0) - min(sizes, default=1.0) > 0.05:
        notes.append("Var falls as sets grow, regardless of their cost: see the table couplings.")
    return tuple(notes)


def _deviation(study: Study, frame: pd.DataFrame, wide: pd.DataFrame) -> Table:
    without = set(frame.loc[~frame["likelihood"].isin(("exact", "estimate")), "order"])
    sets = set(frame.loc[in_sets(frame), "order"])
    proper = [order for order in study.orders(frame) if order not in without]
    scopes = {
        "one token per pass": [order for order in proper if order not in sets],
        "several tokens per pass": [order for order in proper if order in sets],
        "all with a likelihood": proper,
    }
    rows: list[dict[str, Cell]] = []
    for scope, orders in scopes.items():
        found = order_range(wide[orders].to_numpy(np.float64), study.options.resampling)
        p = Estimate(found.p, n=found.estimate.n, why=None if found.p == found.p else "no test")
        rows.append({"scope": scope, "range": found.estimate, "p": p, "n_policies": len(orders)})
    columns = (Column("range", "range of means", 4), Column("p", "p", 4), Column("n_policies", "policies"))
    notes = (
        "range: max − min over policies of mean log q, corrected for noise. p: test that they agree.",
        "With one token per pass, a model with one joint distribution shows 0; with sets it need not.",
    )
    title = "Deviation between policies (nats per token)"
    return Table("policies-deviation", title, ("scope",), columns, tuple(rows), notes)
