"""Log-probabilities of HellaSwag's endings after a response, scored left to right by the model itself.

Knows models and texts; which ending counts as chosen is the task's business.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from orderlens.decode.score import score_batch
from orderlens.models.protocol import Anchor, Model
from orderlens.orders import parse_orders
from orderlens.samples import EncodedSample

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
    columns = score_batch(model, filled, parse_orders("forced-ar"), anchor)
    owner, logq = np.asarray(columns["sample"]), np.asarray(columns["logq"], np.float64)
    scored = iter([logq[owner == index].tolist() for index in range(len(filled))])
    return [next(scored) if len(sample.target) else [] for sample in samples]
