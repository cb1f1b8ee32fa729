"""Downstream evaluation: tasks in, traces and verdicts out, in one run (``orderlens.api.evaluate``)."""

from orderlens.evaluation.regrade import regrade
from orderlens.evaluation.summary import accuracies, ungraded
from orderlens.store.verdicts import latest_verdicts

__all__ = ["accuracies", "latest_verdicts", "regrade", "ungraded"]
