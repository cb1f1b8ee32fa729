"""Chinese numerals to exact numbers: 一百零五 is 105, 一百五 is 150, 二点五 is 5/2, 二〇二三 is 2023."""

from __future__ import annotations

from fractions import Fraction

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
    return _parse_with_units(text)


def _parse_with_units(text: str) -> Fraction | None:
    total = section = pending = 0
    last_unit = 10**5
    for char in text:
        if char in DIGITS:
            if pending:
                return None  # two digits in a row inside a numeral with units, e.g. 一二十
            pending = DIGITS[char]
        elif char in SMALL_UNITS:
            if SMALL_UNITS[char] >= last_unit:
                return None  # units must fall: 十百 is not a numeral
            section += (pending or 1) * SMALL_UNITS[char]
            last_unit, pending = SMALL_UNITS[char], 0
        else:
            total = _raise_by(char, total, section + pending)
            section, pending, last_unit = 0, 0, 10**5
    return Fraction(total + section + pending * _left_out(text))


def _left_out(text: str) -> int:
    """Return the unit that a last digit behind 百, 千, 万 or 亿 leaves unsaid: 一百二 is 120, not 102."""
    if text[0] not in DIGITS:
        return 1  # 万一 is a word
    return {**SMALL_UNITS, **LARGE_UNITS}.get(text[-2], 10) // 10


def _raise_by(unit: str, total: int, section: int) -> int:
    """Apply 万 to the last section only and 亿 to everything before it (三亿五千万, 一万亿)."""
    if unit == "万":
        return total + (section or 1) * LARGE_UNITS[unit]
    return (total + section or 1) * LARGE_UNITS[unit]
