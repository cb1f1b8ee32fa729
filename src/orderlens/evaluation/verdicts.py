"""Responses to verdict rows. Knows tasks and the store's columns; needs no model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from orderlens.store.schema import TRACE_KEY, table_schema
from orderlens.tasks.protocol import (
    Document,
    LikelihoodRule,
    Task,
    TokenLogProbs,
    cut_at_stop,
    likelihood_rules,
    pick_grader,
)
from orderlens.tasks.verdict import Verdict
from orderlens.work.outputs import storable

Row = Mapping[str, Any]


def response_of(task: Task, output: Row) -> str:
    """Return the decoded text up to the task's stop strings."""
    return cut_at_stop(output["text"] or "", task.stop)


def grade_output(
    task: Task, doc: Document, grader: str, output: Row, scores: TokenLogProbs | None
) -> Verdict:
    """Grade one output; ``scores`` are the choices' token log-probabilities where the rule needs them."""
    rule = likelihood_rules(task).get(grader)
    if rule is None:
        return pick_grader(task, grader)(doc, response_of(task, output))
    return rule.grade(doc, scores if scores is not None else [[math.nan] for _ in rule.choices(doc)])


def verdict_row(output: Row, verdict: Verdict, generation: int) -> dict[str, Any]:
    """Return the row of table ``verdicts``; generation 0 comes with the decoding, regrading adds more."""
    return {name: output[name] for name in TRACE_KEY} | {
        "correct": verdict.correct,
        "extracted": storable(verdict.extracted),
        "reason": storable(verdict.reason),
        "grader": verdict.grader,
        "per_instruction": verdict.instructions_json(),
        "generation": generation,
    }


def ungraded_row(output: Row, grader: str, why: str) -> dict[str, Any]:
    """Return the row of a response that could not be graded here: ``correct`` is null, never false."""
    empty = {"correct": None, "extracted": None, "per_instruction": None, "generation": 0}
    return {name: output[name] for name in TRACE_KEY} | empty | {"grader": grader, "reason": storable(why)}


def verdict_table(rows: Sequence[Row]) -> pa.Table:
    """Return the rows as a table."""
    schema = table_schema("verdicts")
    return pa.Table.from_pylist(list(rows), schema=schema)


def ending_rows(
    output: Row, doc: Document, rule: LikelihoodRule, scores: TokenLogProbs
) -> list[dict[str, Any]]:
    """Return the rows of table ``endings`` for one output."""
    key = {name: output[name] for name in TRACE_KEY}
    return [
        key | {"ending": place, "n_bytes": len(text.encode()), "token_logprobs": list(values)}
        for place, (text, values) in enumerate(zip(rule.choices(doc), scores, strict=True))
    ]
