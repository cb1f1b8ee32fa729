"""Options of loading: device, dtype and format of the weights, shared by all families. numpy only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from orderlens.errors import UserInputError

_DEVICE = re.compile(r"auto|(cpu|cuda|mps)(:(0|[1-9][0-9]?))?")
DTYPE_NAMES = ("bfloat16", "float16", "float32")
"""Names of the dtypes that models can compute in."""
WEIGHT_FORMATS = ("fp8",)
"""Formats to which weights can be converted while they are loaded."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Device, dtype and format of the weights; None lets the family decide, or keeps weights as stored."""

    device: str | None = None
    dtype: str | None = None
    weights: str | None = None


def check_device(wanted: str | None) -> None:
    """Refuse an unknown device name; ``pick_device`` checks whether the machine has the device."""
    if wanted is not None and not _DEVICE.fullmatch(wanted):
        raise UserInputError(f"device '{wanted}' is unknown; use auto, cpu, cuda, cuda:N or mps")


def check_dtype(wanted: str | None, allowed: Sequence[str] = DTYPE_NAMES) -> None:
    """Refuse a dtype name that is not among ``allowed``."""
    if wanted not in (None, "auto", *allowed):
        raise UserInputError(f"dtype '{wanted}' is unknown; allowed are auto, {', '.join(allowed)}")


def check_weights(wanted: str | None) -> None:
    """Refuse an unknown format of weights."""
    if wanted not in (None, *WEIGHT_FORMATS):
        raise UserInputError(
            f"weights '{wanted}' is unknown; allowed is {', '.join(WEIGHT_FORMATS)}; leave it out to keep "
            "weights as stored"
        )
