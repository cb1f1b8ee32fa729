"""Our own checkpoint folders (bundled or trained by the user) as decodable models."""

from __future__ import annotations

from pathlib import Path

import torch

from orderlens.models.block_transformer import TransformerModel
from orderlens.models.bundled import LoadedModel, bundled_folder
from orderlens.models.bundled import load_folder as read_folder
from orderlens.models.loading import LoadOptions
from orderlens.models.torch.device import dtype_name, pick_device, pick_dtype

DTYPES = ("float32", "bfloat16")
UNUSED_TOKENS = ("<|pad|>", "<|reserved|>")
"""Tokens of our tokenizers that occur in no training window (ids 2 and 3): never content if revealed."""


def load_folder(folder: Path, name: str, options: LoadOptions) -> TransformerModel:
    """Load a checkpoint folder in our layout."""
    return _as_model(read_folder(folder), name, options)


def load_bundled(name: str, options: LoadOptions) -> TransformerModel:
    """Load a model that ships with the package."""
    return _as_model(read_folder(bundled_folder(name)), name, options)


def _as_model(loaded: LoadedModel, name: str, options: LoadOptions) -> TransformerModel:
    dtype = pick_dtype(options.dtype, torch.float32, DTYPES)  # small: float32 costs little anywhere
    network = loaded.network.to(device=pick_device(options.device), dtype=dtype)
    digest = loaded.digest if dtype == torch.float32 else f"{loaded.digest}-{dtype_name(dtype)}"
    ids = (loaded.tokenizer.token_id(token) for token in UNUSED_TOKENS)
    special_ids = frozenset(item for item in ids if item is not None)
    return TransformerModel(network, loaded.tokenizer, name=name, digest=digest, special_ids=special_ids)
