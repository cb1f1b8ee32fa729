"""The four texts of the unmask figure are chosen by rule, the same ones every time."""

from __future__ import annotations

import numpy as np
import pytest

from orderlens.errors import UndefinedFigureError
from orderlens.figures import unmask
from orderlens.figures.reveal_order import BlockPath
from orderlens.figures.unmask import visible

N = 12


def path(sample, offsets, eos=(), special=()):
    offsets = np.asarray(offsets)
    return unmask.Shape.of(
        BlockPath(
            sample,
            "max-prob",
            0,
            offsets,
            offsets + 10,
            np.full(len(offsets), -0.5),
            np.isin(offsets, list(eos)),
            np.isin(offsets, list(special)),
        )
    )


STRAIGHT = path("straight", range(N))
SWAPS = path("swaps", [0, 2, 1, 4, 3, 5, 6, 8, 7, 9, 11, 10])
WILD = path("wild", [11, 0, 5, 2, 9, 1, 3, 4, 6, 7, 8, 10])
CASCADE = path("cascade", [0, 1, 11, 10, 9, 8, 7, 6, 2, 3, 4, 5], eos=range(6, 12))
MIXED = path("mixed", [0, 11, 1, 10, 2, 9, 3, 4, 5, 6, 7, 8], eos=(9, 10, 11))
LATE = path("late", [*range(8), 11, 10, 9, 8], eos=range(8, 12))


def names(shapes):
    chosen = unmask.choose(shapes, [shape for shape in shapes if shape.path.eos.any()])
    return {rule: None if found is None else found.path.sample_id for rule, found in chosen.items()}


def test_each_rule_finds_its_text_whatever_the_order_of_the_run():
    shapes = [WILD, MIXED, LATE, SWAPS, CASCADE, STRAIGHT]
    expected = {
        "nearest to left-to-right": "straight",
        "strongest EOS cascade": "cascade",
        "milder cascade": "mixed",
        "all content, local swaps": "swaps",
    }
    assert names(shapes) == names(shapes[::-1]) == expected


def test_a_tail_sealed_early_beats_a_longer_one_sealed_at_the_end():
    long_but_late = path("aaa", [0, 1, *range(11, 1, -1)], eos=range(2, 12))
    assert names([long_but_late, CASCADE])["strongest EOS cascade"] == "cascade"


def test_rules_without_a_text_say_so():
    found = names([STRAIGHT])
    assert found["strongest EOS cascade"] is None
    assert found["milder cascade"] is None
    assert found["all content, local swaps"] is None


def test_ties_go_to_the_first_id():
    again = path("another", range(N))
    assert names([STRAIGHT, again])["nearest to left-to-right"] == "another"


def test_without_local_swaps_the_least_disorderly_text_stands_in():
    assert names([STRAIGHT, WILD])["all content, local swaps"] == "wild"


def test_tokens_come_in_text_order_with_their_steps_kinds_and_texts(by_hand):
    eos, special = by_hand.EOS, by_hand.SPECIAL
    trace = by_hand.trace(
        "a", "max-prob", [0, 3, 1, 2], [5, special, 6, eos], [-0.1, -0.2, -0.3, -0.4], temperature=0.0
    )
    study = by_hand.study_of([trace], tokens=by_hand.tokens_table({5: " the", 0: "", 1: "<|x|>"}))
    example = unmask.data(study)["examples"][0]
    assert [token["piece"] for token in example["tokens"]] == [" the", "<|x|>", "#6", ""]
    assert [token["kind"] for token in example["tokens"]] == ["content", "special", "content", "eos"]
    assert [token["step"] for token in example["tokens"]] == [0, 2, 3, 1]
    assert [token["logq"] for token in example["tokens"]] == pytest.approx([-0.1, -0.3, -0.4, -0.2])


def test_the_eos_rules_look_at_the_block_in_which_a_text_ends(by_hand):
    """A text of two blocks whose first is all content and whose second is sealed from the right."""
    eos = by_hand.EOS
    path, tokens = [0, 1, 2, 3, 7, 6, 5, 4], [5, 6, 7, 8, 9, eos, eos, eos]
    trace = by_hand.trace("a", "max-prob", path, tokens, [-0.1] * 8, temperature=0.0, block_size=4)
    found = {item["rule"]: item for item in unmask.data(by_hand.study_of([trace]))["examples"]}
    assert found["nearest to left-to-right"]["block"] == 0
    strong = found["strongest EOS cascade"]
    assert (strong["block"], strong["eos_cascade"], strong["content_resumes"]) == (1, 3, 3)
    assert [token["kind"] for token in strong["tokens"]] == ["content", "eos", "eos", "eos"]


def test_a_run_without_the_order_is_named(scored):
    with pytest.raises(UndefinedFigureError, match="'max-prob'"):
        unmask.data(scored)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (" a", "·a"),
        ("\n", "↵"),
        ("$x_1$", "$x_1$"),
        ("漢字", "□□"),
        ("\x00\x1b[31m", "□□[31m"),
        ("antidisestablishmentarianism", "antidis…rianism"[:7] + "…" + "ianism"),
    ],
)
def test_any_token_can_be_shown(text, shown):
    assert visible(text) == shown


def test_the_drawing_takes_hostile_tokens_without_a_warning(by_hand):
    tokens = {5: "$\\frac{", 6: "漢" * 40, 7: "<script>", 8: "\x07"}
    trace = by_hand.trace("$a_b$", "max-prob", [3, 1, 2, 0], [5, 6, 7, 8], [-0.1] * 4, temperature=0.0)
    study = by_hand.study_of([trace], tokens=by_hand.tokens_table(tokens))
    figure = unmask.draw(unmask.data(study))
    figure.canvas.draw()  # warnings are errors: a missing glyph or a token read as mathematics fails
    drawn = {item.get_text() for panel in figure.axes for item in panel.texts}
    assert {visible(text) for text in tokens.values()} <= drawn
