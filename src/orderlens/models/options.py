"""Where and how weights are loaded; shared by every family. numpy only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Where and in which precision to put the weights; None lets the family decide."""

    device: str | None = None
    dtype: str | None = None
