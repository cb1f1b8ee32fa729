"""A recorded path taken again, so that only the arithmetic differs between two scorings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderlens.orders.fixed import ForcedAR
from orderlens.policies.policy import IntArray, Policy
from orderlens.samples import EncodedSample


@dataclass(frozen=True, slots=True)
class Replay(Policy):
    """A static policy over the recorded paths and passes of (sample id, block)."""

    recorded: Mapping[tuple[str, int], tuple[IntArray, IntArray]] = field(default_factory=dict)

    @classmethod
    def recorded_in(
        cls, columns: Mapping[str, NDArray[Any]], samples: Sequence[EncodedSample], order: int
    ) -> Replay:
        """Return the paths of one policy of a scored batch, from its trace columns."""
        found: dict[tuple[str, int], tuple[IntArray, IntArray]] = {}
        for s, sample in enumerate(samples):
            mine = (columns["sample"] == s) & (columns["order"] == order)
            for block in np.unique(columns["block"][mine]):
                here = mine & (columns["block"] == block)
                position, forward = columns["position"][here], columns["forward"][here]
                found[sample.id, int(block)] = np.argsort(np.argsort(position)), forward - forward.min()
        return cls(ForcedAR(), recorded=found)

    @property
    def is_static(self) -> bool:
        """Recorded paths need no model."""
        return True

    def planned(self, n_positions: int, sample_id: str, block: int) -> tuple[IntArray, IntArray]:
        """Return the recorded path of this block and the pass of each of its steps."""
        return self.recorded[sample_id, block]
