"""The adapter: low-rank updates of every matrix, new norms and an embedding of the mask; loads and merges it.

A matrix W [R, C] of the base becomes W + scale · up @ down with ``up`` [R, rank] and ``down`` [rank, C].
Matrices that our network stores fused (queries, keys, values; gate, up) have separate updates. On disk an
adapter is a folder: ``adapter.json`` and safetensors shards (matrices in bfloat16). Does not depend on
training.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import Tensor

from orderlens.errors import ModelLoadError
from orderlens.models.small.folder import file_digest
from orderlens.models.small.network import Transformer, TransformerConfig

SETTINGS, SHARDS = "adapter.json", "adapter-*.safetensors"
UP, DOWN, MASK = ".up", ".down", "mask"


@dataclass(frozen=True, slots=True)
class AdapterSettings:
    """Settings of an adapter: rank, scale, block size of its training, mask id."""

    rank: int = 64
    scale: float = 1.0
    block_size: int = 32
    mask_id: int = 16


@dataclass(frozen=True, slots=True)
class Adapter:
    """A loaded adapter: settings, float32 tensors by name, and a digest of its files."""

    settings: AdapterSettings
    state: Mapping[str, Tensor]
    digest: str


@dataclass(frozen=True, slots=True)
class AdaptedMatrix:
    """A matrix of the base that gets an update: rows ``first`` to ``last`` of the parameter ``weight``."""

    name: str
    weight: str
    first: int
    last: int


def adapted_matrices(config: TransformerConfig) -> Iterator[AdaptedMatrix]:
    """Yield every matrix that gets an update."""
    q, kv = config.n_heads * config.head_width, config.kv_heads * config.head_width
    cuts = {
        "attention.qkv": (("attention.q", q), ("attention.k", kv), ("attention.v", kv)),
        "attention.out": (("attention.out", config.width),),
        "ffn.gate_up": (("ffn.gate", config.ffn_width), ("ffn.up", config.ffn_width)),
        "ffn.down": (("ffn.down", config.width),),
    }
    for index in range(config.n_layers):
        for module, parts in cuts.items():
            first = 0
            for name, rows in parts:
                yield AdaptedMatrix(
                    f"layers.{index}.{name}", f"layers.{index}.{module}.weight", first, first + rows
                )
                first += rows


def norm_names(network: Transformer) -> list[str]:
    """Return the names of all norm weights."""
    return [name for name, tensor in network.state_dict().items() if tensor.ndim == 1]


@torch.no_grad()
def merge(network: Transformer, state: Mapping[str, Tensor], settings: AdapterSettings) -> None:
    """Add the adapter to the network's weights, in place."""
    weights = network.state_dict()
    for piece in adapted_matrices(network.config):
        update = state[piece.name + UP].float() @ state[piece.name + DOWN].float()
        weights[piece.weight][piece.first : piece.last] += settings.scale * update
    for name in norm_names(network):
        weights[name].copy_(state[name])
    weights["embedding.weight"][settings.mask_id] = state[MASK]


def wanted_shapes(config: TransformerConfig, rank: int, norms: list[str]) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor, by name, of an adapter for a network of this shape."""
    shapes: dict[str, tuple[int, ...]] = {MASK: (config.width,)}
    for piece in adapted_matrices(config):
        columns = config.ffn_width if piece.name.endswith("ffn.down") else config.width
        shapes[piece.name + UP] = (piece.last - piece.first, rank)
        shapes[piece.name + DOWN] = (rank, columns)
    return shapes | dict.fromkeys(norms, (config.width,))


def load_adapter(folder: Path) -> Adapter:
    """Read an adapter folder."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    record_file = folder / SETTINGS
    if not record_file.is_file():
        raise ModelLoadError(f"{folder}: not an adapter folder, {SETTINGS} is missing")
    try:
        record = json.loads(record_file.read_text(encoding="utf-8"))
        known = {field.name for field in fields(AdapterSettings)}
        settings = AdapterSettings(**{key: value for key, value in record.items() if key in known})
        paths = [folder / SHARDS.replace("*", str(index)) for index in range(record["shards"])]
    except (AttributeError, ValueError, KeyError, TypeError) as error:
        raise ModelLoadError(f"{record_file}: not valid adapter settings ({type(error).__name__})") from None
    state: dict[str, Tensor] = {}
    for path in paths:
        if not path.is_file():
            raise ModelLoadError(f"{path}: this shard of the adapter is missing; copy the whole folder")
        try:
            state |= load_file(str(path))
        except SafetensorError as error:
            raise ModelLoadError(f"{path}: not a safetensors file ({error})") from None
    floats = {name: tensor.float() for name, tensor in state.items()}
    return Adapter(settings, floats, file_digest(record_file, *paths))


def check_adapter(adapter: Adapter, network: Transformer, where: Path) -> None:
    """Refuse an adapter that belongs to a network of another shape."""
    wanted = wanted_shapes(network.config, adapter.settings.rank, norm_names(network))
    found = {name: tuple(tensor.shape) for name, tensor in adapter.state.items()}
    wrong = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    if wrong:
        name = wrong[0]
        raise ModelLoadError(
            f"{where}: {len(wrong)} tensors do not fit the base, "
            f"first '{name}': adapter {found.get(name)}, base {wanted.get(name)}"
        )
