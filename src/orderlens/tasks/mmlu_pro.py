"""MMLU-Pro: questions with 3 to 10 options, zero-shot chain of thought, the letter on the last line.

The reference is the letter in ``answer``; ``answer_index`` is used only when there is no letter. They
disagree in one item, 3983 (letter C, index 1): the other harnesses compare letters, and C (N—H) is the bond
whose negative end is not written last, so the letter stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from orderlens.tasks.flaws import letter_flaw
from orderlens.tasks.graders import Verdict, count_options, gold_letter, grade_letter
from orderlens.tasks.letters import LETTERS, RULES
from orderlens.tasks.protocol import Benchmark, Document, Grader
from orderlens.texts.sources import HubFile


def write_prompt(doc: Document) -> str:
    """Show question and lettered options and ask for ``ANSWER: X`` on the last line."""
    options = list(doc["options"])
    lettered = zip(LETTERS, options, strict=False)
    lines = "\n".join(f"{letter}. {str(text).strip()}" for letter, text in lettered)
    allowed = LETTERS[: len(options)]
    return (
        "Answer the multiple-choice question below. Think step by step before you answer. The last line of "
        f"your response must be 'ANSWER: X' (without quotes), where X is one of {allowed}.\n\n"
        f"Question:\n{doc['question']}\n\nOptions:\n{lines}"
    )


def grade(doc: Document, response: object, rule: str = "last-line") -> Verdict:
    """Compare the letter that ``rule`` reads with the reference letter."""
    gold = gold_letter(doc.get("answer"), doc.get("answer_index"))
    return grade_letter(gold, count_options(doc.get("options")), response, rule)


def letter_graders() -> Mapping[str, Grader]:
    """Return one grader per letter rule, for documents with ``answer`` or ``answer_index``."""
    return {rule: partial(grade, rule=rule) for rule in RULES}


TASK = Benchmark(
    name="mmlu-pro",
    summary="multiple choice with 3 to 10 options (12,032)",
    hub=HubFile("TIGER-Lab/MMLU-Pro", "data/test-*.parquet", "b189ec765aa7ed75c8acfea42df31fdae71f97be"),
    id_field="question_id",
    fields=("question_id", "question", "options", "answer"),
    lists=("options",),
    write_prompt=write_prompt,
    graders=letter_graders(),
    find_flaw=letter_flaw("options", "answer", "answer_index"),
    max_new_tokens=2048,
)
