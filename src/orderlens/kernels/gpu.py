"""Properties of a GPU that our kernels depend on, and whether they run on it. Needs no Triton."""

from __future__ import annotations

from functools import cache
from importlib import metadata
from importlib.util import find_spec
from typing import NamedTuple

import torch

OLDEST = 8
"""Lowest major compute capability with bfloat16 products in Triton (Ampere)."""
DESCRIPTORS_FROM = 9
"""Lowest major compute capability with a tensor memory accelerator (Hopper)."""
SHARED_KIB = {(8, 0): 163, (8, 7): 163, (9, 0): 227, (10, 0): 227, (10, 3): 227, (11, 0): 227}
"""Shared memory of one program in KiB by compute capability (CUDA C++ programming guide)."""
GLUON = {("3", "6"), ("3", "7")}
"""Versions of Triton (torch 2.11 to 2.13) whose Gluon our kernels support."""
LEAST_SHARED_KIB = 99
"""Shared memory in KiB of all other GPUs from Ampere on: workstation and consumer cards."""


class Gpu(NamedTuple):
    """The properties of a GPU that determine tile sizes.

    Attributes:
        shared_bytes: maximum shared memory of one program.
        descriptors: whether one instruction loads a tile through a tensor descriptor (tensor memory
            accelerator). Elsewhere a descriptor is expanded into addresses, which fills the registers and
            hides no latency.
        processors: number of multiprocessors.
        specialises: whether our kernels in Gluon run on it, with warp specialisation and on float8 units.
    """

    shared_bytes: int
    descriptors: bool
    processors: int
    specialises: bool


HOPPER = Gpu(232_448, True, 132, True)
"""The GPU on which tile sizes were tuned (H100, H200)."""


def gpu_of(device: torch.device) -> Gpu:
    """Return the properties of a device; without a GPU (Triton's interpreter), a Hopper with two processors.

    The device "meta" means the current GPU.
    """
    if device.type == "meta" and torch.cuda.is_available():
        device = torch.device("cuda", torch.cuda.current_device())
    return _properties(device)


@cache
def _properties(device: torch.device) -> Gpu:
    if device.type != "cuda":
        return HOPPER._replace(processors=2, specialises=False)
    about = torch.cuda.get_device_properties(device)
    return gpu_with((about.major, about.minor), about.multi_processor_count)


def gpu_with(capability: tuple[int, int], processors: int) -> Gpu:
    """Return the properties of a GPU of this compute capability."""
    shared = SHARED_KIB.get(capability, LEAST_SHARED_KIB) * 1024
    descriptors, specialises = capability[0] >= DESCRIPTORS_FROM, capability == (9, 0) and is_known_gluon()
    return Gpu(shared, descriptors, processors, specialises)


@cache
def is_known_gluon() -> bool:
    """Return whether our kernels support this version of Triton's Gluon, which is experimental."""
    try:
        major, minor, *_ = metadata.version("triton").split(".")
    except metadata.PackageNotFoundError:
        return False
    return (major, minor) in GLUON


@cache
def triton_installed() -> bool:
    """Return whether Triton, in which our CUDA kernels are written, can be imported."""
    return find_spec("triton") is not None


@cache
def runs_kernels(device: torch.device) -> bool:
    """Return whether our Triton kernels run on this device: an NVIDIA GPU from Ampere on."""
    if device.type != "cuda" or torch.version.hip is not None or not triton_installed():
        return False
    return torch.cuda.get_device_properties(device).major >= OLDEST


def divisor(size: int, wanted: int) -> int:
    """Return the largest power of two that divides ``size``, at most ``wanted`` (a power of two)."""
    return min(wanted, size & -size)
