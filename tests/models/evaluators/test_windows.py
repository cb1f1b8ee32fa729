"""Batches of windows: a window's numbers do not depend on the rest of its batch."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from orderlens.models.evaluators import Window, picked_log_probs, start_windows  # noqa: E402

CPU = torch.device("cpu")


def stub_network(tokens_NW, lengths_N, places_R, targets_R):
    """A stub network: −(10 · previous token + target) / 7; records the batch's shape."""
    stub_network.shapes.append((*tokens_NW.shape, *lengths_N.tolist()))
    return -(10 * tokens_NW.flatten()[places_R] + targets_R).float() / 7


def window(owner: int, n: int, n_scored: int, last: bool = True) -> Window:
    return Window(owner, np.arange(n) + 100 * owner, n_scored, last)


@pytest.mark.parametrize("batch_tokens", [1, 9, 10_000])
def test_numbers_do_not_depend_on_the_batch(batch_tokens: int) -> None:
    windows = [
        window(0, 4, 2),
        window(1, 9, 8),
        window(2, 2, 0),
        window(3, 4, 1, last=False),
        window(3, 3, 2),
    ]
    stub_network.shapes, done = [], []
    rows = start_windows(windows, stub_network, CPU, batch_tokens, done.append)()
    for item, row in zip(windows, rows, strict=True):
        scored = item.ids[len(item.ids) - item.n_scored :]
        np.testing.assert_array_equal(row, (-(10 * (scored - 1) + scored) / np.float32(7)).astype(np.float32))
    assert sum(done) == 4, "a text is done with its last window"
    padded = [count * width for count, width, *_ in stub_network.shapes]
    assert max(padded) <= max(batch_tokens, 8)
    assert len(padded) == {1: 5, 9: 3, 10_000: 1}[batch_tokens]


def test_sums_over_a_large_vocabulary_keep_float32() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(16, 49_152, generator=generator)
    logits[:, 7] = -torch.inf
    targets = torch.arange(20, 36)
    exact = logits.double().log_softmax(1).gather(1, targets[:, None])[:, 0]
    assert (picked_log_probs(logits.clone(), targets).double() - exact).abs().max() < 2e-6
