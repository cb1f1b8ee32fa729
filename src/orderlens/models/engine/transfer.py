"""Input and output of a forward: windows of several sequences, and copies between host and device.

Windows have equal width and are packed into one array, so that one copy sends them. Copies go through pinned
memory, so that the host waits as little as possible.

Shape letters: N windows, W width, T = N·W tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from orderlens.models.protocol import IntArray

ROUNDING = 64
"""Maximum number of unused bytes between tensors that share a storage."""


def to_device(values: NDArray[Any] | Tensor, device: torch.device) -> Tensor:
    """Return ``values`` on ``device`` (a tensor is returned unchanged); on CUDA the copy is only queued."""
    if isinstance(values, Tensor):
        return values
    host = torch.from_numpy(np.ascontiguousarray(values))
    if device.type != "cuda":
        return host.to(device)
    return host.pin_memory().to(device, non_blocking=True)


def fill(tensor: Tensor, values: NDArray[Any] | Tensor) -> None:
    """Write ``values`` into ``tensor``; on CUDA the copy is only queued."""
    if isinstance(values, Tensor):
        if values.data_ptr() != tensor.data_ptr():  # otherwise they share memory
            tensor.copy_(values)
        return
    host = torch.from_numpy(np.ascontiguousarray(values))
    tensor.copy_(host.pin_memory() if tensor.is_cuda else host, non_blocking=True)


def start_copy_to_host(*tensors: Tensor) -> Callable[[], tuple[NDArray[Any], ...]]:
    """Queue copies of ``tensors`` to the host; the returned function waits for these copies only.

    Tensors that fill one storage are copied together.
    """
    if not any(tensor.is_cuda for tensor in tensors):
        return lambda: tuple(tensor.cpu().numpy() for tensor in tensors)
    piece = shared_storage(tensors)
    sources = tensors if piece is None else (piece,)
    hosts = [torch.empty(source.shape, dtype=source.dtype, pin_memory=True) for source in sources]
    for host, source in zip(hosts, sources, strict=True):
        host.copy_(source, non_blocking=True)
    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record()

    def wait() -> tuple[NDArray[Any], ...]:
        done.synchronize()
        if piece is not None:
            return split_storage(hosts[0].numpy(), tensors)
        return tuple(host.numpy() for host in hosts)

    return wait


def shared_storage(tensors: Sequence[Tensor]) -> Tensor | None:
    """Return the storage of several contiguous tensors as bytes if they fill most of it, else None."""
    if len(tensors) < 2 or not all(tensor.is_contiguous() for tensor in tensors):
        return None
    storage = tensors[0].untyped_storage()
    same = all(tensor.untyped_storage().data_ptr() == storage.data_ptr() for tensor in tensors[1:])
    if not same or storage.nbytes() > 2 * sum(tensor.nbytes for tensor in tensors) + ROUNDING:
        return None
    return torch.empty(0, dtype=torch.uint8, device=tensors[0].device).set_(storage)


def split_storage(piece: NDArray[np.uint8], tensors: Sequence[Tensor]) -> tuple[NDArray[Any], ...]:
    """Return each tensor's values from a copy of their shared storage."""
    found: list[NDArray[Any]] = []
    for tensor in tensors:
        low = tensor.storage_offset() * tensor.itemsize
        part = piece[low : low + tensor.nbytes].view(_numpy_dtype(tensor.dtype))
        found.append(part.reshape(tuple(tensor.shape)))
    return tuple(found)


@cache
def _numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    return torch.empty(0, dtype=dtype).numpy().dtype


HEADER = 3
"""Packed integers per window before its tokens: table row, start, width."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of one forward; each sees itself and its slot's cached positions before ``start``.

    Attributes:
        packed_NX: int32 [N, 3 + W]: table row, first position, valid width, then the tokens.
        longest_start: upper bound of all starts, known on the host.
    """

    packed_NX: Tensor
    longest_start: int

    @property
    def rows(self) -> Tensor:
        """Page-table row of each window [N]."""
        return self.packed_NX[:, 0]

    @property
    def starts(self) -> Tensor:
        """Position of each window's first token [N]."""
        return self.packed_NX[:, 1]

    @property
    def widths(self) -> Tensor:
        """Number of valid tokens of each window [N]; the others are padding and are masked."""
        return self.packed_NX[:, 2]

    @property
    def tokens(self) -> Tensor:
        """Token ids [N, W]."""
        return self.packed_NX[:, HEADER:]

    @property
    def positions(self) -> Tensor:
        """Absolute positions [N, W]."""
        return self.starts[:, None] + torch.arange(self.width, device=self.packed_NX.device)

    @property
    def count(self) -> int:
        """N."""
        return self.packed_NX.shape[0]

    @property
    def width(self) -> int:
        """W."""
        return self.packed_NX.shape[1] - HEADER


def pack(rows_N: IntArray, starts_N: IntArray, widths_N: IntArray, tokens_NW: IntArray) -> NDArray[np.int32]:
    """Return the packed integers [N, 3 + W] on the host."""
    return np.column_stack((rows_N, starts_N, widths_N, tokens_NW)).astype(np.int32)
