"""What can be said about a LLaDA-2.x model before it is loaded: its shape, whether its files are complete.

Reads config.json and the headers of the weight files, never the weights; of a hub model only config.json is
fetched. Knows nothing of how the answer is shown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from orderlens.errors import ModelLoadError, one_line
from orderlens.models.configfile import read_json
from orderlens.models.hub import HubSpec, resolve_snapshot
from orderlens.models.llada2.checkpoint import EMBEDDING, check_tensors
from orderlens.models.llada2.config import FLASH, MINI, MODEL_TYPE, LLaDA2Config, parse_config
from orderlens.models.torch.checkpoint import Checkpoint
from orderlens.models.torch.device import DTYPES

_PUBLISHED = {"mini": MINI, "flash": FLASH}


@dataclass(frozen=True, slots=True)
class Outlook:
    """A model as its files describe it.

    Attributes:
        config: its shape.
        dtype: dtype of its weights.
        source: where shape and dtype come from, in words.
        problem: why it cannot be loaded as it is, None when nothing is known to be wrong.
    """

    config: LLaDA2Config
    dtype: torch.dtype
    source: str
    problem: str | None = None


def look_at(spec: str) -> Outlook | None:
    """Return what is known of the model ``spec`` names, or None when it is of another family.

    Args:
        spec: ``hf:ORG/NAME[@REV]`` or a checkpoint folder.

    Raises:
        ModelLoadError: there is no config.json, or it cannot be read or is refused.
    """
    if not spec.startswith("hf:"):
        return _look_into(Path(spec), complete=True)
    try:
        folder = resolve_snapshot(spec, patterns=("config.json",))
    except ModelLoadError as error:
        return _from_name(HubSpec.parse(spec).repo, error)
    return _look_into(folder, complete=False)


def _look_into(folder: Path, *, complete: bool) -> Outlook | None:
    values = read_json(folder / "config.json")
    if values.get("model_type") != MODEL_TYPE:
        return None
    config = parse_config(values)
    if not complete:
        return Outlook(config, _stated_dtype(values), "config.json")
    try:
        checkpoint = Checkpoint(folder)
        check_tensors(checkpoint, config)
    except ModelLoadError as error:
        return Outlook(config, _stated_dtype(values), "config.json", one_line(error))
    return Outlook(config, checkpoint.dtype_of(EMBEDDING), f"{len(checkpoint.shards)} complete weight files")


def _from_name(repo: str, error: ModelLoadError) -> Outlook:
    """Fall back on the published shapes where the hub cannot be asked."""
    found = re.search(r"llada2.*(mini|flash)", repo, re.IGNORECASE)
    if found is None:
        raise error
    return Outlook(_PUBLISHED[found[1].lower()], torch.bfloat16, "the published shape", one_line(error))


def _stated_dtype(values: dict[str, Any]) -> torch.dtype:
    return DTYPES.get(str(values.get("dtype") or values.get("torch_dtype")), torch.bfloat16)
