"""Accuracies of an evaluation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from orderlens.errors import counted
from orderlens.store.reader import Run
from orderlens.store.verdicts import latest_verdicts

CELL = ("task", "order", "seed", "temperature", "sample_seed", "grader")


def accuracies(run: Run) -> list[dict[str, Any]]:
    """Return per task and order: counts, accuracy with its Wilson interval, IFEval's other levels."""
    cells: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in latest_verdicts(run.table("verdicts").to_arrow()).to_pylist():
        cells.setdefault(tuple(row[name] for name in CELL), []).append(row)
    return [dict(zip(CELL, key, strict=True)) | _accuracy(rows) for key, rows in cells.items()]


def _accuracy(rows: list[Mapping[str, Any]]) -> dict[str, Any]:
    from orderlens.metrics.significance import wilson  # scipy, which decoding does not need

    graded = [row for row in rows if row["correct"] is not None]
    n_correct = sum(row["correct"] for row in graded)
    found = wilson(n_correct, len(graded))
    return {
        "n": len(graded),
        "n_correct": n_correct,
        "accuracy": found.value,
        "low": found.low,
        "high": found.high,
        "n_without_answer": sum(row["extracted"] is None for row in graded),
        "n_ungraded": len(rows) - len(graded),
    } | _instruction_levels(graded)


def ungraded(run: Run) -> dict[str, str]:
    """Return per task with responses that could not be graded how many there are, and why."""
    rows = latest_verdicts(run.table("verdicts").to_arrow()).to_pylist()
    found: dict[str, list[str]] = {}
    for row in rows:
        if row["correct"] is None:
            found.setdefault(str(row["task"]), []).append(row["reason"] or "not graded")
    return {task: f"{counted(len(reasons), 'response')} {reasons[0]}" for task, reasons in found.items()}


def _instruction_levels(rows: list[Mapping[str, Any]]) -> dict[str, float]:
    parsed = [json.loads(row["per_instruction"]) for row in rows if row["per_instruction"]]
    if not parsed:
        return {}
    found = {"prompt_loose": sum(all(item["loose"]) for item in parsed) / len(parsed)}
    for level in ("strict", "loose"):
        single = [good for item in parsed for good in item[level]]
        found[f"instruction_{level}"] = sum(single) / len(single)
    return found
