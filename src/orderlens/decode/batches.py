"""How many sequences are decoded together, and what happens when they do not fit in memory.

A batch that runs out of memory is cut in halves and tried again; the smaller size is remembered for the
batches that follow. Every number depends on its own sequence alone, so cutting changes at most the last bits
of rounding. Knows nothing of tokens, orders or devices: it recognises memory errors and hands smaller lists
to the same work.
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
GROUP = 384
"""Sequences that fill a GPU. Of twice as many, it computes one half while the host serves the other."""
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class BatchLimit:
    """The most sequences decoded together; shared by the batches of a run, so that it learns once.

    Attributes:
        sequences: the limit, None as long as there is none.
    """

    sequences: int | None = None

    @classmethod
    def suggested(cls, model: Model, tokens_each: int) -> BatchLimit:
        """Return what the model expects to fit, or no limit for one that does not know."""
        return cls(model.suggested_batch(tokens_each) if isinstance(model, SuggestsBatch) else None)

    def parts(self, items: Sequence[Item]) -> list[Sequence[Item]]:
        """Cut ``items`` into as few, as equal parts as the limit allows."""
        count = 1 if self.sequences is None else -(-len(items) // self.sequences)
        edges = [len(items) * part // count for part in range(count + 1)]
        return [items[low:high] for low, high in pairwise(edges)]


def run_within(
    limit: BatchLimit,
    model: Model,
    items: Sequence[Item],
    work: Callable[[Sequence[Item]], None],
    name: Callable[[Item], str],
    left: Callable[[Sequence[Item]], Sequence[Item]] = lambda batch: batch,
) -> None:
    """Hand all ``items`` to ``work``, in batches that fit in memory.

    Args:
        limit: what is known so far; made smaller when memory runs out.
        model: is asked to give memory back before a retry (one that ``ReleasesMemory``).
        items: one per sequence.
        work: must leave its items so that those still ``left`` can be handed to it again when it fails.
        name: names an item in the error message when it does not fit even alone.
        left: the items of a failed batch that still need work; all of them by default.

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
        rest = left(batch)
        if not rest:
            continue
        if len(rest) == 1:
            raise DeviceMemoryError(f"{name(rest[0])} does not fit in memory even alone: {failure}")
        limit.sequences = len(rest) // 2
        _log.warning(
            "out of memory with %d sequences at once; going on with %d, nothing is lost",
            len(rest),
            limit.sequences,
        )
        waiting.append(rest)


def _attempt(work: Callable[[Sequence[Item]], None], batch: Sequence[Item]) -> str | None:
    """Do the work; return why memory ran out, or None. The error and what it keeps alive die here."""
    try:
        work(batch)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return one_line(error)
    return None


def _release(model: Model) -> None:
    """Free what the failed attempt held before anything smaller is tried."""
    gc.collect()
    if isinstance(model, ReleasesMemory):
        model.release_memory()
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def groups(batch: Sequence[Item], each: int = 1) -> list[Sequence[Item]]:
    """Cut a large batch into two that advance in turn; an item stands for ``each`` sequences."""
    half = (len(batch) + 1) // 2
    return [batch] if half * each < GROUP or half == len(batch) else [batch[:half], batch[half:]]


def interleave(walks: Iterable[Iterator[None]]) -> None:
    """Take one step of each walk after the other until all have ended."""
    waiting = deque(walks)
    while waiting:
        walk = waiting.popleft()
        if next(walk, waiting) is not waiting:
            waiting.append(walk)


class Reporter:
    """Tells progress once: tokens that a failed attempt already reported are not reported again."""

    def __init__(self, advance: Callable[[int], None] | None) -> None:
        self._advance = advance or (lambda _: None)
        self._attempt = 0
        self._debt = 0

    def start(self) -> None:
        """An attempt begins."""
        self._attempt = 0

    def __call__(self, count: int) -> None:
        """So many tokens were done."""
        self._attempt += count
        paid = min(self._debt, count)
        self._debt -= paid
        if count > paid:
            self._advance(count - paid)

    def failed(self) -> None:
        """The attempt failed; what it did will be done again."""
        self._debt += self._attempt
