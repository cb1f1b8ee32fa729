"""Model folders of the small transformer: ``config.json``, ``model.safetensors``, ``tokenizer.json``.

``orderlens train`` writes such folders, and two are bundled. ``families.small`` makes a model of them. A
matrix ``name`` may be stored as ``name`` (int8) and ``name.scale`` (float32, one per row); loading converts
it to float32.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from orderlens.common.files import replacing, write_text
from orderlens.errors import ModelLoadError, UnknownNameError, one_line
from orderlens.models.files.configfile import CONFIG, parse_known, read_json
from orderlens.models.files.tokenizer import TOKENIZER, FastTokenizer
from orderlens.models.small.network import (
    MODEL_TYPE,
    Transformer,
    TransformerConfig,
    meta_network,
    parse_config,
)

WEIGHTS = "model.safetensors"
BUNDLED = ("tiny", "tiny-ar")
DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A network in float32 and evaluation mode, its shape, its tokenizer and a digest of its files."""

    network: Transformer
    config: TransformerConfig
    tokenizer: FastTokenizer
    digest: str


def bundled_folder(name: str) -> Path:
    """Return the folder of a bundled model inside the installed package."""
    if name not in BUNDLED:
        raise UnknownNameError(f"unknown bundled model '{name}' (known: {', '.join(BUNDLED)})")
    return Path(str(files("orderlens"))) / "models" / "data" / name


def read_folder(folder: Path) -> LoadedModel:
    """Read a folder; all headers are checked before any weight is read."""
    config = read_config(folder)
    tokenizer = FastTokenizer.from_file(folder / TOKENIZER)
    if tokenizer.vocab_size > config.vocab_size:
        raise ModelLoadError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} ids, but the model has {config.vocab_size}; "
            "tokenizer.json belongs to another model"
        )
    network = meta_network(config)
    check_header(folder / WEIGHTS, {name: tuple(part.shape) for name, part in network.state_dict().items()})
    network.load_state_dict(load_weights(folder / WEIGHTS), assign=True)
    network.requires_grad_(False).eval()
    digest = file_digest(*(folder / name for name in (CONFIG, WEIGHTS, TOKENIZER)))
    return LoadedModel(network, config, tokenizer, digest)


def read_config(folder: Path) -> TransformerConfig:
    """Read the shape of the model in ``folder``."""
    path = folder / CONFIG
    return parse_known(lambda values: parse_config(values, str(path)), read_json(path))


def save_folder(
    folder: Path,
    network: Transformer,
    tokenizer: FastTokenizer,
    *,
    int8: bool = True,
    notes: dict[str, Any] | None = None,
) -> None:
    """Write a model folder; ``notes`` (plain data) are stored in ``config.json``."""
    record = {"model_type": MODEL_TYPE, **asdict(network.config), "notes": notes or {}}
    with replacing(folder / WEIGHTS) as fresh:
        save_weights(fresh, network.state_dict(), int8=int8)
    with replacing(folder / TOKENIZER) as fresh:
        tokenizer.save(fresh)
    write_text(folder / CONFIG, json.dumps(record, indent=2) + "\n")  # last: it makes the folder a model


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
    """Return the stored form of a state dict: matrices as int8 with scales, the rest as float32."""
    stored: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if tensor.ndim == 2:
            stored[name], stored[name + SCALE] = (part.contiguous().cpu() for part in quantise(tensor))
        else:
            stored[name] = tensor.float().contiguous().cpu()
    return stored


def dequantised_state(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Undo ``quantised_state``; tensors without scales are converted to float32."""
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
    """Compare names, shapes and types in a file's header with the tensors of a network.

    Raises:
        ModelLoadError: the file is missing or broken, or a tensor does not match (the first one is named).
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
