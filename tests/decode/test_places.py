"""Canvases, and texts that do not fit them."""

from __future__ import annotations

import logging
from itertools import pairwise

import numpy as np
import pytest

from orderlens.common.grid import Canvas, block_edges
from orderlens.decode.chains import initial_canvas
from orderlens.decode.target_states import check_fits, plan_canvases
from orderlens.errors import UserInputError
from orderlens.testing import StubModel
from orderlens.texts.samples import EncodedSample


def sample(prompt=3, target=0, suffix=0, template=()):
    ids = np.arange(20)
    return EncodedSample(
        "a", ids[:prompt], ids[:target], suffix=ids[:suffix], template=np.array(template, int)
    )


def test_a_canvas_is_as_long_as_the_target_or_the_request_or_the_template():
    (scored,) = plan_canvases(4, [sample(3, 6)], "zero")
    (prompted,) = plan_canvases(4, [sample(3, 6)], "zero", 9)
    (filled,) = plan_canvases(4, [sample(3, 0, template=[1, 2, 3, 4, 5])], "zero", 9)
    assert [one.n_requested for one in (scored, prompted, filled)] == [6, 9, 5]


@pytest.mark.parametrize("anchor", ["zero", "prompt"])
@pytest.mark.parametrize("n_suffix", [0, 2, 5])
def test_canvases_against_a_walk_along_the_grid(anchor, n_suffix):
    for prompt in range(7):
        for n in range(1, 9):
            canvas = Canvas.plan(prompt, n, 4, anchor, n_suffix)
            offset = prompt % 4 if anchor == "prompt" else 0
            starts = [0, *range(offset or 4, 64, 4)]
            holds = [s for s, e in pairwise(starts) if s < prompt + n and e > prompt]
            assert list(canvas.block_starts) == holds
            assert canvas.end == next(e for e in starts if e >= prompt + n and e > 0)
            assert canvas.fill_end == (prompt + n if n_suffix else canvas.end)
            assert canvas.total == (prompt + n + n_suffix if n_suffix else canvas.end)
            assert canvas.visible_suffix == min(n_suffix, canvas.end - prompt - n)
            if anchor == "prompt" and prompt:
                assert canvas.first_start == prompt


@pytest.mark.parametrize(
    ("length", "size", "offset", "edges"),
    [
        (0, 4, 0, []),
        (4, 4, 0, [(0, 4)]),
        (5, 4, 0, [(0, 4), (4, 5)]),
        (9, 4, 3, [(0, 3), (3, 7), (7, 9)]),
        (2, 4, 3, [(0, 2)]),
        (3, 4, 3, [(0, 3)]),
    ],
)
def test_edges_tile_the_text(length, size, offset, edges):
    assert block_edges(length, size, offset) == edges


def test_what_is_given_stands_and_the_rest_is_masked():
    one = sample(3, 0, 2, [5, 9, 9])
    (canvas,) = plan_canvases(4, [one], "zero", 8)
    assert initial_canvas(one, canvas, 9).tolist() == [0, 1, 2, 5, 9, 9, 0, 1]
    (open_end,) = plan_canvases(4, [sample(3)], "zero", 2)
    assert initial_canvas(sample(3), open_end, 9).tolist() == [0, 1, 2, 9, 9, 9, 9, 9]


def model(attention, most):
    stub = StubModel([0.0, 0.0], block_size=4, attention=attention)
    stub.max_positions = most
    return stub


@pytest.mark.parametrize(("most", "fits"), [(8, True), (7, False)])
def test_whole_blocks_must_fit(most, fits):
    one = sample(3, 4)
    canvases = plan_canvases(4, [one], "zero")
    if fits:
        check_fits(model("block-causal", most), [one], canvases)
        return
    with pytest.raises(UserInputError) as caught:
        check_fits(model("block-causal", most), [one], canvases)
    assert str(caught.value) == (
        "sample 'a': 3 prompt + 4 tokens need 8 positions, but stub has 7; shorten prompt or target"
    )


def test_a_suffix_counts_where_the_model_sees_it():
    one = sample(3, 4, 5)
    canvases = plan_canvases(4, [one], "zero")
    with pytest.raises(UserInputError, match="need 12 positions, but stub has 11"):
        check_fits(model("full", 11), [one], canvases)
    check_fits(model("block-causal", 8), [one], canvases)


def test_a_suffix_in_a_separate_block_is_refused_and_a_partly_visible_one_reported(caplog):
    unseen, partly = sample(4, 4, 3), sample(3, 4, 3)
    with pytest.raises(UserInputError, match=r"suffix starts a new block of 4 at position 8"):
        check_fits(model("block-causal", 99), [unseen], plan_canvases(4, [unseen], "zero"))
    check_fits(model("full", 99), [unseen], plan_canvases(4, [unseen], "zero"))
    whole = sample(3, 4, 1)
    with caplog.at_level(logging.WARNING):
        check_fits(model("block-causal", 99), [whole, whole], plan_canvases(4, [whole, whole], "zero"))
        assert not caplog.records
        check_fits(model("block-causal", 99), [partly, whole], plan_canvases(4, [partly, whole], "zero"))
    assert "for 1 of 2 suffixes the target sees only the tokens in its last block" in caplog.text
