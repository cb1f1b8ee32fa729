"""``Folder``: the file operations that the store needs of a disk or an object store.

Every name is relative to the folder and uses ``/``. The commit protocol rests on two operations: ``put``
replaces a file atomically, and ``create`` succeeds for exactly one of several writers. Does not depend on
runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow as pa

Stamp = tuple[object, ...]
"""A value that changes whenever a file is written or replaced."""


class Folder(Protocol):
    """The file operations that the store needs."""

    label: str
    exclusive: bool
    """Whether ``create`` is free of races; otherwise the last writer wins."""

    def read(self, name: str) -> bytes:
        """Return the file's bytes; FileNotFoundError if it does not exist."""

    def read_many(self, names: Sequence[str]) -> dict[str, bytes]:
        """Return the bytes of several files; missing ones are left out."""

    def put(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Write or replace a file atomically; ``durable`` waits until it survives a power failure."""

    def create(self, name: str, data: bytes, *, durable: bool = True) -> bool:
        """Write a new file atomically; return False, without a change, if it exists."""

    def append(self, name: str, data: bytes) -> None:
        """Append to a file that only the caller writes."""

    def exists(self, name: str) -> bool:
        """Return whether the file exists."""

    def sizes(self, under: str = "") -> dict[str, int]:
        """Return name → bytes of all files under a subfolder, at any depth."""

    def names(self, under: str = "", *, deep: bool = True) -> list[str]:
        """Return the names of the files under a subfolder, sorted; ``deep`` includes nested folders."""

    def some_file(self) -> str | None:
        """Return the name of any file that is not hidden; None if there is none."""

    def remove(self, name: str) -> None:
        """Delete a file if it exists."""

    def remove_many(self, names: Sequence[str]) -> None:
        """Delete several files; missing ones are ignored."""

    def move(self, source: str, target: str) -> None:
        """Move a file (not atomic everywhere)."""

    def open(self, name: str) -> pa.NativeFile:
        """Open a file for random-access reading."""

    def fetch(self, name: str) -> pa.NativeFile:
        """Open a file that will be read completely, more than once."""

    def stamp(self, name: str) -> Stamp | None:
        """Return a value that identifies this version of a file; None if there is no such value."""

    def location(self, name: str) -> str:
        """Return the path or address of the file for other programs."""

    def filesystem(self) -> Any:
        """Return the fsspec file system that ``location`` refers to, None for local paths."""


class StoredSample(Protocol):
    """The result of ``Run.sample``: the traces of one sample, and ways to display them."""

    @property
    def sample_id(self) -> str:
        """Its id."""

    @property
    def prompt(self) -> str | None:
        """The prompt as text; None when not stored."""

    @property
    def traces(self) -> Sequence[Any]:
        """Its traces, in the order of the run."""

    @property
    def labels(self) -> list[str]:
        """Names of the traces, all distinct."""

    def trace(self, label: str) -> Any:
        """Return a trace by its label or id."""

    def piece(self, trace: Any, token_id: int) -> str:
        """Return the text of a token of one of the traces."""

    def show(self, order: str | None = None, against: str | None = None) -> Any:
        """Return traces for display: text in a terminal, HTML in a notebook."""
