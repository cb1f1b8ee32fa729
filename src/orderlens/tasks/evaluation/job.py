"""The job of an evaluation: tasks and prompts turned into spec and units. Decodes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from orderlens.decode.generate import GenerationSettings
from orderlens.runs.job import Job, Orders, check_generation, deployable, make_job
from orderlens.runs.options import Computing, ModelLike, PathLike
from orderlens.tasks.evaluation.prompts import choose_tasks, response_length, write_prompts


def evaluate_job(
    model: ModelLike,
    tasks: str | Sequence[str],
    orders: Orders,
    options: Computing,
    *,
    limit: int | None,
    max_new_tokens: int | None,
    temperature: float,
    seed: int,
    sources: Mapping[str, PathLike] | None,
    graders: Mapping[str, str] | None,
    chat: bool,
) -> Job:
    """Return the job of decoding and grading tasks; see ``orderlens.api.evaluate`` for the arguments."""
    chosen = deployable(orders)
    length = response_length(tasks) if max_new_tokens is None else max_new_tokens
    check_generation(length, [temperature], seed)
    files = {name: file if isinstance(file, str) else Path(file) for name, file in (sources or {}).items()}
    asked = choose_tasks(tasks, limit=limit, sources=files, graders=graders)
    loaded = options.load(model)
    settings = GenerationSettings(length, temperature, seed, anchor=options.anchor_of(loaded))
    prompts = write_prompts(loaded, asked, settings, chat=chat)
    items = [prompts.items[str(sample.task), sample.id] for sample in prompts.samples]
    return make_job(
        "evaluate",
        loaded,
        chosen,
        prompts.samples,
        replace(options, data_record=prompts.record()),
        extras=[{"prompt": item.prompt, "document": item.doc} for item in items],
        max_new_tokens=length,
        temperatures=(temperature,),
        seed=seed,
        stop_at_eos=settings.stop_at_eos,
        chat=prompts.chat,
    )
