"""A unit of an evaluation (decode, score choices if a rule needs it, grade), accuracies, grading again.

A unit commits the verdicts with the documents they were graded against and the scores of the choices, so that
the run can be graded again without a model. If a grader's packages are missing, the responses are kept
ungraded, for ``regrade`` on another machine. It commits the new verdicts as one unit, a new generation; the
old ones stay readable.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from orderlens.errors import MissingPackageError, RunError, UserInputError, counted, one_line
from orderlens.models.protocol import Anchor, Model
from orderlens.runs.compute import BuildTables, ComputeContext, generate_unit, score_left_to_right
from orderlens.runs.spec import RunSpec, Unit
from orderlens.runs.tables import storable
from orderlens.store.reader import Run, open_run
from orderlens.store.schema import TRACE_KEY, table_schema
from orderlens.store.verdicts import latest_verdicts
from orderlens.store.writer import open_writer
from orderlens.tasks import get_task
from orderlens.tasks.evaluation.job import document_json
from orderlens.tasks.graders import Verdict
from orderlens.tasks.protocol import (
    Document,
    LikelihoodRule,
    Task,
    TokenLogProbs,
    choose_grader,
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


CELL = ("task", "order", "seed", "temperature", "sample_seed", "grader")


def accuracies(run: Run) -> list[dict[str, Any]]:
    """Return per task and order: counts, accuracy with its Wilson interval, IFEval's other levels."""
    cells: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in latest_verdicts(run.table("verdicts").to_arrow()).to_pylist():
        cells.setdefault(tuple(row[name] for name in CELL), []).append(row)
    return [dict(zip(CELL, key, strict=True)) | _accuracy(rows) for key, rows in cells.items()]


def _accuracy(rows: list[Mapping[str, Any]]) -> dict[str, Any]:
    from orderlens.metrics.significance import wilson  # scipy, which decoding does not need

    graded = [row for row in rows if row["correct"] is not None]
    n_correct = sum(row["correct"] for row in graded)
    found = wilson(n_correct, len(graded))
    return {
        "n": len(graded),
        "n_correct": n_correct,
        "accuracy": found.value,
        "low": found.low,
        "high": found.high,
        "n_without_answer": sum(row["extracted"] is None for row in graded),
        "n_ungraded": len(rows) - len(graded),
    } | _instruction_levels(graded)


def ungraded(run: Run) -> dict[str, str]:
    """Return per task with responses that could not be graded how many there are, and why."""
    rows = latest_verdicts(run.table("verdicts").to_arrow()).to_pylist()
    found: dict[str, list[str]] = {}
    for row in rows:
        if row["correct"] is None:
            found.setdefault(str(row["task"]), []).append(row["reason"] or "not graded")
    return {task: f"{counted(len(reasons), 'response')} {reasons[0]}" for task, reasons in found.items()}


def _instruction_levels(rows: list[Mapping[str, Any]]) -> dict[str, float]:
    parsed = [json.loads(row["per_instruction"]) for row in rows if row["per_instruction"]]
    if not parsed:
        return {}
    found = {"prompt_loose": sum(all(item["loose"]) for item in parsed) / len(parsed)}
    for level in ("strict", "loose"):
        single = [good for item in parsed for good in item[level]]
        found[f"instruction_{level}"] = sum(single) / len(single)
    return found


Key = tuple[Any, ...]


def regrade(path: str | os.PathLike[str], *, graders: Mapping[str, str] | None = None) -> Run:
    """Grade every stored response again and commit the verdicts as a new generation.

    Args:
        path: folder of an evaluation, finished or not.
        graders: rule per task; the rules of the run's spec otherwise.

    Returns:
        The run. Nothing is written when no verdict changed.
    """
    run = open_run(path)
    if run.spec.get("kind") != "evaluate":
        raise RunError(
            f"'{path}' is not an evaluation but kind '{run.spec.get('kind')}'; it has nothing to grade"
        )
    rules = _rules(run, graders or {})
    before = run.table("verdicts").to_arrow()
    generation = 1 + max(before["generation"].to_pylist(), default=-1)
    table = verdict_table(_graded(run, rules, generation))
    if _same(latest_verdicts(before), table):
        return run
    state = hashlib.blake2b(repr(table.drop_columns("generation").to_pylist()).encode(), digest_size=12)
    key = f"regrade-{generation}-{state.hexdigest()}"
    with open_writer(path, run.spec) as writer:
        writer.commit(key, {"verdicts": table})
        if run.is_complete:
            writer.finish([key])
    return open_run(path)


def _rules(run: Run, graders: Mapping[str, str]) -> dict[str, str]:
    tasks: Mapping[str, Mapping[str, Any]] = run.spec["data"]["tasks"]
    wanted = {get_task(name).name: rule for name, rule in graders.items()}
    if unknown := set(wanted) - set(tasks):
        raise UserInputError(f"the run has no task '{min(unknown)}' (it has {', '.join(tasks)})")
    return {
        name: choose_grader(get_task(name), wanted.get(name, record["grader"]))
        for name, record in tasks.items()
    }


def _graded(run: Run, rules: Mapping[str, str], generation: int) -> list[dict[str, Any]]:
    documents = {
        (row["task"], row["sample_id"]): json.loads(row["document"])
        for row in run.table("documents").to_arrow().to_pylist()
    }
    scores = _ending_scores(run)
    rows = []
    for output in run.outputs().to_arrow().select([*TRACE_KEY, "text"]).to_pylist():
        doc, task = documents[output["task"], output["sample_id"]], get_task(output["task"])
        verdict = grade_output(task, doc, rules[task.name], output, scores.get(_key(output)))
        rows.append(verdict_row(output, verdict, generation))
    return rows


def _ending_scores(run: Run) -> dict[Key, list[list[float]]]:
    found: dict[Key, list[list[float]]] = {}
    if "endings" in run.tables:
        rows = run.table("endings").to_arrow().to_pylist()
        for row in sorted(rows, key=lambda row: row["ending"]):
            found.setdefault(_key(row), []).append(row["token_logprobs"])
    return found


def _key(row: Mapping[str, Any]) -> Key:
    return tuple(row[name] for name in TRACE_KEY)


def _same(old: pa.Table, new: pa.Table) -> bool:
    """Say whether two generations hold the same verdicts."""
    names = [name for name in new.column_names if name != "generation"]
    rows = [{_key(row): row for row in table.select(names).to_pylist()} for table in (old, new)]
    return rows[0] == rows[1]
