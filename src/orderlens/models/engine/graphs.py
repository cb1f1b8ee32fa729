"""CUDA graphs: a forward of fixed shape is recorded once and then replayed by a single launch.

A graph is keyed by (windows, width, attention splits, mode, rows). The number of windows is rounded up to a
bucket by repeating the last window, whose tokens use experts that are read anyway. In large forwards the
number of rows is rounded up too; they skip the work that only the other rows need. Graphs hold addresses of
the page pool and are dropped when it grows. Forwards above a size limit run without a graph.

Shape letters: N windows, X = 3 + W packed integers, T tokens, R wanted rows, C model width.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from orderlens.models.engine.pages import PagePool
from orderlens.models.engine.transfer import HEADER, Windows, fill, to_device
from orderlens.models.protocol import IntArray

Packed: TypeAlias = NDArray[np.int32] | Tensor
"""Windows on the host, or on the device already."""
Places: TypeAlias = IntArray | Tensor
"""Indices of tokens among all tokens of a forward, on the host or on the device."""
Mode: TypeAlias = Literal["read", "store", "advance"]
"""Purpose of a forward: return hidden states, fill the cache, or both."""
Key: TypeAlias = tuple[int, int, int, Mode, int]
MAX_GRAPH_TOKENS = 8192
"""Default limit of tokens: larger forwards run without a graph and without padding."""
WHOLE_TOKENS = 8192
"""Up to this number of tokens a recorded forward computes all rows, so that one graph serves any request."""
ROW_STEPS = 16
"""In larger forwards the number of rows is rounded up to a multiple of tokens / ROW_STEPS."""
PLAIN_RUNS = 2
"""Forwards of a shape that run without a graph before it is recorded: they compile kernels, and the shape of
a prefill may never recur."""
MANY_WINDOWS = 768
"""Window counts above the list below are rounded up to a multiple of 32, above this to a multiple of 8:
padding costs as much as windows, and batches this large keep their size from pass to pass."""
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
"""Finer above 32, 64 and 128: common batch sizes plus the finished blocks of a few texts."""


class PagedNetwork(Protocol):
    """The interface of a block-causal network: it reads windows of tokens and a page pool.

    Attributes:
        device: the computing device.
        dtype: dtype of its activations.
        gathers: whether its attention copies keys out of the pool (portable) or reads the pages in place.
        splits: (windows, longest start) → number of parts into which attention over prefixes is split (part
            of a graph's key).
    """

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def gathers(self) -> bool: ...

    @property
    def splits(self) -> Callable[[int, int], int]: ...

    def hidden(self, windows: Windows, pool: PagePool) -> Tensor:
        """Return hidden states [T, C], normalised for the output matrix."""

    def store(self, windows: Windows, pool: PagePool) -> None:
        """Cache the windows' keys and values in pages that the caller has reserved."""


@runtime_checkable
class AdvancingNetwork(Protocol):
    """A paged network that can fill the cache and read from it in one forward."""

    def advance(self, windows: Windows, pool: PagePool) -> Tensor:
        """Return hidden states [T, C] as ``hidden`` does, and cache all windows as ``store`` does.

        A window sees the keys that earlier windows of its sequence write in the same forward. Without a
        reserved page, keys go to the empty page, which is never read.
        """


@runtime_checkable
class RowSelectingNetwork(Protocol):
    """A paged network that computes the hidden states of some rows only."""

    def hidden_rows(self, windows: Windows, pool: PagePool, rows_R: Tensor, store: bool) -> Tensor:
        """Return hidden states [R, C] of the tokens ``rows_R``; with ``store`` cache all windows."""


def run_plainly(
    network: PagedNetwork, windows: Windows, pool: PagePool, mode: Mode, rows_R: Tensor | None = None
) -> Tensor | None:
    """Run one forward; return hidden states [T, C] or [R, C], or None when it only fills the cache."""
    if rows_R is not None:
        assert isinstance(network, RowSelectingNetwork)
        return network.hidden_rows(windows, pool, rows_R, mode == "advance")
    if mode == "store":
        network.store(windows, pool)
        return None
    if mode == "read":
        return network.hidden(windows, pool)
    assert isinstance(network, AdvancingNetwork)
    return network.advance(windows, pool)


def bucket(count: int) -> int:
    """Return ``count`` rounded up to a recorded number of windows."""
    step = 32 if count <= MANY_WINDOWS else 8
    return next((size for size in _BUCKETS if size >= count), -(-count // step) * step)


def padded(items: NDArray[Any] | Tensor, count: int) -> Any:
    """Pad windows or rows to ``count`` by repeating the last one.

    Storing a window twice writes the same numbers to the same addresses.
    """
    extra = count - len(items)
    if not extra:
        return items
    if isinstance(items, Tensor):
        return torch.cat((items, items[-1:].expand(extra, *items.shape[1:])))
    return np.concatenate((items, np.repeat(items[-1:], extra, axis=0)))


@dataclass(frozen=True, slots=True)
class _Recorded:
    graph: torch.cuda.CUDAGraph
    packed_NX: Tensor
    rows_R: Tensor | None
    hidden: Tensor | None


class GraphedNetwork:
    """A network on CUDA; forwards with repeated shapes are replayed from recorded graphs."""

    def __init__(self, network: PagedNetwork, pool: PagePool, max_tokens: int = MAX_GRAPH_TOKENS) -> None:
        self.network, self.pool, self._max_tokens = network, pool, max_tokens
        self._recorded: dict[Key, _Recorded | None] = {}
        self._seen: Counter[Key] = Counter()
        self._version = pool.version
        self._memory = torch.cuda.graph_pool_handle()
        self.input_NX: Tensor | None = None
        """The windows of the last run on the device, padding included; overwritten by the next one."""

    def can_record(self, count: int, width: int) -> bool:
        """Return whether a forward of ``count`` windows is small enough to be recorded."""
        return bucket(count) * width <= self._max_tokens

    def selects_rows(self, count: int, width: int) -> bool:
        """Return whether a forward of ``count`` windows computes only the requested rows."""
        return isinstance(self.network, RowSelectingNetwork) and bucket(count) * width > WHOLE_TOKENS

    def run(
        self, packed_NX: Packed, longest_start: int, mode: Mode, flat_r: Places | None = None
    ) -> Tensor | None:
        """Return hidden states (padding included) or None; overwritten by the next run.

        Args:
            packed_NX: the windows.
            longest_start: upper bound of their starts.
            mode: purpose of the forward.
            flat_r: the requested tokens if this forward ``selects_rows``; None for all tokens.
        """
        small = self.can_record(len(packed_NX), packed_NX.shape[1] - HEADER)
        if small:
            packed_NX = padded(packed_NX, bucket(len(packed_NX)))
            if flat_r is not None:
                step = len(packed_NX) * (packed_NX.shape[1] - HEADER) // ROW_STEPS
                flat_r = padded(flat_r, -(-len(flat_r) // step) * step)
        recorded = self._find(packed_NX, longest_start, mode, flat_r) if small else None
        if recorded is None:
            arguments = self._on_device(packed_NX, longest_start, mode, flat_r)
            self.input_NX = arguments[0].packed_NX
            return run_plainly(self.network, *arguments)
        self.input_NX = recorded.packed_NX
        fill(recorded.packed_NX, packed_NX)
        if recorded.rows_R is not None and flat_r is not None:
            fill(recorded.rows_R, flat_r)
        recorded.graph.replay()
        return recorded.hidden

    def forget(self) -> None:
        """Drop all recorded graphs and the memory they hold."""
        torch.cuda.synchronize()  # a graph must not be destroyed while it runs
        self._recorded.clear()
        self._memory = torch.cuda.graph_pool_handle()
        self._version = self.pool.version

    def _find(
        self, packed_NX: Packed, longest_start: int, mode: Mode, flat_r: Places | None
    ) -> _Recorded | None:
        """Return the graph of this shape; record it once the shape has occurred often enough."""
        if self._version != self.pool.version:
            self.forget()
        count, width = len(packed_NX), packed_NX.shape[1] - HEADER
        rows = 0 if flat_r is None else len(flat_r)
        key: Key = (count, width, self.network.splits(count, longest_start), mode, rows)
        self._seen[key] += 1
        if key not in self._recorded and self._seen[key] > PLAIN_RUNS:
            windows, pool, _, rows_R = self._on_device(packed_NX, longest_start, mode, flat_r)
            windows = replace(windows, packed_NX=windows.packed_NX.clone())  # replays write here
            rows_R = None if rows_R is None else rows_R.clone()
            self._recorded[key] = self._record(windows, pool, mode, rows_R)
        return self._recorded.get(key)

    def _on_device(
        self, packed_NX: Packed, longest_start: int, mode: Mode, flat_r: Places | None
    ) -> tuple[Windows, PagePool, Mode, Tensor | None]:
        """Return the arguments of a forward without a graph."""
        device = self.pool.device
        rows_R = None if flat_r is None else to_device(flat_r, device)
        return Windows(to_device(packed_NX, device), longest_start), self.pool, mode, rows_R

    def _record(
        self, windows: Windows, pool: PagePool, mode: Mode, rows_R: Tensor | None
    ) -> _Recorded | None:
        """Return the recorded forward, or None if there is not enough memory for it."""
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._memory):
                hidden = run_plainly(self.network, windows, pool, mode, rows_R)
        except torch.OutOfMemoryError:
            return None
        return _Recorded(graph, windows.packed_NX, rows_R, hidden)
