"""Log-probabilities of a task's choices after a response, scored left to right by the model itself.

Knows models and texts; which choice counts as taken is the task's business.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from orderlens.models.protocol import Anchor, Model
from orderlens.samples import EncodedSample
from orderlens.work.execute import score_left_to_right

TokenLogProbs = list[list[float]]
"""Per ending, the log-probability of each of its tokens (nats)."""


def score_endings(
    model: Model, requests: Sequence[tuple[str, Sequence[str]]], anchor: Anchor, batch_size: int
) -> list[TokenLogProbs]:
    """Return per request (text so far, endings) the token log-probabilities of its endings, in forced order.

    A text that leaves no room for its ending loses its beginning, as other harnesses do.
    """
    samples = [
        _sample(model, f"{index}/{place}", text, ending)
        for index, (text, endings) in enumerate(requests)
        for place, ending in enumerate(endings)
    ]
    values: list[list[float]] = []
    for low in range(0, len(samples), batch_size):
        values += _score(model, samples[low : low + batch_size], anchor)
    found = iter(values)
    return [[next(found) for _ in endings] for _, endings in requests]


def _sample(model: Model, name: str, text: str, ending: str) -> EncodedSample:
    before, target = model.tokenizer.encode(text), model.tokenizer.encode(ending)
    room = max(0, model.max_positions - model.block_size - len(target))
    prompt = before[len(before) - room :] if len(before) > room else before
    return EncodedSample(name, np.asarray(prompt, np.int64), np.asarray(target, np.int64))


def _score(model: Model, samples: Sequence[EncodedSample], anchor: Anchor) -> list[list[float]]:
    filled = [sample for sample in samples if len(sample.target)]
    if not filled:
        return [[] for _ in samples]
    scored = iter(score_left_to_right(model, filled, anchor))
    return [next(scored) if len(sample.target) else [] for sample in samples]
