"""The job of an evaluation: encoded prompts, spec and units from documents, and a list of skipped rows.

Depends on tasks and tokenizers; does not decode or grade.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from orderlens.common.grid import Canvas, Overflow
from orderlens.decode.generate import GenerationSettings
from orderlens.errors import UserInputError
from orderlens.models.abilities import as_question, chat_template
from orderlens.models.protocol import Model
from orderlens.runs.job import Job, Orders, check_generation, deployable, make_job
from orderlens.runs.options import Computing, ModelLike, PathLike
from orderlens.runs.request import Opt, check
from orderlens.tasks import get_task
from orderlens.tasks.protocol import Benchmark, Document, Task, choose_grader, with_prompt
from orderlens.texts.samples import EncodedSample, Sample, encode_samples


@dataclass(frozen=True, slots=True)
class ChosenTask:
    """One task of an evaluation: its documents by row id, where they came from, and the rule that grades.

    ``prompt`` names the prompt that the task writes; None is the task's own.
    """

    task: Task
    grader: str
    source: str
    docs: Mapping[str, Document]
    prompt: str | None = None

    @property
    def name(self) -> str:
        """The task's id."""
        return self.task.name


@dataclass(frozen=True, slots=True)
class Item:
    """One prompt as the model sees it (chat template or cue included)."""

    doc: Document
    prompt: str


@dataclass(frozen=True, slots=True)
class Prompts:
    """All prompts of an evaluation.

    Attributes:
        tasks: the tasks in the requested order.
        items: by (task, row id).
        samples: the encoded prompts, in the same order.
        skipped: row ids per task whose prompt and response cannot fit into the model's context.
        chat: whether prompts are in the model's chat template.
    """

    tasks: Sequence[ChosenTask]
    items: Mapping[tuple[str, str], Item]
    samples: Sequence[EncodedSample]
    skipped: Mapping[str, Sequence[str]] = field(default_factory=dict)
    chat: bool = False

    def record(self) -> dict[str, Any]:
        """Return what goes into the run's spec about the data."""
        return {"tasks": {chosen.name: self._task_record(chosen) for chosen in self.tasks}}

    def _task_record(self, chosen: ChosenTask) -> dict[str, Any]:
        return {
            "source": chosen.source,
            "grader": chosen.grader,
            "stop": list(chosen.task.stop),
            "n_items": len(chosen.docs),
            "skipped_too_long": list(self.skipped.get(chosen.name, ())),
            "documents": documents_digest(chosen.docs),
            **({} if chosen.prompt is None else {"prompt": chosen.prompt}),
        }


def choose_tasks(
    names: str | Sequence[str],
    *,
    limit: int | None = None,
    sources: Mapping[str, str | Path] | None = None,
    graders: Mapping[str, str] | None = None,
    prompts: Mapping[str, str] | None = None,
) -> list[ChosenTask]:
    """Resolve task names and check graders and prompts before documents are loaded."""
    tasks = named_tasks(names)
    if limit is not None:
        check("limit", int, Opt("", least=1), limit)
    where = _by_task(sources or {}, tasks, "source")
    rules = _by_task(graders or {}, tasks, "grader")
    words = _by_task(prompts or {}, tasks, "prompt")
    chosen = [
        (with_prompt(task, words.get(task.name)), choose_grader(task, rules.get(task.name))) for task in tasks
    ]
    return [
        ChosenTask(
            task,
            rule,
            _source_name(task, where.get(task.name)),
            task.load(where.get(task.name), limit),
            words.get(task.name),
        )
        for task, rule in chosen
    ]


def named_tasks(names: str | Sequence[str]) -> list[Task]:
    """Return the tasks of a list, or of names separated by commas."""
    if isinstance(names, bytes) or not isinstance(names, Iterable):
        raise UserInputError(f"tasks {names!r} must be names of tasks, as a list or separated by commas")
    wanted = [part.strip() for part in names.split(",")] if isinstance(names, str) else list(names)
    tasks = [get_task(name) for name in wanted if name]
    if not tasks or len({task.name for task in tasks}) < len(tasks):
        raise UserInputError(f"tasks '{','.join(wanted)}' must name at least one task, each once")
    return tasks


def response_length(names: str | Sequence[str]) -> int:
    """Return the response length of tasks decoded in one run: the longest default among them."""
    return max(task.max_new_tokens for task in named_tasks(names))


