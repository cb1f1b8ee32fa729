"""Where and how weights are loaded; shared by every family. numpy only."""

from __future__ import annotations

import re
from dataclasses import dataclass

from orderlens.errors import UserInputError

_DEVICE = re.compile(r"auto|(cpu|cuda|mps)(:(0|[1-9][0-9]?))?")


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Where and in which precision to put the weights; None lets the family decide."""

    device: str | None = None
    dtype: str | None = None


def check_device(wanted: str | None) -> None:
    """Refuse what names no device; whether the machine has it is asked by those who use it."""
    if wanted is not None and not _DEVICE.fullmatch(wanted):
        raise unknown_device(wanted)


def unknown_device(wanted: str) -> UserInputError:
    """Return the error for a name that no device has."""
    return UserInputError(f"device '{wanted}' is unknown; use auto, cpu, cuda, cuda:N or mps")
