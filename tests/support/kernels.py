"""Where Triton kernels are tested: on a CUDA GPU, elsewhere on the CPU in Triton's interpreter.

Needs torch when called, not Triton.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch


class KernelPlace(NamedTuple):
    """What a kernel test runs on.

    Attributes:
        interpreted: whether kernels run in the interpreter, which is slow and exact to float32.
        device: for the tensors.
        dtype: for the tensors: float32 in the interpreter, bfloat16 on a GPU.
    """

    interpreted: bool
    device: torch.device
    dtype: torch.dtype


def kernel_place() -> KernelPlace:
    """Return the place, and turn the interpreter on where there is no GPU (or ``TRITON_INTERPRET=1`` asks).

    Triton reads the setting when a kernel is defined, its own included: call this before one is imported.
    """
    import torch

    if os.environ.get("TRITON_INTERPRET") != "1" and torch.cuda.is_available():
        return KernelPlace(False, torch.device("cuda"), torch.bfloat16)
    os.environ["TRITON_INTERPRET"] = "1"
    return KernelPlace(True, torch.device("cpu"), torch.float32)
