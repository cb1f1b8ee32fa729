"""Print accuracy per task, level and order of an evaluation of the bundled tasks, one JSON row each.

    PYTHONPATH=src python recipes/accuracy_by_level.py RUN

Intervals are Wilson's, 95 %, over items. For `choice` two more counts separate reasoning from letters:
`n_named`, responses whose worked solution ends with the correct option's text, and `n_letter_fits`, responses
whose letter belongs to the option they named. `letters` counts the answered letters.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from typing import Any

from orderlens.metrics.significance import wilson
from orderlens.store.reader import Run, open_run
from orderlens.store.verdicts import latest_verdicts
from orderlens.tasks.bundled import CHOICE
from orderlens.tasks.graders import last_named

Rows = list[dict[str, Any]]


def rows_of(run: Run) -> Rows:
    """Return the verdicts; those of `choice` also have the letter of the named option."""
    texts = {(row["sample_id"], row["order"]): row["text"] for row in run.outputs().to_arrow().to_pylist()}
    rows: Rows = latest_verdicts(run.table("verdicts").to_arrow()).to_pylist()
    chosen = [row for row in rows if row["task"] == "choice"]
    documents = CHOICE.load(limit=len({row["sample_id"] for row in chosen}))
    for row in chosen:
        if (document := documents.get(row["sample_id"])) is not None:
            named = last_named(texts[row["sample_id"], row["order"]], document["options"])
            row |= {"named": None if named is None else "ABCD"[named], "gold": document["answer"]}
    return rows


def summary(rows: Rows) -> dict[str, Any]:
    right = sum(bool(row["correct"]) for row in rows)
    interval = wilson(right, len(rows))
    found: dict[str, Any] = {"n": len(rows), "n_correct": right}
    found |= {"low": round(interval.low, 3), "high": round(interval.high, 3)}
    if all("gold" in row for row in rows):
        found["n_named"] = sum(row["named"] == row["gold"] for row in rows)
        found["n_letter_fits"] = sum(
            row["named"] is not None and row["named"] == row["extracted"] for row in rows
        )
        found["letters"] = dict(sorted(Counter(str(row["extracted"]) for row in rows).items()))
    return found


def main() -> None:
    cells: dict[tuple[str, str, str], Rows] = defaultdict(list)
    for row in rows_of(open_run(sys.argv[1])):
        for level in (row["sample_id"].split("-")[1], "all"):  # ids have the form TASK-LEVEL-DIGEST
            cells[row["task"], level, row["order"]].append(row)
    for (task, level, order), rows in sorted(cells.items()):
        print(json.dumps({"task": task, "level": level, "order": order, **summary(rows)}))


if __name__ == "__main__":
    main()
