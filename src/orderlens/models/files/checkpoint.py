"""Published checkpoints: sharded, memory-mapped safetensors. All tensors are checked before any is read.

Tensors that are missing or unknown, or that have a wrong shape or dtype, are refused by name. Does not depend
on a family: the caller lists the expected tensors.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from orderlens.errors import ModelLoadError, one_line
from orderlens.models.files.configfile import CONFIG, float8_block, read_json

STORED_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
FLOAT8, SCALES = "F8_E4M3", "_scale_inv"
"""Stored dtype of matrices in 8 bits, and the ending of their scales' names: ``X.weight_scale_inv``."""
INDEX_NAME = "model.safetensors.index.json"
WEIGHT_SUFFIXES = {".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".npz", ".h5", ".msgpack"}
PACKED = ".qweight"
"""Ending of a matrix of GPTQ or AWQ; older files do not state the method in config.json."""
SHOWN_NAMES = 4
"""Names of tensors or files that a message lists."""
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
            raise ModelLoadError(f"{folder}: the index names {_some(absent)}, which is in no shard")

    def _open(self, path: Path) -> None:
        try:
            handle = self._stack.enter_context(safe_open(str(path), framework="pt", device="cpu"))
            names = list(handle.keys())
        except (SafetensorError, OSError) as error:
            raise ModelLoadError(
                f"{path} is truncated or not a safetensors file ({one_line(error)}); download it again"
            ) from None
        if twice := sorted(set(names) & set(self._handles)):
            raise ModelLoadError(
                f"{path} repeats {_some(twice)} of another weight file; remove one of the two files"
            )
        self._handles |= dict.fromkeys(names, handle)

    @cached_property
    def block(self) -> tuple[int, int] | None:
        """Rows and columns per scale of float8 matrices, from config.json; None for a plain checkpoint."""
        return float8_block(read_json(self.folder / CONFIG))

    def check(
        self,
        expected: Mapping[str, tuple[int, ...]],
        what: str,
        optional: Collection[str] = (),
        *,
        float8: bool = False,
    ) -> None:
        """Refuse tensors that are missing or unknown, or that have a wrong shape or dtype.

        Args:
            expected: shape of every allowed tensor.
            what: the kind of model, for messages, e.g. ``"a LLaDA-2 model"``.
            optional: names that may be missing.
            float8: whether matrices may be stored in float8 with scales per block.
        """
        scaled = [name for name in self._handles if float8 and self.kind(name) == FLOAT8 and self.block]
        expected = {**expected, **{name + SCALES: self._scale_shape(expected, name) for name in scaled}}
        missing = [name for name in expected if name not in self._handles and name not in optional]
        unknown = sorted(set(self._handles) - set(expected))
        wrong = [f"lacks {_some(missing)}"] if missing else []
        wrong += [f"holds {_some(unknown)}, which {what} does not have"] if unknown else []
        if wrong:
            is_packed = any(name.endswith(PACKED) for name in unknown)
            hint = "; GPTQ and AWQ are not supported, use the checkpoint that is not quantised"
            raise ModelLoadError(f"{self.folder} {' and '.join(wrong)}{hint if is_packed else ''}")
        for name in self._handles:
            self._check_tensor(name, expected[name], name in scaled)

    def _scale_shape(self, expected: Mapping[str, tuple[int, ...]], name: str) -> tuple[int, ...]:
        assert self.block is not None
        return tuple(-(-size // step) for size, step in zip(expected.get(name, ()), self.block, strict=False))

    def _check_tensor(self, name: str, shape: tuple[int, ...], is_scaled: bool) -> None:
        header = self._handles[name].get_slice(name)
        if self.kind(name) not in STORED_DTYPES and not (is_scaled and len(shape) == 2):
            allowed = ", ".join(STORED_DTYPES)
            raise ModelLoadError(f"tensor {name} is stored as {self.kind(name)}; supported are {allowed}")
        if tuple(header.get_shape()) != shape:
            raise ModelLoadError(
                f"tensor {name} has shape {header.get_shape()}; config.json wants {list(shape)}"
            )

    def tensor(self, name: str) -> Tensor:
        """Return one tensor as a memory-mapped view."""
        return torch.as_tensor(self._handles[name].get_tensor(name))

    def scales(self, name: str) -> Tensor | None:
        """Return the scales of a float8 matrix, None for a plain tensor."""
        return self.tensor(name + SCALES) if self.kind(name) == FLOAT8 else None

    def kind(self, name: str) -> str:
        """Return how one tensor is stored, e.g. ``BF16``, from the header."""
        return str(self._handles[name].get_slice(name).get_dtype())

    def dtype_of(self, name: str) -> torch.dtype:
        """Return the stored dtype of one tensor, from the header."""
        return STORED_DTYPES[self.kind(name)]

    @property
    def main_dtype(self) -> torch.dtype:
        """The dtype in which most numbers are stored, without float8 matrices and their scales."""
        sizes = Counter[str]()
        for name in self._handles:
            if self.kind(name) != FLOAT8 and not name.endswith(SCALES):
                sizes[self.kind(name)] += self._size(name)
        return STORED_DTYPES.get(sizes.most_common(1)[0][0], torch.float32) if sizes else torch.float32

    @property
    def n_values(self) -> int:
        """Total number of values in all tensors."""
        return sum(map(self._size, self._handles))

    def _size(self, name: str) -> int:
        return math.prod(self._handles[name].get_slice(name).get_shape())

    def __contains__(self, name: str) -> bool:
        return name in self._handles


def find_shards(folder: Path) -> tuple[list[Path], list[str]]:
    """Return the weight files of ``folder`` and the tensor names in its index (none without an index)."""
    if not folder.is_dir():
        raise ModelLoadError(f"{folder} is not a folder")
    index = folder / INDEX_NAME
    if not index.exists():
        found = sorted(folder.glob("*.safetensors"))
        if not found and not has_weights(folder):
            raise ModelLoadError(
                f"{folder} holds no weights; download the safetensors files of the checkpoint"
            )
        if not found:
            raise ModelLoadError(
                f"{folder} holds no safetensors files, and {_other_format(folder)} are not read; "
                "download safetensors files, name a revision with them (hf:ORG/NAME@refs/pr/N) or convert "
                "the others, as docs/models.md shows"
            )
        return found, []
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or {type(name) for name in weight_map.values()} != {str}:
        raise ModelLoadError(f"{index} has no weight_map of tensors to files; download it again")
    names = sorted(set(weight_map.values()))
    if outside := [name for name in names if Path(name).name != name]:
        raise ModelLoadError(f"{index} names {_some(outside, 'file')}; shards must be files of the folder")
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise ModelLoadError(f"{folder}: {_some(missing, 'shard')} missing; download the checkpoint again")
    return [folder / name for name in names], list(weight_map)


def has_weights(folder: Path) -> bool:
    """Return whether the folder holds weight files or their index, in a format that is read or not."""
    return any(path.suffix in WEIGHT_SUFFIXES or path.name == INDEX_NAME for path in folder.glob("*"))


def _other_format(folder: Path) -> str:
    return "GGUF files" if any(folder.glob("*.gguf")) else "pickled weights"


def weights_digest(shards: Iterable[Path]) -> str:
    """Return a digest of the weight files.

    Small checkpoints are hashed completely. For large files in the hub cache, the hub's content hash is used.
    For other large files, size, header and one mebibyte in every 64 are hashed.
    """
    digest = hashlib.blake2b(digest_size=16)
    paths = list(shards)
    is_small = sum(path.stat().st_size for path in paths) <= _FULL_DIGEST_BYTES
    for path in paths:
        blob = path.resolve()
        digest.update(f"{path.name}:{path.stat().st_size}:".encode())
        if not is_small and blob.parent.name == "blobs":
            digest.update(blob.name.encode())
        else:
            _hash_file(digest, path, _SAMPLE_BYTES if is_small else _SAMPLE_STRIDE)
    return digest.hexdigest()


def _hash_file(digest: hashlib.blake2b, path: Path, stride: int) -> None:
    with path.open("rb") as file:
        for start in range(0, path.stat().st_size, stride):
            file.seek(start)
            digest.update(file.read(_SAMPLE_BYTES))


def _some(names: list[str], noun: str = "tensor") -> str:
    """Return the first names, and the number of others."""
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    return f"{noun}{'s' if len(names) > 1 else ''} {', '.join(names[:SHOWN_NAMES])}{more}"


def tensors_digest(weights: Any, settings: object) -> str:
    """Return a digest of all tensors in a state dict or a tree of dataclasses and tuples, and of settings."""
    state = hashlib.blake2b(repr(settings).encode(), digest_size=16)
    for name, tensor in _named(weights, ""):
        state.update(f"{name}:{tuple(tensor.shape)}:{tensor.dtype}".encode())
        state.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).cpu().numpy().tobytes())
    return state.hexdigest()


def _named(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
        return
    if isinstance(value, dict):
        inner = list(value.items())
    elif is_dataclass(value):
        inner = [(field.name, getattr(value, field.name)) for field in fields(value)]
    else:
        inner = list(enumerate(value)) if isinstance(value, list | tuple) else []
    for key, item in inner:
        yield from _named(item, f"{name}.{key}")
