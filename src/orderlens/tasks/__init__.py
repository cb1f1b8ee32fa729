"""Benchmarks: documents, prompts, stop rules and graders. Needs no model and no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orderlens.registry import Registry
from orderlens.tasks.protocol import Task, pick_grader
from orderlens.tasks.verdict import Verdict

__all__ = ["REGISTRY", "Task", "Verdict", "get_task", "grade", "task_names"]

REGISTRY: Registry[Task] = Registry(
    "task",
    {
        "hellaswag": "orderlens.tasks.hellaswag:TASK",
        "cmath": "orderlens.tasks.cmath:TASK",
        "mmlu-pro": "orderlens.tasks.mmlu_pro:TASK",
        "ifeval": "orderlens.tasks.ifeval:TASK",
        "gsm8k": "orderlens.tasks.gsm8k:TASK",
        "arith": "orderlens.tasks.bundled_tasks:ARITH",
        "choice": "orderlens.tasks.bundled_tasks:CHOICE",
    },
    entry_point_group="orderlens.tasks",
)


def task_names() -> list[str]:
    """Return the ids of all tasks."""
    return REGISTRY.names()


def get_task(name: str) -> Task:
    """Return the task called ``name`` (``mmlu_pro`` and ``MMLU-Pro`` are understood as ``mmlu-pro``)."""
    plain = name.strip().lower().replace("_", "-")
    return REGISTRY.get(plain if plain in REGISTRY.names() else name)


def grade(
    task: str | Task, doc: Mapping[str, Any], response: object, *, grader: str | None = None
) -> Verdict:
    """Grade one response; never fails on account of the document or the response.

    Args:
        task: a task or its name.
        doc: a row with the published fields; the gold fields (and the options) suffice.
        response: the generated text.
        grader: one of the task's rules; its first one when None.

    Raises:
        UnknownNameError: no such task or grader.
        MissingPackageError: IFEval without lm-eval's checkers.
    """
    chosen = get_task(task) if isinstance(task, str) else task
    return pick_grader(chosen, grader)(doc, response)
