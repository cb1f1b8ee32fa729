"""Describes a checkpoint without loading it: its shape, and whether its files are complete.

Reads config.json and the headers of the weight files, never the weights. For a hub model only config.json is
fetched. A family provides a ``CheckpointReader``; without one, only the headers are read.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from orderlens.common.hub import HubSpec, resolve_snapshot
from orderlens.errors import ModelLoadError, one_line
from orderlens.models.engine.device import DTYPES, Sized
from orderlens.models.family_index import BUILTIN, find_family
from orderlens.models.files.checkpoint import Checkpoint, has_weights
from orderlens.models.files.configfile import CONFIG, float8_block, read_json

DEFAULT_BLOCK = 32
"""Tokens per block of models that state none."""


@dataclass(frozen=True, slots=True)
class CheckpointReader:
    """How a family describes a checkpoint that is not loaded.

    Attributes:
        parse: from ``config.json`` to the network's shape; refuses unsupported values.
        check: compares the headers of the weight files with that shape; refuses a mismatch.
        published: pattern of a hub repository's name → shape, used when the hub cannot be reached.
        block: from ``config.json``, maximum positions and name to the block size; None if all are equal.
        stores8: whether all experts of the weight files are in float8; None if the family has no such files.
    """

    parse: Callable[[Mapping[str, Any]], Sized]
    check: Callable[[Checkpoint, Any], None]
    published: Mapping[str, Sized] = field(default_factory=dict)
    block: Callable[[Mapping[str, Any], int, str], int] | None = None
    stores8: Callable[[Checkpoint, Any], bool] | None = None

    def block_size(self, values: Mapping[str, Any], config: Sized, name: str) -> int:
        """Return the number of tokens per block."""
        if self.block is not None:
            return self.block(values, config.max_positions, name)
        return int(getattr(config, "block_size", DEFAULT_BLOCK))


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """A model as its files describe it.

    Attributes:
        family: name of its family, None if only the repository's name is known.
        config: its shape.
        dtype: dtype of its weights.
        source: where shape and dtype come from, in words.
        problem: why it cannot be loaded as it is, None if no problem is known.
        block_size: tokens per block.
        float8: its experts are stored in float8.
        scales: rows and columns per stored scale, None for a plain checkpoint.
    """

    family: str | None
    config: Sized
    dtype: torch.dtype
    source: str
    problem: str | None = None
    block_size: int = DEFAULT_BLOCK
    float8: bool = False
    scales: tuple[int, int] | None = None

    @property
    def mapped(self) -> bool:
        """Whether some weights stay memory-mapped on the CPU; those of experts do."""
        return getattr(self.config, "n_experts", 0) > 0


@dataclass(frozen=True, slots=True)
class HeaderSize:
    """The size of a network as the headers of its weight files give it: the number of weights."""

    n_parameters: int
    kv_values_per_token: int = 0
    max_positions: int = 0


def describe_checkpoint(spec: str) -> CheckpointInfo | None:
    """Return a description of the model that ``spec`` names, or None if only its family is known.

    Args:
        spec: ``hf:ORG/NAME[@REV]`` or a checkpoint folder.

    Raises:
        ModelLoadError: config.json is missing, unreadable or unsupported.
        UnknownNameError: its family is not supported.
    """
    if not spec.startswith("hf:"):
        return _describe_folder(Path(spec), spec, complete=has_weights(Path(spec)))
    try:
        folder = resolve_snapshot(spec, patterns=(CONFIG,))
    except ModelLoadError as error:
        return _from_name(HubSpec.parse(spec).repo, error)
    return _describe_folder(folder, spec, complete=False)


def _describe_folder(folder: Path, name: str, *, complete: bool) -> CheckpointInfo | None:
    family, values = find_family(folder), read_json(folder / CONFIG)
    reader = _reader(family)
    if reader is None:
        return _from_headers(folder, family) if complete else None
    config, stated, scales = reader.parse(values), _stated_dtype(values), float8_block(values)
    info = CheckpointInfo(
        family,
        config,
        stated,
        CONFIG,
        block_size=reader.block_size(values, config, name),
        float8=scales is not None,
        scales=scales,
    )
    if not complete:
        return info
    try:
        checkpoint = Checkpoint(folder)
        reader.check(checkpoint, config)
    except ModelLoadError as error:
        return replace(info, problem=one_line(error))
    return replace(
        info,
        dtype=checkpoint.main_dtype,
        source=f"{len(checkpoint.shards)} complete weight files",
        float8=reader.stores8 is not None and reader.stores8(checkpoint, config),
    )


def _reader(family: str) -> CheckpointReader | None:
    target = BUILTIN[family].reader if family in BUILTIN else None
    if target is None:
        return None
    module, _, attribute = target.partition(":")
    found: CheckpointReader = getattr(importlib.import_module(module), attribute)
    return found


def _from_headers(folder: Path, family: str) -> CheckpointInfo | None:
    """Count the weights of a family without a reader; None if there are no readable weight files."""
    try:
        checkpoint = Checkpoint(folder)
    except ModelLoadError:
        return None
    return CheckpointInfo(
        family, HeaderSize(checkpoint.n_values), checkpoint.main_dtype, "the weight files' headers"
    )


def published(repo: str, problem: str | None = None) -> CheckpointInfo | None:
    """Return the published shape that belongs to a repository's name, or None if the name is unknown."""
    for family in BUILTIN:
        reader = _reader(family)
        for pattern, config in reader.published.items() if reader else ():
            if reader and re.search(pattern, repo, re.IGNORECASE):
                block = reader.block_size({}, config, repo)
                return CheckpointInfo(family, config, torch.bfloat16, "the published shape", problem, block)
    return None


def _from_name(repo: str, error: ModelLoadError) -> CheckpointInfo:
    """Fall back on the published shapes if the hub cannot be reached."""
    found = published(repo, one_line(error))
    if found is None:
        raise error
    return found


def _stated_dtype(values: Mapping[str, Any]) -> torch.dtype:
    return DTYPES.get(str(values.get("dtype") or values.get("torch_dtype")), torch.bfloat16)
