"""Published checkpoints: sharded safetensors, memory-mapped, every tensor accounted for before one is read.

Missing, unknown, misshaped or strangely typed tensors are refused by name. Knows no family: which tensors
there must be is said by the caller.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from orderlens.errors import ModelLoadError, one_line
from orderlens.models.files.configfile import read_json

STORED_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
INDEX_NAME = "model.safetensors.index.json"
_FULL_DIGEST_BYTES = 256 * 2**20
_SAMPLE_STRIDE, _SAMPLE_BYTES = 64 * 2**20, 2**20


class Checkpoint:
    """The tensors of a checkpoint folder, by published name, read lazily."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._handles: dict[str, Any] = {}
        self._stack = ExitStack()
        self.shards, declared = find_shards(folder)
        for path in self.shards:
            self._open(path)
        absent = sorted(set(declared) - set(self._handles))
        if absent:
            raise ModelLoadError(f"{folder}: the index names {_some(absent)}, which no shard holds")

    def _open(self, path: Path) -> None:
        try:
            handle = self._stack.enter_context(safe_open(str(path), framework="pt", device="cpu"))
            names = list(handle.keys())
        except (SafetensorError, OSError) as error:
            raise ModelLoadError(
                f"{path} is truncated or not a safetensors file ({one_line(error)}); download it again"
            ) from None
        self._handles |= dict.fromkeys(names, handle)

    def check(
        self, expected: Mapping[str, tuple[int, ...]], what: str, optional: Collection[str] = ()
    ) -> None:
        """Refuse missing, unknown, misshaped and strangely typed tensors.

        Args:
            expected: shape of every tensor there may be.
            what: what has these tensors, e.g. ``"a LLaDA-2 model"``.
            optional: names that may be missing.
        """
        missing = [name for name in expected if name not in self._handles and name not in optional]
        if missing:
            raise ModelLoadError(f"{self.folder} lacks {_some(missing)}")
        unknown = sorted(set(self._handles) - set(expected))
        if unknown:
            raise ModelLoadError(f"{self.folder} holds {_some(unknown)}, which {what} does not have")
        for name in self._handles:
            self._check_tensor(name, expected[name])

    def _check_tensor(self, name: str, shape: tuple[int, ...]) -> None:
        header = self._handles[name].get_slice(name)
        if header.get_dtype() not in STORED_DTYPES:
            allowed = ", ".join(STORED_DTYPES)
            raise ModelLoadError(f"tensor {name} is stored as {header.get_dtype()}; supported are {allowed}")
        if tuple(header.get_shape()) != shape:
            raise ModelLoadError(
                f"tensor {name} has shape {header.get_shape()}; config.json wants {list(shape)}"
            )

    def tensor(self, name: str) -> Tensor:
        """Return one tensor as a memory-mapped view."""
        return torch.as_tensor(self._handles[name].get_tensor(name))

    def dtype_of(self, name: str) -> torch.dtype:
        """Return the dtype one tensor is stored in, from the header."""
        return STORED_DTYPES[self._handles[name].get_slice(name).get_dtype()]

    @property
    def main_dtype(self) -> torch.dtype:
        """The dtype that most numbers are stored in."""
        sizes = Counter[str]()
        for name, handle in self._handles.items():
            sizes[handle.get_slice(name).get_dtype()] += self._size(name)
        return STORED_DTYPES.get(sizes.most_common(1)[0][0], torch.float32) if sizes else torch.float32

    @property
    def n_values(self) -> int:
        """How many numbers the tensors hold together."""
        return sum(map(self._size, self._handles))

    def _size(self, name: str) -> int:
        return math.prod(self._handles[name].get_slice(name).get_shape())

    def __contains__(self, name: str) -> bool:
        return name in self._handles


def find_shards(folder: Path) -> tuple[list[Path], list[str]]:
    """Return the weight files of ``folder`` and the tensor names its index declares (none without index)."""
    if not folder.is_dir():
        raise ModelLoadError(f"{folder} is not a folder")
    index = folder / INDEX_NAME
    if not index.exists():
        found = sorted(folder.glob("*.safetensors"))
        if not found:
            raise ModelLoadError(
                f"{folder} holds no safetensors files, and pickled weights are not read; name a revision "
                "that has them (hf:ORG/NAME@refs/pr/N) or convert them, as docs/masked-models.md shows"
            )
        return found, []
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or {type(name) for name in weight_map.values()} != {str}:
        raise ModelLoadError(f"{index} has no weight_map of tensors to files; download it again")
    names = sorted(set(weight_map.values()))
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise ModelLoadError(f"{folder}: {_some(missing, 'shard')} missing; download the checkpoint again")
    return [folder / name for name in names], list(weight_map)


def weights_digest(shards: Iterable[Path]) -> str:
    """Return a digest of the weight files.

    Small checkpoints are hashed whole. Of large ones the hub's own content hash is used where the file lies
    in the hub cache; otherwise size, header and one mebibyte in every 64 are hashed.
    """
    digest = hashlib.blake2b(digest_size=16)
    paths = list(shards)
    whole = sum(path.stat().st_size for path in paths) <= _FULL_DIGEST_BYTES
    for path in paths:
        blob = path.resolve()
        digest.update(f"{path.name}:{path.stat().st_size}:".encode())
        if not whole and blob.parent.name == "blobs":
            digest.update(blob.name.encode())
        else:
            _hash_file(digest, path, _SAMPLE_BYTES if whole else _SAMPLE_STRIDE)
    return digest.hexdigest()


def _hash_file(digest: hashlib.blake2b, path: Path, stride: int) -> None:
    with path.open("rb") as file:
        for start in range(0, path.stat().st_size, stride):
            file.seek(start)
            digest.update(file.read(_SAMPLE_BYTES))


def _some(names: list[str], noun: str = "tensor") -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{noun} {names[0]}{more}"
