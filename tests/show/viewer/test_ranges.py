"""Conditions on numbers: what is read of a text, what is refused, and which traces fit."""

from __future__ import annotations

import pytest

from orderlens.errors import UserInputError
from orderlens.show.viewer.app import query_of
from orderlens.show.viewer.index import Index, Query, Range, parse_ranges
from orderlens.testing import make_run, make_trace


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        (" , ;", ()),
        ("var > 0.5", (Range("var", ">", 0.5),)),
        ("VAR>=2,mean<−1.5", (Range("var", ">=", 2.0), Range("mean", "<", -1.5))),
        ("eos ≥ 3 and passes ≤ 1e2", (Range("cascade", ">=", 3.0), Range("passes", "<=", 100.0))),
        ("n = .5 & gap < +1.", (Range("n", "=", 0.5), Range("gap", "<", 1.0))),
    ],
)
def test_conditions_are_read(text: str, expected: tuple[Range, ...]) -> None:
    assert parse_ranges(text) == expected


@pytest.mark.parametrize(
    "text", ["var", "var > x", "text > 1", "var >> 1", "1 < var", "var > 1 2", "var > ١", "var > 1) OR (1=1"]
)
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UserInputError, match="is not a condition; write for example: var > "):
        Query(where=text)


@pytest.fixture(scope="module")
def index() -> Index:
    steep, flat = [-0.1, -4.0, -0.1], [-1.0, -1.0, -1.0]
    traces = [make_trace("steep", "x", steep), make_trace("flat", "x", flat), make_trace("one", "x", [-9.0])]
    traces.append(make_trace("ends", "x", [-0.1] * 4, path=[3, 2, 1, 0], tokens=[5, 0, 0, 0]))
    traces.append(make_trace("lost", "x", [-float("inf"), -1.0]))
    return Index(make_run(traces))


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("var > 1", {"steep"}),
        ("var <= 1, mean < -0.5", {"flat", "one"}),
        ("n = 1", {"one"}),
        ("passes >= 4", {"ends"}),
        ("eos >= 2", {"ends"}),
        ("var > 1, var < 1", set()),
        ("mean < 0", {"steep", "flat", "one", "ends"}),
    ],
)
def test_traces_that_fit(index: Index, where: str, expected: set[str]) -> None:
    for whole in (False, True):
        page = index.page(query_of({"where": where, "whole": str(whole).lower()}))
        assert {row["sample_id"] for row in page["rows"]} == expected
        assert page["total"] == len(expected)


def test_only_the_eos_run_waits_for_everything() -> None:
    assert not Query(where="var > 1, passes < 3", whole=False).needs_whole
    assert Query(where="eos > 1", whole=False).needs_whole
