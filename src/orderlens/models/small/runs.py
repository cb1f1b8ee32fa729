"""Which windows of a batch share a cached prefix, so that their queries meet its keys in one product.

Numbers only. A *segment* is a set of windows over the same prefix of one slot; a *run* is a row of equally
large segments over equally long prefixes of consecutive slots, so that a view of the cache serves all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from orderlens.models.protocol import IntArray


@dataclass(frozen=True, slots=True)
class Run:
    """Windows ``[first, first + groups · size)``: ``groups`` segments of ``size`` windows each.

    Segment i reads the first ``start`` positions of slot ``slot + i``.
    """

    first: int
    groups: int
    size: int
    start: int
    slot: int

    @property
    def windows(self) -> int:
        """How many windows the run has."""
        return self.groups * self.size


def in_batches(slots_N: IntArray, starts_N: IntArray, at_once: int) -> Iterator[IntArray]:
    """Yield the windows' indices, those of one prefix together, in batches of nearly equal size."""
    order = np.lexsort((_prefix_slots(slots_N, starts_N), starts_N))
    if len(order):
        yield from np.array_split(order, -(-len(order) // at_once))


def find_runs(slots_N: IntArray, starts_N: IntArray) -> list[Run]:
    """Return the runs of a batch whose windows of one prefix stand together."""
    slots_N = _prefix_slots(slots_N, starts_N)
    edge = np.flatnonzero(np.diff(slots_N).astype(bool) | np.diff(starts_N).astype(bool)) + 1
    first = np.concatenate(([0], edge))
    runs: list[Run] = []
    for low, size in zip(first.tolist(), np.diff(first, append=len(slots_N)).tolist(), strict=True):
        start, slot = int(starts_N[low]), int(slots_N[low])
        last = runs[-1] if runs else None
        if last and (last.size, last.start, last.slot + last.groups) == (size, start, slot) and start:
            runs[-1] = Run(last.first, last.groups + 1, size, start, last.slot)
        else:
            runs.append(Run(low, 1, size, start, slot))
    return runs


def _prefix_slots(slots_N: IntArray, starts_N: IntArray) -> IntArray:
    """Return the slots, 0 for windows without a prefix: they share the empty one."""
    return np.where(starts_N > 0, slots_N, 0)
