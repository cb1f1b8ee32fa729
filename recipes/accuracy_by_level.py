"""Print accuracy per task, level and order of an evaluation of the bundled tasks, one JSON row each.

    PYTHONPATH=src python recipes/accuracy_by_level.py RUN

Intervals are Wilson's, 95 %, over items.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict

from scipy.stats import binomtest

from orderlens.evaluation.summary import latest_verdicts
from orderlens.store.reader import open_run


def main() -> None:
    cells: dict[tuple[str, str, str], list[bool]] = defaultdict(list)
    for row in latest_verdicts(open_run(sys.argv[1]).table("verdicts").to_arrow()).to_pylist():
        level = row["sample_id"].split("-")[1]  # ids read TASK-LEVEL-DIGEST
        for which in (level, "all"):
            cells[row["task"], which, row["order"]].append(bool(row["correct"]))
    for (task, level, order), correct in sorted(cells.items()):
        interval = binomtest(sum(correct), len(correct)).proportion_ci(method="wilson")
        cell = {"task": task, "level": level, "order": order, "n": len(correct), "n_correct": sum(correct)}
        print(json.dumps(cell | {"low": round(interval.low, 3), "high": round(interval.high, 3)}))


if __name__ == "__main__":
    main()
