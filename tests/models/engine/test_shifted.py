"""Block-causal sessions whose row i − 1 predicts position i: the states stored before a block boundary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from orderlens.decode.score import score_batch
from orderlens.models.loading import load_model
from orderlens.models.protocol import StateBatch
from orderlens.rules import parse_policies
from orderlens.texts.samples import EncodedSample
from support import write_dense


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("shifted")
    write_dense(folder, family="Fast_dLLM_Qwen")
    return load_model(str(folder), device="cpu")


IDS = np.random.default_rng(0).integers(0, 97, 24)
BLOCK = 8


def ask(model: Any, session: Any, start: int, tokens: np.ndarray, offsets: list[int], slot: int = 0) -> Any:
    count = len(offsets)
    batch = StateBatch(
        np.array([slot]), np.array([start]), tokens[None], np.zeros(count, np.int64), np.array(offsets)
    )
    rows = session.evaluate(batch)
    logits = rows.hidden_RD @ rows.unembed_VD.T
    logits[:, model.mask_id] = -torch.inf
    logits[:, rows.valid_vocab :] = -torch.inf
    return logits.log_softmax(1).numpy()


def plain(model: Any, start: int, tokens: np.ndarray, offsets: list[int]) -> Any:
    canvas = np.concatenate([IDS[:start], tokens])
    return model.log_probs(canvas.tolist())[start + np.array(offsets)]


@pytest.mark.parametrize("start", [0, 8, 16])
def test_first_positions_are_spoken_about_by_the_block_before(model: Any, start: int) -> None:
    session = model.open_session()
    session.prefill([IDS[:16]], [0])
    window = np.full(BLOCK, model.mask_id)
    offsets = [3, 0, 7, 0]
    found = ask(model, session, start, window, offsets)
    assert np.allclose(found, plain(model, start, window, offsets), atol=1e-4)


def test_a_kept_row_costs_no_forward(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    session = model.open_session()
    session.prefill([IDS[:8]], [0])
    calls: list[int] = []
    hidden = model.engine.network.hidden
    monkeypatch.setattr(
        model.engine.network,
        "hidden",
        lambda windows, pool: calls.append(windows.count) or hidden(windows, pool),
    )
    window = IDS[8:16].copy()
    ask(model, session, 8, window, [0])
    assert not calls
    ask(model, session, 8, window, [0, 1])
    assert calls == [1]
    first = ask(model, session, 8, window, [0])
    window[:] = model.mask_id
    assert np.array_equal(first, ask(model, session, 8, window, [0]))  # does not depend on its own block


def test_repeated_and_extended_slots_keep_their_own(model: Any) -> None:
    session = model.open_session()
    session.prefill([IDS[:0], IDS[:8]], [0, 0])
    session.keep(np.array([1, 1]))
    session.extend(np.array([1]), IDS[None, 8:16])
    window = np.full(BLOCK, model.mask_id)
    assert np.allclose(ask(model, session, 16, window, [0], slot=1), plain(model, 16, window, [0]), atol=1e-4)
    assert np.allclose(ask(model, session, 8, window, [0], slot=0), plain(model, 8, window, [0]), atol=1e-4)
    with pytest.raises(ValueError, match="starts at 16, but its slot has 8"):
        ask(model, session, 16, window, [1], slot=0)


def test_blocks_that_follow_each_other_unseen(model: Any) -> None:
    """Two blocks appended before anything is evaluated: the second one's forward sees the first."""
    session = model.open_session()
    session.prefill([IDS[:0]], [0])
    session.extend(np.array([0]), IDS[None, :8])
    session.extend(np.array([0]), IDS[None, 8:16])
    window = np.full(BLOCK, model.mask_id)
    assert np.allclose(ask(model, session, 16, window, [0, 5]), plain(model, 16, window, [0, 5]), atol=1e-4)


def test_a_network_that_cannot_cache_and_read_at_once(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(model.engine), "advances", False)
    session = model.open_session()
    session.prefill([IDS[:8]], [0])
    session.extend(np.array([0]), IDS[None, 8:16])
    window = np.full(BLOCK, model.mask_id)
    assert np.allclose(ask(model, session, 16, window, [0, 5]), plain(model, 16, window, [0, 5]), atol=1e-4)


def test_blocks_of_one_position(model: Any) -> None:
    """Every row is a kept one: nothing is ever evaluated."""
    single = model.with_block_size(1)
    sample = EncodedSample("x", IDS[:3], IDS[3:9])
    columns = score_batch(single, [sample], parse_policies("forced-ar"))
    rows = single.log_probs(IDS[:9].tolist())
    assert np.allclose(columns["logq"], rows[np.arange(3, 9), IDS[3:9]], atol=1e-4)


def test_a_moved_grid(model: Any) -> None:
    """Blocks [0, 3), [3, 11): the position before 11 predicts it."""
    session = model.open_session()
    session.prefill([IDS[:11]], [3])
    window = np.full(BLOCK, model.mask_id)
    canvas = np.concatenate([IDS[:11], window])
    expected = model.log_probs(canvas.tolist(), 3)[[11, 12]]
    assert np.allclose(ask(model, session, 11, window, [0, 1]), expected, atol=1e-4)
