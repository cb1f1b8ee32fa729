"""CMath and GSM8K: word problems whose answer is the last number of the response.

Rows are keyed by their number in the file; in CMath one question occurs twice. In CMath per cent is part of
the number: the reference ``40%`` is 2/5, so ``0.4`` is right and ``40`` is not. In GSM8K, where the reference
follows ``####`` and carries no ``%``, per cent is a unit: ``60%`` answers 60.

The grader ``literal-number`` follows the paper's sentence about CMath to the letter: the last span of digits,
compared as a string after its form is normalised. It knows no fractions, per cent or Chinese numerals.
"""

from __future__ import annotations

import re

from orderlens.tasks.graders import (
    NUMBER_GRADER,
    Verdict,
    grade_golden,
    grade_number,
    incorrect,
    no_text,
    number_flaw,
    response_text,
)
from orderlens.tasks.protocol import Benchmark, Document
from orderlens.texts.sources import HubFile


def cmath_prompt(doc: Document) -> str:
    """Ask for step-by-step reasoning in Chinese with the number on the last line."""
    return (
        "请解答下面的应用题。先一步一步地推理，最后另起一行，写出“答案：”和最终的数。\n\n"
        f"题目：{doc['question']}"
    )


LITERAL = "literal-number"
_SPAN = re.compile(r"-?[0-9][0-9,]*(?:\.[0-9]+)?")


def literal_number(text: str) -> str | None:
    """Return the last span of digits without commas, leading zeros and trailing zeros; None without one."""
    spans = _SPAN.findall(text)
    if not spans:
        return None
    whole, _, part = spans[-1].replace(",", "").partition(".")
    sign, digits, part = "-" * whole.startswith("-"), whole.lstrip("-").lstrip("0") or "0", part.rstrip("0")
    found = f"{digits}.{part}" if part else digits
    return found if found == "0" else sign + found


def grade_literally(doc: Document, response: object) -> Verdict:
    """Compare the last numeric span of the response with that of the reference, as strings."""
    text, golden = response_text(response), literal_number(str(doc.get("golden", "")))
    if text is None:
        return incorrect(no_text(response), LITERAL)
    found = literal_number(text)
    if found is None:
        return incorrect("the response has no number", LITERAL)
    if golden is None:
        return incorrect("the reference has no number", LITERAL, found)
    return Verdict(found == golden, found, f"last number {found}, reference {golden}", LITERAL)


CMATH = Benchmark(
    name="cmath",
    summary="Chinese primary-school word problems (1,098)",
    hub=HubFile("weitianwen/cmath", "*test*.jsonl"),
    id_field=None,
    fields=("question", "golden"),
    write_prompt=cmath_prompt,
    graders={NUMBER_GRADER: grade_golden, LITERAL: grade_literally},
    find_flaw=number_flaw("golden"),
    max_new_tokens=512,
)


def gsm8k_prompt(doc: Document) -> str:
    """Ask for step-by-step reasoning with the number on the last line."""
    return (
        "Solve the problem below. Reason step by step, then write the final number on a last line of its "
        f"own, after 'Answer:'.\n\nProblem: {doc['question']}"
    )


def grade_gsm8k(doc: Document, response: object) -> Verdict:
    """Compare the last number with the reference after the last ``####``."""
    answer = doc.get("answer")
    golden = answer.rpartition("####")[2] if isinstance(answer, str) else answer
    return grade_number(golden, response, percent_is_unit=True)


GSM8K = Benchmark(
    name="gsm8k",
    summary="English word problems (1,319); an extra, not in the paper",
    hub=HubFile("openai/gsm8k", "main/test-*.parquet", "740312add88f781978c0658806c59bc2815b9866"),
    id_field=None,
    fields=("question", "answer"),
    write_prompt=gsm8k_prompt,
    graders={NUMBER_GRADER: grade_gsm8k},
    find_flaw=number_flaw("answer", "####"),
    max_new_tokens=512,
)
