"""CUDA graphs: a forward of fixed shape is recorded once and then replayed by a single launch.

A graph is keyed by (windows, width, attention splits, mode). The number of windows is rounded up to a
bucket by repeating the last window, whose tokens visit experts that are read anyway. Graphs hold addresses
of the page pool and are dropped when it grows. Large forwards run plainly: their launches hide behind the
computation.

Shape letters: N windows, X = 3 + W packed integers, T tokens, C model width.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from orderlens.models.torch.pages import PagePool
from orderlens.models.torch.transfer import to_device
from orderlens.models.torch.window import HEADER, Windows

Mode: TypeAlias = Literal["read", "store", "advance"]
"""What a forward is for: hidden states, filling the cache, or both at once."""
Key: TypeAlias = tuple[int, int, int, Mode]
MAX_GRAPH_TOKENS = 8192
"""Larger forwards run plainly, without padding, unless the engine is told another limit."""
PLAIN_RUNS = 2
"""Forwards of a shape that run plainly before it is recorded: they compile kernels, and a prefill's shape
may never come again."""
_BUCKETS = (
    1,
    2,
    3,
    4,
    6,
    8,
    12,
    16,
    24,
    32,
    36,
    40,
    48,
    64,
    72,
    80,
    96,
    112,
    128,
    136,
    144,
    160,
    192,
    224,
    256,
)
"""Finer above 32, 64 and 128: a batch of so many texts brings the blocks that some of them have finished."""


class PagedNetwork(Protocol):
    """A network that reads windows of tokens and a page pool: what a block-causal family must write."""

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of its activations."""
        ...

    @property
    def gathers(self) -> bool:
        """Whether its attention copies keys out of the pool (portable) or reads the pages in place."""
        ...

    @property
    def splits(self) -> Callable[[int, int], int]:
        """(windows, longest start) → parts that the attention over prefixes is cut into (a graph's shape)."""
        ...

    def hidden(self, windows: Windows, pool: PagePool) -> Tensor:
        """Return hidden states [T, C], normalised for the output matrix."""
        ...

    def store(self, windows: Windows, pool: PagePool) -> None:
        """Cache the windows' keys and values in pages that the caller has reserved."""
        ...


@runtime_checkable
class AdvancingNetwork(Protocol):
    """A paged network that can fill the cache and read from it in one forward."""

    def advance(self, windows: Windows, pool: PagePool) -> Tensor:
        """Return hidden states [T, C] as ``hidden`` does, and cache all windows as ``store`` does.

        A window sees what earlier windows of its sequence wrote in the same forward. Where no page is
        reserved, keys go to the empty page, which nobody reads.
        """
        ...


@runtime_checkable
class PickingNetwork(Protocol):
    """A paged network that can leave out, where nobody asks for it, what only the hidden states need."""

    def picked(self, windows: Windows, pool: PagePool, rows_R: Tensor, store: bool) -> Tensor:
        """Return hidden states [R, C] of the tokens ``rows_R``; with ``store`` all windows are cached."""
        ...


def run_plainly(network: PagedNetwork, windows: Windows, pool: PagePool, mode: Mode) -> Tensor | None:
    """Run one forward; return hidden states [T, C], or None when it only fills the cache."""
    if mode == "store":
        network.store(windows, pool)
        return None
    if mode == "read":
        return network.hidden(windows, pool)
    assert isinstance(network, AdvancingNetwork)
    return network.advance(windows, pool)


def bucket(count: int) -> int:
    """Return the number of windows that ``count`` is rounded up to."""
    return next((size for size in _BUCKETS if size >= count), -(-count // 64) * 64)


def padded(packed_NX: NDArray[np.int32], count: int) -> NDArray[np.int32]:
    """Return ``count`` windows: the given ones, then the last one again.

    Storing a window twice writes the same numbers to the same place.
    """
    extra = count - len(packed_NX)
    return np.concatenate((packed_NX, np.repeat(packed_NX[-1:], extra, axis=0))) if extra else packed_NX


@dataclass(frozen=True, slots=True)
class _Recorded:
    graph: torch.cuda.CUDAGraph
    packed_NX: Tensor
    hidden_TC: Tensor | None


class GraphedNetwork:
    """A network on CUDA whose repeated shapes are replayed."""

    def __init__(self, network: PagedNetwork, pool: PagePool, max_tokens: int = MAX_GRAPH_TOKENS) -> None:
        self.network, self.pool, self._max_tokens = network, pool, max_tokens
        self._recorded: dict[Key, _Recorded | None] = {}
        self._seen: Counter[Key] = Counter()
        self._version = pool.version
        self._memory = torch.cuda.graph_pool_handle()

    def takes(self, count: int, width: int) -> bool:
        """Return whether a forward of so many windows is replayed, once it has come up often enough."""
        return bucket(count) * width <= self._max_tokens

    def run(self, packed_NX: NDArray[np.int32], longest_start: int, mode: Mode) -> Tensor | None:
        """Return hidden states (padding included) or None; overwritten by the next run."""
        count, width = bucket(len(packed_NX)), packed_NX.shape[1] - HEADER
        small = self.takes(len(packed_NX), width)
        packed = to_device(padded(packed_NX, count) if small else packed_NX, self.pool.device)
        windows = Windows(packed, longest_start)
        recorded = self._find(windows, mode) if small else None
        if recorded is None:
            return run_plainly(self.network, windows, self.pool, mode)
        recorded.packed_NX.copy_(packed)
        recorded.graph.replay()
        return recorded.hidden_TC

    def forget(self) -> None:
        """Drop all recorded graphs and the memory they hold."""
        torch.cuda.synchronize()  # a graph must not be destroyed while it runs
        self._recorded.clear()
        self._memory = torch.cuda.graph_pool_handle()
        self._version = self.pool.version

    def _find(self, windows: Windows, mode: Mode) -> _Recorded | None:
        """Return the graph of this shape, recording it once the shape has come up often enough."""
        if self._version != self.pool.version:
            self.forget()
        splits = self.network.splits(windows.count, windows.longest_start)
        key: Key = (windows.count, windows.width, splits, mode)
        self._seen[key] += 1
        if key not in self._recorded and self._seen[key] > PLAIN_RUNS:
            self._recorded[key] = self._record(windows, mode)
        return self._recorded.get(key)

    def _record(self, windows: Windows, mode: Mode) -> _Recorded | None:
        """Return the recorded forward, or None where its memory does not fit beside everything else."""
        static = Windows(windows.packed_NX.clone(), windows.longest_start)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._memory):
                hidden_TC = run_plainly(self.network, static, self.pool, mode)
        except torch.OutOfMemoryError:
            return None
        return _Recorded(graph, static.packed_NX, hidden_TC)
