"""``diff``: do two runs decode the same, and if not, what differs?

Compares stored events and log-probabilities, so it needs no model. The reading of traces is in
``diff_traces``, the judgement of a pair in ``diff_walk``, and explanations in ``diff_causes``.
``golden:NAME`` names a run that is shipped with the package: a preset on the model ``hmm``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orderlens.analysis.diff_causes import Compared, Explanation, explain, tokens_per_pass
from orderlens.analysis.diff_traces import Event, Trace, pair_traces, read_traces
from orderlens.analysis.diff_walk import VERDICTS, Walk, walk
from orderlens.errors import UserInputError
from orderlens.registry import refuse_unknown
from orderlens.store.frame import Frame
from orderlens.store.reader import Place, Run, memory_run, open_run

GOLDEN = "golden:"
GOLDEN_FOLDER = Path(__file__).parent / "golden"
GOLDEN_TABLES = ("reveals", "revisions", "outputs", "tokens")
NOISE = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 0.05, "float16": 0.01}
"""Assumed noise of one log-probability (nats) by precision, where no run measured it."""
_COLUMNS = {
    "sample_id": pa.string(),
    "order_a": pa.string(),
    "order_b": pa.string(),
    "same_text": pa.bool_(),
    "same_path": pa.bool_(),
    "first_pass": pa.int32(),
    "first_position": pa.int32(),
    "verdict": pa.string(),
    "token_a": pa.int32(),
    "token_b": pa.int32(),
    "position_b": pa.int32(),
    "p_a": pa.float64(),
    "p_b": pa.float64(),
    "margin": pa.float64(),
}
"""Columns of ``Diff.table``."""


def diff(run_a: Run | Place, run_b: Run | Place, *, noise: float | None = None) -> Diff:
    """Compare two runs pass by pass.

    Args:
        run_a: a run, its folder, or ``golden:PRESET`` for one that is shipped with the package.
        run_b: the other one.
        noise: differences of log-probabilities up to here count as rounding (nats). By default what the runs
            measured with ``noise_floor``, else a value for their precision.
    """
    if noise is not None and not 0 <= noise < math.inf:
        raise UserInputError(f"noise {noise} is out of range; give nats of 0 or more")
    a, b = (run if isinstance(run, Run) else open_golden(run) for run in (run_a, run_b))
    for run in (a, b):
        if len(run.names) > 1:
            raise UserInputError(f"{', '.join(run.names)}: compare one run with one run")
    return Diff(a, b, *((noise, "given") if noise is not None else measured_noise(a, b)))


def open_golden(place: Place) -> Run:
    """Open a run; ``golden:PRESET`` opens the traces of a preset that are shipped with the package."""
    if not str(place).startswith(GOLDEN):
        return open_run(place)
    facts = json.loads((GOLDEN_FOLDER / "spec.json").read_text(encoding="utf-8"))
    name = str(place).removeprefix(GOLDEN)
    refuse_unknown("golden run", name, facts["presets"])
    order = facts["presets"][name]
    return memory_run(
        {table: _of_order(table, order) for table in GOLDEN_TABLES}, facts["spec"] | {"orders": [order]}
    )


def _of_order(name: str, order: str) -> pa.Table:
    import pyarrow.parquet as pq

    table = pq.read_table(GOLDEN_FOLDER / f"{name}.parquet")
    return table.filter(pc.equal(table["order"], order)) if "order" in table.column_names else table


def measured_noise(a: Run, b: Run) -> tuple[float, str]:
    """Return the noise of one log-probability (nats) and where it comes from.

    Re-scored paths give |Δ log P|/√n, as errors of n reveals add up to √n of them; the largest one counts.
    """
    found = [value for run in (a, b) for value in _rescored(run)]
    if found:
        return max(found), "measured"
    kinds = [_precision(run) for run in (a, b)]
    return max(NOISE[kind] for kind in kinds), f"assumed for {' and '.join(dict.fromkeys(kinds))}"


def _rescored(run: Run) -> list[float]:
    if "noise" not in run.tables:
        return []
    table = run.table("noise").to_arrow(["log_prob", "log_prob_perturbed", "n"])
    first, again, n = (np.asarray(table[name].to_numpy(), np.float64) for name in table.column_names)
    change = np.abs(again - first) / np.sqrt(np.maximum(n, 1))
    return [float(value) for value in change[np.isfinite(change)]]


def _precision(run: Run) -> str:
    """Return the stated precision of a run's model, or of recorded logits; float32 where none is stated."""
    parts = [run.spec.get(name) for name in ("model", "recorded")]
    stated = [part["precision"] for part in parts if isinstance(part, Mapping) and "precision" in part]
    return next((str(name) for name in stated if name in NOISE), "float32")


@dataclass(frozen=True, slots=True)
class _Row:
    """One pair of traces, with its walk; None where a run has no such trace."""

    a: Trace | None
    b: Trace | None
    walk: Walk | None


