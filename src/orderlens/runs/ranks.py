"""The rank of this process among processes that torchrun or Slurm started, from the environment.

Ranks need no coordinator: each claims units through the store.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

_LAUNCHERS = (("RANK", "WORLD_SIZE", "LOCAL_RANK"), ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"))
"""Environment variables of torchrun (and compatible launchers) and of srun."""


@dataclass(frozen=True, slots=True)
class Rank:
    """One of several processes that were started together.

    Attributes:
        index: 0-based number among all processes.
        count: number of processes.
        local: 0-based number among the processes of this machine.
    """

    index: int
    count: int
    local: int

    @property
    def leads(self) -> bool:
        """Whether this is the leading rank, which shows progress, closes runs and writes pages."""
        return self.index == 0


def this_rank(environment: Mapping[str, str] | None = None) -> Rank | None:
    """Return this process's rank; None if it was started alone."""
    found = os.environ if environment is None else environment
    for names in _LAUNCHERS:
        values = [found.get(name, "") for name in names]
        index, count, local = (int(value) if value.isdecimal() else -1 for value in values)
        if 0 <= index < count and count > 1:
            return Rank(index, count, max(local, 0))
    return None
