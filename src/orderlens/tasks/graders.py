r"""Graders that several tasks share, the option letter of a response, checks for ungradable documents.

Every grader is total: any document and any response give a verdict. A missing or unreadable reference is an
error of the data, not of the model, so it must not be graded as incorrect. Each flaw function returns one
line that names the field, or None. No dependence on files or models.

Three rules read the letter that a response gives as its answer, from the most forgiving to the most literal:

``last-line``
    The last statement of an answer decides: ``Answer: X``, ``the answer is X``, ``X is the correct
    answer``, ``the correct option is X``, ``\boxed{X}``; X may be in brackets, bold, dollars or
    ``\text{}``. If the response follows the prompt this is the last line, as in the paper; a closing remark
    after it is ignored. Without any statement, a last line that is nothing but a letter counts, and so does a
    one-line response that opens with ``X.`` or ``(X)``.
``last-line-only``
    The paper's words, "OpenCompass-aligned 'Answer: X' extraction (regex on the last line)": the pattern of
    ``first-match`` in the last line that is not blank.
``first-match``
    OpenCompass to the letter: the first match of ``(?i)ANSWER\s*:\s*([A-P])``, compared case by case, so a
    lower-case match is wrong.

Every pattern has bounded repeats, so time is linear in the length.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from orderlens.errors import DataFileError
from orderlens.store import NAMED_GRADER
from orderlens.tasks.numbers import ParsedNumber, last_number, plain, same_number

LETTERS = "ABCDEFGHIJKLMNOP"

_OPEN = (
    r"(?:[\s*_`$~\"'“‘<\[({}:：=>→-]|\\[(\[ ]"
    r"|\\(?:boxed|text|textbf|mathrm|mathbf|textit|rm|bf)\s?\{?){0,16}"
)
_HEDGE = (
    r"(?:(?:definitely|clearly|therefore|thus|simply|probably|most|likely|best|option|choice|letter|选项|选)"
    r"[\s:：]{0,3}){0,3}"
)
_ALONE = r"(?![A-Za-z0-9_])(?!-[A-Za-z])(?!\s?[=^])"  # not C-reactive, not E = mc²
_NOT_A_PRONOUN = (
    r"(?!['’](?:m|d|ll|ve|s)\b)"
    r"(?!\s(?:think|believe|guess|would|am|will|have|do|don|cannot|can|could|was|know|need)\b)"
)


def _letter(tag: str) -> str:
    """Return the pattern of a letter and its wrapping; lower case only in brackets or at a line's end."""
    return (
        rf"{_OPEN}{_HEDGE}{_OPEN}(?-i:(?P<upper_{tag}>[A-P]){_ALONE}{_NOT_A_PRONOUN}"
        rf"|(?<=[(\[])(?P<enclosed_{tag}>[a-p])(?=[)\]])|(?P<final_{tag}>[a-p])(?=[.)*_`\s]{{0,6}}$))"
    )


_VERB = r"(?:is|are|was|be|(?:would|should|must|will)\sbe|(?:seems|appears)\sto\sbe|remains)\b"
_STATEMENT = re.compile(
    rf"""
      \b(?:answers?|ans)\b[*_`"'}}]{{0,4}}
      (?:\s(?:choice|option|letter|key|here|to\s(?:this|the)\s(?:question|problem)))?[*_`"']{{0,4}}\s?
      (?:{_VERB}|[:：=>]|[-–—→](?=>?\s)|(?=[ ]?[(\[*]{{1,3}}[A-P][)\]*]))
      {_letter("answer")}
    | \banswers?\b[*_`]{{0,4}}[ ]{{0,2}}\n\s{{0,4}}[*_`(\[]{{0,4}}
      (?-i:(?P<heading>[A-P]))(?=[.):\]*]|\s{{0,4}}$)
    | (?<![不别没])(?<!不[能应该会可])(?<!不应该)(?:答案|应选|故选|选择?)\s?
      (?:应?该?[是为]|[:：])?{_letter("chinese")}
    | \b(?:correct|right|best)\s(?:option|choice|letter|one|response|statement)\s?(?:{_VERB}|[:：])
      {_letter("option")}
    | \\boxed\s?\{{(?:\s|\\text\w{{0,2}}\s?\{{|\\math\w{{2}}\s?\{{|[(*]){{0,6}}
      (?-i:(?P<boxed>[A-P])){_ALONE}(?!\s?[+*/-])
    | (?<![A-Za-z0-9_])(?-i:(?P<subject>[A-P]))[)\]*.:]{{0,4}}\sis\s(?:therefore\s|thus\s|indeed\s)?(?:the\s)?
      (?:(?:single\s|only\s|most\s)?(?:correct|right|best|accurate)(?:\s(?:answer|option|choice|response))?
        |(?:final\s)?answer)
      (?![A-Za-z])(?!\s(?:in|that|to|if|when|about)\b)
    """,
    re.VERBOSE | re.IGNORECASE | re.MULTILINE,
)
_BARE = re.compile(r"[\s*_`$\"'“(\[{\\]{0,12}(?:boxed\{)?([A-Pa-p])[\s*_`$\"'”)\]}.:。]{0,12}")
_OPENING = re.compile(r"[\s*_`\"'(\[]{0,8}([A-P])(?:[.):\]]|\*\*)[\s\S]{0,400}")
_OPENCOMPASS = re.compile(r"(?i)ANSWER\s*:\s*([A-P])")


