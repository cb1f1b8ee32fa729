"""What the runs of a study say about quality, measure by measure: likelihood, external, tasks, endings."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd

from orderlens.analysis.couplings import TRACE
from orderlens.analysis.frontier import Measure
from orderlens.analysis.likelihood import TextBits
from orderlens.analysis.study import Study
from orderlens.analysis.tables_policies import text_bytes

BITS = "bits per byte"
EXTERNAL = "external NLL"
ACCURACY = "accuracy"
ENDED, EOS_SHARE = "texts that end", "EOS share"
TEXTS = "texts"


def measures(study: Study) -> list[Measure]:
    """Return the measures that the runs hold; none of them is empty."""
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
    graded = study.decoded.merge(verdicts[[*TRACE, "correct"]].drop_duplicates(TRACE), on=TRACE, how="inner")
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
        "passes": frame["passes"],
        "tokens": frame["n"] + frame["n_overflow"],
    }
    return pd.DataFrame(columns)


def unit_of(name: str) -> str:
    """Return the unit of a measure, for axes."""
    if name == BITS:
        return "bits/byte"
    return "nats/token" if name.startswith(EXTERNAL) else "%"


def log_axis(values: list[float]) -> bool:
    """Whether numbers of passes span enough to be drawn by ratio."""
    known = [value for value in values if value > 0 and math.isfinite(value)]
    return bool(known) and max(known) > 3 * min(known)
