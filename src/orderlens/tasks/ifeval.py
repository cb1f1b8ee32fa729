"""IFEval: prompts with instructions that a program can verify.

``strict`` is the paper's prompt-level rule: correct means that every instruction is followed. Every verdict
also holds the outcome per instruction and both loose outcomes; the grader ``loose`` only changes what
``correct`` means.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from orderlens.errors import MissingPackageError
from orderlens.tasks.graders import Verdict, incorrect, instruction_flaw, no_text, response_text
from orderlens.tasks.ifeval_checks import Checker, checkers, deterministic, loosened
from orderlens.tasks.protocol import Benchmark, Document
from orderlens.texts.sources import HubFile


def write_prompt(doc: Document) -> str:
    """Return the prompt as published; anything added could break an instruction about the whole text."""
    return str(doc["prompt"])


def grade(doc: Document, response: object, mode: str = "strict") -> Verdict:
    """Check every instruction of ``doc``, strictly and loosely."""
    wanted = _instructions(doc)
    if not wanted:
        return incorrect("the document has no usable instruction_id_list and kwargs", mode)
    checkers()
    text = response_text(response)
    if text is None:
        return _verdict(
            mode, [name for name, _ in wanted], [(False, False)] * len(wanted), [no_text(response)]
        )
    with deterministic():
        judges = [Checker(name, kwargs) for name, kwargs in wanted]
        outcomes = [_judge(judge, text) for judge in judges]
    notes = [note for judge in judges for note in judge.notes]
    return _verdict(mode, [judge.id for judge in judges], outcomes, notes)


def find_flaw(doc: Document) -> str | None:
    """Return what makes a document ungradable; instructions are looked up if lm-eval is installed."""
    wrong = instruction_flaw(doc)
    if wrong is not None:
        return wrong
    try:
        checkers()
    except MissingPackageError:
        return None
    with deterministic():
        notes = [note for name, kwargs in _instructions(doc) for note in Checker(name, kwargs).notes]
    return f"'instruction_id_list': {notes[0]}" if notes else None


def _instructions(doc: Document) -> list[tuple[str, dict[str, Any]]]:
    names, kwargs = doc.get("instruction_id_list"), doc.get("kwargs")
    if (
        not isinstance(names, list | tuple)
        or not isinstance(kwargs, list | tuple)
        or len(names) != len(kwargs)
    ):
        return []
    pairs = zip(names, kwargs, strict=True)
    return [(str(name), dict(given) if isinstance(given, dict) else {}) for name, given in pairs]


def _judge(judge: Checker, text: str) -> tuple[bool, bool]:
    strict = judge.follows(text)
    return strict, strict or any(judge.follows(form) for form in loosened(text)[1:])


def _verdict(mode: str, names: list[str], outcomes: list[tuple[bool, bool]], notes: list[str]) -> Verdict:
    strict, loose = [first for first, _ in outcomes], [second for _, second in outcomes]
    counted = strict if mode == "strict" else loose
    failed = [name for name, good in zip(names, counted, strict=True) if not good]
    reason = f"not followed: {', '.join(failed)}" if failed else f"all {len(names)} instructions followed"
    return Verdict(
        correct=not failed,
        extracted=f"{sum(counted)}/{len(counted)}",
        reason="; ".join([reason, *dict.fromkeys(notes)]),
        grader=mode,
        per_instruction=strict,
        loose=all(loose),
        per_instruction_loose=loose,
    )


TASK = Benchmark(
    name="ifeval",
    summary="verifiable instructions (541 prompts, 834 instructions)",
    hub=HubFile("google/IFEval", "ifeval_input_data.jsonl", "966cd89545d6b6acfd7638bc708b98261ca58e84"),
    id_field="key",
    fields=("key", "prompt", "instruction_id_list", "kwargs"),
    lists=("instruction_id_list", "kwargs"),
    write_prompt=write_prompt,
    graders={mode: partial(grade, mode=mode) for mode in ("strict", "loose")},
    find_flaw=find_flaw,
    max_new_tokens=1280,
    cue="\n\n",
)