def last_stated(response: str) -> str | None:
    """Rule ``last-line``: the letter of the last statement, else a bare letter."""
    text = plain(response)
    return _last_statement(text) or _bare_letter(text)


def last_line_only(response: str) -> str | None:
    """Rule ``last-line-only``: OpenCompass's pattern in the last line that is not blank."""
    return first_match(_last_line(response))


def first_match(response: str) -> str | None:
    """Rule ``first-match``: OpenCompass's pattern; the case of the match is kept."""
    hit = _OPENCOMPASS.search(response)
    return hit[1] if hit else None


RULES: dict[str, Callable[[str], str | None]] = {
    "last-line": last_stated,
    "first-match": first_match,
    "last-line-only": last_line_only,
}


def _last_statement(text: str) -> str | None:
    last = None
    for last in _STATEMENT.finditer(text):  # noqa: B007  only the last one is wanted
        pass
    if last is None:
        return None
    return next(value for value in last.groupdict().values() if value).upper()


def _last_line(text: str) -> str:
    return text.rstrip().rpartition("\n")[2]


def _bare_letter(text: str) -> str | None:
    hit = _BARE.fullmatch(_last_line(text)) or (
        _OPENING.fullmatch(text.strip()) if "\n" not in text.strip() else None
    )
    return hit[1].upper() if hit else None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of grading one response.

    Attributes:
        correct: whether the response is correct under the grader that was used.
        extracted: the answer that the grader found in the response; None if it found none.
        reason: one line with the reason, including every departure from the plain rule.
        grader: name of the rule (``last-number``, ``last-line``, ``strict``, …).
        per_instruction: IFEval only: strict outcome per instruction, in the document's order.
        loose: IFEval only: whether all instructions hold for some loosened form of the response.
        per_instruction_loose: IFEval only: loose outcome per instruction.
    """

    correct: bool
    extracted: str | None
    reason: str
    grader: str = ""
    per_instruction: list[bool] | None = None
    loose: bool | None = None
    per_instruction_loose: list[bool] | None = None

    def instructions_json(self) -> str | None:
        """Return strict and loose outcomes as one JSON string for the store, or None without any."""
        if self.per_instruction is None:
            return None
        return json.dumps({"strict": self.per_instruction, "loose": self.per_instruction_loose})


def incorrect(reason: str, grader: str, extracted: str | None = None) -> Verdict:
    """Return an incorrect verdict."""
    return Verdict(False, extracted, reason, grader)


NUMBER_GRADER = "last-number"


def grade_number(golden: object, response: object, *, percent_is_unit: bool = False) -> Verdict:
    """Compare the last number of ``response`` with the reference ``golden`` as exact rationals."""
    text = response_text(response)
    reference = reference_number(golden)
    if reference is None:
        return incorrect(f"the document has no usable reference number (got {golden!r:.60})", NUMBER_GRADER)
    if text is None:
        return incorrect(no_text(response), NUMBER_GRADER)
    found = last_number(text)
    if found is None:
        return incorrect("no readable number in the response", NUMBER_GRADER)
    same = same_number(reference, found, percent_is_unit=percent_is_unit)
    relation = "equals" if same else "differs from"
    return Verdict(same, found.text, f"last number {found.text} {relation} {reference.text}", NUMBER_GRADER)


def grade_golden(doc: Mapping[str, Any], response: object) -> Verdict:
    """Compare the last number with the document's ``golden``."""
    return grade_number(doc.get("golden"), response)


