"""Views as JSON values for the front end (``frontend/src/types.ts`` names the same fields).

Columns stay columns. Undefined numbers become null, unsafe characters become escapes, and log-probabilities
keep six decimals.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import asdict
from typing import Any

import numpy as np

from orderlens.analysis.glossary import explain
from orderlens.common.plaintext import printable
from orderlens.show.views.replay import first_divergence
from orderlens.show.views.sample import SampleView
from orderlens.show.views.trace import FLAGS, NUMBERS, TraceKey, TraceView

DECIMALS = 6
SNIPPET = 160
"""Characters of a text in a list."""
LISTED = ("name", "label", "var", "mean", "gap", "passes", "cascade", "correct")
"""Columns of the list of samples, as ``frontend/src/samples.ts`` names them."""
_COLUMNS = ("forward", "block", "position", "token_id", "n_tied", "n_committed")
_STATS = ("n", "mean", "var", "log_prob", "min", "bottleneck_rate", "gini", "gini_mean")


def plain_sample(sample: SampleView) -> dict[str, Any]:
    """Return a sample as JSON values; ``sample_id`` and ``key`` are for links, never shown."""
    return {
        "sample_id": sample.sample_id,
        "name": printable(sample.sample_id),
        "prompt": _text(sample.prompt),
        "suffix": _text(sample.suffix),
        "pieces": {
            run: {str(token): printable(piece) for token, piece in sorted(pieces.items())}
            for run, pieces in sample.pieces.items()
        },
        "traces": [plain_trace(trace) for trace in sample.traces],
        "divergences": [
            {"a": a, "b": b} | asdict(first_divergence(sample.traces[a], sample.traces[b]))
            for a, b in itertools.combinations(range(len(sample.traces)), 2)
        ],
    }


def column_terms() -> dict[str, dict[str, str]]:
    """Return what the columns of the list of samples mean: column → term, meaning and unit."""
    found = {name: explain(name, "viewer") for name in LISTED}
    return {
        name: {"term": entry.term, "meaning": entry.meaning, "unit": entry.unit}
        for name, entry in found.items()
        if entry is not None
    }


def plain_rows(sample: SampleView) -> list[dict[str, Any]]:
    """Return one row per trace for a list of samples."""
    return [
        plain_row(
            trace.key,
            n=trace.stats.n,
            mean=trace.stats.mean,
            var=trace.stats.var,
            passes=trace.n_passes,
            gap=sample.gap(trace),
            cascade=trace.cascade.length,
            correct=None if trace.verdict is None else trace.verdict.correct,
            text=trace.text if trace.text is not None else sample.prompt,
        )
        for trace in sample.traces
    ]


def plain_row(key: TraceKey, **values: Any) -> dict[str, Any]:
    """Return a row of a list; ``values`` are its numbers, verdict and text."""
    text = values.pop("text")
    return {
        "id": key.id,
        "run": key.run,
        "sample_id": key.sample_id,
        "name": printable(key.sample_id),
        "order": key.order,
        "label": printable(key.name),
        "task": _text(key.task),
        "text": None if text is None else printable(" ".join(text[:SNIPPET].split())),
        **_numbers(values),
    }


def plain_trace(trace: TraceView) -> dict[str, Any]:
    """Return a trace as JSON values; the place in a column is the step."""
    return {
        "id": trace.key.id,
        "key": asdict(trace.key),
        "label": printable(trace.label),
        "reveals": _reveals(trace),
        "revisions": [_numbers(asdict(item)) for item in trace.revisions],
        "text": _text(trace.text),
        "finish_reason": _text(trace.finish_reason),
        "likelihood": trace.likelihood,
        "standing": None if trace.standing is None else _numbers(asdict(trace.standing)),
        "verdict": _verdict(trace),
        "stats": _numbers({name: getattr(trace.stats, name) for name in _STATS}),
        "n_passes": trace.n_passes,
        "cascade": trace.cascade.length,
        "bottlenecks": [_numbers(asdict(item)) for item in trace.bottlenecks()],
        "blocks": [
            _numbers(asdict(item)) | {"lorenz": [_number(value) for value in item.lorenz]}
            for item in trace.blocks
        ],
    }


def _reveals(trace: TraceView) -> dict[str, Any]:
    """Return the columns; a column of numbers without any value is left out."""
    shown = trace.reveals
    out: dict[str, Any] = {name: getattr(shown, name).tolist() for name in _COLUMNS}
    for name in NUMBERS:
        values = getattr(shown, name)
        if not np.isnan(values).all() or name == "logq":
            out[name] = [_number(float(value)) for value in values]
    return out | {name: getattr(shown, name).astype(int).tolist() for name in FLAGS}


def _verdict(trace: TraceView) -> dict[str, Any] | None:
    if trace.verdict is None:
        return None
    return {name: _text(v) if isinstance(v, str) else v for name, v in asdict(trace.verdict).items()}


def _numbers(values: dict[str, Any]) -> dict[str, Any]:
    return {name: _number(v) if isinstance(v, float) else v for name, v in values.items()}


def _number(value: float) -> float | None:
    return round(value, DECIMALS) if math.isfinite(value) else None


def _text(text: str | None) -> str | None:
    return None if text is None else printable(text)
