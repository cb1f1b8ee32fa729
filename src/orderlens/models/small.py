"""Our own checkpoint folders (bundled or trained by the user) as decodable models."""

from __future__ import annotations

from pathlib import Path

import torch

from orderlens.errors import UserInputError
from orderlens.models.block_transformer import TransformerModel
from orderlens.models.bundled import LoadedModel, bundled_folder
from orderlens.models.bundled import load_folder as read_folder
from orderlens.models.loading import LoadOptions

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
UNUSED_TOKENS = ("<|pad|>", "<|reserved|>")
"""Tokens of our tokenizers that occur in no training window (ids 2 and 3): never content if revealed."""


def load_folder(folder: Path, name: str, options: LoadOptions) -> TransformerModel:
    """Load a checkpoint folder in our layout."""
    return _as_model(read_folder(folder), name, options)


def load_bundled(name: str, options: LoadOptions) -> TransformerModel:
    """Load a model that ships with the package."""
    return _as_model(read_folder(bundled_folder(name)), name, options)


def pick_device(wanted: str | None) -> torch.device:
    """Return the wanted device, or the best one there is; a missing one is refused by name."""
    if wanted is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise UserInputError(f"device '{wanted}' is unknown; use cpu, cuda, cuda:N or mps") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserInputError(f"device '{wanted}': no CUDA GPU is visible to torch; use --device cpu")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UserInputError(f"device '{wanted}': Apple MPS is not available; use --device cpu")
    return device


def pick_dtype(wanted: str | None, default: torch.dtype = torch.float32) -> torch.dtype:
    """Return the wanted dtype; these models are small, so float32 is the default everywhere."""
    if wanted is None:
        return default
    if wanted not in DTYPES:
        raise UserInputError(f"dtype '{wanted}' is unknown; allowed are {', '.join(DTYPES)}")
    return DTYPES[wanted]


def _as_model(loaded: LoadedModel, name: str, options: LoadOptions) -> TransformerModel:
    dtype = pick_dtype(options.dtype)
    network = loaded.network.to(device=pick_device(options.device), dtype=dtype)
    digest = (
        loaded.digest if dtype == torch.float32 else f"{loaded.digest}-{str(dtype).removeprefix('torch.')}"
    )
    ids = (loaded.tokenizer.token_id(token) for token in UNUSED_TOKENS)
    special_ids = frozenset(item for item in ids if item is not None)
    return TransformerModel(network, loaded.tokenizer, name=name, digest=digest, special_ids=special_ids)
