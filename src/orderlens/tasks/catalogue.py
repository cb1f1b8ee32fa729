"""The tasks by name; third parties add theirs under the entry-point group ``orderlens.tasks``."""

from __future__ import annotations

from orderlens.registry import Registry
from orderlens.tasks.protocol import Task


def _lacks(task: object) -> str | None:
    """Return which member an object lacks to be a task; None if none."""
    missing = [member for member in vars(Task) if member[0] != "_" and not hasattr(task, member)]
    return f"it has no '{missing[0]}'; see orderlens.tasks.protocol.Task" if missing else None


TASKS: Registry[Task] = Registry(
    "task",
    {
        "hellaswag": "orderlens.tasks.multiple_choice:HELLASWAG",
        "cmath": "orderlens.tasks.word_problems:CMATH",
        "mmlu-pro": "orderlens.tasks.multiple_choice:MMLU_PRO",
        "ifeval": "orderlens.tasks.ifeval:TASK",
        "gsm8k": "orderlens.tasks.word_problems:GSM8K",
        "arith": "orderlens.tasks.bundled:ARITH",
        "choice": "orderlens.tasks.bundled:CHOICE",
    },
    entry_point_group="orderlens.tasks",
    check=_lacks,
)


def task_names() -> list[str]:
    """Return the ids of all tasks."""
    return TASKS.names()


def get_task(name: str) -> Task:
    """Return the task called ``name`` (``mmlu_pro`` and ``MMLU-Pro`` are understood as ``mmlu-pro``)."""
    plain = name.strip().lower().replace("_", "-")
    return TASKS.get(plain if plain in TASKS.names() else name)
