"""The keyed random streams."""

from __future__ import annotations

from orderlens.common.rng import keyed_generator


def test_streams_depend_on_every_key_and_on_nothing_else():
    draw = keyed_generator(1, "a", "b", 2).random(4).tolist()
    assert draw == keyed_generator(1, "a", "b", 2).random(4).tolist()
    others = [(2, "a", "b", 2), (1, "ab", 2), (1, "a", "b", "2"), (1, "a", "b", 3), (1, "a", "b")]
    assert all(draw != keyed_generator(*keys).random(4).tolist() for keys in others)
