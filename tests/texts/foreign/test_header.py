"""Which column means what."""

from __future__ import annotations

import pytest

from orderlens.errors import DataFileError, UserInputError
from orderlens.texts.foreign.rows import ALIASES, FIELDS, Header


@pytest.mark.parametrize(
    ("column", "value", "field"),
    [
        ("Sample ID", 1, "sample_id"),
        ("log-prob", -1, "logq"),
        ("Token.Position", 3, "position"),
        ("NFE", 3, "forward"),
        ("token", 5, "token_id"),
        ("token", "sea", "text"),
        ("token", [5, 6], "token_id"),
        ("token", ["the", "sea"], "text"),
        ("token", [], "token_id"),
        ("max_logprob", -1, "max_logprob"),
        ("score", 1, None),
    ],
)
def test_case_blanks_and_dashes_do_not_count(column, value, field):
    assert Header("t.csv", {}).field(column, value) == field


def test_every_alias_means_one_field():
    names = [name for field in FIELDS for name in (field, *ALIASES.get(field, ()))]
    assert len({Header("t", {}).field(name, 1) for name in names}) == len(FIELDS)
    assert [Header("t", {}).field(name, 1) for name in FIELDS] == list(FIELDS)


def test_what_the_user_names_wins_over_what_a_name_suggests():
    header = Header("t.csv", {"logq": "mine"})
    assert header.field("logprob", -9) is None
    assert header.field("mine", -1) == "logq"
    assert header.unknown == ["logprob"]
    with pytest.raises(UserInputError, match="unknown field 'logp'"):
        Header("t.csv", {"logp": "mine"})


def test_two_columns_of_one_meaning_are_refused():
    header = Header("t.csv", {})
    header.field("pos", 1)
    with pytest.raises(
        DataFileError,
        match="columns 'pos' and 'index' both mean position; say which with --column position=index",
    ):
        header.field("index", 1)


@pytest.mark.parametrize(
    ("columns", "given", "message"),
    [
        (
            ["order", "logq", "step"],
            {},
            "no column sample_id, nor one called sample, id, doc; it has order, logq",
        ),
        (["id", "logq", "step"], {}, "no column order, nor one called policy"),
        (["id", "order", "step"], {}, "name it with --column logq=COLUMN"),
        (["id", "order", "logq", "forward"], {}, r"no column step \(or position\)"),
        (["id", "order", "logq", "step"], {"text": "words"}, "has no column 'words'; it has id, order"),
    ],
)
def test_what_every_trace_needs_is_asked_for(columns, given, message):
    header = Header("t.csv", given)
    for column in columns:
        header.field(column, 1)
    with pytest.raises(DataFileError, match=message):
        header.require()


@pytest.mark.parametrize("rank", ["step", "position"])
def test_one_of_step_and_position_is_enough(rank):
    header = Header("t.csv", {})
    for column in ("id", "order", "logq", rank, "lgq", "xy"):
        header.field(column, 1)
    header.require()
    first, second = header.notes()
    assert first == "column 'lgq' is ignored", "three letters: no guess"
    assert second == "column 'xy' is ignored"
    header.field("positon", 1)
    assert header.notes()[-1] == "column 'positon' is ignored; did you mean 'position'?"
