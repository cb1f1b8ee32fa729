"""Where blocks lie, by hand-worked examples and by property."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orderlens.common.grid import Canvas, block_edges


def test_hand_worked_canvases():
    zero = Canvas.plan(40, 128, 32, "zero")
    assert (zero.first_start, zero.end, list(zero.block_starts)) == (32, 192, [32, 64, 96, 128, 160])
    prompt = Canvas.plan(40, 128, 32, "prompt")
    assert (prompt.offset, prompt.first_start, prompt.end) == (8, 40, 168)
    assert list(Canvas.plan(0, 1, 32, "zero").block_starts) == [0]
    assert list(Canvas.plan(32, 32, 32, "zero").block_starts) == [32]


def test_hand_worked_edges():
    assert block_edges(10, 4) == [(0, 4), (4, 8), (8, 10)]
    assert block_edges(10, 4, 3) == [(0, 3), (3, 7), (7, 10)]
    assert block_edges(0, 4) == block_edges(0, 4, 3) == []
    assert block_edges(2, 4, 3) == [(0, 2)]


@given(st.integers(0, 200), st.integers(1, 200), st.integers(1, 40), st.sampled_from(["zero", "prompt"]))
def test_canvas_covers_the_request_with_whole_blocks(prompt, n, block, anchor):
    canvas = Canvas.plan(prompt, n, block, anchor)
    assert canvas.first_start <= prompt < canvas.first_start + block
    assert canvas.requested_end <= canvas.end < canvas.requested_end + block
    assert (canvas.end - canvas.first_start) % block == 0
    edges = block_edges(canvas.end, block, canvas.offset)
    assert {start for start, _ in edges} >= set(canvas.block_starts)
    assert anchor == "zero" or canvas.first_start == prompt
