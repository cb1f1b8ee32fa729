from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orderlens.tasks import numbers
from orderlens.tasks.numbers import last_number, parse_numeral, same_number

FORMS = [
    ("18", 18),
    ("18.", 18),
    ("18.0", 18),
    ("答案是18个。", 18),
    ("１８", 18),
    ("答案：１８．５元", "37/2"),
    ("1,234", 1234),
    ("1，234", 1234),
    ("1{,}234", 1234),
    (r"1\,234", 1234),
    ("12,345.60", "61728/5"),
    (r"\boxed{18}", 18),
    (r"$\boxed{\frac{1}{5}}$", "1/5"),
    (r"\dfrac15", "1/5"),
    (r"\tfrac{3}{ 4 }", "3/4"),
    (r"-\frac{1}{2}", "-1/2"),
    (r"2\frac{1}{3}", "7/3"),
    ("2 1/2", "5/2"),
    ("2½", "5/2"),
    ("¾", "3/4"),
    ("3/5", "3/5"),
    ("3 / 5", "3/5"),
    ("３／５", "3/5"),
    ("4又3分之1", "13/3"),
    ("四又三分之一", "13/3"),
    ("1 又 1/2", "3/2"),
    ("五分之三", "3/5"),
    ("5分之3", "3/5"),
    ("百分之四十", "2/5"),
    ("百分之27.3", "273/1000"),
    ("40%", "2/5"),
    (r"40\%", "2/5"),
    ("27.3％", "273/1000"),
    ("20 %", "1/5"),
    ("5‰", "1/200"),
    ("50 cm²", 50),
    ("50cm^2", 50),
    (r"50\text{ cm}^{2}", 50),
    ("50 m2", 50),
    ("面积是50平方厘米", 50),
    ("1.5e3", 1500),
    ("1.5×10^3", 1500),
    (r"1.5\times 10^{3}", 1500),
    ("2*10^-2", "1/50"),
    ("5²", 25),
    ("10^3", 1000),
    ("-5", -5),
    ("x=-5", -5),
    ("= - 5", -5),
    ("等于-5", -5),
    ("负5", -5),
    ("(-5)", -5),
    ("−5", -5),
    ("10-5", 5),
    ("5个-3个", 3),
    ("3-5", 5),
    ("3~5", 5),
    ("- 5", 5),
    ("18（个）", 18),
    ("十八", 18),
    ("答案是一百零五。", 105),
    ("It is -5", -5),
    ("5个 -3个", 3),
    ("一共五个", 5),
    ("第1步，答案是十八", 18),
    ("一点五", "3/2"),
    ("十五万五千零四", 155004),
    ("每袋18千克", 18),
    ("一千克", 1),
    ("٣٤", 34),
    ("1\u200b8", 18),
    ("\u202e18", 18),
    ("①18②", 18),
    (".5", "1/2"),
    ("007", 7),
    ("18÷3=6", 6),
    ("1.2.3", 3),
    ("US$1,000", 1000),
    ("12\u202f500", 12500),
    ("120 240 360", 360),
    ("+7", 7),
]


@pytest.mark.parametrize(("text", "value"), FORMS)
def test_reads_the_last_number(text: str, value: int | str) -> None:
    number = last_number(text)
    assert number is not None
    assert number.value == Fraction(value)


@pytest.mark.parametrize(
    "text", ["", "没有数", "no number", "1/0", "x_2", "x^{2}", "1e999999", "9" * 5000, "。"]
)
def test_texts_without_a_readable_number(text: str) -> None:
    assert last_number(text) is None


@pytest.mark.parametrize(("text", "expected"), [("一一对应", 11), ("万一", 1), ("大家一共", 1)])
def test_words_with_numerals_count_only_alone(text: str, expected: int) -> None:
    number = last_number("共有18个。" + text)
    assert number is not None
    assert number.value == 18
    alone = last_number(text)
    assert alone is not None
    assert alone.value in (expected, 10001)


def test_scales_have_two_readings() -> None:
    reference, other = last_number("48"), last_number("480000")
    found = last_number("48万元")
    assert reference
    assert other
    assert found
    assert same_number(reference, found)
    assert same_number(other, found)
    assert not same_number(other, reference)


def test_percent_is_part_of_the_number_unless_it_is_a_unit() -> None:
    reference, found = last_number("60"), last_number("60%")
    assert reference
    assert found
    assert not same_number(reference, found)
    assert same_number(reference, found, percent_is_unit=True)


FRAMES = ["答案：{}。", "= {}", "\\boxed{{{}}}", "So it is {}.", "x={}个"]


def _spellings(value: Fraction) -> list[str]:
    top, low = value.numerator, value.denominator
    size = abs(value)
    sign = "-" if value < 0 else ""
    forms = [f"{top}/{low}", rf"{sign}\frac{{{abs(top)}}}{{{low}}}"]
    if size > 1 and size.denominator > 1:
        forms.append(f"{sign}{size // 1} {size % 1}")
    if value.denominator == 1:
        wide = str(top).translate(str.maketrans("0123456789", "０１２３４５６７８９"))
        forms += [str(top), f"{top:,}", f"{top}.00", wide]
    if 100 % low == 0:
        forms.append(f"{sign}{float(size) * 100:.0f}%")
    return forms


