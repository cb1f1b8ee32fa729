"""What can be said about a checkpoint before it is loaded: its shape, whether its files are complete.

Reads config.json and the headers of the weight files, never the weights; of a hub model only config.json is
fetched. A family says how with a ``CheckpointReader``; of one without, only the headers are known.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from orderlens.errors import ModelLoadError, one_line
from orderlens.models.engine.device import DTYPES, Sized
from orderlens.models.family_index import BUILTIN, find_family
from orderlens.models.files.checkpoint import Checkpoint
from orderlens.models.files.configfile import CONFIG, read_json
from orderlens.models.files.hub import HubSpec, resolve_snapshot


@dataclass(frozen=True, slots=True)
class CheckpointReader:
    """How a family describes a checkpoint that is not loaded.

    Attributes:
        parse: from ``config.json`` to the network's shape; refuses what cannot be carried out.
        check: compares the headers of the weight files with that shape; refuses what does not fit.
        published: pattern of a hub repository's name → shape, for when the hub cannot be asked.
    """

    parse: Callable[[Mapping[str, Any]], Sized]
    check: Callable[[Checkpoint, Any], None]
    published: Mapping[str, Sized] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """A model as its files describe it.

    Attributes:
        family: name of its family, None where only the repository's name is known.
        config: its shape.
        dtype: dtype of its weights.
        source: where shape and dtype come from, in words.
        problem: why it cannot be loaded as it is, None when nothing is known to be wrong.
    """

    family: str | None
    config: Sized
    dtype: torch.dtype
    source: str
    problem: str | None = None

    @property
    def mapped(self) -> bool:
        """Whether weights stay in their files on the CPU: those of experts do."""
        return getattr(self.config, "n_experts", 0) > 0


@dataclass(frozen=True, slots=True)
class Headers:
    """What the headers of the weight files tell of a network's size: the number of weights."""

    n_parameters: int
    kv_values_per_token: int = 0
    max_positions: int = 0


def describe_checkpoint(spec: str) -> CheckpointInfo | None:
    """Return what is known of the model ``spec`` names, or None where nothing but its family is.

    Args:
        spec: ``hf:ORG/NAME[@REV]`` or a checkpoint folder.

    Raises:
        ModelLoadError: there is no config.json, or it cannot be read or is refused.
        UnknownNameError: it is of no supported family.
    """
    if not spec.startswith("hf:"):
        return _describe_folder(Path(spec), complete=True)
    try:
        folder = resolve_snapshot(spec, patterns=(CONFIG,))
    except ModelLoadError as error:
        return _from_name(HubSpec.parse(spec).repo, error)
    return _describe_folder(folder, complete=False)


def _describe_folder(folder: Path, *, complete: bool) -> CheckpointInfo | None:
    values, family = read_json(folder / CONFIG), find_family(folder)
    reader = _reader(family)
    if reader is None:
        return _from_headers(folder, family) if complete else None
    config, stated = reader.parse(values), _stated_dtype(values)
    if not complete:
        return CheckpointInfo(family, config, stated, CONFIG)
    try:
        checkpoint = Checkpoint(folder)
        reader.check(checkpoint, config)
    except ModelLoadError as error:
        return CheckpointInfo(family, config, stated, CONFIG, one_line(error))
    source = f"{len(checkpoint.shards)} complete weight files"
    return CheckpointInfo(family, config, checkpoint.main_dtype, source)


def _reader(family: str) -> CheckpointReader | None:
    target = BUILTIN[family].reader if family in BUILTIN else None
    if target is None:
        return None
    module, _, attribute = target.partition(":")
    found: CheckpointReader = getattr(importlib.import_module(module), attribute)
    return found


def _from_headers(folder: Path, family: str) -> CheckpointInfo | None:
    """Count the weights of a family that says no more; None where there are no weight files we can read."""
    try:
        checkpoint = Checkpoint(folder)
    except ModelLoadError:
        return None
    return CheckpointInfo(
        family, Headers(checkpoint.n_values), checkpoint.main_dtype, "the weight files' headers"
    )


def published(repo: str, problem: str | None = None) -> CheckpointInfo | None:
    """Return the published shape of a repository by its name alone, or None for an unknown one."""
    for family in BUILTIN:
        reader = _reader(family)
        for pattern, config in reader.published.items() if reader else ():
            if reader and re.search(pattern, repo, re.IGNORECASE):
                return CheckpointInfo(family, config, torch.bfloat16, "the published shape", problem)
    return None


def _from_name(repo: str, error: ModelLoadError) -> CheckpointInfo:
    """Fall back on the published shapes where the hub cannot be asked."""
    found = published(repo, one_line(error))
    if found is None:
        raise error
    return found


def _stated_dtype(values: Mapping[str, Any]) -> torch.dtype:
    return DTYPES.get(str(values.get("dtype") or values.get("torch_dtype")), torch.bfloat16)
