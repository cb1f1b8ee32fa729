"""Which of several verdicts about one response counts: the newest of the rule by which its task is graded.

Grading again adds verdicts, it never replaces any. Tables, lists and the view of a single trace go by the
same rule. Knows tables of verdicts only.
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
Rules: TypeAlias = Mapping[str | None, str | None]
"""The rule by which the responses of each task count."""
COLUMNS = (*TRACE_KEY, "run", "grader", "generation")
"""What decides which verdict counts."""


def latest_verdicts(verdicts: pa.Table, grader: str | None = None, rules: Rules | None = None) -> pa.Table:
    """Return one verdict per response, its newest one of the rule by which all responses of a task count.

    Args:
        verdicts: table ``verdicts`` of one run, or of several with a column ``run``.
        grader: the rule to use.
        rules: those of the whole table, where these are a part of its rows.

    Raises:
        UserInputError: a task has no verdict of the named grader.
    """
    newest = _newest(verdicts)
    rules = _rules(newest, grader) if rules is None else rules
    places = [place for (response, rule), (_, place) in newest.items() if rule == rules[response[0]]]
    return verdicts.take(pa.array(sorted(places), pa.int64()))


def task_rules(verdicts: pa.Table) -> Rules:
    """Return the rule of each task: the one that graded most of its responses.

    Among those that graded as many it is the one that graded most of them last, then the first by name. So no
    response is lost when a part of a run was graded again by another rule.
    """
    named: dict[str | None, set[str]] = defaultdict(set)
    for pair in verdicts.group_by(["task", "grader"]).aggregate([]).to_pylist():
        named[pair["task"]] |= {pair["grader"]} - {None}
    if any(len(found) > 1 for found in named.values()):
        return _rules(_newest(verdicts), None)
    return {task: next(iter(found), None) for task, found in named.items()}


def _newest(verdicts: pa.Table) -> Newest:
    absent = [None] * verdicts.num_rows
    columns = [verdicts[name].to_pylist() if name in verdicts.column_names else absent for name in COLUMNS]
    found: Newest = {}
    for place, (*response, rule, generation) in enumerate(zip(*columns, strict=True)):
        key = (tuple(response), rule)
        found[key] = max(found.get(key, (-1, -1)), (generation or 0, place))
    return found


def _rules(newest: Newest, wanted: str | None) -> Rules:
    """Return the wanted rule, or that of ``task_rules``, for each task."""
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
