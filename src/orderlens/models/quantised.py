"""Weights as int8 with one scale per row, in safetensors.

A matrix ``name`` is stored as ``name`` (int8) and ``name.scale`` (float32, one per row); vectors stay
float32.
Loading gives float32 again. Knows nothing of architectures.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from orderlens.errors import ModelLoadError

SCALE = ".scale"
LEVELS = 127


def quantise(weight_RC: Tensor) -> tuple[Tensor, Tensor]:
    """Return int8 values [R, C] and float32 scales [R]; the largest entry of a row becomes ±127."""
    weight = weight_RC.float()
    scale_R = weight.abs().amax(dim=1) / LEVELS
    safe = torch.where(scale_R > 0, scale_R, torch.ones_like(scale_R))
    return (weight / safe[:, None]).round().clamp(-LEVELS, LEVELS).to(torch.int8), scale_R


def dequantise(values_RC: Tensor, scale_R: Tensor) -> Tensor:
    """Return float32 weights."""
    return values_RC.float() * scale_R[:, None]


def quantised_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the stored form of a state: matrices as int8 with scales, the rest float32."""
    stored: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if tensor.ndim == 2:
            stored[name], stored[name + SCALE] = (part.contiguous().cpu() for part in quantise(tensor))
        else:
            stored[name] = tensor.float().contiguous().cpu()
    return stored


def dequantised_state(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Undo ``quantised_state``; states that hold no scales come back as float32."""
    state = {}
    for name, tensor in stored.items():
        if name.endswith(SCALE):
            continue
        scale = stored.get(name + SCALE)
        state[name] = tensor.float() if scale is None else dequantise(tensor, scale)
    return state


def save_weights(path: Path, state: Mapping[str, Tensor], *, int8: bool = True) -> None:
    """Write a state dict, quantised unless ``int8`` is False (then float32)."""
    from safetensors.torch import save_file

    plain = {name: tensor.detach().float().contiguous().cpu() for name, tensor in state.items()}
    save_file(quantised_state(plain) if int8 else plain, str(path), metadata={"format": "pt"})
    path.chmod(0o644)  # safetensors writes files that only their owner can read


def load_weights(path: Path) -> dict[str, Tensor]:
    """Read a state dict written by ``save_weights`` as float32."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise ModelLoadError(f"{path}: no model.safetensors in the model folder")
    try:
        return dequantised_state(load_file(str(path)))
    except SafetensorError as error:
        raise ModelLoadError(f"{path}: not a safetensors file ({error})") from error


def file_digest(*paths: Path) -> str:
    """Return a hex digest of the files' contents."""
    digest = hashlib.blake2b(digest_size=16)
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()
