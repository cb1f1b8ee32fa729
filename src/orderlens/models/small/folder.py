"""Model folders of our own transformer: ``config.json``, ``model.safetensors``, ``tokenizer.json``.

``orderlens train`` writes such folders, and the bundled models are two of them. ``read_folder`` gives the
network, for training and evaluators; ``load_folder`` makes a decodable model of it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from orderlens.common.files import replacing, write_text
from orderlens.errors import ModelLoadError, UnknownNameError
from orderlens.models.engine.device import dtype_name, pick_device, pick_dtype
from orderlens.models.files.configfile import CONFIG, read_json
from orderlens.models.files.tokenizer import TOKENIZER, FastTokenizer
from orderlens.models.options import LoadOptions
from orderlens.models.small.config import MODEL_TYPE, TransformerConfig, parse_config
from orderlens.models.small.model import TransformerModel
from orderlens.models.small.network import Transformer, unfilled
from orderlens.models.small.weights import check_header, file_digest, load_weights, save_weights

WEIGHTS = "model.safetensors"
BUNDLED = ("tiny", "tiny-ar")
DTYPES = ("float32", "bfloat16")
UNUSED_TOKENS = ("<|pad|>", "<|reserved|>")
"""Tokens of our tokenizers that occur in no training window (ids 2 and 3): never content if revealed."""


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


def load_folder(folder: Path, name: str, options: LoadOptions) -> TransformerModel:
    """Load a folder as a model that can be decoded; small, so float32 is the default everywhere."""
    loaded, dtype = read_folder(folder), pick_dtype(options.dtype, torch.float32, DTYPES)
    network = loaded.network.to(device=pick_device(options.device), dtype=dtype)
    digest = loaded.digest if dtype == torch.float32 else f"{loaded.digest}-{dtype_name(dtype)}"
    ids = (loaded.tokenizer.id_of(token) for token in UNUSED_TOKENS)
    special_ids = frozenset(item for item in ids if item is not None)
    return TransformerModel(network, loaded.tokenizer, name=name, digest=digest, special_ids=special_ids)


def read_folder(folder: Path) -> LoadedModel:
    """Read a folder; everything is checked against its headers before a weight is read."""
    config = read_config(folder)
    tokenizer = FastTokenizer.from_file(folder / TOKENIZER)
    if tokenizer.vocab_size > config.vocab_size:
        raise ModelLoadError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} ids, the model {config.vocab_size}"
        )
    network = unfilled(config)
    check_header(folder / WEIGHTS, {name: tuple(part.shape) for name, part in network.state_dict().items()})
    network.load_state_dict(load_weights(folder / WEIGHTS), assign=True)
    network.requires_grad_(False).eval()
    digest = file_digest(*(folder / name for name in (CONFIG, WEIGHTS, TOKENIZER)))
    return LoadedModel(network, config, tokenizer, digest)


def read_config(folder: Path) -> TransformerConfig:
    """Read the shape of the model in ``folder``."""
    path = folder / CONFIG
    return parse_config(read_json(path), str(path))


def save_folder(
    folder: Path,
    network: Transformer,
    tokenizer: FastTokenizer,
    *,
    int8: bool = True,
    notes: dict[str, Any] | None = None,
) -> None:
    """Write a model folder; ``notes`` (plain data) are kept in ``config.json`` for the reader."""
    record = {"model_type": MODEL_TYPE, **asdict(network.config), "notes": notes or {}}
    with replacing(folder / WEIGHTS) as fresh:
        save_weights(fresh, network.state_dict(), int8=int8)
    with replacing(folder / TOKENIZER) as fresh:
        tokenizer.save(fresh)
    write_text(folder / CONFIG, json.dumps(record, indent=2) + "\n")  # last: it makes the folder a model
