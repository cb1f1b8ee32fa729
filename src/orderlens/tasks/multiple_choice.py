"""HellaSwag and MMLU-Pro: one of several lettered options.

HellaSwag asks which of four endings continues a scene. As in the paper, the model first reasons greedily;
then the ending with the highest normalised log-probability given prompt and reasoning is its choice (scored
in forced order). That grade depends on the model's own confidence, so a second grader reads a letter out of
the response; the prompt asks for both. Rows are keyed by their number in the file: the field ``ind`` repeats
(9,609 different values in 10,042 rows).

MMLU-Pro has 3 to 10 options, zero-shot chain of thought, the letter on the last line. The reference is the
letter in ``answer``; ``answer_index`` is used only when there is no letter. They disagree in one item, 3983
(letter C, index 1): the other harnesses compare letters, and C (N—H) is the bond whose negative end is not
written last, so the letter counts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal, TypeAlias

from orderlens.tasks.graders import (
    LETTERS,
    RULES,
    Verdict,
    as_index,
    count_options,
    gold_letter,
    grade_letter,
    incorrect,
    letter_flaw,
)
from orderlens.tasks.protocol import Benchmark, Document, Grader, LikelihoodRule, TokenLogProbs
from orderlens.texts.sources import HubFile

Normalisation: TypeAlias = Literal["token", "byte", "none"]
NORMALISATIONS: tuple[Normalisation, ...] = ("token", "byte", "none")

_BRACKETS = re.compile(r"\[[^\]\n]*\]")


def clean(text: str) -> str:
    """Remove the marks that the WikiHow part of the data carries (``[title]``, ``[step]``, ``[header]``)."""
    return _BRACKETS.sub("", text.strip().replace(" [title]", ". ")).replace("  ", " ")


def context(doc: Document) -> str:
    """Return activity and scene as one text, as other harnesses do."""
    return clean(f"{doc['activity_label']}: {doc['ctx_a']} {str(doc['ctx_b']).capitalize()}")


def endings(doc: Document) -> list[str]:
    """Return the cleaned endings."""
    return [clean(str(ending)) for ending in doc["endings"]]


def hellaswag_prompt(doc: Document) -> str:
    """Show scene and lettered endings and ask for reasoning and a letter."""
    lines = "\n".join(f"{letter}. {text}" for letter, text in zip(LETTERS, endings(doc), strict=False))
    return (
        "Read the beginning of a scene and four possible endings. Think step by step about which ending "
        "follows most naturally. The last line of your response must be 'ANSWER: X' (without quotes), where "
        "X is one of "
        f"{LETTERS[: len(doc['endings'])]}.\n\nScene:\n{context(doc)}\n\nEndings:\n{lines}"
    )


def ending_prompt(doc: Document, prompt: str, response: str) -> str:
    """Return the text after which the endings are scored: prompt, reasoning, then the scene once more."""
    return f"{prompt}{response.rstrip()}\n\n{context(doc)}"


def grade_label(doc: Document, response: object, rule: str = "last-line") -> Verdict:
    """Compare the letter in the response with ``label``."""
    return grade_letter(
        gold_letter(None, doc.get("label")), count_options(doc.get("endings")), response, rule
    )


def grade_scores(doc: Document, scores: TokenLogProbs, normalisation: Normalisation = "token") -> Verdict:
    """Choose the ending with the highest normalised log-probability and compare it with ``label``.

    Args:
        doc: the document.
        scores: per-token log-probabilities of the endings.
        normalisation: divide by the number of tokens, of UTF-8 bytes, or not at all.
    """
    name = f"likelihood-{normalisation}"
    gold = as_index(doc.get("label"))
    if gold is None or not count_options(doc.get("endings")):
        return incorrect("the document has no usable label or no endings", name)
    totals = normalised(scores, endings(doc), normalisation)
    if not all(math.isfinite(total) for total in totals):
        return incorrect("an ending has no finite log-probability", name)
    best = max(range(len(totals)), key=totals.__getitem__)
    relation = "equals" if best == gold else "differs from"
    values = ", ".join(f"{total:.4f}" for total in totals)
    return Verdict(
        best == gold, LETTERS[best], f"best ending {best} {relation} {gold}; scores {values}", name
    )


def normalised(
    token_logprobs: Sequence[Sequence[float]], texts: Sequence[str], normalisation: Normalisation
) -> list[float]:
    """Return one score per ending; an ending without tokens is −inf."""
    scores = []
    for values, text in zip(token_logprobs, texts, strict=True):
        units = {"token": len(values), "byte": len(text.strip().encode()), "none": 1}[normalisation]
        scores.append(math.fsum(values) / units if len(values) and units else -math.inf)
    return scores


def likelihood_rule(normalisation: Normalisation) -> LikelihoodRule:
    """Return the paper's way of grading with one of the normalisations."""
    return LikelihoodRule(endings, ending_prompt, partial(grade_scores, normalisation=normalisation))