class Diff:
    """Two runs compared.

    Attributes:
        a: the first run.
        b: the second run.
        noise: differences of log-probabilities up to here count as rounding (nats).
        noise_source: given, measured, or assumed.
    """

    def __init__(self, a: Run, b: Run, noise: float, noise_source: str) -> None:
        self.a, self.b, self.noise, self.noise_source = a, b, noise, noise_source

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in self.totals.items() if count)
        return f"Diff({counts or 'no traces'})"

    @cached_property
    def rows(self) -> list[_Row]:
        """The pairs of traces, in the order of the first run."""
        pairs = pair_traces(read_traces(self.a), read_traces(self.b))
        return [_Row(a, b, _compare(a, b, self.noise)) for a, b in pairs]

    @property
    def same(self) -> bool:
        """Whether both runs hold the same traces and every pair decodes the same."""
        return bool(self.rows) and self.totals["same"] == len(self.rows)

    @cached_property
    def totals(self) -> dict[str, int]:
        """Number of pairs by verdict."""
        found = [_verdict(row) for row in self.rows]
        return {name: found.count(name) for name in VERDICTS}

    @property
    def tokens_per_pass(self) -> tuple[float, float]:
        """Mean tokens per pass of both runs, over the pairs that both hold."""
        both = [(row.a, row.b) for row in self.rows if row.a is not None and row.b is not None]
        return tokens_per_pass([a for a, _ in both]), tokens_per_pass([b for _, b in both])

    @cached_property
    def explanations(self) -> list[Explanation]:
        """Settings that explain the differences, the strongest evidence first."""
        pairs = [Compared(r.a, r.b, r.walk) for r in self.rows if r.a and r.b and r.walk is not None]
        return explain(self.a.spec, self.b.spec, pairs, self.noise)

    def table(self) -> Frame:
        """One row per text and pair of orders.

        ``first_pass`` and ``first_position`` are those of the first run (0-based). ``p_a`` and ``p_b`` are
        the probabilities of the candidates there, ``margin`` is their distance in nats.
        """
        rows = [_plain_row(row) for row in self.rows]
        columns = {name: pa.array([row.get(name) for row in rows], kind) for name, kind in _COLUMNS.items()}
        return Frame.of(pa.table(columns))

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        a, b = self.tokens_per_pass
        return {
            "same": self.same,
            "totals": self.totals,
            "noise": {"nats": self.noise, "source": self.noise_source},
            "tokens_per_pass": {"a": _finite(a), "b": _finite(b)},
            "explanations": [asdict(item) for item in self.explanations],
            "pairs": [
                {name: _finite(value) for name, value in row.items()}
                for row in self.table().to_arrow().to_pylist()
            ],
        }


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _compare(a: Trace | None, b: Trace | None, noise: float) -> Walk | None:
    """Return the walk of a pair; None where a trace is missing, or the texts to compare differ."""
    if a is None or b is None or (a.prompt is not None and b.prompt is not None and _differ(a, b)):
        return None
    scored = a.key["temperature"] is None and b.key["temperature"] is None
    if scored and _has_targets(a, b):
        return None
    return walk(a, b, noise)


def _differ(a: Trace, b: Trace) -> bool:
    return type(a.prompt) is type(b.prompt) and a.prompt != b.prompt


def _has_targets(a: Trace, b: Trace) -> bool:
    """Return whether both traces score a text, and the texts are not the same."""
    shared = a.final.keys() & b.final.keys()
    return any(a.final[place].token != b.final[place].token for place in shared)


def _verdict(row: _Row) -> str:
    return "missing" if row.walk is None else row.walk.verdict


def _plain_row(row: _Row) -> dict[str, Any]:
    one = row.a or row.b
    assert one is not None
    out: dict[str, Any] = {
        "sample_id": one.key["sample_id"],
        "order_a": None if row.a is None else row.a.order,
        "order_b": None if row.b is None else row.b.order,
        "verdict": _verdict(row),
    }
    if row.a is None or row.b is None or row.walk is None:
        return out
    out["same_text"] = row.a.text == row.b.text
    out["same_path"] = [_names(p) for p in row.a.passes] == [_names(p) for p in row.b.passes]
    return out | _first(row.a, row.b, row.walk)


def _names(events: Mapping[int, Event]) -> list[tuple[int, str, int]]:
    return [event.name for event in events.values()]


def _first(a: Trace, b: Trace, found: Walk) -> dict[str, Any]:
    """Return the place of the first difference and the candidates there."""
    if found.number is None:
        return {}
    left, right = (_leftmost(events) for events in (found.only_a, found.only_b))
    numbers = [trace.forwards[found.number] for trace in (a, b) if found.number < len(trace.forwards)]
    place = left or right
    assert place is not None
    return {
        "first_pass": numbers[0],
        "first_position": place.position + a.start,
        "position_b": None if right is None else right.position + b.start,
        "token_a": None if left is None else left.token,
        "token_b": None if right is None else right.token,
        "p_a": None if left is None else math.exp(left.logq),
        "p_b": None if right is None else math.exp(right.logq),
        "margin": None if math.isnan(found.margin) else found.margin,
    }


def _leftmost(events: Sequence[Event]) -> Event | None:
    return min(events, key=lambda event: event.position, default=None)