def grade_letter(gold: str | None, n_options: int | None, response: object, rule: str) -> Verdict:
    """Compare the letter that ``rule`` reads with ``gold``; letters past the options are incorrect."""
    if n_options == 0:
        return incorrect("the document has no options", rule)
    if gold is None:
        return incorrect("the document has no usable answer field", rule)
    text = response_text(response)
    if text is None:
        return incorrect(no_text(response), rule)
    letter = RULES[rule](text)
    if letter is None:
        return incorrect("no answer letter in the response", rule)
    if n_options is not None and letter.upper() not in LETTERS[:n_options]:
        return incorrect(f"letter {letter} is not among the {n_options} options", rule, letter)
    same = letter == gold
    return Verdict(same, letter, f"letter {letter} {'equals' if same else 'differs from'} {gold}", rule)


def gold_letter(letter: object, index: object) -> str | None:
    """Return the reference letter; ``letter`` wins over ``index`` when both are given and disagree."""
    if isinstance(letter, str) and len(letter.strip()) == 1 and letter.strip().upper() in LETTERS:
        return letter.strip().upper()
    place = as_index(index)
    return LETTERS[place] if place is not None and place < len(LETTERS) else None


def as_index(value: object) -> int | None:
    """Return a non-negative integer given as int or digits, else None."""
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < 10:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def count_options(options: Any) -> int | None:
    """Return how many options a document lists; None when the field is absent."""
    if options is None:
        return None
    return len(options) if hasattr(options, "__len__") and not isinstance(options, str) else 0


def reference_number(golden: object) -> ParsedNumber | None:
    """Return the reference as a number, or None when it holds none."""
    if isinstance(golden, bool) or not isinstance(golden, str | int | float):
        return None
    return last_number(str(golden))


def response_text(response: object) -> str | None:
    """Return the response when it is a text with visible content, else None."""
    return response if isinstance(response, str) and response.strip() else None


def no_text(response: object) -> str:
    """Return why there is nothing to grade."""
    return "empty response" if response is None or isinstance(response, str) else "the response is not text"


ANSWER_LINE = "\nAnswer:"


def grade_named(doc: Mapping[str, Any], response: object) -> Verdict:
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


Flaw: TypeAlias = Callable[[Mapping[str, Any]], str | None]


def number_flaw(field: str, mark: str = "") -> Flaw:
    """Return a check that ``field`` holds a number, after the last ``mark`` if one is set."""

    def flaw(doc: Mapping[str, Any]) -> str | None:
        value = doc.get(field)
        if value is None:
            return f"has no '{field}'"
        shown = value.rpartition(mark)[2] if mark and isinstance(value, str) else value
        if reference_number(shown) is None:
            return f"'{field}' holds no reference number (it is {value!r:.60})"
        return None

    return flaw


def letter_flaw(options: str, letter: str | None, index: str) -> Flaw:
    """Return a check that a reference letter or index exists and is among the options, if these are listed.

    Args:
        options: field with the list of options.
        letter: field with the reference letter, None where there is only an index.
        index: field with the 0-based index of the right option.
    """

    def flaw(doc: Mapping[str, Any]) -> str | None:
        given = doc.get(options)
        if given is not None and (not isinstance(given, list | tuple) or not given):
            return f"'{options}' is not a list of options (it is {given!r:.60})"
        fields = f"'{letter}' or '{index}'" if letter else f"'{index}'"
        if all(doc.get(name) is None for name in (letter, index) if name):
            return f"has no {fields}"
        gold = gold_letter(doc.get(letter) if letter else None, as_index(doc.get(index)))
        if gold is None or (given is not None and gold not in LETTERS[: len(given)]):
            value = next(doc[name] for name in (letter, index) if name and doc.get(name) is not None)
            return f"{fields} names no option (it is {value!r:.60})"
        return None

    return flaw


def instruction_flaw(doc: Mapping[str, Any]) -> str | None:
    """Check IFEval's two lists: names of instructions and their arguments, of one length."""
    for field in ("instruction_id_list", "kwargs"):
        if doc.get(field) is None:
            return f"has no '{field}'"
        if not isinstance(doc[field], list | tuple):
            return f"'{field}' is not a list (it is {doc[field]!r:.60})"
    names, kwargs = doc["instruction_id_list"], doc["kwargs"]
    if not names:
        return "'instruction_id_list' is empty"
    if not all(isinstance(name, str) for name in names):
        return "'instruction_id_list' holds an entry that is not text"
    return (
        f"'kwargs' has {len(kwargs)} entries for {len(names)} instructions"
        if len(kwargs) != len(names)
        else None
    )


def require_gradable(task: str, flaw: str | None, row: str) -> None:
    """Raise if a document has a flaw; ``row`` names the document."""
    if flaw is not None:
        raise DataFileError(f"{task}, {row}: {flaw}")
