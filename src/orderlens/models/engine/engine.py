"""Runs forwards: split to fit in memory, replayed from CUDA graphs when shapes repeat.

One engine per model, shared by its sessions: it owns the network, the page pool and the recorded graphs. A
forward that runs out of memory is retried in halves, which give the same numbers.

Shape letters: N windows, W width, C model width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from orderlens.common.machine import is_out_of_memory, keep_freed_memory
from orderlens.errors import DeviceMemoryError
from orderlens.models.engine.graphs import (
    MAX_GRAPH_TOKENS,
    AdvancingNetwork,
    GraphedNetwork,
    Mode,
    Packed,
    PagedNetwork,
    Places,
    RowSelectingNetwork,
    run_plainly,
)
from orderlens.models.engine.pages import CacheShape, PagePool
from orderlens.models.engine.transfer import HEADER, Windows, to_device
from orderlens.models.protocol import IntArray

MAX_TOKENS = 16384
"""Maximum tokens of one forward: for most networks a larger forward only costs memory."""
MAX_GATHERED = 2**26
"""Maximum cached numbers that the portable attention copies out of the pool per forward."""
_CUDA_PAGES, _CUDA_ROWS = 1024, 1024


class ForwardEngine:
    """Network, cache and graphs of one loaded model.

    Attributes:
        network: the network.
        shape: the shape of its cache.
        pool: the cache.
        widest: maximum tokens of one forward if memory allows.
    """

    def __init__(
        self,
        network: PagedNetwork,
        shape: CacheShape,
        max_graph_tokens: int = MAX_GRAPH_TOKENS,
        max_tokens: int = MAX_TOKENS,
    ) -> None:
        """Make an engine.

        Args:
            network: the network.
            shape: the shape of its cache.
            max_graph_tokens: larger forwards are not recorded and hence not padded to a bucket; for networks
                whose padding costs as much as any other window.
            max_tokens: maximum tokens of one forward; halved after an out-of-memory error.
        """
        self.network, self.shape = network, shape
        device = network.device
        sizes = (_CUDA_PAGES, _CUDA_ROWS) if device.type == "cuda" else ()
        self.pool = PagePool(shape, device, network.dtype, *sizes)
        if device.type == "cpu":
            keep_freed_memory()
        self.widest, self._max_tokens = max_tokens, max_tokens
        recordable = device.type == "cuda" and not network.gathers
        self._graphs = GraphedNetwork(network, self.pool, max_graph_tokens) if recordable else None
        self.can_speculate = recordable
        """Whether queueing a forward before it is known to be needed saves time on this device."""
        self.input_NX: Tensor | None = None
        """The windows of the last forward on the device, None if they were split into several forwards."""

    @property
    def device(self) -> torch.device:
        """The computing device."""
        return self.pool.device

    @property
    def advances(self) -> bool:
        """Whether one forward can cache some windows and read others."""
        return isinstance(self.network, AdvancingNetwork)

    def hidden(self, packed_NX: Packed, *, advance: bool = False) -> Iterator[tuple[int, Tensor]]:
        """Yield (first window, hidden states [n, W, C]) for consecutive groups of windows.

        The next forward may overwrite a yielded tensor, so copy what is needed before continuing. With
        ``advance`` the windows are cached as well (pages reserved, earlier blocks of a sequence first).
        """
        for low, hidden_NWC in self._in_parts(packed_NX, "advance" if advance else "read"):
            assert hidden_NWC is not None
            yield low, hidden_NWC

    def rows(
        self, packed_NX: Packed, row_state_R: IntArray, row_offset_R: IntArray, *, advance: bool = False
    ) -> Iterator[tuple[IntArray, Tensor]]:
        """Yield (indices into the R rows, their hidden states [r, C]) for consecutive groups of windows.

        Args:
            packed_NX: the windows.
            row_state_R: window of each requested row.
            row_offset_R: its offset in the window.
            advance: cache the windows as well.
        """
        width = packed_NX.shape[1] - HEADER
        places: list[IntArray] = []

        def pick(low: int, count: int) -> IntArray:
            places[:] = [np.flatnonzero((row_state_R >= low) & (row_state_R < low + count))]
            flat_r: IntArray = (row_state_R[places[0]] - low) * width + row_offset_R[places[0]]
            return flat_r

        for _, hidden_rC in self._in_parts(packed_NX, "advance" if advance else "read", pick):
            if hidden_rC is not None:
                yield places[0], hidden_rC

    def run_once(self, packed_NX: Tensor, longest_start: int, flat_R: Tensor) -> Tensor | None:
        """Return the hidden states [R, C] of some tokens of windows that are already on the device.

        Uses one forward; returns None if the windows are too many for one. ``longest_start`` bounds the
        starts.
        """
        if self._fitting(packed_NX.shape[1] - HEADER, longest_start) < len(packed_NX):
            return None
        return self._hidden_rows(packed_NX, longest_start, "read", flat_R)

    def store(self, packed_NX: Packed) -> None:
        """Cache the windows' keys and values (pages reserved, earlier blocks of a sequence first)."""
        for _ in self._in_parts(packed_NX, "store"):
            pass

    def release(self) -> None:
        """Release memory that no session uses, graphs included, before a smaller batch is tried."""
        self.pool.trim()
        if self._graphs is not None:
            self._graphs.forget()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _in_parts(
        self, packed_NX: Packed, mode: Mode, pick: Callable[[int, int], IntArray] | None = None
    ) -> Iterator[tuple[int, Tensor | None]]:
        """Run consecutive windows in the largest groups that fit; an out-of-memory error halves the limit.

        ``pick`` maps a group (first window, number of windows) to its requested tokens.
        """
        self.pool.flush()
        width, low, starts_N = packed_NX.shape[1] - HEADER, 0, packed_NX[:, 1]
        while low < len(packed_NX):
            near = starts_N[low : low + max(1, self._max_tokens // width)]
            part = packed_NX[low : low + self._fitting(width, int(near.max()))]
            longest = int(starts_N[low : low + len(part)].max())
            try:
                if pick is None:
                    result = self._run(part, longest, mode)
                else:
                    result = self._hidden_rows(part, longest, mode, pick(low, len(part)))
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                self._shrink(len(part), width)
                continue
            if len(part) < len(packed_NX):
                self.input_NX = None
            yield low, result
            low += len(part)

    def _shrink(self, count: int, width: int) -> None:
        if count == 1:
            raise DeviceMemoryError(
                f"no memory left on {self.device} for one forward of {width} tokens; "
                "free the device or use a smaller batch size"
            )
        self._max_tokens = count // 2 * width
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _fitting(self, width: int, longest_start: int) -> int:
        """Return the maximum number of windows in one forward."""
        count = max(1, self._max_tokens // width)
        if self.network.gathers:
            per_token = 2 * self.shape.n_kv_heads * self.shape.head_width
            count = min(count, max(1, MAX_GATHERED // ((longest_start + width) * per_token)))
        return count

    def _hidden_rows(self, packed_NX: Packed, longest: int, mode: Mode, flat_r: Places) -> Tensor | None:
        """Run windows; return the hidden states [r, C] of the requested tokens, None if there are none."""
        if not len(flat_r):
            return self._run(packed_NX, longest, "store") if mode == "advance" else None
        count, width = len(packed_NX), packed_NX.shape[1] - HEADER
        recorded = self._graphs is not None and self._graphs.can_record(count, width)
        if self._graphs is not None and recorded and self._graphs.selects_rows(count, width):
            hidden_rC = self._graphs.run(packed_NX, longest, mode, flat_r)
            self.input_NX = self._graphs.input_NX
            assert hidden_rC is not None
            return hidden_rC[: len(flat_r)].clone()
        rows_r = to_device(flat_r, self.device)
        if isinstance(self.network, RowSelectingNetwork) and not recorded:
            windows = self._windows(packed_NX, longest)
            return self.network.hidden_rows(windows, self.pool, rows_r, mode == "advance")
        hidden_TC = self._flat(packed_NX, longest, mode)
        assert hidden_TC is not None
        return hidden_TC.index_select(0, rows_r)

    def _run(self, packed_NX: Packed, longest: int, mode: Mode) -> Tensor | None:
        count, width = len(packed_NX), packed_NX.shape[1] - HEADER
        hidden_TC = self._flat(packed_NX, longest, mode)
        return None if hidden_TC is None else hidden_TC[: count * width].view(count, width, -1)

    def _flat(self, packed_NX: Packed, longest: int, mode: Mode) -> Tensor | None:
        """Run windows; return the hidden states of all tokens, padding windows included."""
        if self._graphs is None:
            return run_plainly(self.network, self._windows(packed_NX, longest), self.pool, mode)
        hidden_TC = self._graphs.run(packed_NX, longest, mode)
        self.input_NX = self._graphs.input_NX
        return hidden_TC

    def _windows(self, packed_NX: Packed, longest: int) -> Windows:
        """Return the input of a forward without a graph."""
        self.input_NX = to_device(packed_NX, self.device)
        return Windows(self.input_NX, longest)
