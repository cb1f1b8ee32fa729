"""Thousands of ways to write a number inside a Chinese or English sentence, made by an independent writer."""

from __future__ import annotations

import random
from collections.abc import Iterator
from fractions import Fraction

import pytest

from orderlens.tasks import grade

DIGITS, UNITS = "零一二三四五六七八九", ("", "十", "百", "千")
FORMAL = str.maketrans("零一二三四五六七八九十百千", "零壹贰叁肆伍陆柒捌玖拾佰仟")
MIXED = str.maketrans("一二三四五六七八九", "123456789")
WIDE = str.maketrans("0123456789.,-%/", "０１２３４５６７８９．，－％／")
ARABIC = str.maketrans("0123456789", "٠١٢٣٤٥٦٧٨٩")
SENTENCES = [
    "{}",
    "答案：{}",
    "答：{}。",
    "答案是{}",
    "所以答案为{}。",
    "最终答案：{}.",
    "**答案：{}**",
    "答案：**{}**",
    "\\boxed{{{}}}",
    "$\\boxed{{{}}}$",
    "答案：$ {} $",
    "\\({}\\)",
    "= {}",
    "x={}",
    "因此，一共需要{}。",
    "答案： {}\n",
    "答案：{}．",
    "答案：“{}”",
    "《{}》",
    "【{}】",
    "（{}）",
    "一共有 3 个班，每班 40 人，所以答案：{}",
    "1. 先算 3×4=12\n2. 再算\n答案：{}",
    "答：还剩{}！",
    "答案\n{}",
    "约为{}",
    "The answer is {}.",
    "#### {}",
    "→ {}",
    "≈{}",
    "从 25-8=17 可知，差是{}",
    "温度由 3 度降到{}",
]
MEASURES = [
    "",
    "元",
    "个",
    "米",
    "kg",
    "公里",
    "平方米",
    "平方厘米",
    "m²",
    "cm²",
    "立方分米",
    "dm³",
    "m^2",
    "cm^3",
    "米/秒",
    "km/h",
    "岁",
    "人",
    "小时",
    "天",
    "页",
    "吨",
    "升",
    "L",
    "棵",
]
MINUS = ("-", "−", "－", "负")


def section(number: int) -> str:
    out, gap = "", False
    for place, digit in enumerate(str(number)):
        if digit == "0":
            gap = True
            continue
        out += ("零" if gap and out else "") + DIGITS[int(digit)] + UNITS[len(str(number)) - 1 - place]
        gap = False
    return out


def numeral(number: int) -> str:
    high, low = divmod(number, 10_000)
    out = section(high) + "万" if high else ""
    out += ("零" if high and 0 < low < 1000 else "") + section(low)
    return (out.removeprefix("一") if out.startswith("一十") else out) or "零"


def whole(number: int) -> Iterator[str]:
    yield from (str(number), f"{number}.00", str(number).translate(WIDE), str(number).translate(ARABIC))
    if number >= 1000:
        grouped = f"{number:,}"
        yield from (grouped, grouped.translate(WIDE), grouped.replace(",", "，"), grouped.replace(",", "{,}"))
        yield from (grouped.replace(",", "\\,"), grouped.replace(",", "\u2009"))
    if number >= 10:
        yield from (numeral(number), numeral(number).translate(FORMAL))
    mixed = numeral(number).translate(MIXED)
    if number > 99 and not mixed.endswith(("万", "千", "百")):
        yield mixed
    if number % 10_000 == 0 and number:
        yield f"{number // 10_000}万"


def decimal(text: str) -> Iterator[str]:
    before, _, after = text.partition(".")
    yield from (text, f"{text}0", text.translate(WIDE), f"{int(before):,}.{after}")
    yield numeral(int(before)) + "点" + "".join(DIGITS[int(digit)] for digit in after)
    percent = 100 * Fraction(text)
    if percent.denominator == 1:
        yield from (f"{percent}%", f"{percent} %", f"{percent}\\%", f"{percent}％", f"百分之{percent}")


def fraction(top: int, low: int) -> Iterator[str]:
    yield from (f"{top}/{low}", f"{top} / {low}", f"{top}/{low}".translate(WIDE), f"{top}⁄{low}")
    yield from (f"\\frac{{{top}}}{{{low}}}", f"\\dfrac {{{top}}}{{ {low} }}", f"{low}分之{top}")
    yield f"{numeral(low)}分之{numeral(top)}"
    whole_part, rest = divmod(top, low)
    if whole_part and rest:
        yield from (f"{whole_part} {rest}/{low}", f"{whole_part}又{low}分之{rest}")
        yield f"{whole_part}\\frac{{{rest}}}{{{low}}}"


def any_number(rng: random.Random) -> tuple[str, list[str]]:
    """Return a reference and the ways to write it."""
    kind = rng.randrange(3)
    if kind == 0:
        number = rng.choice([rng.randrange(100), rng.randrange(10_000), 1000 * rng.randrange(1, 5000)])
        return str(number), list(whole(number))
    if kind == 1:
        text = f"{rng.choice([0, 7, 36, 4821])}.{rng.randrange(1, 10)}{rng.choice(['', '5', '25'])}"
        return text, list(decimal(text))
    value = Fraction(rng.randrange(1, 90), rng.choice([2, 3, 7, 12, 25]))
    if value.denominator == 1:
        return str(value), list(whole(int(value)))
    return str(value), list(fraction(value.numerator, value.denominator))


def written(rng: random.Random, form: str) -> str:
    """Put the number into a sentence, with a unit where that cannot change it."""
    numeral_or_percent = any(char in form for char in "%％百千万十")
    unit = "" if numeral_or_percent else rng.choice(MEASURES)
    return rng.choice(SENTENCES).format(form + unit)


@pytest.mark.parametrize("seed", range(3))
def test_every_form_is_read(seed: int) -> None:
    rng = random.Random(seed)
    wrong = []
    for _ in range(1500):
        reference, forms = any_number(rng)
        sign = rng.choice(MINUS) if rng.random() < 0.15 else ""
        text = written(rng, sign + rng.choice(forms))
        golden = f"-{reference}" if sign else reference
        if not grade("cmath", {"golden": golden}, text).correct:
            wrong.append((golden, text))
    assert wrong == []


def test_other_values_are_never_accepted() -> None:
    rng = random.Random(9)
    for _ in range(1500):
        reference, forms = any_number(rng)
        off = Fraction(reference) + rng.choice([1, -1, Fraction(1, 10), Fraction(1, 3)])
        scaled = [off, Fraction(reference) * 10, Fraction(reference) / 1000, -Fraction(reference) - 1]
        text = written(rng, rng.choice(forms))
        for other in scaled:
            if other != Fraction(reference) and "万" not in text:
                assert not grade("cmath", {"golden": str(other)}, text).correct, (str(other), text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("需要-48", "-48"),
        ("12元-3元", "3"),
        ("25-8", "8"),
        ("小明有3个-2个", "2"),
        ("1.5e3kg", "1500"),
        ("【-5】", "-5"),
    ],
)
def test_signs_and_exponents(text: str, value: str) -> None:
    assert grade("cmath", {"golden": value}, text).correct
