"""The verdicts of an evaluation: accuracies, and grading its stored responses again, without a model.

``regrade`` commits the new verdicts as one unit, a new generation; the old ones stay readable.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from orderlens.errors import RunError, UserInputError, counted
from orderlens.store.reader import Run, open_run
from orderlens.store.schema import TRACE_KEY
from orderlens.store.verdicts import latest_verdicts
from orderlens.store.writer import open_writer
from orderlens.tasks import get_task
from orderlens.tasks.evaluation.grading import grade_output, verdict_row, verdict_table
from orderlens.tasks.protocol import choose_grader

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


Key = tuple[Any, ...]


def regrade(path: str | os.PathLike[str], *, graders: Mapping[str, str] | None = None) -> Run:
    """Grade every stored response again and commit the verdicts as a new generation.

    Args:
        path: folder of an evaluation, finished or not.
        graders: rule per task; the rules of the run's spec otherwise.

    Returns:
        The run. Nothing is written when no verdict changed.
    """
    run = open_run(path)
    if run.spec.get("kind") != "evaluate":
        raise RunError(
            f"'{path}' is not an evaluation but kind '{run.spec.get('kind')}'; it has nothing to grade"
        )
    rules = _rules(run, graders or {})
    before = run.table("verdicts").to_arrow()
    generation = 1 + max(before["generation"].to_pylist(), default=-1)
    table = verdict_table(_graded(run, rules, generation))
    if _same(latest_verdicts(before), table):
        return run
    state = hashlib.blake2b(repr(table.drop_columns("generation").to_pylist()).encode(), digest_size=12)
    key = f"regrade-{generation}-{state.hexdigest()}"
    with open_writer(path, run.spec) as writer:
        writer.commit(key, {"verdicts": table})
        if run.is_complete:
            writer.finish([key])
    return open_run(path)


def _rules(run: Run, graders: Mapping[str, str]) -> dict[str, str]:
    tasks: Mapping[str, Mapping[str, Any]] = run.spec["data"]["tasks"]
    wanted = {get_task(name).name: rule for name, rule in graders.items()}
    if unknown := set(wanted) - set(tasks):
        raise UserInputError(f"the run has no task '{min(unknown)}' (it has {', '.join(tasks)})")
    return {
        name: choose_grader(get_task(name), wanted.get(name, record["grader"]))
        for name, record in tasks.items()
    }


def _graded(run: Run, rules: Mapping[str, str], generation: int) -> list[dict[str, Any]]:
    documents = {
        (row["task"], row["sample_id"]): json.loads(row["document"])
        for row in run.table("documents").to_arrow().to_pylist()
    }
    scores = _ending_scores(run)
    rows = []
    for output in run.outputs().to_arrow().select([*TRACE_KEY, "text"]).to_pylist():
        doc, task = documents[output["task"], output["sample_id"]], get_task(output["task"])
        verdict = grade_output(task, doc, rules[task.name], output, scores.get(_key(output)))
        rows.append(verdict_row(output, verdict, generation))
    return rows


def _ending_scores(run: Run) -> dict[Key, list[list[float]]]:
    found: dict[Key, list[list[float]]] = {}
    if "endings" in run.tables:
        rows = run.table("endings").to_arrow().to_pylist()
        for row in sorted(rows, key=lambda row: row["ending"]):
            found.setdefault(_key(row), []).append(row["token_logprobs"])
    return found


def _key(row: Mapping[str, Any]) -> Key:
    return tuple(row[name] for name in TRACE_KEY)


def _same(old: pa.Table, new: pa.Table) -> bool:
    """Say whether two generations hold the same verdicts."""
    names = [name for name in new.column_names if name != "generation"]
    rows = [{_key(row): row for row in table.select(names).to_pylist()} for table in (old, new)]
    return rows[0] == rows[1]
