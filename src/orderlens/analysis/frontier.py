"""Quality against compute: every measure of every policy with its number of passes, at equal passes.

Compute is the number of all forward passes per text, including look-ahead, revision, and completion of a
block past the requested length. The *ladder* is one order with 1, 2, 4, … tokens per pass. Decoding each text
with one of two neighbouring rungs, chosen at random, reaches every point of the straight line between them,
in passes and in quality. The ladder at the passes of another policy is therefore a sampler that can be run,
and a baseline for that policy.

Shape letters: C prompts, O policies, B resamples. Frames in, numbers out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from orderlens.analysis.frames import side_by_side
from orderlens.analysis.study import Study
from orderlens.analysis.table import Cell, Column, Table, table
from orderlens.analysis.tables_policies import TextBits, text_bytes
from orderlens.analysis.traces import TRACE, all_passes, in_sets
from orderlens.metrics.estimate import Clusters, Estimate, Resampling
from orderlens.metrics.segments import FloatArray, divide
from orderlens.metrics.trace_table import WITHOUT_LIKELIHOOD, overflow_note

OUTSIDE = "needs more or fewer passes than any rung of the ladder"
NO_LADDER = "no ladder: run one order with several top=K"
ROUNDING = 1e-9
"""Differences of quality and of passes below this count as 0."""
_RUNG = re.compile(r"([^+]+?)(?:\+top=(\d+))?")


def ladder_of(orders: Sequence[str]) -> list[str]:
    """Return the longest ladder, fewest tokens per pass first; among equally long ones max-prob's."""
    found: dict[str, dict[int, str]] = {}
    for order in orders:
        match = _RUNG.fullmatch(order)
        if match:
            found.setdefault(match[1], {})[int(match[2] or 1)] = order
    long = sorted(found.items(), key=lambda item: (-len(item[1]), item[0] != "max-prob", item[0]))
    rungs = [order for _, order in sorted(long[0][1].items())] if long else []
    return rungs if len(rungs) > 1 else []


@dataclass(frozen=True, slots=True)
class Measure:
    """One kind of quality on the prompts that have it under every policy.

    Attributes:
        name: what it is, with its unit.
        better: 1 if higher is better, −1 if lower is better, 0 if neither.
        orders: the policies.
        prompts: keys of the prompts.
        value_CO, weight_CO: quality is Σ value / Σ weight.
        passes_CO, tokens_CO: passes made and positions filled.
        n_missing: prompts that lack a value under some policy.
    """

    name: str
    better: int
    orders: tuple[str, ...]
    prompts: tuple[object, ...]
    value_CO: FloatArray
    weight_CO: FloatArray
    passes_CO: FloatArray
    tokens_CO: FloatArray
    n_missing: int = 0

    @classmethod
    def of(cls, name: str, better: int, rows: pd.DataFrame, orders: Sequence[str]) -> Measure:
        """Read one row per trace: ``prompt, order, value, weight, passes, tokens``; seeds are averaged."""
        wide = {name: side_by_side(rows, name) for name in ("value", "weight", "passes", "tokens")}
        present = tuple(order for order in orders if order in wide["value"].columns)
        every = wide["passes"][list(present)]
        kept = (
            wide["value"].reindex(every.index)[list(present)].dropna().index if present else every.index[:0]
        )
        value, weight, passes, tokens = (
            frame.reindex(index=kept, columns=list(present)).to_numpy(np.float64) for frame in wide.values()
        )
        missing = len(every) - len(kept)
        return cls(name, better, present, tuple(kept), value, weight, passes, tokens, missing)

    def points(self, resampling: Resampling) -> list[FrontierPoint]:
        """Return every policy's quality and compute with intervals over prompts."""
        ladder = [self.orders.index(order) for order in ladder_of(self.orders)]
        clusters = Clusters(list(self.prompts), resampling)
        count = len(self.orders)

        def statistics(counts_BC: FloatArray) -> FloatArray:
            quality = divide(counts_BC @ self.value_CO, counts_BC @ self.weight_CO)
            passes = divide(counts_BC @ self.passes_CO, counts_BC.sum(axis=1, keepdims=True))
            speed = divide(counts_BC @ self.tokens_CO, counts_BC @ self.passes_CO)
            gain = quality - on_ladder(passes, passes[:, ladder], quality[:, ladder])
            gain[np.abs(gain) < ROUNDING] = 0.0
            return np.concatenate([quality, speed, passes, (self.better or 1) * gain + 0.0], axis=1)

        if not self.prompts:
            return []
        values = statistics(np.ones((1, len(self.prompts))))[0]
        cells = clusters.estimates(values, statistics, len(self.prompts), self.n_missing, OUTSIDE)
        out = []
        for place, order in enumerate(self.orders):
            quality, speed, passes, gain = cells[place::count]
            if place in ladder:
                gain = Estimate.undefined("a rung of the ladder")
            elif not ladder:
                gain = Estimate.undefined(NO_LADDER)
            elif not gain.is_defined:
                gain = Estimate.undefined(OUTSIDE)
            out.append(FrontierPoint(order, quality, speed, passes, gain))
        return _with_front(out, self.better)


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """One policy on one measure.

    Attributes:
        order: the policy.
        quality: of the measure.
        tokens_per_pass: positions filled over passes made.
        passes: per text.
        gain: quality minus that of the ladder at equal passes; positive is better where the measure has a
            direction.
        front: whether the policy is on the Pareto front of quality and passes.
    """

    order: str
    quality: Estimate
    tokens_per_pass: Estimate
    passes: Estimate
    gain: Estimate
    front: bool | None = None


