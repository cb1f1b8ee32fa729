"""How a grouped product is cut and launched, and what of it fits a GPU. Needs no Triton."""

from __future__ import annotations

from dataclasses import dataclass, replace

from orderlens.kernels.gpu import Gpu

BYTES = 2
"""Of a number: the kernels serve bfloat16 and float16."""
BARRIERS = 1024
"""Shared memory that a program needs beside its tiles, at most."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """Launch parameters of one grouped product.

    Attributes:
        block_n: columns of the result per tile (for gate and up, of each); fewer where they do not divide it.
        block_k: numbers summed per step; likewise.
        warps: per program.
        stages: steps that are loaded ahead.
        programs: per multiprocessor, when they stay and take one tile after the other; 0 launches one program
            per tile.
        specialised: where it can be (down, without a rest), warps load, multiply and write side by side; the
            rest of these parameters is for where it cannot.
        tiled: whether tiles come through tensor descriptors, else by addresses.
    """

    block_n: int
    block_k: int
    warps: int
    stages: int
    programs: int = 0
    specialised: bool = False
    tiled: bool = True

    def fitting(self, rows: int, panels: int, gpu: Gpu) -> Tiling:
        """Return it with no more steps ahead than the GPU's shared memory holds, and by addresses if it must.

        Args:
            rows: places of a tile, its rest included.
            panels: weight tiles per step: 2 for gate and up, 1 for down.
            gpu: where it shall run.
        """
        per_stage = BYTES * self.block_k * (panels * self.block_n + rows)
        stages = max(1, min(self.stages, (gpu.shared_bytes - BARRIERS) // per_stage))
        specialised = self.specialised and gpu.specialises
        if gpu.descriptors:
            return replace(self, stages=stages, specialised=specialised)
        return replace(self, stages=stages, programs=0, specialised=False, tiled=False)