HELLASWAG = Benchmark(
    name="hellaswag",
    summary="which of four endings follows (10,042)",
    hub=HubFile("Rowan/hellaswag", "data/validation-*.parquet", "218ec52e09a7e7462a5400043bb9a69a41d06b76"),
    id_field=None,
    fields=("activity_label", "ctx_a", "ctx_b", "endings", "label"),
    lists=("endings",),
    write_prompt=hellaswag_prompt,
    graders={rule: partial(grade_label, rule=rule) for rule in RULES},
    find_flaw=letter_flaw("endings", None, "label"),
    max_new_tokens=512,
    likelihood={f"likelihood-{kind}": likelihood_rule(kind) for kind in NORMALISATIONS},
)


def mmlu_pro_prompt(doc: Document) -> str:
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


def opencompass_prompt(doc: Document) -> str:
    """Return the message of OpenCompass's zero-shot chain of thought.

    Source: open-compass/opencompass, ``configs/datasets/mmlu_pro/mmlu_pro_0shot_cot_gen_08c1de.py`` for the
    words and ``datasets/mmlu_pro.py`` for the options: those called ``N/A`` are left out.
    """
    lettered = zip(LETTERS, doc["options"], strict=False)
    lines = "\n".join(f"{letter}. {text}" for letter, text in lettered if text != "N/A").strip()
    return (
        "Answer the following multiple choice question. The last line of your response should be of the "
        "following format: 'ANSWER: $LETTER' (without quotes) where LETTER is one of Options(e.g. one of "
        f"{LETTERS}). Think step by step before answering.\n\n"
        f"Question:\n\n{doc['question']}\n\nOptions:\n\n{lines}"
    )


def grade_answer(doc: Document, response: object, rule: str = "last-line") -> Verdict:
    """Compare the letter that ``rule`` reads with the reference letter."""
    gold = gold_letter(doc.get("answer"), doc.get("answer_index"))
    return grade_letter(gold, count_options(doc.get("options")), response, rule)


def letter_graders() -> Mapping[str, Grader]:
    """Return one grader per letter rule, for documents with ``answer`` or ``answer_index``."""
    return {rule: partial(grade_answer, rule=rule) for rule in RULES}


MMLU_PRO = Benchmark(
    name="mmlu-pro",
    summary="multiple choice with 3 to 10 options (12,032)",
    hub=HubFile("TIGER-Lab/MMLU-Pro", "data/test-*.parquet", "b189ec765aa7ed75c8acfea42df31fdae71f97be"),
    id_field="question_id",
    fields=("question_id", "question", "options", "answer"),
    lists=("options",),
    write_prompt=mmlu_pro_prompt,
    prompts={"opencompass": opencompass_prompt},
    graders=letter_graders(),
    find_flaw=letter_flaw("options", "answer", "answer_index"),
    max_new_tokens=2048,
)
