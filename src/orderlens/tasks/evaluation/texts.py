"""``census --generate``: all texts that the order alone produces from each prompt, as a run.

With a task, each text is continued left to right to the task's length and graded, so that its correctness
is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from orderlens.decode.census import STATES_AT_ONCE, Span
from orderlens.decode.census_texts import ReachedText, reachable_texts
from orderlens.decode.generate import GenerationSettings, generate_batch
from orderlens.errors import UserInputError, counted
from orderlens.metrics.census import LARGEST_SPAN
from orderlens.models.protocol import Model
from orderlens.rules import parse_policies
from orderlens.runs.compute import BuildTables, ComputeContext, canvases
from orderlens.runs.job import Job, make_job
from orderlens.runs.options import Computing, ModelLike
from orderlens.runs.request import BadValueError
from orderlens.runs.spec import RunSpec, Unit
from orderlens.runs.tables import storable
from orderlens.store.schema import table_schema
from orderlens.tasks import get_task, grade
from orderlens.tasks.evaluation.grading import response_of
from orderlens.tasks.evaluation.job import choose_tasks, write_prompts
from orderlens.texts.samples import EncodedSample, Sample, encode_samples, in_chat


def texts_job(
    model: ModelLike,
    prompts: Iterable[Sample],
    options: Computing,
    *,
    span: int,
    max_states: int,
    task: str | None = None,
    limit: int | None = None,
    allow_short: bool = False,
    chat: bool = False,
) -> Job:
    """Return the job of following all orders of the first ``span`` positions after each prompt.

    Args:
        model: the model.
        prompts: the prompts; ignored with a task, which has its own.
        options: how to lay out and cut the work.
        span: free positions.
        max_states: maximum number of distinct states per prompt.
        task: benchmark whose items are the prompts, and which grades the texts.
        limit: maximum number of its items.
        allow_short: use fewer positions where a block ends earlier, instead of refusing the prompt.
        chat: put each prompt in the model's chat template.
    """
    if not 1 <= span <= LARGEST_SPAN:
        raise BadValueError("span", span, f"must be from 1 to {LARGEST_SPAN}")
    loaded, length = options.load(model), span
    extras: list[dict[str, Any]] = []
    if task is None:
        given = in_chat(loaded, prompts) if chat else prompts
        samples: Sequence[EncodedSample] = encode_samples(loaded, given, need_target=False)
        extras = [{} for _ in samples]
    else:
        chosen = choose_tasks([task], limit=limit)
        length = chosen[0].task.max_new_tokens
        if span > length:
            raise BadValueError("span", span, f"must be at most {length}, the answer length of '{task}'")
        written = write_prompts(
            loaded, chosen, GenerationSettings(length, 0.0, anchor=options.anchor), chat=chat
        )
        samples = written.samples
        extras = [{"document": dict(written.items[str(s.task), s.id].doc)} for s in samples]
        options = replace(options, data_record=written.record())
    orders = parse_policies("forced-ar")
    job = make_job(
        "census-texts",
        loaded,
        orders,
        samples,
        options,
        unit_size=1,
        max_new_tokens=length,
        span=span,
        max_states=max_states,
        chat=chat or None,
    )
    for extra, size in zip(extras, _sizes(job, span, allow_short), strict=True):
        extra["size"] = size
    return replace(job, extras=extras)


def _sizes(job: Job, span: int, allow_short: bool) -> list[int]:
    """Return how many positions after each prompt are free, up to the end of its block and first hole."""
    sizes = []
    for sample, canvas in zip(job.samples, canvases(job.spec, Unit(tuple(job.samples))), strict=True):
        room = Span(sample, canvas, (0,), sample.id).block_start + canvas.block_size - len(sample.prompt)
        if len(sample.template):
            given = np.append(sample.template != job.model.mask_id, True)
            room = min(room, int(given.argmax()))
        if room < span and not allow_short:
            raise UserInputError(
                f"prompt '{sample.id}': its first block or hole has {counted(room, 'free position')}, not "
                f"{span}; use --span {room}, --anchor prompt, a larger --block-size, or --allow-short"
            )
        sizes.append(min(room, span))
    return sizes


def texts_unit(spec: RunSpec, unit: Unit, model: Model, context: ComputeContext) -> BuildTables:
    """Follow all orders from the unit's prompts; grade the texts where the prompts belong to a task."""
    rows: list[dict[str, Any]] = []
    for sample, canvas, extra in zip(unit.samples, canvases(spec, unit), unit.extras, strict=True):
        size = int(extra["size"])
        most = spec.max_states or STATES_AT_ONCE
        found = reachable_texts(model, sample, canvas, size, most, limit=context.limit)
        key = {"sample_id": sample.id, "task": sample.task, "size": size}
        key |= {"n_states": found.n_states, "finished": found.is_finished}
        graded = _graded(spec, model, sample, found.texts, extra.get("document"))
        rows += [key | _row(model, text) | more for text, more in zip(found.texts, graded, strict=True)]
        rows += [] if found.is_finished else [key]
        if context.on_reveals is not None:
            context.on_reveals(1)
    return lambda: {"census_texts": pa.Table.from_pylist(rows, schema=table_schema("census_texts"))}