def on_ladder(passes_BO: FloatArray, rungs_BK: FloatArray, quality_BK: FloatArray) -> FloatArray:
    """Return the ladder's quality at each policy's passes [B, O]; NaN outside the ladder."""
    out = np.full(passes_BO.shape, np.nan)
    if rungs_BK.shape[1] < 2:
        return out
    for row in range(len(out)):
        by = np.argsort(rungs_BK[row], kind="stable")
        rungs, quality = rungs_BK[row, by], quality_BK[row, by]
        slack = 1e-9 * rungs[-1]
        inside = (passes_BO[row] >= rungs[0] - slack) & (passes_BO[row] <= rungs[-1] + slack)
        out[row, inside] = np.interp(passes_BO[row, inside], rungs, quality)
    return out


def _with_front(points: list[FrontierPoint], better: int) -> list[FrontierPoint]:
    if not better:
        return points
    places = [(better * point.quality.value, -point.passes.value) for point in points]
    return [
        replace(point, front=not any(_beats(other, mine) for other in places))
        for point, mine in zip(points, places, strict=True)
    ]


def _beats(other: tuple[float, float], mine: tuple[float, float]) -> bool:
    """Whether a policy is at least as good in quality and in passes, and better in one of them."""
    leads = [theirs - own for theirs, own in zip(other, mine, strict=True)]
    return min(leads) >= -ROUNDING and max(leads) > ROUNDING


BITS = "bits per byte"
EXTERNAL = "external NLL"
ACCURACY = "accuracy"
ENDED, EOS_SHARE = "texts that end", "EOS share"
TEXTS = "texts"


def measures(study: Study) -> list[Measure]:
    """Return the measures that the runs hold, without empty ones."""
    found = [*_likelihood(study), *_external(study), *_tasks(study), *_endings(study)]
    return [measure for measure in found if measure.prompts and measure.orders]


def _likelihood(study: Study) -> Iterator[Measure]:
    """Bits per byte of samplers that have a likelihood; that of a randomised one averages P over seeds."""
    frame = study.scored
    frame = frame[frame["likelihood"].isin(("exact", "estimate"))]
    if not len(frame):
        return
    frame = frame.assign(n_bytes=text_bytes(study, frame))
    parts = []
    for order in study.orders(frame):
        part = frame[frame["order"] == order]
        bits = TextBits.of(part)
        found = pd.Series(np.where(bits.usable > 0, bits.bits(), np.nan), index=bits.prompts)
        value, weight = part["prompt"].map(found), part["n_bytes"]
        parts.append(_rows(part, value, weight))
    yield Measure.of(BITS, -1, pd.concat(parts), study.orders(frame))


def _external(study: Study) -> Iterator[Measure]:
    """Mean negative log-likelihood per evaluator token of the texts that belong to no task."""
    frame = study.decoded[study.decoded["task"].isna()]
    if not len(frame) or study.external is None or study.evaluator is None:
        return
    value = study.external["nll"].reindex(frame.index)
    name = f"{EXTERNAL} ({study.evaluator.name})"
    yield Measure.of(name, -1, _rows(frame, value), study.orders(frame))


def _tasks(study: Study) -> Iterator[Measure]:
    verdicts = study.verdicts
    if not len(verdicts):
        return
    graded = study.decoded.merge(verdicts[[*TRACE, "correct"]], on=TRACE, how="inner")
    for task, rows in graded.groupby("task", sort=False):
        value = pd.to_numeric(rows["correct"].astype(object), errors="coerce")
        yield Measure.of(f"{ACCURACY}, {task}", 1, _rows(rows, 100 * value), study.orders(rows))


def _endings(study: Study) -> Iterator[Measure]:
    """Share of texts that end with an EOS, and share of the positions that hold one (per cent)."""
    frame = study.decoded
    groups = frame["task"].astype(object).where(frame["task"].notna(), TEXTS)
    for group, rows in frame.groupby(groups, sort=False):
        ended = 100.0 * (rows["n_eos"] > 0)
        share = 100.0 * rows["n_eos"] / rows["n"].where(rows["n"] > 0)
        yield Measure.of(f"{ENDED}, {group}", 0, _rows(rows, ended), study.orders(rows))
        yield Measure.of(f"{EOS_SHARE}, {group}", 0, _rows(rows, share), study.orders(rows))


