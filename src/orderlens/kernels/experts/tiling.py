"""How grouped products are cut: assignments sorted into tiles, launch parameters, and what fits a GPU.

A tile is up to ``block_m`` assignments of one expert; tiles follow each other without gaps. Needs no Triton.

Shape letters: A assignments (token × chosen expert), E experts, M tiles.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from orderlens.kernels.gpu import Gpu, gpu_of

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


@dataclass(frozen=True, slots=True)
class TilePlan:
    """Sorted assignments in tiles.

    Attributes:
        order_A: flat assignment index at every sorted place.
        tiles_M3: expert, first place and last place + 1 of every tile; as many rows as there can be tiles.
        used: [1], how many tiles there are: the host does not know.
        block_m: assignments per tile.
        per_token: assignments per token.
    """

    order_A: Tensor
    tiles_M3: Tensor
    used: Tensor
    block_m: int
    per_token: int

    def grid(self, panels: int, resident: int) -> int:
        """Return how many programs take all tiles of a product.

        Args:
            panels: of weights, which every tile meets.
            resident: programs per multiprocessor that stay and take one after the other; 0 for one program
                per possible tile.
        """
        most = len(self.tiles_M3) * panels
        return min(most, resident * gpu_of(self.used.device).processors) if resident else most


def most_tiles(n_assignments: int, n_experts: int, block_m: int) -> int:
    """Return a number of tiles that is never exceeded: full ones, and a last one per expert."""
    return n_assignments // block_m + min(n_experts, n_assignments)
