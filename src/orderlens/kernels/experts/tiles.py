"""Assignments sorted by expert, and the tiles they are processed in: what sorting leaves to the products.

A tile is up to ``block_m`` assignments of one expert; tiles stand without gaps. Needs no Triton.

Shape letters: A assignments (token × chosen expert), E experts, M tiles.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from orderlens.kernels.gpu import gpu_of


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
