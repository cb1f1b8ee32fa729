"""Numbers between host and device, through pinned memory, so that the host waits only when it must."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(values: NDArray[Any] | Tensor, device: torch.device) -> Tensor:
    """Return ``values`` on ``device``, where a tensor is already; on CUDA the copy is only queued."""
    if isinstance(values, Tensor):
        return values
    host = torch.from_numpy(np.ascontiguousarray(values))
    if device.type != "cuda":
        return host.to(device)
    return host.pin_memory().to(device, non_blocking=True)


def fill(tensor: Tensor, values: NDArray[Any] | Tensor) -> None:
    """Write ``values`` into ``tensor``; on CUDA the copy is only queued."""
    if isinstance(values, Tensor):
        if values.data_ptr() != tensor.data_ptr():  # else they are its own
            tensor.copy_(values)
        return
    host = torch.from_numpy(np.ascontiguousarray(values))
    tensor.copy_(host.pin_memory() if tensor.is_cuda else host, non_blocking=True)


def arriving(*tensors: Tensor) -> Callable[[], tuple[NDArray[Any], ...]]:
    """Queue copies of ``tensors`` to the host; the returned function waits for these, not for later work."""
    if not any(tensor.is_cuda for tensor in tensors):
        return lambda: tuple(tensor.cpu().numpy() for tensor in tensors)
    hosts = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors]
    for host, tensor in zip(hosts, tensors, strict=True):
        host.copy_(tensor, non_blocking=True)
    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record()

    def wait() -> tuple[NDArray[Any], ...]:
        done.synchronize()
        return tuple(host.numpy() for host in hosts)

    return wait
