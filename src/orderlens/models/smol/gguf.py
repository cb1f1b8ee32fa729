"""A reader of GGUF files: metadata, and tensors in the three formats that our base file uses. numpy only.

A GGUF file is a header (magic, version, counts), typed key/value metadata, a table of tensors, and the
tensors' bytes at aligned offsets. Knows nothing of architectures or tokenizers.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderlens.errors import ModelLoadError

FloatArray = NDArray[np.float32]
ByteArray = NDArray[np.uint8]

MAGIC, VERSIONS = b"GGUF", (2, 3)
DEFAULT_ALIGNMENT = 32
BLOCK = 32
"""Weights per quantised block."""
STRING, ARRAY, BOOL = 8, 9, 7
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", BOOL: "?", 10: "Q", 11: "q", 12: "d"}


def from_f32(data: ByteArray) -> FloatArray:
    """Return plain float32 weights."""
    return data.view("<f4").astype(np.float32)


def from_q8_0(data: ByteArray) -> FloatArray:
    """Undo Q8_0: per block a float16 scale and 32 signed bytes."""
    blocks = data.reshape(-1, 2 + BLOCK)
    scale = blocks[:, :2].copy().view("<f2").astype(np.float32)
    return (blocks[:, 2:].view(np.int8) * scale).reshape(-1)


def from_q4_1(data: ByteArray) -> FloatArray:
    """Undo Q4_1: per block a float16 scale, a float16 minimum and 32 half-bytes, the low halves first."""
    blocks = data.reshape(-1, 4 + BLOCK // 2)
    scale, least = (blocks[:, at : at + 2].copy().view("<f2").astype(np.float32) for at in (0, 2))
    packed = blocks[:, 4:]
    values = np.concatenate((packed & 15, packed >> 4), axis=1)
    return (values * scale + least).reshape(-1)


@dataclass(frozen=True, slots=True)
class Format:
    """A tensor format: its published name, bytes per block, weights per block, and how to undo it."""

    name: str
    block_bytes: int
    block_weights: int
    undo: Callable[[ByteArray], FloatArray]


FORMATS = {
    0: Format("F32", 4, 1, from_f32),
    3: Format("Q4_1", 4 + BLOCK // 2, BLOCK, from_q4_1),
    8: Format("Q8_0", 2 + BLOCK, BLOCK, from_q8_0),
}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where a tensor lies: its shape (rows first, as in numpy), the id of its format, its offset."""

    shape: tuple[int, ...]
    format_id: int
    offset: int


class GgufFile:
    """An opened file; tensors are read from a memory map when asked for.

    Attributes:
        metadata: the key/value pairs as plain Python values.
        tensors: name to :class:`TensorEntry`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise ModelLoadError(f"{path}: no such file")
        with path.open("rb") as stream:
            if stream.read(len(MAGIC)) != MAGIC:
                raise ModelLoadError(f"{path}: not a GGUF file")
        self._bytes: ByteArray = np.memmap(path, np.uint8, "r")
        try:
            cursor = _Cursor(self._bytes)
            self.metadata, self.tensors = _header(cursor, path)
        except (struct.error, UnicodeDecodeError, KeyError) as error:
            raise ModelLoadError(f"{path}: its GGUF header is damaged ({type(error).__name__})") from None
        alignment = int(self.metadata.get("general.alignment", DEFAULT_ALIGNMENT))
        self._start = -(-cursor.place // alignment) * alignment

    def tensor(self, name: str) -> FloatArray:
        """Return one tensor as float32 in its shape."""
        entry = self.tensors.get(name)
        if entry is None:
            raise ModelLoadError(f"{self.path}: it has no tensor '{name}'")
        kind = FORMATS.get(entry.format_id)
        if kind is None:
            known = ", ".join(item.name for item in FORMATS.values())
            raise ModelLoadError(
                f"{self.path}: tensor '{name}' has format {entry.format_id}; readable are {known}"
            )
        size = math.prod(entry.shape)
        begin = self._start + entry.offset
        data = self._bytes[begin : begin + size // kind.block_weights * kind.block_bytes]
        if len(data) * kind.block_weights != size * kind.block_bytes:
            raise ModelLoadError(f"{self.path}: the file ends inside tensor '{name}'; fetch it again")
        return kind.undo(np.ascontiguousarray(data)).reshape(entry.shape)


class _Cursor:
    """Reads little-endian values one after the other."""

    def __init__(self, data: ByteArray) -> None:
        self._data, self.place = data, 0

    def scalar(self, code: str) -> Any:
        size = struct.calcsize("<" + code)
        (value,) = struct.unpack("<" + code, self._data[self.place : self.place + size].tobytes())
        self.place += size
        return value

    def text(self) -> str:
        size = self.scalar("Q")
        raw = self._data[self.place : self.place + size].tobytes()
        if len(raw) < size:
            raise struct.error("text past the end")
        self.place += size
        return raw.decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            item, count = self.scalar("I"), self.scalar("Q")
            return [self.value(item) for _ in range(count)]
        return self.scalar(SCALARS[kind])


def _header(cursor: _Cursor, path: Path) -> tuple[dict[str, Any], dict[str, TensorEntry]]:
    cursor.place = len(MAGIC)
    version = cursor.scalar("I")
    if version not in VERSIONS:
        raise ModelLoadError(f"{path}: GGUF version {version} is not supported (2 and 3 are)")
    n_tensors, n_pairs = cursor.scalar("Q"), cursor.scalar("Q")
    metadata: dict[str, Any] = {}
    for _ in range(n_pairs):
        key = cursor.text()
        metadata[key] = cursor.value(cursor.scalar("I"))
    tensors = {}
    for _ in range(n_tensors):
        name = cursor.text()
        shape = tuple(cursor.scalar("Q") for _ in range(cursor.scalar("I")))
        tensors[name] = TensorEntry(shape[::-1], cursor.scalar("I"), cursor.scalar("Q"))
    return metadata, tensors
