"""Which of several verdicts about one response counts: the newest of the rule by which its task is graded.

Grading again adds verdicts, it never replaces any. Knows tables of verdicts only; the view of a single trace
shows its last verdict with the rule's name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from orderlens.errors import UserInputError
from orderlens.store.schema import TRACE_KEY

Response: TypeAlias = tuple[Any, ...]
Newest: TypeAlias = dict[tuple[Response, str | None], tuple[int, int]]
"""By response and rule: generation and place of the newest verdict; the last among equals."""


def latest_verdicts(verdicts: pa.Table, grader: str | None = None) -> pa.Table:
    """Return one verdict per response, its newest one of the rule by which all responses of a task count.

    That rule is the named grader, or the one that graded most responses of the task; among those that graded
    as many, the one that graded most of them last, then the first by name. So no response is lost when a part
    of a run was graded again by another rule.

    Args:
        verdicts: table ``verdicts`` of one run, or of several with a column ``run``.
        grader: the rule to use.

    Raises:
        UserInputError: a task has no verdict of the named grader.
    """
    newest = _newest(verdicts)
    rules = _rules(newest, grader)
    places = [place for (response, rule), (_, place) in newest.items() if rule == rules[response[0]]]
    return verdicts.take(pa.array(sorted(places), pa.int64()))


def _newest(verdicts: pa.Table) -> Newest:
    absent = [None] * verdicts.num_rows
    columns = [
        verdicts[name].to_pylist() if name in verdicts.column_names else absent
        for name in (*TRACE_KEY, "run", "grader", "generation")
    ]
    found: Newest = {}
    for place, (*response, rule, generation) in enumerate(zip(*columns, strict=True)):
        key = (tuple(response), rule)
        found[key] = max(found.get(key, (-1, -1)), (generation or 0, place))
    return found


def _rules(newest: Newest, wanted: str | None) -> dict[str | None, str | None]:
    """Return the rule of each task."""
    last: dict[Response, int] = {}
    for (response, _), (generation, _) in newest.items():
        last[response] = max(last.get(response, 0), generation)
    counts: dict[str | None, dict[str, list[int]]] = defaultdict(dict)
    for (response, rule), (generation, _) in newest.items():
        found = counts[response[0]]
        if rule is not None:
            graded, newly = found.get(rule, (0, 0))
            found[rule] = [graded + 1, newly + (generation == last[response])]
    return {task: _rule(found, wanted) for task, found in counts.items()}


def _rule(counts: Mapping[str, Sequence[int]], wanted: str | None) -> str | None:
    """Return the rule with the most responses, then with the most of which it spoke last, then by name."""
    if wanted is not None and wanted not in counts:
        known = ", ".join(sorted(counts)) or "none"
        raise UserInputError(f"no verdicts of grader '{wanted}' (present: {known})")
    return wanted or max(sorted(counts), key=lambda rule: tuple(counts[rule]), default=None)
