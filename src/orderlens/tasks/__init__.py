"""Benchmarks: documents, prompts, stop rules and graders. Needs no model and no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orderlens.tasks.catalogue import TASKS, get_task, task_names
from orderlens.tasks.graders import Verdict, require_gradable
from orderlens.tasks.protocol import Benchmark, Task, pick_grader

__all__ = ["TASKS", "Task", "Verdict", "get_task", "grade", "task_names"]


def grade(
    task: str | Task, doc: Mapping[str, Any], response: object, *, grader: str | None = None
) -> Verdict:
    """Grade one response; never fails on account of the response.

    Args:
        task: a task or its name.
        doc: a row with the published fields; the gold fields (and the options) suffice.
        response: the generated text.
        grader: one of the task's rules; its first one when None.

    Raises:
        UnknownNameError: no such task or grader.
        DataFileError: the document lacks the reference, or it cannot be read; never graded as wrong.
        MissingPackageError: IFEval without lm-eval's checkers.
    """
    chosen = get_task(task) if isinstance(task, str) else task
    rule = pick_grader(chosen, grader)
    require_gradable(chosen.name, chosen.flaw(doc), _row_name(chosen, doc))
    return rule(doc, response)


def _row_name(task: Task, doc: Mapping[str, Any]) -> str:
    """Return how messages call a document: by its id where it has one."""
    field = (task.id_field if isinstance(task, Benchmark) else None) or "id"
    return f"document '{str(doc[field])[:60]}'" if doc.get(field) is not None else "the document"
