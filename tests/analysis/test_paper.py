"""The paper's numbers are in one file, and derived numbers follow from them."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

import orderlens
from orderlens.analysis import paper


def test_derived_numbers_follow_from_printed_ones():
    def structured(metric: str) -> list[float]:
        return [paper.value("generation", metric, order) for order in paper.orders("structured")]

    def random(metric: str) -> float:
        return paper.value("generation", metric, "random")

    def rise(order: str) -> float:
        hot, cold = (paper.value("temperature", order, t, "external_ppl_whole") for t in ("1", "0"))
        return math.log(hot / cold)

    others = [paper.value("temperature", o, "1", "var") for o in paper.orders("decoding") if o != "max-prob"]
    spread = paper.number("ppl_spread_1") / paper.number("ppl_spread_0")
    found = {
        "content_var_lead": random("content_var") - max(structured("content_var")),
        "content_mean_lead": min(structured("content_mean_logq")) - random("content_mean_logq"),
        "log_ppl_lead": math.log(random("external_ppl_whole") / max(structured("external_ppl_whole"))),
        "log_ppl_rise_lead": min(rise("forced-ar"), rise("top-margin")) - rise("max-prob"),
        "var_lead_at_1": min(others) - paper.value("temperature", "max-prob", "1", "var"),
        "log_spread_growth": math.log(spread),
    }
    for name, value in found.items():
        assert paper.number(name) == pytest.approx(value, abs=0.0051), name


def test_our_remarks_on_its_sentences_follow_from_its_tables():
    tier = paper.orders("structured")
    spread = {
        task: [paper.value("downstream", task, order, "accuracy") for order in tier]
        for task in paper.benchmarks()
    }
    widest = max(max(values) - min(values) for values in spread.values())
    band = paper.number("structured_band_pp")
    assert round(widest, 2) == 3.15
    assert widest / 2 <= band < widest  # "±1.6" holds around the middle
    distinct = [paper.value("generation", "distinct_3", order) for order in (*tier, "random")]
    assert min(distinct) < distinct[-1]  # random is not "the outlier on every metric"


def test_a_text_in_place_of_a_number_is_not_taken_for_one():
    with pytest.raises(KeyError, match="not a number"):
        paper.value("within-cell", "hellaswag", "forced-ar", "mw_p")
    with pytest.raises(KeyError):
        paper.value("generation", "var", "oracle-min-q")


def test_printed_values_stand_nowhere_else():
    """Numbers with three significant digits that the paper prints are not written again in the source."""
    source = Path(orderlens.__file__).parent
    wanted = {f"{cell}" for name in paper.tables() for cell in paper.printed(name).values()}
    wanted = {
        text for text in wanted if re.fullmatch(r"-?\d*\.\d{3,}|\d{2,}\.\d+", text) and float(text) > 0.1
    }
    for folder in ("figures", "claims"):
        for path in (source / folder).rglob("*.py"):
            found = wanted & set(re.findall(r"(?<![\w.])\d+\.\d+(?![\w.])", path.read_text(encoding="utf-8")))
            assert not found, (path, found)
