"""``Engine``: who computes the units of a run, as plain data. Starts nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from orderlens.common.arguments import whole_number
from orderlens.errors import UserInputError

KINDS = ("local", "ray")
STALL_S = 1800.0
"""Seconds without progress after which a worker counts as hanging."""


@dataclass(frozen=True, slots=True)
class Engine:
    """Who computes the units.

    Attributes:
        kind: ``local`` (this process, or processes of this machine) or ``ray`` (actors on a Ray cluster).
        workers: processes or actors; None is one per GPU where the model is on one, else one.
        address: of the Ray cluster; None starts Ray on this machine.
        attempts: how often a unit is tried by workers before it is set aside.
        stall_s: seconds without progress after which a worker is killed and its unit given to another.
        threads: CPU threads per worker; None shares the machine's cores among them.
    """

    kind: str = "local"
    workers: int | None = None
    address: str | None = None
    attempts: int = 2
    stall_s: float = STALL_S
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UserInputError(f"engine '{self.kind}' is unknown; allowed are {' and '.join(KINDS)}")
        for name in ("workers", "threads", "attempts"):
            if (value := getattr(self, name)) is not None:
                whole_number(name, value, least=1)
        if self.address is not None and self.kind != "ray":
            raise UserInputError(f"address '{self.address}' is that of a Ray cluster; add engine ray")
        if self.address is not None and not re.fullmatch(r"auto|local|[^/]+:\d+", self.address):
            raise UserInputError(
                f"address '{self.address}' must be auto or HOST:PORT of the cluster's head (10.0.0.1:6379)"
            )
        if not self.stall_s > 0:
            raise UserInputError(f"stall_s={self.stall_s} must be a number of seconds above 0")


EngineLike: TypeAlias = Engine | str | None


def as_engine(engine: EngineLike = None, workers: int | None = None) -> Engine:
    """Return what was asked for as an ``Engine``; ``workers`` goes with a name only."""
    if isinstance(engine, Engine):
        if workers is not None:
            raise UserInputError("give workers inside the Engine or beside its name, not both")
        return engine
    return Engine(engine or "local", workers)
