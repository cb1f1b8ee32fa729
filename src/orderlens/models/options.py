"""Where and how weights are loaded; shared by every family. numpy only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from orderlens.errors import UserInputError

_DEVICE = re.compile(r"auto|(cpu|cuda|mps)(:(0|[1-9][0-9]?))?")
DTYPE_NAMES = ("bfloat16", "float16", "float32")
"""What numbers can be computed in."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Where and in which precision to put the weights; None lets the family decide."""

    device: str | None = None
    dtype: str | None = None


def check_device(wanted: str | None) -> None:
    """Refuse what names no device; whether the machine has it is asked by those who use it."""
    if wanted is not None and not _DEVICE.fullmatch(wanted):
        raise UserInputError(f"device '{wanted}' is unknown; use auto, cpu, cuda, cuda:N or mps")


def check_dtype(wanted: str | None, allowed: Sequence[str] = DTYPE_NAMES) -> None:
    """Refuse what names none of the dtypes that a model has."""
    if wanted not in (None, "auto", *allowed):
        raise UserInputError(f"dtype '{wanted}' is unknown; allowed are auto, {', '.join(allowed)}")
