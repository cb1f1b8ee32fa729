"""Tiling of grouped products: assignments sorted into tiles, launch parameters, and their limits on a GPU.

A tile is up to ``block_m`` assignments of one expert; tiles are contiguous. Needs no Triton.

Shape letters: A assignments (token × chosen expert), E experts, M tiles.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from orderlens.kernels.gpu import Gpu, gpu_of

BYTES = 2
"""Bytes of a number: the kernels support bfloat16 and float16."""
BARRIERS = 1024
"""Maximum bytes of shared memory that a program needs in addition to its tiles."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """Launch parameters of one grouped product.

    Attributes:
        block_n: columns of the result per tile (for gate and up, of each); reduced to a divisor of the width.
        block_k: numbers summed per step; reduced to a divisor of the depth.
        warps: warps per program.
        stages: steps that are loaded in advance.
        programs: persistent programs per multiprocessor; 0 launches one program per tile.
        specialised: use warp specialisation if possible (down, without a rest); the other parameters apply if
            it is not possible.
        tiled: load tiles through tensor descriptors, else by addresses.
    """

    block_n: int
    block_k: int
    warps: int
    stages: int
    programs: int = 0
    specialised: bool = False
    tiled: bool = True

    def fitting(self, rows: int, panels: int, gpu: Gpu, weight_bytes: int = BYTES) -> Tiling:
        """Return this tiling adapted to a GPU: stages that fit in shared memory, descriptors if it has them.

        Args:
            rows: places of a tile, its rest included.
            panels: weight tiles per step: 2 for gate and up, 1 for down.
            gpu: the GPU.
            weight_bytes: bytes of a weight; a token's number has 2, in float8 two parts of 1.
        """
        per_stage = self.block_k * (weight_bytes * panels * self.block_n + BYTES * rows)
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
        tiles_M3: expert, first place and last place + 1 of every tile; M is the maximum number of tiles.
        used: [1], the actual number of tiles, which only the device knows.
        block_m: assignments per tile.
        per_token: assignments per token.
    """

    order_A: Tensor
    tiles_M3: Tensor
    used: Tensor
    block_m: int
    per_token: int

    def grid(self, panels: int, resident: int) -> int:
        """Return the number of programs of a product.

        Args:
            panels: number of weight panels; every tile is multiplied by each.
            resident: persistent programs per multiprocessor; 0 for one program per possible tile.
        """
        most = len(self.tiles_M3) * panels
        return min(most, resident * gpu_of(self.used.device).processors) if resident else most


def most_tiles(n_assignments: int, n_experts: int, block_m: int) -> int:
    """Return an upper bound of the number of tiles: full ones, and a last one per expert."""
    return n_assignments // block_m + min(n_experts, n_assignments)
