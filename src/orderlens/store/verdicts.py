"""Selects the verdict that counts for a response: the newest one of its task's grading rule.

Regrading adds verdicts and never replaces any. Tables, lists and the display of a single trace use the same
selection. Depends only on tables of verdicts.
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
"""(response, rule) → generation and row of the newest verdict; the last row among equals."""
Rules: TypeAlias = Mapping[str | None, str | None]
"""Task → its grading rule."""
COLUMNS = (*TRACE_KEY, "run", "grader", "generation")
"""Columns that determine which verdict counts."""


def latest_verdicts(verdicts: pa.Table, grader: str | None = None, rules: Rules | None = None) -> pa.Table:
    """Return one verdict per response: the newest one of its task's grading rule.

    Args:
        verdicts: table ``verdicts`` of one run, or of several with a column ``run``.
        grader: the rule to use for all tasks.
        rules: rules by task, if ``verdicts`` is only a part of the table from which they follow.

    Raises:
        UserInputError: a task has no verdict of the named grader.
    """
    newest = _newest(verdicts)
    rules = _rules(newest, grader) if rules is None else rules
    places = [place for (response, rule), (_, place) in newest.items() if rule == rules[response[0]]]
    return verdicts.take(pa.array(sorted(places), pa.int64()))


def task_rules(verdicts: pa.Table) -> Rules:
    """Return the rule of each task: the one that graded most of its responses.

    Ties go to the rule with most of the newest verdicts, then to the first by name. So no response is lost
    when a part of a run was regraded by another rule.
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


def _rules(newest: Newest, requested: str | None) -> Rules:
    """Return the requested rule, or that of ``task_rules``, for each task."""
    last: dict[Response, int] = {}
    for (response, _), (generation, _) in newest.items():
        last[response] = max(last.get(response, 0), generation)
    counts: dict[str | None, dict[str, list[int]]] = defaultdict(dict)
    for (response, rule), (generation, _) in newest.items():
        found = counts[response[0]]
        if rule is not None:
            n_graded, n_newest = found.get(rule, (0, 0))
            found[rule] = [n_graded + 1, n_newest + (generation == last[response])]
    return {task: _rule(found, requested) for task, found in counts.items()}


def _rule(counts: Mapping[str, Sequence[int]], requested: str | None) -> str | None:
    """Return the rule with the most responses, then with the most newest verdicts, then the first by name."""
    if requested is not None and requested not in counts:
        known = ", ".join(sorted(counts)) or "none"
        raise UserInputError(f"no verdicts of grader '{requested}' (present: {known})")
    return requested or max(sorted(counts), key=lambda rule: tuple(counts[rule]), default=None)
