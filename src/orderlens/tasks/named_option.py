"""Grading a multiple-choice response by the option it names last, whatever letter it then gives.

Small models often work a question out and then give a wrong letter. This rule reads the worked solution: the
option whose text occurs last, as whole words, before the answer line. Options that a question never mentions
are easy to avoid, so guessing does better here than one over the number of options.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from orderlens.tasks.graders import count_options, gold_letter, no_text, response_text
from orderlens.tasks.letters import LETTERS
from orderlens.tasks.protocol import Document
from orderlens.tasks.verdict import Verdict, incorrect

NAMED_GRADER = "named-option"
ANSWER_LINE = "\nAnswer:"


def grade_named(doc: Document, response: object) -> Verdict:
    """Compare the option that the response names last with the reference option."""
    options = doc.get("options")
    if not count_options(options) or not isinstance(options, Sequence):
        return incorrect("the document has no options", NAMED_GRADER)
    gold = gold_letter(doc.get("answer"), doc.get("answer_index"))
    if gold is None or gold not in LETTERS[: len(options)]:
        return incorrect("the document has no usable answer field", NAMED_GRADER)
    text = response_text(response)
    if text is None:
        return incorrect(no_text(response), NAMED_GRADER)
    place = last_named(text, [str(option) for option in options])
    if place is None:
        return incorrect("no option is named before the answer line", NAMED_GRADER)
    same = LETTERS[place] == gold
    relation = "is" if same else "is not"
    reason = f"names option {LETTERS[place]} last, which {relation} the reference {gold}"
    return Verdict(same, LETTERS[place], reason, NAMED_GRADER)


def last_named(text: str, options: list[str]) -> int | None:
    """Return the index of the option named last before the answer line, None where none is named."""
    solution = text.split(ANSWER_LINE, maxsplit=1)[0]
    ends = {place: _last_end(solution, option) for place, option in enumerate(options) if option.strip()}
    named = {place: end for place, end in ends.items() if end >= 0}
    return max(named, key=lambda place: (named[place], len(options[place]))) if named else None


def _last_end(solution: str, option: str) -> int:
    """Return where the last whole-word occurrence ends, −1 where there is none."""
    found = re.finditer(rf"(?<![\w-]){re.escape(option.strip())}(?![\w-])", solution)
    return max((match.end() for match in found), default=-1)
