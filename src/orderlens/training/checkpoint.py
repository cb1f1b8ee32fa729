"""One file that holds everything a run needs to continue as if it had never stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from orderlens.common.files import replacing
from orderlens.errors import ModelLoadError

FORMAT = 1


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write ``state`` so that ``path`` is always a whole checkpoint, the old one or the new one."""
    with replacing(path) as fresh, fresh.open("wb") as stream:
        torch.save({"format": FORMAT, **state}, stream)


def load_checkpoint(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read a checkpoint; only plain data and tensors are accepted, never code."""
    try:
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError as error:
        raise ModelLoadError(f"{path}: no checkpoint here; start training without --resume") from error
    except Exception as error:
        raise ModelLoadError(f"{path}: not a training checkpoint ({type(error).__name__})") from error
    if state.get("format") != FORMAT:
        raise ModelLoadError(f"{path}: checkpoint format {state.get('format')}, expected {FORMAT}")
    return state