@settings(max_examples=150, deadline=None)
@given(st.fractions(min_value=-(10**6), max_value=10**6, max_denominator=60), st.sampled_from(FRAMES))
def test_all_spellings_of_a_number_agree(value: Fraction, frame: str) -> None:
    for spelling in _spellings(value):
        found = last_number("先算12×3，" + frame.format(spelling))
        assert found is not None, spelling
        assert found.value == value, spelling


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**12))
def test_chinese_numerals(number: int) -> None:
    assert parse_numeral(_in_chinese(number)) == number


def _in_chinese(number: int) -> str:
    """Spell independently of the parser: digits with units, 零 for gaps, sections of four."""
    if number >= 10**8:
        return _join(_in_chinese(number // 10**8) + "亿", number % 10**8, 10**7)
    if number >= 10**4:
        return _join(_in_chinese(number // 10**4) + "万", number % 10**4, 10**3)
    for unit, name in ((1000, "千"), (100, "百"), (10, "十")):
        if number >= unit:
            return _join("零一二三四五六七八九"[number // unit] + name, number % unit, unit // 10)
    return "零一二三四五六七八九"[number]


def _join(head: str, rest: int, without_gap: int) -> str:
    return head + ("" if not rest else ("零" if rest < without_gap else "") + _in_chinese(rest))


HOSTILE = [
    "1",
    "1 ",
    "-",
    "1,",
    "1/",
    "\\frac{",
    "十",
    "一分之",
    " ",
    "x",
    "1^",
    "1e",
    ".1",
    "又",
    "1又",
    "{",
    "\\frac{1}",
]


@pytest.mark.parametrize("piece", HOSTILE)
def test_hostile_texts_end(piece: str) -> None:
    found = last_number((piece * 100_000)[:100_000])
    assert found is None or len(found.text) < 2_000


def test_no_pattern_can_backtrack_without_bound(endless_patterns) -> None:  # type: ignore[no-untyped-def]
    assert endless_patterns(numbers) == set()


def test_a_number_far_from_the_end_is_found_whole() -> None:
    assert last_number("答案是1,234,567" + "。" * 50_000).value == 1234567  # type: ignore[union-attr]
    digits = "7" * 300
    for pad in range(3990, 4011):
        assert last_number("x" * 10 + digits + "y" * (pad - 300)).value == int(digits)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-$5", -5),
        (r"-\$5", -5),
        (r"$-\$5$", -5),
        ("profit: -$20.50", "-41/2"),
        ("**-$1,200**", -1200),
        ("$10-$5", 5),
        ("$10 - $5", 5),
        ("10 -$5", 5),
        ("($10)-$3", 3),
        ("x-$5", 5),
        ("$x$-$5$", 5),
        ("cost $5-$10", 10),
        ("$-5", -5),
        ("-5°C", -5),
        ("x = 5 or x = -5", -5),
        ("½%", "1/200"),
        ("1 1/2%", "3/200"),
        ("-1⅓", "-4/3"),
        ("2^-1", "1/2"),
        ("6.02×10²³", 602 * 10**21),
        ("1.5E+2", 150),
        ("The ratio is 3:4", 4),
        ("5 (five)", 5),
        ("1,234,56", 56),
        ("x_1 = 3", 3),
        ("5!", 5),
        ("5 km2", 5),
        ("100 cm3", 100),
        (r"\frac{-1}{2}", "-1/2"),
        ("负百分之五", "-1/20"),
        ("x>-5", -5),
        ("-0", 0),
    ],
)
def test_signs_currencies_and_units(text: str, value: int | str) -> None:
    number = last_number(text)
    assert number is not None
    assert number.value == Fraction(value)


@pytest.mark.parametrize(
    ("text", "value", "bare", "unit_value"),
    [
        ("5万", 50_000, 5, 50_000),
        ("1.2万", 12_000, "6/5", 12_000),
        ("5千万", 50_000_000, 5, 50_000_000),
        ("3 million", 3_000_000, 3, 3_000_000),
        ("2.5 billion", 2_500_000_000, "5/2", 2_500_000_000),
        ("40%", "2/5", "2/5", 40),
        ("5‰", "1/200", "1/200", 5),
        ("7", 7, 7, 7),
    ],
)
def test_the_three_readings(text: str, value: int | str, bare: int | str, unit_value: int | str) -> None:
    number = last_number(text)
    assert number is not None
    assert [number.value, number.bare, number.unit_value] == [Fraction(x) for x in (value, bare, unit_value)]


@pytest.mark.parametrize(
    ("text", "readable"),
    [
        ("9" * numbers.MAX_DIGITS, True),
        ("9" * (numbers.MAX_DIGITS + 1), False),
        (f"1e{numbers.MAX_POWER}", True),
        (f"1e{numbers.MAX_POWER + 1}", False),
        (f"1e-{numbers.MAX_POWER + 1}", False),
        ("10^133", True),
        ("10^134", False),  # three digits of base and denominator, 134 times
        ("0^-1", False),
        ("0^0", True),
        ("1/0", False),
        (r"\frac{3}{0}", False),
        ("0分之3", False),
    ],
)
def test_the_limits_of_what_is_anybodys_answer(text: str, readable: bool) -> None:
    assert (last_number(text) is not None) is readable


@pytest.mark.parametrize(
    ("text", "shown"), [("it is +0.5", "0.5"), ("it is -0.5", "-0.5"), ("it is +7", "7")]
)
def test_the_text_of_a_number_drops_a_plus_and_keeps_a_minus(text: str, shown: str) -> None:
    found = last_number(text)
    assert found is not None
    assert found.text == shown
