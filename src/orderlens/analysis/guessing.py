"""How often guessing is right: needed wherever an accuracy is read. Knows graded runs and their documents."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from orderlens.analysis.study import Study
from orderlens.tasks.named_option import NAMED_GRADER


def guessing_level(documents: Sequence[Mapping[str, Any]]) -> float:
    """Return the accuracy (%) of guessing among the listed options; NaN when nothing is listed."""
    sizes = [len(doc.get("options") or doc.get("endings") or ()) for doc in documents]
    known = [size for size in sizes if size > 1]
    return float(100 * np.mean([1 / size for size in known])) if known else math.nan


def guessing_levels(study: Study) -> dict[str, float]:
    """Return the accuracy (%) of guessing per task whose documents list options and whose grader reads one.

    What guessing gives under the rule that reads named options is not known: some are easy to rule out.
    """
    named = set(study.verdicts.loc[study.verdicts["grader"] == NAMED_GRADER, "task"].astype(str))
    if "documents" not in study.run.tables:
        return {}
    documents: dict[str, list[dict[str, Any]]] = {}
    for row in study.run.table("documents").to_arrow().to_pylist():
        documents.setdefault(str(row["task"]), []).append(json.loads(row["document"]))
    return {task: guessing_level(found) for task, found in documents.items() if task not in named}
