"""Writes an adapter folder: ``adapter.json`` and safetensors shards, matrices in bfloat16."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from orderlens.models.smol.adapter import SETTINGS, SHARDS, AdapterSettings

SHARD_BYTES = 15_000_000


def save_adapter(
    folder: Path, state: Mapping[str, Tensor], settings: AdapterSettings, notes: Mapping[str, Any]
) -> list[Path]:
    """Write the folder and return its files; ``notes`` (plain data) are stored in ``adapter.json``."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name in sorted(state):
        tensor = state[name].detach().cpu()
        tensor = tensor.to(torch.bfloat16 if tensor.ndim > 1 else torch.float32).contiguous()
        if size + tensor.nbytes > SHARD_BYTES:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    paths = []
    for index, shard in enumerate(shards):
        path = folder / SHARDS.replace("*", str(index))
        save_file(shard, str(path), metadata={"format": "pt"})
        path.chmod(0o644)  # safetensors writes files that only their owner can read
        paths.append(path)
    record = folder / SETTINGS
    record.write_text(
        json.dumps({**asdict(settings), "shards": len(paths), "notes": dict(notes)}, indent=1) + "\n"
    )
    return [record, *paths]
