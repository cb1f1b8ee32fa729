"""``evaluate``: decode the prompts of tasks under several orders and grade every response.

Work units, storage and resuming are those of ``generate``; a unit also commits the verdicts, the documents
they were graded against and, for HellaSwag, the scores of the endings, so that the run can be graded again
alone. Where the packages of a grader are missing the responses are kept ungraded, for ``regrade`` elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from orderlens.api import (
    Orders,
    ProgressSink,
    Unit,
    base_spec,
    check_anchor,
    cut_units,
    decode_unit,
    prepare_model,
    refuse_oracles,
    reveals_ahead,
    run_units,
    unit_samples,
)
from orderlens.decode.batches import BatchLimit
from orderlens.decode.generate import GenerationSettings
from orderlens.errors import MissingPackageError, one_line
from orderlens.evaluation.endings import score_endings
from orderlens.evaluation.plan import (
    LIKELIHOOD,
    Item,
    Plan,
    document_json,
    plan_items,
    plan_tasks,
    response_length,
)
from orderlens.evaluation.verdicts import (
    Row,
    ending_rows,
    grade_output,
    response_of,
    ungraded_row,
    verdict_row,
    verdict_table,
)
from orderlens.models.loading import load_model
from orderlens.models.protocol import Anchor, Model
from orderlens.orders import Order, parse_orders
from orderlens.store.reader import Run
from orderlens.store.schema import table_schema
from orderlens.tasks.hellaswag import ending_prompt, endings


def evaluate(
    model: Model | str,
    tasks: str | Sequence[str],
    orders: Orders,
    *,
    limit: int | None = None,
    max_new_tokens: int | None = None,
    temperature: float = 0.0,
    seed: int = 0,
    sources: Mapping[str, str | Path] | None = None,
    graders: Mapping[str, str] | None = None,
    chat: bool = True,
    block_size: int | None = None,
    anchor: Anchor | None = None,
    batch_size: int | None = None,
    device: str | None = None,
    dtype: str | None = None,
    out: str | os.PathLike[str] | None = None,
    progress: ProgressSink | None = None,
) -> Run:
    """Decode and grade tasks under several reveal orders.

    Args:
        model: a model or a spec.
        tasks: task ids, as a list or separated by commas.
        orders: deployable order specs.
        limit: at most so many items per task, from the start of its file.
        max_new_tokens: response length; by default the longest that one of the tasks asks for (the paper's
            16,384 only when given here).
        temperature: 0 is greedy.
        seed: seed of the token draws at temperature > 0.
        sources: local file per task; the hub (or the generator) otherwise.
        graders: rule per task; the task's default otherwise, which for HellaSwag is ``likelihood-token``.
        chat: use the model's chat template where it has one.
        block_size: tokens per block; the model's own by default.
        anchor: where the block grid starts.
        batch_size: prompts per work unit; chosen for the model by default.
        device: where to load a model given as a spec.
        dtype: its precision.
        out: run folder; without it the run lives in memory.
        progress: is told the number of tokens to decode and each advance.

    Returns:
        The run; ``run.table("verdicts")`` holds the verdicts, with ``correct`` null for responses whose
        grader's packages are missing here (``regrade`` completes them). Items whose prompt leaves no room
        for the response are not decoded; ``run.spec["data"]["tasks"]`` names them.
    """
    chosen = parse_orders(orders)
    refuse_oracles(chosen)
    if max_new_tokens is None:
        max_new_tokens = response_length(tasks)
    GenerationSettings(max_new_tokens, temperature)  # refuses bad numbers before anything is loaded
    planned = plan_tasks(tasks, limit=limit, sources=sources, graders=graders)
    loaded = prepare_model(load_model(model, device=device, dtype=dtype), block_size)
    settings = GenerationSettings(
        max_new_tokens, temperature, seed, anchor=check_anchor(anchor or loaded.anchor)
    )
    plan = plan_items(loaded, planned, settings, chat=chat)
    unit_size = unit_samples(loaded, chosen, batch_size)
    longest = max(len(sample.prompt) for sample in plan.samples)
    known = BatchLimit.suggested(loaded, longest + max_new_tokens)
    worker = _Worker(loaded, plan, chosen, settings, unit_size, known, progress)
    units = cut_units(plan.samples, unit_size, temperature)
    return run_units(
        units, worker.work, worker.spec(), out, progress, reveals_ahead(loaded, chosen, settings)
    )


@dataclass(frozen=True, slots=True)
class _Worker:
    """Computes the tables of one work unit."""

    model: Model
    plan: Plan
    orders: Sequence[Order]
    settings: GenerationSettings
    batch_size: int
    limit: BatchLimit
    progress: ProgressSink | None

    def spec(self) -> dict[str, Any]:
        """Return everything that determines the run's rows."""
        return base_spec("evaluate", self.model, self.orders, self.plan.samples, self.plan.record()) | {
            "anchor": self.settings.anchor,
            "batch_size": self.batch_size,
            "max_new_tokens": self.settings.max_new_tokens,
            "temperatures": [self.settings.temperature],
            "seed": self.settings.sample_seed,
            "stop_at_eos": self.settings.stop_at_eos,
            "chat": self.plan.chat,
        }

    def work(self, unit: Unit) -> dict[str, pa.Table]:
        """Decode, score endings where needed, and grade."""
        tables = decode_unit(self.model, unit.samples, self.orders, self.settings, self.progress, self.limit)
        outputs = tables["outputs"].to_pylist()
        scores = self._scores(outputs)
        rows, ending = [], []
        for index, output in enumerate(outputs):
            item = self.plan.items[output["task"], output["sample_id"]]
            found = scores.get(index)
            rows.append(_graded_row(item, output, found))
            ending += ending_rows(output, item.doc, found) if found is not None else []
        extra = {
            "verdicts": verdict_table(rows),
            "documents": self._documents(unit),
            "endings": pa.Table.from_pylist(ending, schema=table_schema("endings")),
        }
        return tables | extra

    def _scores(self, outputs: Sequence[Row]) -> dict[int, list[list[float]]]:
        """Score the endings of outputs whose rule asks for it, by place in ``outputs``."""
        places, requests = [], []
        for index, output in enumerate(outputs):
            item = self.plan.items[output["task"], output["sample_id"]]
            if item.plan.grader in LIKELIHOOD:
                text = ending_prompt(item.doc, item.prompt, response_of(item.plan.task, output))
                places.append(index)
                requests.append((text, [f" {ending}" for ending in endings(item.doc)]))
        assert self.settings.anchor is not None
        found = score_endings(self.model, requests, self.settings.anchor, 4 * self.batch_size)
        return dict(zip(places, found, strict=True))

    def _documents(self, unit: Unit) -> pa.Table:
        rows = [
            {
                "task": sample.task,
                "sample_id": sample.id,
                "document": document_json(self._doc(sample.task, sample.id)),
            }
            for sample in unit.samples
        ]
        return pa.Table.from_pylist(rows, schema=table_schema("documents"))

    def _doc(self, task: str | None, row: str) -> Mapping[str, object]:
        return self.plan.items[str(task), row].doc


def _graded_row(item: Item, output: Row, scores: list[list[float]] | None) -> dict[str, Any]:
    """Grade one output; a missing package loses the verdict, not the decoding."""
    try:
        verdict = grade_output(item.plan.task, item.doc, item.plan.grader, output, scores)
    except MissingPackageError as error:
        return ungraded_row(output, item.plan.grader, f"not graded: {one_line(error)}")
    return verdict_row(output, verdict, 0)
