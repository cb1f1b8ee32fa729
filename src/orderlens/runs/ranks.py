"""Which of several processes this one is, where torchrun or Slurm started them. Reads the environment only.

Ranks need no coordinator: each claims units through the store.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

_LAUNCHERS = (("RANK", "WORLD_SIZE", "LOCAL_RANK"), ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"))
"""How torchrun (and whatever imitates it) and srun number their processes."""


@dataclass(frozen=True, slots=True)
class Rank:
    """One of several processes that were started together.

    Attributes:
        index: 0-based among all.
        count: how many there are.
        local: 0-based among those of this machine.
    """

    index: int
    count: int
    local: int

    @property
    def leads(self) -> bool:
        """Whether this one speaks for all: it shows progress, closes runs and writes pages."""
        return self.index == 0


def this_rank(environment: Mapping[str, str] | None = None) -> Rank | None:
    """Return this process's rank; None where it was started alone."""
    found = os.environ if environment is None else environment
    for names in _LAUNCHERS:
        values = [found.get(name, "") for name in names]
        index, count, local = (int(value) if value.isdecimal() else -1 for value in values)
        if 0 <= index < count and count > 1:
            return Rank(index, count, max(local, 0))
    return None
