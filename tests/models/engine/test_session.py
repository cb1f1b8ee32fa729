"""The cached, batched session against one plain forward of the whole window."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from orderlens.errors import UserInputError
from orderlens.models.decoder.model import DecoderModel
from orderlens.models.engine import engine as engine_module
from orderlens.models.engine.engine import ForwardEngine
from orderlens.models.families.llada2 import load_llada2
from orderlens.models.protocol import HiddenRows, StateBatch

TOLERANCE = 1e-4
MASK = 99


def log_probs(rows: HiddenRows) -> Any:
    logits = (rows.hidden_RD.float() @ rows.unembed_VD.float().T).double()
    logits[:, list(rows.excluded)] = -torch.inf
    logits[:, rows.valid_vocab :] = -torch.inf
    return torch.log_softmax(logits, dim=1).numpy()


def random_tokens(length: int, seed: int) -> Any:
    return np.random.default_rng(seed).integers(0, 97, length)


def all_rows(count: int, width: int) -> tuple[Any, Any]:
    state, offset = np.divmod(np.arange(count * width), width)
    return state, offset


def assert_matches(
    model: DecoderModel, rows: HiddenRows, canvases: list[Any], wanted: list[Any], offset: int = 0
) -> None:
    """``rows`` must equal a plain forward of each canvas at its wanted positions, in order."""
    found, low = log_probs(rows), 0
    for canvas, positions in zip(canvases, wanted, strict=True):
        expected = model.log_probs(canvas, offset)[positions]
        mine = found[low : low + len(positions)]
        low += len(positions)
        finite = np.isfinite(expected)
        assert (np.isfinite(mine) == finite).all()
        assert np.abs(mine[finite] - expected[finite]).max() < TOLERANCE
    assert low == len(found)


def test_mixed_prompt_lengths_with_a_tail_in_the_first_block(model: DecoderModel) -> None:
    prompts = [random_tokens(length, length) for length in (70, 5, 64, 33, 0, 100)]
    starts = np.array([len(prompt) // 32 * 32 for prompt in prompts])
    session = model.open_session()
    session.prefill(
        [prompt[:start] for prompt, start in zip(prompts, starts, strict=True)], [0] * len(prompts)
    )
    tokens = np.full((len(prompts), 32), MASK)
    for row, prompt, start in zip(tokens, prompts, starts, strict=True):
        row[: len(prompt) - start] = prompt[start:]
    state, offset = np.nonzero(tokens == MASK)
    rows = session.evaluate(StateBatch(np.arange(len(prompts)), starts, tokens, state, offset))
    canvases = [np.concatenate([p[:s], row]) for p, s, row in zip(prompts, starts, tokens, strict=True)]
    assert_matches(model, rows, canvases, [starts[i] + offset[state == i] for i in range(len(prompts))])


def test_one_at_a_time_gives_the_same(model: DecoderModel) -> None:
    prompts = [random_tokens(length, length) for length in (96, 32, 64)]
    tokens = np.stack([random_tokens(32, 50 + i) for i in range(3)])
    tokens[:, ::2] = MASK
    together = model.open_session()
    together.prefill(prompts, [0, 0, 0])
    starts = np.array([96, 32, 64])
    batch = log_probs(together.evaluate(StateBatch(np.arange(3), starts, tokens, *all_rows(3, 32))))
    for i in range(3):
        alone = model.open_session()
        alone.prefill([prompts[i]], [0])
        states = StateBatch(np.array([0]), starts[i : i + 1], tokens[i : i + 1], *all_rows(1, 32))
        single = log_probs(alone.evaluate(states))
        finite = np.isfinite(single)
        assert np.abs(single[finite] - batch[i * 32 : i * 32 + 32][finite]).max() < TOLERANCE


def test_extending_block_by_block_equals_prefilling_at_once(model: DecoderModel) -> None:
    sequence = random_tokens(128, 3)
    session = model.open_session()
    session.prefill([sequence[:32], sequence[:0]], [0, 0])
    session.extend(np.array([1]), sequence[None, :32])
    for start in (32, 64):
        session.extend(np.array([0, 1]), np.stack([sequence[start : start + 32]] * 2))
    assert session.lengths.tolist() == [96, 96]
    window = sequence[96:].copy()
    window[5:20] = MASK
    states = StateBatch(np.array([0, 1]), np.array([96, 96]), np.stack([window] * 2), *all_rows(2, 32))
    canvas = np.concatenate([sequence[:96], window])
    assert_matches(model, session.evaluate(states), [canvas, canvas], [np.arange(96, 128)] * 2)


def test_many_states_share_one_slot(model: DecoderModel) -> None:
    """Scoring: all blocks of one clean sequence in one batch, several states per block."""
    sequence = random_tokens(128, 4)
    session = model.open_session()
    session.prefill([sequence[:96]], [0])
    starts = np.array([0, 32, 64, 96, 32])
    tokens = np.stack([sequence[start : start + 32] for start in starts])
    tokens[:, 7:] = MASK
    tokens[4, 8] = 1
    wanted = np.array([3, 0, 4, 1, 2, 2])
    offset = np.array([30, 7, 9, 8, 31, 7])
    rows = session.evaluate(StateBatch(np.zeros(5, int), starts, tokens, wanted, offset))
    canvases = [np.concatenate([sequence[: starts[i]], tokens[i]]) for i in wanted]
    assert_matches(
        model, rows, canvases, [np.array([starts[i] + o]) for i, o in zip(wanted, offset, strict=True)]
    )


@given(
    block=st.sampled_from([4, 16, 32, 40]),
    offset=st.integers(0, 39),
    blocks=st.integers(0, 3),
    seed=st.integers(0, 99),
)
@settings(max_examples=15, deadline=None)
def test_any_grid(model: DecoderModel, block: int, offset: int, blocks: int, seed: int) -> None:
    """Other block sizes and grids that start inside the prompt: pages and blocks need not coincide."""
    sized, offset = model.with_block_size(block), offset % block
    sequence = random_tokens(offset + (blocks + 2) * block, seed)
    start = offset + blocks * block
    session = sized.open_session()
    session.prefill([sequence[:start]], [offset])
    session.extend(np.array([0]), sequence[None, start : start + block])
    window = sequence[start + block :].copy()
    window[::3] = MASK
    states = StateBatch(np.array([0]), np.array([start + block]), window[None], *all_rows(1, block))
    canvas = np.concatenate([sequence[: start + block], window])
    assert_matches(sized, session.evaluate(states), [canvas], [np.arange(start + block, len(canvas))], offset)


def test_kept_and_repeated_slots_go_their_own_ways(model: DecoderModel) -> None:
    """Two orders continue one prompt whose last page is partly filled; a third sequence is dropped."""
    sized = model.with_block_size(20)
    prompts = [random_tokens(40, 1), random_tokens(60, 2)]
    session = sized.open_session()
    session.prefill(prompts, [0, 0])
    session.keep(np.array([1, 0, 1]))
    assert session.lengths.tolist() == [60, 40, 60]
    blocks = np.stack([random_tokens(20, 10 + i) for i in range(3)])
    session.extend(np.arange(3), blocks)
    window = random_tokens(20, 30)
    window[4:] = MASK
    starts = np.array([80, 60, 80])
    states = StateBatch(np.arange(3), starts, np.stack([window] * 3), *all_rows(3, 20))
    pasts = [np.concatenate([prompts[p], blocks[i]]) for i, p in enumerate((1, 0, 1))]
    canvases = [np.concatenate([past, window]) for past in pasts]
    wanted = [np.arange(start, start + 20) for start in starts]
    assert_matches(sized, session.evaluate(states), canvases, wanted)
    session.keep(np.array([2]))
    last = StateBatch(np.array([0]), starts[2:], window[None], *all_rows(1, 20))
    assert_matches(sized, session.evaluate(last), canvases[2:], wanted[2:])


def test_pages_return_when_sessions_end(model: DecoderModel) -> None:
    gc.collect()
    pool = model.engine.pool
    before = pool.n_pages - pool.n_free
    session = model.open_session()
    session.prefill([random_tokens(64, 1), random_tokens(96, 2)], [0, 0])
    assert pool.n_pages - pool.n_free == before + 5
    session.prefill([random_tokens(32, 3)], [0])
    assert pool.n_pages - pool.n_free == before + 1
    del session
    gc.collect()
    assert pool.n_pages - pool.n_free == before


def test_small_parts_give_the_same_numbers(model: DecoderModel, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [random_tokens(length, length) for length in (64, 128, 32)]
    tokens = np.stack([random_tokens(32, 70 + i) for i in range(3)])
    states = StateBatch(np.arange(3), np.array([64, 128, 32]), tokens, *all_rows(3, 32))

    def run() -> Any:
        session = model.open_session()
        session.prefill(prompts, [0, 0, 0])
        return log_probs(session.evaluate(states))

    whole = run()
    monkeypatch.setattr(model.engine, "_max_tokens", 40)
    one_window_each = run()
    monkeypatch.setattr(model.engine, "_max_tokens", 10**6)
    monkeypatch.setattr(engine_module, "MAX_GATHERED", 64 * 300)
    limited_by_the_gather = run()
    finite = np.isfinite(whole)
    assert np.abs(whole[finite] - one_window_each[finite]).max() < TOLERANCE
    assert np.abs(whole[finite] - limited_by_the_gather[finite]).max() < TOLERANCE


def test_rows_come_in_the_order_asked_even_across_parts(
    model: DecoderModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model.engine, "_max_tokens", 40)
    session = model.open_session()
    session.prefill([random_tokens(32, 1), random_tokens(64, 2)], [0, 0])
    tokens = np.stack([random_tokens(32, 5), random_tokens(32, 6)])
    starts = np.array([32, 64])
    state, offset = np.array([1, 0, 1, 0]), np.array([3, 2, 1, 0])
    mixed = session.evaluate(StateBatch(np.arange(2), starts, tokens, state, offset)).hidden_RD
    everything = session.evaluate(StateBatch(np.arange(2), starts, tokens, *all_rows(2, 32))).hidden_RD
    assert torch.allclose(mixed, everything[torch.from_numpy(state * 32 + offset)], atol=1e-5)


def test_nothing_asked_nothing_given(model: DecoderModel) -> None:
    session = model.open_session()
    session.prefill([], [])
    nothing = np.zeros(0, int)
    rows = session.evaluate(StateBatch(nothing, nothing, np.zeros((0, 32), int), nothing, nothing))
    assert rows.hidden_RD.shape == (0, 32)
    session.extend(nothing, np.zeros((0, 32), int))


def test_mistakes_are_told(model: DecoderModel) -> None:
    session = model.open_session()
    session.prefill([random_tokens(32, 1)], [0])
    window = random_tokens(32, 2)[None]
    rows = (np.array([0]), np.array([0]))
    with pytest.raises(ValueError, match="starts at 64, but its slot has 32"):
        session.evaluate(StateBatch(np.array([0]), np.array([64]), window, *rows))
    with pytest.raises(UserInputError, match="token id 112"):
        session.evaluate(StateBatch(np.array([0]), np.array([32]), np.full((1, 32), 112), *rows))
    with pytest.raises(UserInputError, match="token id -1"):
        session.extend(np.array([0]), np.full((1, 32), -1))
    with pytest.raises(UserInputError, match="600 tokens exceeds the model's 512"):
        session.prefill([random_tokens(600, 1)], [0])
    with pytest.raises(ValueError, match="twice"):
        session.extend(np.array([0, 0]), np.repeat(window, 2, axis=0))
    full = model.open_session()
    full.prefill([random_tokens(512, 1)], [0])
    with pytest.raises(UserInputError, match="544 tokens exceeds"):
        full.evaluate(StateBatch(np.array([0]), np.array([512]), window, *rows))


def test_bf16_stays_near_float32(checkpoint: Any, model: DecoderModel) -> None:
    """Documented tolerance: the typical row of a small random model moves by a few hundredths."""
    rough = load_llada2(checkpoint[0], device="cpu", dtype="bfloat16")
    window = random_tokens(32, 8)
    window[3:] = MASK
    states = StateBatch(np.array([0]), np.array([64]), window[None], *all_rows(1, 32))
    found = []
    for each in (model, rough):
        session = each.open_session()
        session.prefill([random_tokens(64, 9)], [0])
        found.append(log_probs(session.evaluate(states)))
    finite = np.isfinite(found[0])
    moved = np.median(np.abs(found[0][finite] - found[1][finite]))
    assert 1e-4 < moved < 0.05, "equal numbers would mean that the dtype is ignored"


def test_finished_blocks_are_cached_by_the_forward_of_what_follows(
    model: DecoderModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One forward for the finished blocks of some texts and the windows of all."""
    ran: list[tuple[str, int]] = []
    run, picked = ForwardEngine._run, ForwardEngine._hidden_rows

    def counting(engine: ForwardEngine, packed: Any, longest: int, mode: Any) -> Any:
        ran.append((mode, len(packed)))
        return run(engine, packed, longest, mode)

    def counting_picked(engine: ForwardEngine, packed: Any, longest: int, mode: Any, rows: Any) -> Any:
        ran.append((mode, len(packed)))
        return picked(engine, packed, longest, mode, rows)

    monkeypatch.setattr(ForwardEngine, "_run", counting)
    monkeypatch.setattr(ForwardEngine, "_hidden_rows", counting_picked)
    texts = [random_tokens(96, seed) for seed in range(4)]
    session = model.open_session()
    session.prefill([text[:32] for text in texts], [0] * 4)
    session.extend(np.array([0, 2, 3]), np.stack([texts[i][32:64] for i in (0, 2, 3)]))
    session.extend(np.array([2]), texts[2][None, 64:96])
    session.keep(np.array([2, 1, 0]))  # the last text ends: its block is never computed
    window = random_tokens(32, 9)
    window[::2] = MASK
    starts = np.array([96, 32, 64])
    ran.clear()
    states = StateBatch(np.arange(3), starts, np.stack([window] * 3), *all_rows(3, 32))
    rows = session.evaluate(states)
    assert ran == [("advance", 6)]
    canvases = [
        np.concatenate([texts[i][:start], window]) for i, start in zip((2, 1, 0), starts, strict=True)
    ]
    wanted = [np.arange(start, start + 32) for start in starts]
    assert_matches(model, rows, canvases, wanted)
    assert_matches(model, session.evaluate(states), canvases, wanted)
    assert ran[1:] == [("read", 3)]
    session.extend(np.array([1]), texts[1][None, 32:64])
    ran.clear()
    earlier = StateBatch(np.array([0]), np.array([32]), window[None], *all_rows(1, 32))
    assert_matches(model, session.evaluate(earlier), [np.concatenate([texts[2][:32], window])], wanted[1:2])
    assert [mode for mode, _ in ran[:2]] == ["store", "read"], "a state inside a slot must not write into it"
    session.extend(np.array([1]), texts[1][None, 64:96])
    session.keep(np.array([1, 1]))
    both = StateBatch(np.arange(2), np.array([96, 96]), np.stack([window] * 2), *all_rows(2, 32))
    canvas = np.concatenate([texts[1], window])
    assert_matches(model, session.evaluate(both), [canvas, canvas], [np.arange(96, 128)] * 2)
