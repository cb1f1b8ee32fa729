r"""The last number of a text, as an exact rational.

Reads thousands separators, full-width and other digits, signs, decimals, ``a/b``, ``\frac{a}{b}``, mixed
numbers, per cent and per mille, scientific notation, powers, Chinese fractions (三分之一, 百分之40) and
Chinese numerals, also with arabic parts (2万5千); ``plain`` brings the digits, signs and marks
of many scripts to one form. Units are ignored. 百, 千, 万, 亿, thousand, million and billion multiply, but
the bare number is kept as a second reading, because questions such as "how many 万元" expect it. Does not
depend on tasks or references.

Chinese numerals of one character (一, 两, 十) occur in ordinary words (一共), so they are read only when
the text holds no other number; longer ones (十八, 一百零五) always are.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
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


MAX_DIGITS = 400
MAX_POWER = 400
TAIL = 4000
"""Characters read first, from the end; all but adversarial responses have their answer there."""

_SCALES = {
    "万亿": 10**12, "千万": 10**7, "百万": 10**6, "万": 10**4, "亿": 10**8,
    "千": 10**3, "百": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9,
}  # fmt: skip
_INT = r"(?:[0-9]{1,3}(?:,[0-9]{3})++(?![0-9])|[0-9]++)"
_DEC = rf"(?:{_INT}(?:\.[0-9]++)?|(?<![0-9.])\.[0-9]++)"
_CN = rf"[{NUMERAL_CHARS}]"
_NUMBER = re.compile(
    rf"""
    (?:(?P<sign>[-+])(?P<gap>[ ]?))?
    (?:
      (?:(?P<frac_whole>{_INT})[ ]?(?:又[ ]?)?)?
      \\frac[ ]?(?:\{{[ ]?(?P<frac_top>-?{_DEC})[ ]?\}}|(?P<frac_top1>[0-9]))
      [ ]?(?:\{{[ ]?(?P<frac_low>{_DEC})[ ]?\}}|(?P<frac_low1>[0-9]))
    | (?:(?P<cn_whole>{_DEC}|{_CN}{{1,20}}+)[ ]?又[ ]?)?
      (?P<cn_low>{_DEC}|{_CN}{{1,20}})[ ]?分之[ ]?(?P<cn_top>{_DEC}|{_CN}{{1,20}}(?:点{_CN}{{1,20}})?)
    | (?:(?P<slash_whole>{_INT})(?:[ ]{{1,2}}|[ ]?又[ ]?))?(?P<slash_top>{_DEC})[ ]?/[ ]?(?P<slash_low>{_DEC})
    | (?P<plain>{_DEC})
      (?: [eE](?P<exp>[-+]?[0-9]{{1,6}})(?![0-9])
        | [ ]?(?:×|\*|x|·)[ ]?10[ ]?\^[ ]?\{{?(?P<ten>[-+]?[0-9]{{1,6}})\}}?
        | [ ]?\^[ ]?\{{?(?P<power>-?[0-9]{{1,3}})(?![0-9])\}}?
      )?
    | (?P<numeral>{_CN}{{2,30}}(?:点{_CN}{{1,20}})?|{_CN}点{_CN}{{1,20}})
    )
    (?:[ ]?(?P<percent>[%‰]))?
    (?:[ ]?(?P<scale>{"|".join(_SCALES)})(?!分))?
    """,
    re.VERBOSE,
)
_LONE_NUMERAL = re.compile(rf"(?P<sign>[负-])?(?P<numeral>{_CN}{{1,30}})")
_NO_TERM = r"(?<![0-9)\]}%] )(?<![0-9A-Za-z)\]}%])(?<![0-9A-Za-z)}]\$)"  # nothing to subtract from
_REWRITES = (
    (re.compile("千(?=[克米瓦])"), "k"),  # 千克 is a unit: its 千 must not multiply
    (re.compile(r"\\[dtc]frac"), r"\\frac"),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"(?<=[0-9])\\[,!;:](?=[0-9]{3})"), ","),
    (re.compile(r"\\times|\\cdot"), "×"),
    (re.compile(rf"{_NO_TERM}-(\\?\$)(?=\.?[0-9])"), r"\1-"),  # -$5 is $-5, unlike $9-$5
    (re.compile(r"\\([%$])"), r"\1"),
    (re.compile(r"\\(?:left|right|displaystyle|,|;|:|!)"), ""),
)
_UNIT_POWER = re.compile(r"(?:^|[^A-Za-z])[kcdm]?m$")
_BEFORE_SIGN = frozenset("为是于得到即有剩成作值答案约≈=:,;([{<>$、。“\"'|*~\n\t【《「『〈〔→⇒")
_NUMERAL_STARTS = frozenset([*DIGITS, "十", "拾"])
_CONTEXT = 32


@dataclass(frozen=True, slots=True)
class ParsedNumber:
    """A number found in a text.

    Attributes:
        text: the characters that were read, in plain form.
        value: its exact value (per cent divided by 100, 万 multiplied).
        bare: its value without 万, 亿, million….
        unit_value: its value with per cent counted as a unit (40% → 40).
    """

    text: str
    value: Fraction
    bare: Fraction
    unit_value: Fraction


def last_number(text: str) -> ParsedNumber | None:
    """Return the last number of ``text``, or None when it holds none (or only absurdly long ones)."""
    tail = text[-TAIL:]
    cut = len(text) > len(tail)
    found = _last_in(plain(tail), cut)
    return found or (_last_in(plain(text), False) if cut else None)


def same_number(reference: ParsedNumber, found: ParsedNumber, *, percent_is_unit: bool = False) -> bool:
    """Say whether two numbers are equal as exact rationals under one of their admissible readings."""
    allowed = {found.value, found.bare} | ({found.unit_value} if percent_is_unit else set())
    return bool(allowed & {reference.value, reference.bare})


def _last_in(text: str, cut: bool) -> ParsedNumber | None:
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    text = mixed_to_digits(text)
    last = None
    for hit in _NUMBER.finditer(text):
        last = hit if _counts(text, hit) else last
    if cut and (last is None or last.start() < _CONTEXT):
        return None  # may be the end of a longer number: the whole text must be read
    return _read(text, last) if last else _lone_numeral(text)


def _counts(text: str, hit: re.Match[str]) -> bool:
    """Leave out exponents, subscripts, squared and cubed units, and numerals that are part of a word."""
    before = text[max(0, hit.start() - 4) : hit.start()].rstrip("{- ")
    if before.endswith(("^", "_")):
        return False
    if hit["numeral"] is not None:
        return _is_compound(hit["numeral"])
    return not (hit["plain"] in ("2", "3") and hit["sign"] is None and bool(_UNIT_POWER.search(before)))


def _is_compound(numeral: str) -> bool:
    """Accept 十八 and 一百零五; refuse 一一 and 万一, which are words."""
    has_unit = "点" in numeral or any(char not in DIGITS for char in numeral)
    return has_unit and numeral[0] in _NUMERAL_STARTS and parse_numeral(numeral) is not None


def _read(text: str, hit: re.Match[str]) -> ParsedNumber | None:
    size = _magnitude(hit)
    if size is None:
        return None
    size = -size if _negative(text, hit) else size
    per = {"%": 100, "‰": 1000}.get(hit["percent"] or "", 1)
    scale = _SCALES.get(hit["scale"] or "", 1)
    shown = hit[0].strip() if hit["sign"] is None or size < 0 else hit[0].lstrip("-+ ")
    return ParsedNumber(shown, size * scale / per, size / per, size * scale)


def _magnitude(hit: re.Match[str]) -> Fraction | None:
    if max(len(run) for run in re.split(r"[^0-9]+", hit[0])) > MAX_DIGITS:
        return None
    if hit["numeral"] is not None:
        return parse_numeral(hit["numeral"])
    if hit["plain"] is None:
        return _fraction(hit)
    base = _decimal(hit["plain"])
    if hit["power"] is not None:
        return _power(base, int(hit["power"]))
    shift = int(hit["exp"] or hit["ten"] or 0)
    return base * Fraction(10) ** shift if abs(shift) <= MAX_POWER else None


def _fraction(hit: re.Match[str]) -> Fraction | None:
    for kind in ("frac", "cn", "slash"):
        groups = hit.groupdict()
        top = groups[f"{kind}_top"] or groups.get(f"{kind}_top1")
        low = groups[f"{kind}_low"] or groups.get(f"{kind}_low1")
        if top is None or low is None:
            continue
        whole = _either(groups[f"{kind}_whole"] or "0")
        over, under = _either(top), _either(low)
        return None if whole is None or over is None or not under else whole + over / under
    return None


def _power(base: Fraction, exponent: int) -> Fraction | None:
    """Return base^exponent; None if it is undefined or too large for an answer."""
    digits = len(str(base.numerator)) + len(str(base.denominator))
    if digits * abs(exponent) > MAX_POWER or (base == 0 and exponent < 0):
        return None
    return Fraction(base**exponent)


def _decimal(text: str) -> Fraction:
    return Fraction(text.replace(",", ""))


def _either(text: str) -> Fraction | None:
    return _decimal(text) if text[-1].isascii() else parse_numeral(text)


def _negative(text: str, hit: re.Match[str]) -> bool:
    """Tell a minus sign from a minus between two terms, a range or a list dash."""
    before = text[max(0, hit.start() - 16) : hit.start()]
    near = before.rstrip(" ")
    if near.endswith("负"):
        return True
    if hit["sign"] != "-":
        return False
    if hit["gap"] and not near.endswith("="):
        return False
    if not near or near[-1] in _BEFORE_SIGN:
        return True
    if near == before:
        return _is_chinese_word(near)
    return not _is_term(near.split()[-1])


def _is_chinese_word(near: str) -> bool:
    """Say whether a Chinese word without a quantity ends here (需要-48), unlike a term (12元-3元)."""
    return "\u4e00" <= near[-1] <= "\u9fff" and not any(char.isdigit() for char in near[-4:])


def _is_term(word: str) -> bool:
    """Say whether ``word`` can stand left of a minus: a quantity, a variable or a closed bracket."""
    return len(word) == 1 or any(char.isdigit() for char in word) or word[-1] in ")]}%°^-+"


def _lone_numeral(text: str) -> ParsedNumber | None:
    hits = list(_LONE_NUMERAL.finditer(text))
    if not hits:
        return None
    shown = hits[-1]["numeral"]
    value = parse_numeral(shown)
    if value is None:
        shown = shown[-1]
        value = parse_numeral(shown) or Fraction(0)
    value = -value if hits[-1]["sign"] else value
    return ParsedNumber(shown, value, value, value)


_INVISIBLE = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]++"
)
_SUPERSCRIPT = re.compile(r"[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]++")
_SUPERSCRIPT_DIGITS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_THIN_GROUPS = re.compile(r"(?<=[0-9])[\u00a0\u2009\u202f](?=[0-9]{3}(?![0-9]))")
_VULGAR = re.compile(r"[¼½¾⅐-⅞]")
_FIXED = {
    **{code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)},  # full-width forms of ASCII
    0x3000: " ", 0x00A0: " ", 0x2009: " ", 0x202F: " ",
    0x2212: "-", 0xFE63: "-", 0x2013: "-",
    0x2044: "/", 0x2215: "/", 0xFE6A: "%",
    0x066A: "%", 0x066B: ".", 0x066C: ",",  # Arabic
}  # fmt: skip


def plain(text: str) -> str:
    """Return ``text`` with ASCII digits and signs.

    Full-width forms and the digits of other scripts become ASCII, superscripts become ``^2``, ``½`` becomes
    `` 1/2``; control and direction marks vanish, so that they cannot split a number.
    """
    text = _INVISIBLE.sub("", text)
    if text.isascii():
        return text
    text = _SUPERSCRIPT.sub(lambda hit: "^" + hit[0].translate(_SUPERSCRIPT_DIGITS), text)
    text = _THIN_GROUPS.sub(",", text)
    text = _VULGAR.sub(lambda hit: " " + unicodedata.normalize("NFKC", hit[0]), text)
    foreign = (char for char in set(text) if char.isdecimal() and char > "~")
    digits = {ord(char): str(unicodedata.digit(char)) for char in foreign}
    return text.translate({**_FIXED, **digits})
