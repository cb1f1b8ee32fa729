"""Downstream evaluation: tasks in, traces and verdicts out, in one run (``orderlens.api.evaluate``)."""

from orderlens.store.verdicts import latest_verdicts
from orderlens.tasks.evaluation.grading import accuracies, regrade, ungraded

__all__ = ["accuracies", "latest_verdicts", "regrade", "ungraded"]