def write_prompts(
    model: Model, tasks: Sequence[ChosenTask], settings: GenerationSettings, *, chat: bool = True
) -> Prompts:
    """Write and encode all prompts; the result lists those that are too long."""
    items = {
        (chosen.name, row): Item(doc, full_prompt(model, chosen.task, doc, chat))
        for chosen in tasks
        for row, doc in chosen.docs.items()
    }
    prompts = [Sample(row, item.prompt, task=name) for (name, row), item in items.items()]
    encoded = encode_samples(model, prompts, need_target=False)
    kept = [sample for sample in encoded if fits(model, len(sample.prompt), settings)]
    if not kept:
        raise UserInputError(
            f"no prompt leaves room for {settings.max_new_tokens} tokens in the {model.max_positions} "
            f"positions of {model.name}; lower --max-new-tokens"
        )
    left_out = {(str(sample.task), sample.id) for sample in encoded} - {(str(s.task), s.id) for s in kept}
    skipped = {
        chosen.name: [row for row in chosen.docs if (chosen.name, row) in left_out] for chosen in tasks
    }
    templated = chat and chat_template(model) is not None
    return Prompts(tasks, items, kept, {name: rows for name, rows in skipped.items() if rows}, templated)


def full_prompt(model: Model, task: Task, doc: Document, chat: bool) -> str:
    """Return the prompt in the model's chat template, or followed by the task's cue when it has none."""
    template = chat_template(model) if chat else None
    if template is None:
        return task.prompt(doc) + task.cue
    return as_question(template, task.prompt(doc))


def fits(model: Model, n_prompt: int, settings: GenerationSettings) -> bool:
    """Say whether prompt and response, rounded up to whole blocks, fit into the model's context."""
    anchor = settings.anchor or model.anchor
    canvas = Canvas.plan(n_prompt, settings.max_new_tokens, model.block_size, anchor)
    return canvas.end <= model.max_positions


def documents_digest(docs: Mapping[str, Document]) -> str:
    """Return a digest of documents, so that a resumed run cannot be graded against other references."""
    state = hashlib.blake2b(digest_size=16)
    for row, doc in docs.items():
        state.update(f"{row}\x00{document_json(doc)}\x00".encode())
    return state.hexdigest()


def document_json(doc: Document) -> str:
    """Return a document as canonical JSON."""
    return json.dumps(doc, sort_keys=True, ensure_ascii=True, default=str)


def _by_task(values: Mapping[str, Any], tasks: Sequence[Task], what: str) -> dict[str, Any]:
    """Key ``values`` by task id; refuse one for a task that was not requested."""
    known = {task.name for task in tasks}
    found = {get_task(name).name: value for name, value in values.items()}
    for name in found:
        if name not in known:
            raise UserInputError(
                f"{what} given for task '{name}', which is not among {', '.join(sorted(known))}"
            )
    return found


def _source_name(task: Task, source: str | Path | None) -> str:
    """Return a name without a machine's folders in it."""
    if source is not None:
        return Path(source).name
    return str(task.hub) if isinstance(task, Benchmark) and task.hub else "generated"


def evaluate_job(
    model: ModelLike,
    tasks: str | Sequence[str],
    orders: Orders,
    options: Computing,
    *,
    limit: int | None,
    max_new_tokens: int | None,
    temperature: float | str,
    seed: int,
    sources: Mapping[str, PathLike] | None,
    graders: Mapping[str, str] | None,
    prompts: Mapping[str, str] | None = None,
    overflow: Overflow = "fill",
    chat: bool,
) -> Job:
    """Return the job of decoding and grading tasks; see ``orderlens.api.evaluate`` for the arguments."""
    chosen = deployable(orders)
    length = response_length(tasks) if max_new_tokens is None else max_new_tokens
    (heat,) = check_generation(length, [temperature], seed)
    files = {name: file if isinstance(file, str) else Path(file) for name, file in (sources or {}).items()}
    chosen_tasks = choose_tasks(tasks, limit=limit, sources=files, graders=graders, prompts=prompts)
    loaded = options.load(model)
    anchor = options.anchor_of(loaded)
    settings = GenerationSettings(length, heat, seed, anchor=anchor, overflow=overflow)
    written = write_prompts(loaded, chosen_tasks, settings, chat=chat)
    items = [written.items[str(sample.task), sample.id] for sample in written.samples]
    return make_job(
        "evaluate",
        loaded,
        chosen,
        written.samples,
        replace(options, data_record=written.record()),
        extras=[{"prompt": item.prompt, "document": item.doc} for item in items],
        max_new_tokens=length,
        temperatures=(heat,),
        seed=seed,
        stop_at_eos=settings.stop_at_eos,
        overflow=None if overflow == "fill" else overflow,
        chat=written.chat,
    )
