"""Small evaluations of the exact control model, and graded runs made to order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from orderlens.store.reader import Run, memory_run
from orderlens.store.schema import table_schema

SCENES = [
    {
        "ind": 7,
        "activity_label": "Baking",
        "ctx_a": "A cook opens the oven.",
        "ctx_b": "she",
        "ctx": "A cook opens the oven. she",
        "endings": ["takes out a tray.", "swims away.", "paints the ceiling blue.", "reads a map."],
        "label": str(label),
    }
    for label in (0, 2, 1)
]


@pytest.fixture(scope="session")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with HellaSwag's fields; its rows share one ``ind``, as some published rows do."""
    path = tmp_path_factory.mktemp("data") / "scenes.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in SCENES))
    return path


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
        place = np.arange(n)
        columns = {
            "block": place // 32,
            "step": place,
            "forward": place,
            "position": place,
            "token_id": place % 7 + 2,
        }
        flags = {"is_eos": False, "is_special": False, "is_overflow": False, "is_argmax": True}
        numbers = {"logq": logq, "max_logprob": logq, "second_logprob": logq - 1, "entropy": -logq}
        reveals.append(pd.DataFrame(columns | numbers).assign(**flags, n_tied=1, n_committed=1, **key))
        verdicts.append(key | {"correct": row["correct"], "extracted": "x", "reason": "made up"})
    schema = pa.schema([*table_schema("reveals", real=pa.float64())])
    traces = pa.concat_tables([_table(part.to_dict("records"), schema) for part in reveals])
    tables = {"reveals": traces, "verdicts": _table(verdicts, table_schema("verdicts"), grader="made up")}
    if documents:
        rows = [
            {"task": doc["task"], "sample_id": doc["id"], "document": json.dumps(doc)} for doc in documents
        ]
        tables["documents"] = pa.Table.from_pylist(rows)
    record = {"skipped_too_long": [], "n_items": 0, "grader": "made up", "source": "none"}
    spec = {"kind": "evaluate", "model": {"name": "made up"}, "max_new_tokens": 64}
    return memory_run(tables, spec | {"data": {"tasks": {str(t): record for t in frame["task"].unique()}}})


def _table(rows: list[dict[str, Any]], schema: pa.Schema, **constant: Any) -> pa.Table:
    return pa.Table.from_pylist(
        [{name: row.get(name, constant.get(name)) for name in schema.names} for row in rows], schema=schema
    )


@pytest.fixture(scope="session")
def make_graded_run() -> Any:
    """Return the function that turns a table of graded samples into a run."""
    return graded_run