def _rows(frame: pd.DataFrame, value: pd.Series, weight: pd.Series | float = 1.0) -> pd.DataFrame:
    columns = {
        "prompt": frame["prompt"],
        "order": frame["order"],
        "value": value.astype(np.float64),
        "weight": weight,
        "passes": all_passes(frame),
        "tokens": frame["n"] + frame["n_overflow"],
    }
    return pd.DataFrame(columns)


def unit_of(name: str) -> str:
    """Return the unit of a measure, for axes."""
    if name == BITS:
        return "bits/byte"
    return "nats/token" if name.startswith(EXTERNAL) else "%"


def log_axis(values: list[float]) -> bool:
    """Whether numbers of passes span enough for a logarithmic axis."""
    known = [value for value in values if value > 0 and math.isfinite(value)]
    return bool(known) and max(known) > 3 * min(known)


_COLUMNS = (
    Column("n", "n"),
    Column("quality", "quality"),
    Column("tokens_per_pass", "tokens/pass", 2),
    Column("passes", "passes/text", 1),
    Column("gain", "gain at equal passes", 4),
    Column("front", "on the Pareto front"),
)
_OVERVIEW_NOTES = (
    "tokens/pass counts every forward pass: commit, look-ahead, revision, completion of a block.",
    "gain: over a mixture of two neighbouring rungs of the ladder at equal passes; positive is better.",
    "The table frontier adds passes per text and how texts end.",
)
NOTHING = "nothing to measure: the runs hold neither scored nor generated texts"
NOT_HERE = "not measured under this policy"


def has_ladder(study: Study) -> bool:
    """Whether an order was run with several numbers of tokens per pass."""
    frame = study.samples
    return bool(in_sets(frame).any()) and bool(ladder_of(study.orders(frame)))


@table("quality against tokens per pass, compared at equal passes", needs=("text",), suits=has_ladder)
def frontier(study: Study) -> Table:
    """Return one row per measure and policy."""
    found = measures(study)
    rows = [row for measure in found for row in _table_rows(study, measure)] or [_nothing()]
    title = "Quality against compute: every policy at its tokens per pass"
    counts = study.decoded["n_overflow_before"].to_numpy()
    notes = (*_notes(found), *filter(None, [overflow_note(counts)]))
    return Table("frontier", title, ("measure", "order"), _COLUMNS, tuple(rows), notes)


def overview(long: Table) -> Table:
    """Return the frontier with one row per policy: tokens per pass, quality and gain of each measure."""
    rows: dict[str, dict[str, Cell]] = {}
    columns: dict[str, tuple[Column, ...]] = {}
    for row in long.rows:
        name, order = str(row["measure"]), str(row["order"])
        if not row["front"]:
            continue
        passes, gain = f"{name}, tokens/pass", f"{name}, gain"
        columns[name] = (Column(passes, "tokens/pass", 2), Column(name, name), Column(gain, "gain"))
        rows.setdefault(order, {"order": order}).update(
            {passes: row["tokens_per_pass"], name: row["quality"], gain: row["gain"]}
        )
    flat = tuple(column for group in columns.values() for column in group)
    missing: dict[str, Cell] = dict.fromkeys((column.name for column in flat), Estimate.undefined(NOT_HERE))
    filled = tuple(missing | row for row in rows.values())
    ladder = ladder_of(list(rows))
    notes = [*_OVERVIEW_NOTES, *([f"Ladder: {', '.join(ladder)}."] if ladder else [])]
    notes += [note for note in long.notes if WITHOUT_LIKELIHOOD in note]
    return Table("frontier-overview", long.title, ("order",), flat, filled, tuple(notes))


def _table_rows(study: Study, measure: Measure) -> list[dict[str, Cell]]:
    return [
        {
            "measure": measure.name,
            "order": point.order,
            "n": len(measure.prompts),
            "quality": point.quality,
            "tokens_per_pass": point.tokens_per_pass,
            "passes": point.passes,
            "gain": point.gain,
            "front": "" if point.front is None else "yes" if point.front else "no",
        }
        for point in measure.points(study.options.resampling)
    ]


def _nothing() -> dict[str, Cell]:
    empty = Estimate.undefined(NOTHING)
    head: dict[str, Cell] = {"measure": "(none)", "order": "(none)", "n": 0, "front": ""}
    return head | dict.fromkeys(("quality", "tokens_per_pass", "passes", "gain"), empty)


def _notes(found: list[Measure]) -> tuple[str, ...]:
    notes = [
        "passes/text counts every forward pass: commit, look-ahead, revision, completion of a block.",
        "gain: quality minus that of two neighbouring rungs mixed at equal passes; positive is better.",
        "gain is in bits or nats saved, or points won; for EOS it is the difference.",
        "All policies are compared on the same prompts.",
        "on the Pareto front: no other policy is as good with as few passes (point estimates).",
    ]
    ladders = dict.fromkeys(", ".join(ladder_of(measure.orders)) for measure in found)
    notes += [f"Ladder: {names}." for names in ladders if names]
    notes += [
        f"{measure.name}: {measure.n_missing} prompts lack a value under some policy and are excluded."
        for measure in found
        if measure.n_missing
    ]
    return tuple(notes)
