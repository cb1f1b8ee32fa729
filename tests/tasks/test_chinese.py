"""Chinese numerals: how they are read aloud, and what is no numeral."""

from __future__ import annotations

from fractions import Fraction

import pytest

from orderlens.tasks import grade
from orderlens.tasks.numbers import last_number, parse_numeral


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("零", 0),
        ("〇", 0),
        ("十", 10),
        ("百", 100),
        ("十二", 12),
        ("一十二", 12),
        ("二十", 20),
        ("两百", 200),
        ("一百零二", 102),
        ("一百一十", 110),
        ("一百二", 120),
        ("二百五", 250),
        ("两千三", 2300),
        ("两千零三", 2003),
        ("两千零三十", 2030),
        ("三万五", 35_000),
        ("三万零五", 30_005),
        ("一万二千三", 12_300),
        ("三亿五", 350_000_000),
        ("三亿五千万", 350_000_000),
        ("一万亿", 10**12),
        ("万", 10_000),
        ("亿", 10**8),
        ("壹佰贰拾叁", 123),
        ("肆仟", 4000),
        ("二〇二三", 2023),
        ("二点五", Fraction(5, 2)),
        ("零点零五", Fraction(1, 20)),
        ("一百二十点二五", Fraction(481, 4)),
        ("三点一四一五九", Fraction(314159, 100000)),
    ],
)
def test_numerals(text: str, value: Fraction | int) -> None:
    assert parse_numeral(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "点五",
        "五点",
        "二点十",
        "一二十",
        "十百",
        "百千",
        "一百二百",
        "二十十",
        "五a",
        "廿",
        "a",
        "1",
        "十1",
    ],
)
def test_what_is_no_numeral(text: str) -> None:
    assert parse_numeral(text) is None


@pytest.mark.parametrize(
    ("golden", "response", "correct"),
    [
        ("120", "一共一百二。", True),
        ("102", "一共一百二。", False),
        ("102", "一共一百零二。", True),
        ("2300", "答：两千三百元", True),
        ("35000", "答：三万五千人", True),
        ("35000", "答：三万五", True),
        ("1.5", "答：一点五米", True),
        ("0.3", "答：十分之三", True),
        ("1000", "买了一千克", False),  # one kilogram
        ("1", "买了一千克", True),
        ("2000", "两千米", False),  # two kilometres
        ("11", "一一对应", True),  # nothing else to read
        ("18", "18个，一一对应", True),
    ],
)
def test_answers_in_words(golden: str, response: str, correct: bool) -> None:
    assert grade("cmath", {"golden": golden}, response).correct is correct


@pytest.mark.parametrize(
    ("text", "read", "value"),
    [
        ("大约十百", "百", 100),
        ("负二十十", "十", -10),
        ("一共三", "三", 3),
        ("负五", "五", -5),
        ("零个", "零", 0),
    ],
)
def test_alone_a_numeral_is_read_whole_or_by_its_last_character(text: str, read: str, value: int) -> None:
    number = last_number(text)
    assert number is not None
    assert (number.text, number.value, number.bare, number.unit_value) == (read, value, value, value)


def test_words_are_no_numbers() -> None:
    assert parse_numeral("万一") != 11_000
    number = last_number("有3个，万一不够")
    assert number is not None
    assert number.value == 3