def _row(model: Model, text: ReachedText) -> dict[str, Any]:
    return {
        "token_ids": list(text.tokens),
        "text": storable(model.tokenizer.decode(_content(model, text))),
        "share": text.share,
        "log_q_best": text.log_q_best,
        "log_q_mean": text.log_q_mean,
        "var_least": text.var_least,
        "min_best": text.min_best,
    }


def _content(model: Model, text: ReachedText) -> list[int]:
    return [token for token in text.tokens if token not in model.eos_ids]


def _graded(
    spec: RunSpec,
    model: Model,
    sample: EncodedSample,
    texts: Sequence[ReachedText],
    document: Mapping[str, Any] | None,
) -> list[dict[str, Any]]:
    """Return response and verdict of each text: continued left to right, unless it ends with EOS."""
    if document is None or not texts:
        return [{} for _ in texts]
    task = get_task(str(sample.task))
    whole = _continued(spec, model, sample, [text.tokens for text in texts])
    out = []
    for text, tokens in zip(texts, whole, strict=True):
        response = model.tokenizer.decode(_content(model, text) if tokens is None else tokens)
        verdict = grade(task, document, response_of(task, {"text": response}))
        out.append({"response": storable(response), "correct": verdict.correct})
    return out


def _continued(
    spec: RunSpec, model: Model, sample: EncodedSample, beginnings: Sequence[Sequence[int]]
) -> list[list[int] | None]:
    """Return each beginning decoded left to right up to EOS; None for one that ends with EOS.

    The beginnings are given tokens of the search's canvas, so that both see the same blocks and masks.
    """
    assert spec.max_new_tokens is not None
    found: list[list[int] | None] = [None] * len(beginnings)
    open_ones = []
    for place, tokens in enumerate(beginnings):
        if tokens[-1] not in model.eos_ids:
            template = np.full(spec.max_new_tokens, model.mask_id)
            template[: len(tokens)] = tokens
            open_ones.append(replace(sample, id=str(place), template=template))
    if not open_ones:
        return found
    settings = GenerationSettings(spec.max_new_tokens, 0.0, 0, True, spec.anchor)
    for chain in generate_batch(model, open_ones, parse_policies("forced-ar"), settings).chains:
        low, high = chain.canvas.prompt_length, min(chain.canvas.requested_end, chain.stop)
        tokens = chain.tokens[low:high].tolist()
        end = next((i for i, token in enumerate(tokens) if token in model.eos_ids), len(tokens))
        found[int(open_ones[chain.sample].id)] = tokens[:end]
    return found
