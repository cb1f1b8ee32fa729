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


def test_hand_worked_ends_of_infilling_and_of_masked_overflow():
    plain = Canvas(prompt_length=4, n_requested=5, block_size=8, offset=0)
    assert (plain.requested_end, plain.end, plain.fill_end, plain.total) == (9, 16, 16, 16)
    assert plain.visible_suffix == 0
    masked = Canvas.plan(4, 5, 8, "zero", fills_overflow=False)
    assert (masked.fill_end, masked.total) == (9, 16)
    short, long = Canvas.plan(4, 5, 8, "zero", 3), Canvas.plan(4, 5, 8, "zero", 30)
    assert (short.fill_end, short.total, short.visible_suffix) == (9, 12, 3)
    assert (long.fill_end, long.total, long.visible_suffix) == (9, 39, 7)
    assert (long.reach("block-causal"), long.reach("full")) == (16, 39)
    assert (long.window(8, "block-causal"), long.window(8, "full")) == ((8, 16), (0, 39))
