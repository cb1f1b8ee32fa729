"""Batch sizes: how many sequences run in one batch, and the retry when a batch does not fit in memory.

A batch that runs out of memory is halved and tried again. Later batches use the smaller size. Each result
depends only on its own sequence, so the batch size changes results by rounding at most. Does not depend on
tokens, orders or devices.
"""

from __future__ import annotations

import gc
import logging
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

from orderlens.common.machine import is_out_of_memory
from orderlens.errors import DeviceMemoryError, one_line
from orderlens.models.abilities import ReleasesMemory, SuggestsBatch
from orderlens.models.protocol import Model

Item = TypeVar("Item")
OVERLAP_SIZE = 384
"""Sequences that fill a GPU. A batch twice as large is split, so that host and device work overlap."""
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class BatchLimit:
    """Maximum number of sequences per batch; all batches of a run share it.

    Attributes:
        sequences: the limit; None: no limit.
    """

    sequences: int | None = None

    @classmethod
    def suggested(cls, model: Model, tokens_per_sequence: int) -> BatchLimit:
        """Return the model's suggestion, or no limit for a model without one."""
        return cls(model.suggested_batch(tokens_per_sequence) if isinstance(model, SuggestsBatch) else None)

    def parts(self, items: Sequence[Item]) -> list[Sequence[Item]]:
        """Split ``items`` into the fewest parts within the limit, of nearly equal size."""
        count = 1 if self.sequences is None else -(-len(items) // self.sequences)
        edges = [len(items) * part // count for part in range(count + 1)]
        return [items[low:high] for low, high in pairwise(edges)]


def run_in_batches(
    limit: BatchLimit,
    model: Model,
    items: Sequence[Item],
    work: Callable[[Sequence[Item]], None],
    name: Callable[[Item], str],
    unfinished: Callable[[Sequence[Item]], Sequence[Item]] = lambda batch: batch,
) -> None:
    """Call ``work`` on all ``items``, in batches that fit in memory.

    Args:
        limit: the current maximum; reduced when memory runs out.
        model: releases memory before a retry if it ``ReleasesMemory``.
        items: one per sequence.
        work: processes one batch. When it fails, it is called again with the ``unfinished`` items.
        name: names an item in the error message when it does not fit even alone.
        unfinished: returns the items of a failed batch that still need work; all of them by default.

    Raises:
        DeviceMemoryError: a single sequence does not fit.
    """
    waiting = [items] if items else []
    while waiting:
        batch, *others = limit.parts(waiting.pop())
        waiting += others[::-1]
        failure = _attempt(work, batch)
        if failure is None:
            continue
        _release(model)
        remaining = unfinished(batch)
        if not remaining:
            continue
        if len(remaining) == 1:
            raise DeviceMemoryError(f"{name(remaining[0])} does not fit in memory even alone: {failure}")
        limit.sequences = len(remaining) // 2
        _log.warning(
            "out of memory with %d sequences per batch; retrying with %d, no results are lost",
            len(remaining),
            limit.sequences,
        )
        waiting.append(remaining)


def _attempt(work: Callable[[Sequence[Item]], None], batch: Sequence[Item]) -> str | None:
    """Run ``work``; return the out-of-memory message, or None. Drops the error, which keeps tensors alive."""
    try:
        work(batch)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return one_line(error)
    return None


def _release(model: Model) -> None:
    """Free the memory of a failed attempt before the retry."""
    gc.collect()
    if isinstance(model, ReleasesMemory):
        model.release_memory()
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def split_for_overlap(batch: Sequence[Item], sequences_per_item: int = 1) -> list[Sequence[Item]]:
    """Split a large batch into halves that advance alternately, so that host and device work overlap."""
    half = (len(batch) + 1) // 2
    if half * sequences_per_item < OVERLAP_SIZE or half == len(batch):
        return [batch]
    return [batch[:half], batch[half:]]


def interleave(iterators: Iterable[Iterator[None]]) -> None:
    """Advance the iterators alternately, one step each, until all are exhausted."""
    waiting = deque(iterators)
    while waiting:
        iterator = waiting.popleft()
        if next(iterator, waiting) is not waiting:
            waiting.append(iterator)


class ProgressReporter:
    """Reports progress, without counting the tokens of a failed attempt twice."""

    def __init__(self, advance: Callable[[int], None] | None) -> None:
        self._advance = advance or (lambda _: None)
        self._in_attempt = 0
        self._already_reported = 0

    def start(self) -> None:
        """Start an attempt."""
        self._in_attempt = 0

    def __call__(self, count: int) -> None:
        """Add ``count`` finished tokens."""
        self._in_attempt += count
        repeated = min(self._already_reported, count)
        self._already_reported -= repeated
        if count > repeated:
            self._advance(count - repeated)

    def failed(self) -> None:
        """Mark the attempt as failed: its tokens will be computed again."""
        self._already_reported += self._in_attempt
