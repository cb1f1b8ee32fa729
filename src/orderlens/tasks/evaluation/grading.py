"""A unit of an evaluation: decode its prompts, score choices if a rule needs it, and grade.

A unit commits the verdicts with the documents they were graded against and the scores of the choices, so that
the run can be graded again without a model. If a grader's packages are missing, the responses are kept
ungraded, for ``regrade`` on another machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from orderlens.errors import MissingPackageError, one_line
from orderlens.models.protocol import Anchor, Model
from orderlens.runs.compute import BuildTables, ComputeContext, generate_unit, score_left_to_right
from orderlens.runs.spec import RunSpec, Unit
from orderlens.runs.tables import storable
from orderlens.store.schema import TRACE_KEY, table_schema
from orderlens.tasks import get_task
from orderlens.tasks.evaluation.job import document_json
from orderlens.tasks.graders import Verdict
from orderlens.tasks.protocol import (
    Document,
    LikelihoodRule,
    Task,
    TokenLogProbs,
    cut_at_stop,
    likelihood_rules,
    pick_grader,
)
from orderlens.texts.samples import EncodedSample


@dataclass(frozen=True, slots=True)
class _Response:
    """One decoded output with its task, document and prompt."""

    output: Row
    task: Task
    grader: str
    doc: Document
    prompt: str

    @property
    def rule(self) -> LikelihoodRule | None:
        """The rule that grades it, if it needs the model."""
        return likelihood_rules(self.task).get(self.grader)


def evaluate_unit(spec: RunSpec, unit: Unit, model: Model, context: ComputeContext) -> BuildTables:
    """Decode, score choices where needed, and grade."""
    tables = generate_unit(spec, unit, model, context)()
    responses = _responses(spec, unit, tables["outputs"].to_pylist())
    scores = _scores(spec, model, responses)
    rows, ending = [], []
    for index, item in enumerate(responses):
        found = scores.get(index)
        rows.append(_graded_row(item, found))
        if item.rule is not None and found is not None:
            ending += ending_rows(item.output, item.doc, item.rule, found)
    extra = {
        "verdicts": verdict_table(rows),
        "documents": _documents(unit),
        "endings": pa.Table.from_pylist(ending, schema=table_schema("endings")),
    }
    return lambda: tables | extra


def _responses(spec: RunSpec, unit: Unit, outputs: Sequence[Row]) -> list[_Response]:
    """Join outputs with the unit's documents."""
    known = {(sample.task, sample.id): extra for sample, extra in zip(unit.samples, unit.extras, strict=True)}
    found = []
    for output in outputs:
        extra, task = known[output["task"], output["sample_id"]], get_task(str(output["task"]))
        grader = str(spec.data["tasks"][task.name]["grader"])
        found.append(_Response(output, task, grader, extra["document"], extra["prompt"]))
    return found


def _scores(spec: RunSpec, model: Model, responses: Sequence[_Response]) -> dict[int, TokenLogProbs]:
    """Score the choices of responses whose rule needs it, by index in ``responses``."""
    places, requests = [], []
    for index, item in enumerate(responses):
        if item.rule is not None:
            text = item.rule.context(item.doc, item.prompt, response_of(item.task, item.output))
            places.append(index)
            requests.append((text, [f" {choice}" for choice in item.rule.choices(item.doc)]))
    assert spec.anchor is not None
    found = score_endings(model, requests, spec.anchor, 4 * spec.batch_size)
    return dict(zip(places, found, strict=True))


def _documents(unit: Unit) -> pa.Table:
    rows = [
        {"task": sample.task, "sample_id": sample.id, "document": document_json(extra["document"])}
        for sample, extra in zip(unit.samples, unit.extras, strict=True)
    ]
    return pa.Table.from_pylist(rows, schema=table_schema("documents"))


def _graded_row(item: _Response, scores: TokenLogProbs | None) -> dict[str, Any]:
    """Grade one output; a missing package loses the verdict, not the decoding."""
    try:
        verdict = grade_output(item.task, item.doc, item.grader, item.output, scores)
    except MissingPackageError as error:
        return ungraded_row(item.output, item.grader, f"not graded: {one_line(error)}")
    return verdict_row(item.output, verdict, 0)


def score_endings(
    model: Model, requests: Sequence[tuple[str, Sequence[str]]], anchor: Anchor, batch_size: int
) -> list[TokenLogProbs]:
    """Return per request (text so far, endings) the token log-probabilities of its endings, in forced order.

    A text that leaves no room for its ending loses its beginning, as other harnesses do.
    """
    samples = [
        _sample(model, f"{index}/{place}", text, ending)
        for index, (text, endings) in enumerate(requests)
        for place, ending in enumerate(endings)
    ]
    values: list[list[float]] = []
    for low in range(0, len(samples), batch_size):
        values += _score(model, samples[low : low + batch_size], anchor)
    found = iter(values)
    return [[next(found) for _ in endings] for _, endings in requests]


def _sample(model: Model, name: str, text: str, ending: str) -> EncodedSample:
    before, target = model.tokenizer.encode(text), model.tokenizer.encode(ending)
    room = max(0, model.max_positions - model.block_size - len(target))
    prompt = before[len(before) - room :] if len(before) > room else before
    return EncodedSample(name, np.asarray(prompt, np.int64), np.asarray(target, np.int64))


def _score(model: Model, samples: Sequence[EncodedSample], anchor: Anchor) -> list[list[float]]:
    filled = [sample for sample in samples if len(sample.target)]
    if not filled:
        return [[] for _ in samples]
    scored = iter(score_left_to_right(model, filled, anchor))
    return [next(scored) if len(sample.target) else [] for sample in samples]


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
