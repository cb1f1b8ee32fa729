"""The paged key/value cache: fixed-size pages in a pool that a model's sessions share, and its attention.

A slot is one sequence: a row of the page table and a list of pages. Slots may share pages (several orders
continue one prompt); a shared page that is not full is copied before it is written to. Pages never move, so a
recorded CUDA graph stays valid until the pool grows, which increments ``version``.

``store_keys`` and ``attend`` do the work of the kernels in plain torch, for any device and dtype.

Shape letters: P pages, K key/value heads, S positions in a page, D head width, R table rows, X pages per row,
N windows, W width, T = N·W tokens, H heads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from orderlens.common.machine import is_out_of_memory
from orderlens.errors import DeviceMemoryError, UserInputError
from orderlens.kernels.shapes import PAGE
from orderlens.models.engine.device import WORKING_BYTES, free_bytes
from orderlens.models.engine.transfer import Windows

EMPTY_PAGE = 0
"""Never assigned to a slot: unused table entries point here, so that masked reads stay inside the pool."""


class CacheShape(Protocol):
    """The sizes that determine the cache; a family's configuration has these.

    Attributes:
        n_layers: number of layers, each with keys and values.
        n_kv_heads: key/value heads.
        head_width: numbers per head.
        max_positions: longest sequence.
    """

    @property
    def n_layers(self) -> int: ...

    @property
    def n_kv_heads(self) -> int: ...

    @property
    def head_width(self) -> int: ...

    @property
    def max_positions(self) -> int: ...


@dataclass(slots=True)
class Slot:
    """One cached sequence: its table row, its pages in order, and the number of filled positions."""

    row: int
    pages: list[int] = field(default_factory=list)
    length: int = 0


class PagePool:
    """Keys and values of all layers, and the device-side page table."""

    def __init__(
        self,
        shape: CacheShape,
        device: torch.device,
        dtype: torch.dtype,
        n_pages: int = 64,
        n_rows: int = 64,
    ) -> None:
        self.device, self.dtype = device, dtype
        self.max_positions = shape.max_positions
        self.version = 0
        self._page_shape = (shape.n_kv_heads, PAGE, shape.head_width)
        self._first_pages = n_pages
        self._empty = torch.empty((0, *self._page_shape), device=device, dtype=dtype)
        self.keys: list[Tensor] = [self._empty] * shape.n_layers
        self.values: list[Tensor] = [self._empty] * shape.n_layers
        self._users_P: NDArray[np.int32] = np.zeros(0, np.int32)
        self._free_pages: list[int] = []
        self._free_rows: list[int] = []
        self._dirty: set[int] = set()
        self._widest = 1
        self._host_table_RX: NDArray[np.int32] = np.zeros((0, -(-shape.max_positions // PAGE)), np.int32)
        self.table_RX = torch.empty(self._host_table_RX.shape, dtype=torch.int32, device=device)
        self._grow_pages(n_pages)
        self._grow_rows(n_rows)

    @property
    def n_pages(self) -> int:
        """Pages in the pool, the empty one included."""
        return len(self._users_P)

    @property
    def n_free(self) -> int:
        """Number of unused pages."""
        return len(self._free_pages)

    @property
    def nbytes(self) -> int:
        """Bytes of all keys and values."""
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values))

    def open(self) -> Slot:
        """Return a new empty slot."""
        if not self._free_rows:
            self._grow_rows(2 * len(self._host_table_RX))
        slot = Slot(self._free_rows.pop())
        self._write_row(slot)
        return slot

    def fork(self, slot: Slot) -> Slot:
        """Return a new slot with the same contents, sharing pages."""
        twin = self.open()
        twin.pages, twin.length = list(slot.pages), slot.length
        np.add.at(self._users_P, twin.pages, 1)
        self._write_row(twin)
        return twin

    def close(self, slots: Iterable[Slot]) -> None:
        """Free the slots' rows, and the pages that no other slot uses."""
        for slot in slots:
            self._release(slot.pages)
            self._free_rows.append(slot.row)
            slot.pages, slot.length = [], 0

    def trim(self) -> None:
        """Shrink to the first size if no page is in use; also frees layers that a failed growth enlarged."""
        if self._users_P.any():
            return
        self.keys, self.values = ([self._empty] * len(tensors) for tensors in (self.keys, self.values))
        self._users_P, self._free_pages = np.zeros(0, np.int32), []
        self._grow_pages(self._first_pages, 2)

    def reserve(self, wanted: Iterable[tuple[Slot, int]]) -> None:
        """Reserve pages up to a new length in each slot: for all slots or, without memory, for none."""
        plan = [(slot, length, self._new_pages(slot, length)) for slot, length in wanted]
        shortfall = sum(count for _, _, count in plan) - len(self._free_pages)
        if shortfall > 0:
            least = self.n_pages + shortfall
            self._grow_pages(max(least, self._preferred_size()), least)
        for slot, length, _ in plan:
            self._unshare_last_page(slot)
            missing = -(-length // PAGE) - len(slot.pages)
            slot.pages += self._take(missing)
            self._write_row(slot)

    def flush(self) -> None:
        """Copy changed rows of the page table to the device."""
        if not self._dirty:
            return
        rows = np.array(sorted(self._dirty))
        used = int((self._host_table_RX[rows] != EMPTY_PAGE).any(axis=0).nonzero()[0].max(initial=0)) + 1
        # As wide as any row ever was: page numbers of a row's earlier user must not remain on the device.
        self._widest = max(self._widest, used)
        fresh = torch.from_numpy(self._host_table_RX[rows, : self._widest])
        self.table_RX[torch.from_numpy(rows).to(self.device), : self._widest] = fresh.to(self.device)
        self._dirty.clear()

    def _new_pages(self, slot: Slot, length: int) -> int:
        if length > self.max_positions:
            raise UserInputError(
                f"a sequence of {length} tokens exceeds the model's {self.max_positions} positions; "
                "shorten it"
            )
        shared_tail = slot.length % PAGE != 0 and self._users_P[slot.pages[-1]] > 1
        return -(-length // PAGE) - len(slot.pages) + int(shared_tail)

    def _unshare_last_page(self, slot: Slot) -> None:
        """Copy a partly filled page that other slots share, so that they do not see later writes."""
        if slot.length % PAGE == 0 or self._users_P[slot.pages[-1]] == 1:
            return
        old, (new,) = slot.pages[-1], self._take(1)
        for tensor_PKSD in (*self.keys, *self.values):
            tensor_PKSD[new].copy_(tensor_PKSD[old])
        slot.pages[-1] = new
        self._release([old])

    def _take(self, count: int) -> list[int]:
        pages = [self._free_pages.pop() for _ in range(count)]
        self._users_P[pages] = 1
        return pages

    def _release(self, pages: list[int]) -> None:
        self._users_P[pages] -= 1
        self._free_pages += [page for page in pages if self._users_P[page] == 0]

    def _write_row(self, slot: Slot) -> None:
        self._host_table_RX[slot.row] = EMPTY_PAGE
        self._host_table_RX[slot.row, : len(slot.pages)] = slot.pages
        self._dirty.add(slot.row)

    def _grow_rows(self, count: int) -> None:
        old = len(self._host_table_RX)
        self._host_table_RX = np.pad(self._host_table_RX, ((0, count - old), (0, 0)))
        self.table_RX = torch.from_numpy(self._host_table_RX).to(self.device, copy=True)
        self._free_rows += range(count - 1, old - 1, -1)
        self.version += 1

    def _preferred_size(self) -> int:
        """Return twice the number of pages, or on CUDA fewer if forwards would lack memory."""
        free = free_bytes(self.device) if self.device.type == "cuda" else None
        if free is None:
            return 2 * self.n_pages
        return min(2 * self.n_pages, self.n_pages + (free - WORKING_BYTES) * self.n_pages // self.nbytes)

    def _grow_pages(self, count: int, least: int | None = None) -> None:
        """Enlarge layer by layer (old and new coexist for one layer only), or to ``least`` if that fails."""
        self.version += 1  # even if memory runs out half-way: the layers enlarged so far have moved
        try:
            for tensors in (self.keys, self.values):
                for layer in range(len(tensors)):
                    tensors[layer] = self._enlarged(tensors[layer], count)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if least is not None and least < count:
                return self._grow_pages(least)
            raise DeviceMemoryError(
                f"no memory left on {self.device} for {count * PAGE} cached tokens; use a smaller batch size"
            ) from None
        old = self.n_pages
        self._users_P = np.pad(self._users_P, (0, count - old))
        self._free_pages += [page for page in range(count - 1, old - 1, -1) if page != EMPTY_PAGE]
        return None

    def _enlarged(self, old_PKSD: Tensor, count: int) -> Tensor:
        if len(old_PKSD) >= count:
            return old_PKSD  # an earlier attempt ran out of memory after this layer
        new_PKSD = torch.zeros((count, *self._page_shape), device=self.device, dtype=self.dtype)
        new_PKSD[: len(old_PKSD)].copy_(old_PKSD)
        return new_PKSD


def store_keys(k_NKWD: Tensor, v_NKWD: Tensor, index: int, windows: Windows, pool: PagePool) -> None:
    """Write the windows' keys and values into their slots' pages."""
    valid_NW = torch.arange(windows.width, device=k_NKWD.device) < windows.widths[:, None]
    positions_NW = windows.positions
    row_T = windows.rows[:, None].expand_as(positions_NW)[valid_NW]
    position_T = positions_NW[valid_NW]
    page_T = pool.table_RX[row_T.long(), (position_T // PAGE).long()].long()
    inside_T = (position_T % PAGE).long()
    pool.keys[index][page_T, :, inside_T] = k_NKWD.transpose(1, 2)[valid_NW]
    pool.values[index][page_T, :, inside_T] = v_NKWD.transpose(1, 2)[valid_NW]


def attend(
    q_NHWD: Tensor, k_NKWD: Tensor, v_NKWD: Tensor, index: int, windows: Windows, pool: PagePool
) -> Tensor:
    """Return attention outputs [N, H, W, D] over each window's cached prefix and the window itself."""
    n_pages = -(-windows.longest_start // PAGE)
    pages_NX = pool.table_RX[windows.rows.long(), :n_pages].long()
    past_k, past_v = (_unpaged(pages_PKSD[pages_NX]) for pages_PKSD in (pool.keys[index], pool.values[index]))
    keys, values = torch.cat((past_k, k_NKWD), dim=2), torch.cat((past_v, v_NKWD), dim=2)
    device = q_NHWD.device
    seen_past = torch.arange(n_pages * PAGE, device=device) < windows.starts[:, None]
    seen_self = torch.arange(windows.width, device=device) < windows.widths[:, None]
    mask_N11X = torch.cat((seen_past, seen_self), dim=1)[:, None, None]
    return functional.scaled_dot_product_attention(q_NHWD, keys, values, attn_mask=mask_N11X, enable_gqa=True)


def _unpaged(pages_NXKSD: Tensor) -> Tensor:
    """Return [N, K, X·S, D]."""
    return pages_NXKSD.transpose(1, 2).flatten(2, 3)
