"""Weights as int8 with one scale per row, in safetensors.

A matrix ``name`` is stored as ``name`` (int8) and ``name.scale`` (float32, one per row); vectors stay
float32.
Loading gives float32 again. Knows nothing of architectures.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from orderlens.errors import ModelLoadError, one_line

SCALE = ".scale"
LEVELS = 127
STORED = ("F32", "F16", "BF16")


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


def check_header(path: Path, wanted: Mapping[str, tuple[int, ...]]) -> None:
    """Compare names, shapes and types in a file's header with the tensors a network wants.

    Raises:
        ModelLoadError: the file is missing or broken, or the first tensor that does not fit is named.
    """
    found = _header(path)
    scales = {name + SCALE: (shape[0],) for name, shape in wanted.items() if len(shape) == 2}
    expected = {**wanted, **{name: shape for name, shape in scales.items() if name in found}}
    shapes = {name: shape for name, (shape, _) in found.items()}
    wrong = sorted(name for name in expected.keys() | shapes.keys() if expected.get(name) != shapes.get(name))
    if wrong:
        name = wrong[0]
        raise ModelLoadError(
            f"{path}: {len(wrong)} tensors do not fit config.json, "
            f"first '{name}': file {shapes.get(name)}, config {expected.get(name)}"
        )
    for name, (_, kind) in found.items():
        if kind not in STORED and not (kind == "I8" and name + SCALE in found):
            raise ModelLoadError(
                f"{path}: tensor '{name}' is stored as {kind}; supported are {', '.join(STORED)} and I8 "
                "with scales"
            )


def load_weights(path: Path) -> dict[str, Tensor]:
    """Read a state dict written by ``save_weights`` as float32."""
    from safetensors.torch import load_file

    with _reading(path):
        return dequantised_state(load_file(str(path)))


def _header(path: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return shape and stored type of every tensor in a file."""
    from safetensors import safe_open

    with _reading(path), safe_open(str(path), framework="pt") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  no mapping
        return {name: (tuple(part.get_shape()), str(part.get_dtype())) for name, part in slices.items()}


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    from safetensors import SafetensorError

    if not path.is_file():
        raise ModelLoadError(f"{path}: no model.safetensors in the model folder")
    try:
        yield
    except (SafetensorError, OSError) as error:
        raise ModelLoadError(f"{path}: not a safetensors file ({one_line(error)})") from error


def file_digest(*paths: Path) -> str:
    """Return a hex digest of the files' contents."""
    digest = hashlib.blake2b(digest_size=16)
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()
