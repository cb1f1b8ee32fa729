"""Copies between host and device through pinned memory, so that the host waits as little as possible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
