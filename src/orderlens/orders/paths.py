"""The path of a static order, checked: a rule that repeats or skips a place is refused, never decoded.

Knows nothing of models or canvases.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from orderlens.errors import UserInputError
from orderlens.orders.protocol import StaticOrder


def check_path(order: StaticOrder, n_positions: int, sample_id: str, block: int) -> NDArray[np.int64]:
    """Return the order's path for one block, [n_positions], once it is known to be a permutation.

    Raises:
        UserInputError: the path has another length, or repeats or misses a place.
    """
    found = np.asarray(order.path(n_positions, sample_id, block))
    if found.dtype.kind in "iu" and np.array_equal(np.sort(found, axis=None), np.arange(n_positions)):
        return found.astype(np.int64, copy=False).reshape(n_positions)
    shown = np.array2string(found.ravel()[:6], separator=", ")
    raise UserInputError(
        f"order '{order.spec}': its path over {n_positions} places (sample '{sample_id}', block {block}) is "
        f"no permutation of 0…{n_positions - 1} (it begins {shown}); path() must name every place once"
    )
