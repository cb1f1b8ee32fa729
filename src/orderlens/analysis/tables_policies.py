"""Policies side by side on the same texts: likelihood of the sampler, passes, the trace, deviation.

Bits per byte are those of the sampler that a policy defines: exact, estimated over seeds, or undefined. A
randomised policy draws its path, so its likelihood of a text is the mean of P over paths. K seeds give
log mean P. By Jensen's inequality this is too low on average; the bias shrinks with K, and the value is never
below the mean of log P. The interval over texts includes the variation of the draws, because every text has
separate draws. The interval over seeds keeps the texts fixed (jackknife over seeds, Student's t).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy import special

from orderlens.analysis.frames import Paired, side_by_side
from orderlens.analysis.study import Study
from orderlens.analysis.table import Cell, Column, Table, has_sets, table
from orderlens.analysis.tables_couplings import reference_of
from orderlens.analysis.traces import TRACE, all_passes, in_sets, trace_rows
from orderlens.metrics.coherence import order_range
from orderlens.metrics.estimate import (
    Clusters,
    Estimate,
    Resampling,
    function_of_sums,
    ratios_of_sums,
    student_t,
)
from orderlens.metrics.segments import FloatArray, divide
from orderlens.metrics.trace_table import overflow_note

NO_BYTES = "the runs do not store the scored texts"
NO_LIKELIHOOD = "not a likelihood: the order sees the target, or tokens were chosen among draws"


@dataclass(frozen=True, slots=True)
class TextBits:
    """One policy on its texts.

    Attributes:
        kind: ``exact``, ``estimate`` or ``none``.
        log_prob_TK: log P of each text along each seed's path (nats); NaN if missing.
        n_bytes_T: UTF-8 bytes of the texts.
        prompts: the prompt of each text, which identifies it.
    """

    kind: str
    log_prob_TK: FloatArray
    n_bytes_T: FloatArray
    prompts: list[object]

    @classmethod
    def of(cls, part: pd.DataFrame) -> TextBits:
        """Read the scored traces of one policy: ``prompt, seed, log_prob, n_bytes, likelihood``."""
        kinds = set(part["likelihood"].dropna())
        kind = next((name for name in ("none", "estimate", "exact") if name in kinds), "none")
        seeds = part["seed"].fillna(-1)
        wide = part.assign(seed=seeds).pivot_table(
            index="prompt", columns="seed", values="log_prob", aggfunc="first", sort=False
        )
        n_bytes = part.groupby("prompt", sort=False)["n_bytes"].first().reindex(wide.index)
        return cls(kind, wide.to_numpy(np.float64), n_bytes.to_numpy(np.float64), list(wide.index))

    @property
    def n_seeds(self) -> int:
        """Paths per text."""
        return int(self.log_prob_TK.shape[1])

    @property
    def usable(self) -> FloatArray:
        """Texts with a length and a value for every seed [T], as 0 and 1."""
        known = np.isfinite(self.log_prob_TK).all(axis=1) & (self.n_bytes_T > 0)
        return known.astype(np.float64)

    def bits(self, without: int | None = None) -> FloatArray:
        """Return −log2 of the mean of P over seeds [T], optionally without one seed."""
        used = self.log_prob_TK if without is None else np.delete(self.log_prob_TK, without, axis=1)
        log_mean = special.logsumexp(used, axis=1) - math.log(used.shape[1])
        return np.asarray(-log_mean / math.log(2), np.float64)

    def per_byte(self, resampling: Resampling) -> Estimate:
        """Return bits per byte (all bits over all bytes) with an interval over texts."""
        if self.kind == "none":
            return Estimate.undefined(NO_LIKELIHOOD)
        usable = self.usable
        if not usable.any():
            return Estimate.undefined(NO_BYTES, len(usable))
        sums = np.where(usable[:, None] > 0, np.column_stack([self.bits(), self.n_bytes_T]), 0.0)
        clusters = Clusters(self.prompts, resampling)
        (found,) = ratios_of_sums(clusters, clusters.sums(sums), int(usable.sum()))
        return replace(found, n_undefined=len(usable) - found.n)

    def over_seeds(self, level: float) -> Estimate:
        """Return the same number with an interval over seeds, for fixed texts."""
        if self.kind != "estimate":
            return Estimate.undefined("nothing is drawn" if self.kind == "exact" else NO_LIKELIHOOD)
        if self.n_seeds < 2:
            return Estimate.undefined("one seed: no interval; score random:0, random:1, … together")
        known, n = self.usable > 0, self.n_seeds
        total = self.n_bytes_T[known].sum()
        if not total:
            return Estimate.undefined(NO_BYTES)
        value = float(self.bits()[known].sum() / total)
        left_out = np.array([self.bits(without=k)[known].sum() / total for k in range(n)])
        error = math.sqrt((n - 1) / n * float(((left_out - left_out.mean()) ** 2).sum()))
        half = student_t(level, n - 1) * error
        return Estimate(value, value - half, value + half, int(known.sum()))


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
