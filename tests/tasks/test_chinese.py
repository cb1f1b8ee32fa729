"""Chinese numerals: their values, and texts that are not numerals."""

from __future__ import annotations

from fractions import Fraction

import pytest

from orderlens.tasks import grade
from orderlens.tasks.numbers import last_number, mixed_to_digits, parse_numeral


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
        "三万五万",
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


MIXED = [
    ("2万5千", 25_000),
    ("2万5千3百", 25_300),
    ("2万5千3百4十6", 25_346),
    ("3千5百", 3500),
    ("1百2十", 120),
    ("2 万 5 千", 25_000),
    ("2万5000", 25_000),
    ("2万500", 20_500),
    ("2万零5百", 20_500),
    ("3万零5百20", 30_520),
    ("3万5", 35_000),
    ("1亿2000万", 120_000_000),
    ("3千5百万", 35_000_000),
    ("1,200万5千", 12_005_000),
    ("2万五千", 25_000),
    ("二万5千", 25_000),
    ("１万２千", 12_000),
    ("两千5百", 2500),
    ("二万五千", 25_000),
    ("一百二", 120),
]


@pytest.mark.parametrize(("text", "value"), MIXED)
def test_arabic_and_chinese_parts_of_one_number(text: str, value: int) -> None:
    for sentence in (text, f"先算1百，答：一共{text}元。", f"{text}人"):
        number = last_number(sentence)
        assert number is not None
        assert (number.value, number.bare) == (value, value), sentence
    number = last_number(f"x=-{text}")
    assert number is not None
    assert number.value == -value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3万、5千", 5000),
        ("3万，5", 5),
        ("3万 5", 5),
        ("5百3千", 3000),
        ("3万50000", 50_000),
        ("3万5万", 50_000),
        ("3万5.5", "11/2"),
        ("3万1/2", "1/2"),
        ("2万的5分之1", "1/5"),
        ("5百分之20", "1/5"),
        ("提高了10百分点", 10),
        ("买了2千克", 2),
        ("2千5百克", 2500),
        ("2万3千克", 23_000),
        ("2023年1月5", 5),
        ("第5十字路口", 5),
    ],
)
def test_what_is_no_number_of_several_parts(text: str, value: int | str) -> None:
    number = last_number(text)
    assert number is not None
    assert number.value == Fraction(value)


def test_text_without_such_numbers_stays_as_it_is() -> None:
    for text in (
        "",
        "abc 12 千",
        "一百二十",
        "3万",
        "二十和3千",
        "5百3千",
        "万" * 5000,
        "1" * 5000 + "万2千",
    ):
        assert mixed_to_digits(text) == text


@pytest.mark.parametrize(
    ("golden", "response", "correct"),
    [
        ("25000", "答：2万5千元", True),
        ("5", "答：2万5千元", False),
        ("500", "5百元", True),
        ("5", "5百元", True),
    ],
)
def test_graders_read_them(golden: str, response: str, correct: bool) -> None:
    assert grade("cmath", {"golden": golden}, response).correct is correct
