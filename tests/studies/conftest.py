"""Graded runs with given statistics."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest

from orderlens.store.reader import Run
from orderlens.testing import make_run, make_trace


def graded_run(frame: pd.DataFrame, documents: list[dict[str, Any]] | None = None) -> Run:
    """Return a run whose traces have exactly the mean, Var and length of the rows of ``frame``.

    Half of the log-probabilities of a trace lie one standard deviation above its mean, half below.
    ``order`` may carry a seed (``random:3``).
    """
    reveals, verdicts = [], []
    for row in frame.to_dict("records"):
        order, _, seed = str(row["order"]).partition(":")
        key = {"sample_id": str(row["item_id"]), "task": str(row["task"]), "order": order}
        key |= {"seed": int(seed) if seed else None, "temperature": 0.0, "sample_seed": None}
        n, spread = int(row["n"]), float(row["var"]) ** 0.5
        logq = float(row["mean"]) + spread * np.where(np.arange(n) % 2, 1.0, -1.0)
        reveals.append(make_trace(logq=logq, **key))
        verdicts.append(key | {"correct": row["correct"], "extracted": "x", "reason": "made up"})
    tables: dict[str, Any] = {"verdicts": [row | {"grader": "made up"} for row in verdicts]}
    if documents:
        tables["documents"] = [
            {"task": doc["task"], "sample_id": doc["id"], "document": json.dumps(doc)} for doc in documents
        ]
    record = {"skipped_too_long": [], "n_items": 0, "grader": "made up", "source": "none"}
    spec = {"kind": "evaluate", "model": {"name": "made up"}, "max_new_tokens": 64}
    spec |= {"data": {"tasks": {str(task): record for task in frame["task"].unique()}}}
    return make_run(reveals, spec=spec, **tables)


@pytest.fixture(scope="session")
def make_graded_run() -> Any:
    """Return the function that turns a table of graded samples into a run."""
    return graded_run
