r"""Reads the option letter that a response gives as its answer.

Three rules, from the most forgiving to the most literal:

``last-line``
    The last statement of an answer decides: ``Answer: X``, ``the answer is X``, ``X is the correct
    answer``, ``the correct option is X``, ``\boxed{X}``; X may be in brackets, bold, dollars or
    ``\text{}``. If the response follows the prompt this is the last line, as in the paper; a closing remark
    after it is ignored. Without any statement, a last line that is nothing but a letter counts, and so does a
    one-line response that opens with ``X.`` or ``(X)``.
``last-line-only``
    The same statements, but only in the last line that is not blank.
``first-match``
    OpenCompass to the letter: the first match of ``(?i)ANSWER\s*:\s*([A-P])``, compared case by case, so a
    lower-case match is wrong.

Does not depend on tasks. Every pattern has bounded repeats, so time is linear in the length.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from orderlens.tasks.numbers import plain

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
    """Rule ``last-line-only``: the letter stated in the last line that is not blank."""
    line = _last_line(plain(response))
    return _last_statement(line) or _bare_letter(line)


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
