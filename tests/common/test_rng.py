"""The keyed random streams."""

from __future__ import annotations

import numpy as np

from orderlens.common.rng import BUFFERED_NUMBERS, NumberRows, keyed_generator, rule_stream


def test_streams_depend_on_every_key_and_on_nothing_else():
    draw = keyed_generator(1, "a", "b", 2).random(4).tolist()
    assert draw == keyed_generator(1, "a", "b", 2).random(4).tolist()
    others = [(2, "a", "b", 2), (1, "ab", 2), (1, "a", "b", "2"), (1, "a", "b", 3), (1, "a", "b")]
    assert all(draw != keyed_generator(*keys).random(4).tolist() for keys in others)


def test_a_stream_keeps_its_numbers():
    """Results of stored runs depend on these numbers."""
    assert keyed_generator(0, "a", 1).random() == 0.7074372258885274
    unseeded = keyed_generator(0, "a", "random", "rule", 0).random()
    assert (
        rule_stream(None, "a", "random", 0).random() == rule_stream(0, "a", "random", 0).random() == unseeded
    )


def test_buffered_rows_are_the_streams_numbers_pass_by_pass():
    size, n_passes = 400, 7  # two passes per buffer
    opened: list[int] = []

    def open_stream(chain: int) -> np.random.Generator:
        opened.append(chain)
        return keyed_generator(chain, "rows", len(opened))

    rows = NumberRows(2, size, open_stream)
    streams = [keyed_generator(0, "rows", 1), keyed_generator(1, "rows", 2)]
    expected = [stream.random((n_passes, size)) for stream in streams]
    both = np.array([0, 1])
    for number in (0, 1, 2, 3, 6):
        found = rows.rows(both, np.array([number, number]))
        assert np.array_equal(found, [expected[0][number], expected[1][number]])
    rows.enter_block(0)
    again = rows.rows(np.array([0]), np.array([0]))
    assert np.array_equal(again[0], keyed_generator(0, "rows", 3).random(size))
    assert opened == [0, 1, 0]


def test_a_block_larger_than_the_buffer_has_one_pass_in_it():
    rows = NumberRows(1, BUFFERED_NUMBERS + 1, lambda chain: keyed_generator(chain))
    expected = keyed_generator(0).random((2, BUFFERED_NUMBERS + 1))
    for number in (0, 1):
        assert np.array_equal(rows.rows(np.array([0]), np.array([number]))[0], expected[number])
