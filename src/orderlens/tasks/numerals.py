"""Chinese numerals, also mixed with arabic digits (2万5千, 1亿2000万): text in, exact value out.

Does not handle sentences or signs; ``numbers`` decides which characters of a text form a numeral.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

_DIGIT_ROWS = ("零〇", "一壹", "二两贰", "三叁", "四肆", "五伍", "六陆", "七柒", "八捌", "九玖")
DIGITS = {char: value for value, row in enumerate(_DIGIT_ROWS) for char in row}
SMALL_UNITS = {"十": 10, "拾": 10, "百": 100, "佰": 100, "千": 1000, "仟": 1000}
LARGE_UNITS = {"万": 10**4, "亿": 10**8}
NUMERAL_CHARS = "".join([*DIGITS, *SMALL_UNITS, *LARGE_UNITS])


def parse_numeral(text: str) -> Fraction | None:
    """Return the value of a Chinese numeral, or None when ``text`` is not a well-formed one."""
    whole, point, decimals = text.partition("点")
    value = _parse_whole(whole)
    if value is None or (point and not (decimals and all(char in DIGITS for char in decimals))):
        return None
    for place, char in enumerate(decimals, start=1):
        value += Fraction(DIGITS[char], 10**place)
    return value


def _parse_whole(text: str) -> Fraction | None:
    if not text or any(char not in NUMERAL_CHARS for char in text):
        return None
    if all(char in DIGITS for char in text):
        return Fraction(int("".join(str(DIGITS[char]) for char in text)))
    return _parse_with_units(list(text))


def _parse_with_units(parts: Sequence[str]) -> Fraction | None:
    """Return the value of alternating digits (or arabic integers) and units; None if malformed."""
    total = section = pending = 0
    last_unit, last_large = 10**5, ""
    for part in parts:
        if part not in SMALL_UNITS and part not in LARGE_UNITS:
            if pending:
                return None  # two digits in a row inside a numeral with units, e.g. 一二十
            pending = _amount(part)
        elif part in SMALL_UNITS:
            if SMALL_UNITS[part] >= last_unit:
                return None  # units must fall: 十百 is not a numeral
            section += (pending or 1) * SMALL_UNITS[part]
            last_unit, pending = SMALL_UNITS[part], 0
        else:
            if part == last_large == "万":
                return None  # 三万五万 are two numbers
            total = _raise_by(part, total, section + pending)
            section, pending, last_unit, last_large = 0, 0, 10**5, part
    return Fraction(total + section + pending * _left_out(parts))


def _amount(part: str) -> int:
    return DIGITS[part] if part in DIGITS else int(part.replace(",", ""))


def _left_out(parts: Sequence[str]) -> int:
    """Return the implied unit of a last digit after 百, 千, 万 or 亿: 一百二 is 120, not 102."""
    if parts[0] in SMALL_UNITS or parts[0] in LARGE_UNITS or len(parts[-1]) > 1:
        return 1  # 万一 is a word; 2万5000 says its number in full
    return {**SMALL_UNITS, **LARGE_UNITS}.get(parts[-2], 10) // 10


def _raise_by(unit: str, total: int, section: int) -> int:
    """Apply 万 to the last section only and 亿 to everything before it (三亿五千万, 一万亿)."""
    if unit == "万":
        return total + (section or 1) * LARGE_UNITS[unit]
    return (total + section or 1) * LARGE_UNITS[unit]


_UNIT = f"[{''.join([*SMALL_UNITS, *LARGE_UNITS])}]"
_WHOLE = r"(?:[0-9]{1,3}(?:,[0-9]{3})++|[0-9]{1,8}+)"
_PART = re.compile(rf"{_WHOLE}|[{NUMERAL_CHARS}]")
_STEP = rf"(?:{_WHOLE}|[{''.join(DIGITS)}])[ ]?{_UNIT}{{1,2}}+"
_TAIL = r"零?[0-9]{1,8}+(?![0-9%‰/^点又]|[.,][0-9]|分之|[ ]?[×*][ ]?[0-9])"
_MIXED = re.compile(
    rf"(?<![0-9.,])(?=[{NUMERAL_CHARS} ]{{0,12}}[0-9]){_STEP}"
    rf"(?:(?:[ ]?零?{_STEP})++(?:{_TAIL})?|{_TAIL})(?![0-9]|分之)"
)


def mixed_to_digits(text: str) -> str:
    """Return the text with numbers of several arabic or mixed parts in digits: 2万5千 becomes 25000.

    Each part must be smaller than the unit before it; all other text is unchanged.
    """
    return _MIXED.sub(_in_digits, text)


def _in_digits(hit: re.Match[str]) -> str:
    parts = _PART.findall(hit[0])
    value = _parse_with_units(parts) if _parts_fall(parts) else None
    return hit[0] if value is None else str(value)


def _parts_fall(parts: Sequence[str]) -> bool:
    """Say whether every arabic number is smaller than the unit before it: 3万500, not 3万50000."""
    units = {**SMALL_UNITS, **LARGE_UNITS}
    pairs = pairwise(parts)
    return all(_amount(part) < units[unit] for unit, part in pairs if unit in units and part not in units)
