"""What a GPU offers to our kernels, and whether they run on it at all. Needs no Triton."""

from __future__ import annotations

from functools import cache
from importlib import metadata
from importlib.util import find_spec
from typing import NamedTuple

import torch

OLDEST = 8
"""Major compute capability from which Triton multiplies bfloat16 (Ampere)."""
DESCRIPTORS_FROM = 9
"""Major compute capability with a unit that copies whole tiles (Hopper)."""
SHARED_KIB = {(8, 0): 163, (8, 7): 163, (9, 0): 227, (10, 0): 227, (10, 3): 227, (11, 0): 227}
"""Shared memory of one program by compute capability (CUDA C++ programming guide)."""
GLUON = {("3", "6"), ("3", "7")}
"""Versions of Triton (torch 2.11 to 2.13) whose Gluon is known."""
LEAST_SHARED_KIB = 99
"""On every other GPU from Ampere on: workstation and consumer cards."""


class Gpu(NamedTuple):
    """What tile sizes depend on.

    Attributes:
        shared_bytes: shared memory that one program may have.
        descriptors: whether one instruction loads a tile through a tensor descriptor. Without such a unit
            a descriptor is taken apart into addresses, which fills the registers and hides no waiting.
        processors: multiprocessors.
        specialises: whether warps of a program can have parts and registers of their own, in kernels that
            are written in Gluon.
    """

    shared_bytes: int
    descriptors: bool
    processors: int
    specialises: bool


HOPPER = Gpu(232_448, True, 132, True)
"""The GPU that tiles were chosen on (H100, H200)."""


def gpu_of(device: torch.device) -> Gpu:
    """Return what the device offers; without a GPU (Triton's interpreter) a Hopper with two processors.

    Tensors without memory (device "meta") stand for whichever GPU is the current one.
    """
    if device.type == "meta" and torch.cuda.is_available():
        device = torch.device("cuda", torch.cuda.current_device())
    return _offered(device)


@cache
def _offered(device: torch.device) -> Gpu:
    if device.type != "cuda":
        return HOPPER._replace(processors=2, specialises=False)
    about = torch.cuda.get_device_properties(device)
    return gpu_with((about.major, about.minor), about.multi_processor_count)


def gpu_with(capability: tuple[int, int], processors: int) -> Gpu:
    """Return what a GPU of this compute capability offers."""
    shared = SHARED_KIB.get(capability, LEAST_SHARED_KIB) * 1024
    descriptors, specialises = capability[0] >= DESCRIPTORS_FROM, capability == (9, 0) and knows_gluon()
    return Gpu(shared, descriptors, processors, specialises)


@cache
def knows_gluon() -> bool:
    """Return whether Triton's Gluon, which is experimental, is one that our kernels were compiled with."""
    try:
        major, minor, *_ = metadata.version("triton").split(".")
    except metadata.PackageNotFoundError:
        return False
    return (major, minor) in GLUON


@cache
def triton_installed() -> bool:
    """Return whether Triton, in which our CUDA kernels are written, can be imported (looked up once)."""
    return find_spec("triton") is not None


@cache
def runs_kernels(device: torch.device) -> bool:
    """Return whether our Triton kernels run on this device: an NVIDIA GPU from Ampere on."""
    if device.type != "cuda" or torch.version.hip is not None or not triton_installed():
        return False
    return torch.cuda.get_device_properties(device).major >= OLDEST


def divisor(size: int, wanted: int) -> int:
    """Return the largest power of two that divides ``size`` and does not exceed ``wanted``, itself one."""
    return min(wanted, size & -size)
