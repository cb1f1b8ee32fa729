"""What may follow an order's name, option by option, and the one line where it is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from orderlens.cli.main import main
from orderlens.errors import UserInputError
from orderlens.rules import parse_order
from orderlens.rules.protocol import Arguments, label_of, plain


def test_options_and_seed_in_any_order():
    for text in ("n=4:temp=0.5:7", "7:temp=0.5:n=4", "temp=0.5:7:n=4"):
        given = Arguments("x", text, ["n", "temp"], seeded=True)
        assert (given.whole("n", 1, 1), given.number("temp", 1.0, 0.0), given.seed) == (4, 0.5, 7)


def test_what_is_left_out_is_the_default():
    given = Arguments("x", "n=4", ["n", "temp", "by"], seeded=True)
    assert given.number("temp", 0.25, 0.0) == 0.25
    assert given.word("by", "prob", ["prob", "margin"]) == "prob"
    assert given.seed is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not understood; allowed are n=VALUE, temp=VALUE, a seed, once each"),
        ("n=", "'n=' is not understood"),
        ("n=4:n=5", "'n=5' is not understood"),
        ("3:4", "'4' is not understood"),
        ("-1", "'-1' is not understood"),
        ("٣", "'٣' is not understood"),
        ("size=4", "'size=4' is not understood"),
        ("=4", "'=4' is not understood"),
        ("n=4:", "'' is not understood"),
        ("9" * 19, "the seed must have at most 18 digits"),
    ],
)
def test_anything_else_is_refused_with_what_is_allowed(text, message):
    with pytest.raises(UserInputError) as caught:
        Arguments("x", text, ["n", "temp"], seeded=True)
    assert str(caught.value).startswith(f"order 'x:{text}': {message}")


def test_a_seed_where_none_is_drawn_is_refused():
    with pytest.raises(UserInputError, match=r"'3' is not understood; allowed are gamma=VALUE, once each"):
        Arguments("x", "3", ["gamma"])


@pytest.mark.parametrize(
    ("text", "low", "high", "message"),
    [
        ("v=0.5", 0.0, 1.0, None),
        ("v=0", 0.0, 1.0, None),
        ("v=1", 0.0, 1.0, None),
        ("v=1e3", 0.0, np.inf, None),
        ("v=1.01", 0.0, 1.0, "v must be a number between 0 and 1"),
        ("v=-0.01", 0.0, 1.0, "v must be a number between 0 and 1"),
        ("v=-1", 0.0, np.inf, "v must be a finite number of at least 0"),
        ("v=inf", 0.0, np.inf, "v must be a finite number of at least 0"),
        ("v=nan", 0.0, np.inf, "v must be a finite number of at least 0"),
        ("v=many", 0.0, np.inf, "v must be a finite number of at least 0"),
    ],
)
def test_numbers_and_their_limits(text, low, high, message):
    given = Arguments("x", text, ["v"])
    if message is None:
        assert given.number("v", 9.0, low, high) == float(text[2:])
        return
    with pytest.raises(UserInputError, match=f"order 'x:{text}': {message}"):
        given.number("v", 9.0, low, high)


def test_whole_numbers_and_words():
    assert Arguments("x", "n=4.0", ["n"]).whole("n", 1, 2) == 4
    for text, message in (
        ("n=1", "between 2 and"),
        ("n=2.5", "n must be a whole number"),
        ("n=1e7", "between"),
    ):
        with pytest.raises(UserInputError, match=message):
            Arguments("x", text, ["n"]).whole("n", 1, 2)
    with pytest.raises(UserInputError, match="by must be prob or margin"):
        Arguments("x", "by=luck", ["by"]).word("by", "prob", ["prob", "margin"])
    assert Arguments("x", "file=a b", ["file"]).word("file", "") == "a b"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.1, "0.1"), (1.0, "1"), (1e-5, "0.00001"), (1e6, "1000000"), (0.30000000000000004, None)],
)
def test_numbers_are_written_one_way_and_come_back(value, text):
    assert float(plain(value)) == value
    assert "e" not in plain(value)
    if text is not None:
        assert plain(value) == text


def test_labels_hold_what_is_not_the_default():
    assert label_of("x", {"a": (1.0, 1.0), "b": (0.5, 0.1), "c": ("word", "")}) == "x:b=0.5:c=word"
    assert label_of("x", {"a": (1.0, 1.0)}) == "x"


SPECS = [
    ("max-prob:argmax", "max-prob:select=argmax", None),
    ("max-prob:select=sampled", "max-prob", None),
    ("random:7", "random", 7),
    ("gumbel-prob:scale=2:3", "gumbel-prob:scale=2", 3),
    ("gumbel-prob:scale=1.0", "gumbel-prob", 0),
    ("sampled-position:temp=0.10:by=prob", "sampled-position", 0),
    ("sampled-position:5:by=entropy", "sampled-position:by=entropy", 5),
    ("eos-damped:gamma=0.40", "eos-damped", None),
    ("lookahead-gain:n=4:bypass=1", "lookahead-gain:n=4:bypass=1", 0),
    ("lookahead-entropy:temp=0", "lookahead-entropy:temp=0", None),
    ("position-content:lambda=0:alpha=3", "position-content:lambda=0:alpha=3", None),
]


@pytest.mark.parametrize(("text", "label", "seed"), SPECS)
def test_every_order_that_takes_options_has_one_spelling(text, label, seed):
    order = parse_order(text)
    assert (order.label, order.seed) == (label, seed)
    again = parse_order(order.spec)
    assert (again.label, again.seed, again.spec) == (order.label, order.seed, order.spec)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("forced-ar:3", "'forced-ar' takes no argument; write 'forced-ar'"),
        ("max-prob:luck", "allowed are select=sampled and select=argmax"),
        ("random:-1", "the seed must be a non-negative integer, e.g. random:3"),
        ("random:1234567890123456789", "the seed must have at most 18 digits"),
        ("sampled-position:temp=0", "temp must be a finite number of at least 1e-06"),
        ("sampled-position:by=luck", "by must be prob or margin or entropy"),
        ("lookahead-gain:n=1", "n must be a number between 2 and"),
        ("lookahead-gain:temp=0:3", "temp=0 is not random and takes no seed"),
        ("eos-damped:gamma=0", "gamma must be a number between 1e-09 and 1"),
        ("position-content:frequencies=/nowhere", "frequencies=/nowhere"),
    ],
)
def test_mistakes_reach_a_user_in_one_line(text, message, tmp_path, capsys):
    with pytest.raises(UserInputError, match=message):
        parse_order(text)
    words = ["score", "--model", "hmm", "--limit", "1", "--orders", text, "--out", str(tmp_path / "run")]
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not (tmp_path / "run").exists()
