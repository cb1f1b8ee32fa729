"""Digits, signs and marks of many scripts in one plain form."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orderlens.tasks.numbers import last_number, plain


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("１８．５％", "18.5%"),
        ("（－３）", "(-3)"),
        ("ＡＢＣ", "ABC"),
        ("٣٫٥", "3.5"),
        ("١٬٢٣٤", "1,234"),
        ("٤٠٪", "40%"),
        ("१२३", "123"),
        ("๑๒", "12"),
        ("𝟙𝟚", "12"),
        ("−5", "-5"),
        ("5–7", "5-7"),
        ("﹣5", "-5"),
        ("3⁄4", "3/4"),
        ("3∕4", "3/4"),
        ("2½", "2 1⁄2".replace("⁄", "/")),
        ("⅔", " 2/3"),
        ("10⁻³", "10^-3"),
        ("m²", "m^2"),
        ("x¹⁰", "x^10"),
        ("a\u3000b", "a b"),
        ("1\u202f234", "1,234"),
        ("1\u00a0234\u00a0567", "1,234,567"),
        ("1\u20092345", "1 2345"),  # no group of three
        ("12\u2009apples", "12 apples"),
        ("1\u200b8", "18"),
        ("\ufeff1\u00ad8\u202e", "18"),
        ("1\x008", "18"),
        ("a\tb\nc\r\n", "a\tb\nc\r\n"),
        ("", ""),
    ],
)
def test_forms(text: str, wanted: str) -> None:
    assert plain(text) == wanted


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet=st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=50))
def test_plain_text_stays_as_it_is(text: str) -> None:
    assert plain(text) == text


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60))
def test_a_second_time_changes_nothing_and_no_foreign_digit_is_left(text: str) -> None:
    once = plain(text)
    assert plain(once) == once
    assert not any(char.isdecimal() and char > "9" for char in once)


SCRIPTS = sorted(
    {
        code - unicodedata.digit(chr(code))
        for code in range(128, 0x1FFFF)
        if chr(code).isdecimal()
    }
)  # fmt: skip


def test_every_script_of_unicode_counts_alike() -> None:
    assert len(SCRIPTS) > 50
    for zero in SCRIPTS:
        written = "".join(chr(zero + digit) for digit in (4, 0, 7, 9))
        number = last_number(f"x = {written}.")
        assert number is not None
        assert number.value == 4079, hex(zero)
