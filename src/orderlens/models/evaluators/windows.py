"""Texts in batches through a causal model, and the log-probabilities of their tokens.

A window is what one forward sees of a text. Windows of similar length share a batch, padded on the right,
which under causal attention cannot change what stands before it. On a GPU all batches are queued before the
first number is waited for. Knows neither tokenizers nor networks: a forward is handed in.

Shape letters: N windows, W width of a batch, R scored tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from orderlens.models.engine.transfer import arriving, to_device

FloatArray = NDArray[np.float64]
Forward: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(tokens_NW, lengths_N, places_R, targets_R) → log-probabilities [R] of the targets, each after the token at
its place in the flattened tokens."""


@dataclass(frozen=True, slots=True)
class Window:
    """One forward: all ``ids`` but the last go in, the last ``n_scored`` are scored for text ``owner``.

    Attributes:
        owner: index of the text.
        ids: tokens; one stands before the first scored one.
        n_scored: how many are scored.
        last: whether the text ends here.
    """

    owner: int
    ids: NDArray[np.int64]
    n_scored: int
    last: bool = True


def start_windows(
    windows: Sequence[Window],
    forward: Forward,
    device: torch.device,
    batch_tokens: int,
    tell: Callable[[int], None] = lambda _: None,
) -> Callable[[], list[FloatArray]]:
    """Score all windows; the returned call waits for the numbers of each (nats, float32 made float64).

    Args:
        windows: what to score.
        forward: the network.
        device: where it is.
        batch_tokens: tokens per forward, padding included (a longer window is a batch of its own).
        tell: is given the number of texts that are done, batch by batch.
    """
    rows: list[FloatArray] = [np.empty(0)] * len(windows)
    queued: list[Callable[[], None]] = []
    for batch in _batches(windows, batch_tokens):
        collect = _collector(
            batch, _queue([windows[at] for at in batch], forward, device), windows, rows, tell
        )
        if device.type == "cuda":
            queued.append(collect)
        else:
            collect()

    def finish() -> list[FloatArray]:
        while queued:
            queued.pop(0)()
        return rows

    return finish


def _batches(windows: Sequence[Window], batch_tokens: int) -> Iterator[list[int]]:
    """Yield places of windows of similar length whose padded size stays within the budget."""
    batch: list[int] = []
    for place in sorted(range(len(windows)), key=lambda at: len(windows[at].ids)):
        if batch and (len(batch) + 1) * len(windows[place].ids) > batch_tokens:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


@torch.inference_mode()
def _queue(
    windows: Sequence[Window], forward: Forward, device: torch.device
) -> Callable[[], tuple[NDArray[np.float32], ...]]:
    """Send one batch to the device in one copy, run it, and begin the way back."""
    count, width = len(windows), max(1, *(len(window.ids) - 1 for window in windows))
    tokens_NW = np.zeros((count, width), np.int64)
    for row, window in enumerate(windows):
        tokens_NW[row, : len(window.ids) - 1] = window.ids[:-1]
    lengths_N = np.array([len(window.ids) - 1 for window in windows])
    places = [
        np.arange(length - window.n_scored, length) + row * width
        for row, (window, length) in enumerate(zip(windows, lengths_N, strict=True))
    ]
    targets = [window.ids[len(window.ids) - window.n_scored :] for window in windows]
    packed = np.concatenate([tokens_NW.ravel(), lengths_N, *places, *targets])
    sizes = [count * width, count, sum(map(len, places)), sum(map(len, targets))]
    tokens, lengths, places_R, targets_R = torch.split(to_device(packed, device), sizes)
    return arriving(forward(tokens.view(count, width), lengths, places_R, targets_R))


def _collector(
    batch: Sequence[int],
    arrive: Callable[[], tuple[NDArray[np.float32], ...]],
    windows: Sequence[Window],
    rows: list[FloatArray],
    tell: Callable[[int], None],
) -> Callable[[], None]:
    """Return what waits for a batch and puts its numbers into ``rows``."""

    def collect() -> None:
        (values_R,) = arrive()
        ends = list(accumulate(windows[at].n_scored for at in batch))
        for at, part in zip(batch, np.split(values_R.astype(np.float64), ends[:-1]), strict=True):
            rows[at] = part
        tell(sum(windows[at].last for at in batch))

    return collect


def picked_log_probs(logits_RV: Tensor, targets_R: Tensor) -> Tensor:
    """Return the log-probability [R] of one token per row, float32; uses up ``logits_RV`` (float32).

    The exponentials are added in float64: a float32 sum over 50,000 tokens is off by up to 2e-5.
    """
    top_R = logits_RV.amax(dim=1)
    chosen_R = logits_RV.gather(1, targets_R[:, None])[:, 0] - top_R
    mass_R = logits_RV.sub_(top_R[:, None]).exp_().sum(dim=1, dtype=torch.float64)
    return (chosen_R.double() - mass_R.log()).float()
