"""A folder of bytes: the few file operations the store needs of a disk or an object store.

Every name is relative to the folder and uses ``/``. Two operations carry the commit protocol: ``put``
replaces a file as a whole and ``create`` lets exactly one of several writers make it. The module knows
nothing about runs.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import pyarrow as pa

from orderlens.errors import StorageError, one_line

Stamp = tuple[object, ...]
"""What changes whenever a file is written or replaced."""


class Folder(Protocol):
    """What the store asks of a place that keeps files."""

    label: str
    exclusive: bool
    """Whether ``create`` is free of races (else the last writer wins)."""

    def read(self, name: str) -> bytes:
        """Return the file's bytes; FileNotFoundError when there is none."""

    def read_many(self, names: Sequence[str]) -> dict[str, bytes]:
        """Return the bytes of several files, without those that are gone."""

    def put(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Write or replace a file as a whole; ``durable`` waits until it survives a power cut."""

    def create(self, name: str, data: bytes, *, durable: bool = True) -> bool:
        """Write a new file as a whole; False (and no change) when it exists."""

    def append(self, name: str, data: bytes) -> None:
        """Add to the end of a file that only the caller writes."""

    def exists(self, name: str) -> bool:
        """Say whether there is such a file."""

    def sizes(self, under: str = "") -> dict[str, int]:
        """Return name → bytes of all files under a subfolder, at any depth."""

    def names(self, under: str = "", *, deep: bool = True) -> list[str]:
        """Return the names of the files under a subfolder, sorted; ``deep`` includes those in its folders."""

    def some_file(self) -> str | None:
        """Return the name of any file that is not hidden; None when there is none."""

    def remove(self, name: str) -> None:
        """Delete a file; nothing happens when there is none."""

    def remove_many(self, names: Sequence[str]) -> None:
        """Delete several files, those that there are."""

    def move(self, source: str, target: str) -> None:
        """Move a file (not atomic everywhere)."""

    def open(self, name: str) -> pa.NativeFile:
        """Open a file for random-access reading."""

    def fetch(self, name: str) -> pa.NativeFile:
        """Open a file that will be read from end to end, more than once."""

    def stamp(self, name: str) -> Stamp | None:
        """Return what tells this version of a file from any other; None when nothing does."""

    def location(self, name: str) -> str:
        """Return the path or address under which other readers find the file."""

    def filesystem(self) -> Any:
        """Return the fsspec file system that ``location`` refers to, None for local paths."""


@contextmanager
def storage_errors(action: str, label: str) -> Iterator[None]:
    """Turn what the file system refuses into a ``StorageError`` that says what to do."""
    try:
        yield
    except OSError as error:
        writing = action.startswith(("write", "move", "remove"))
        if isinstance(error, FileNotFoundError) and not writing:
            raise
        raise StorageError(f"cannot {action} in {label}: {remedy(error, writing)}") from error


def remedy(error: OSError, writing: bool) -> str:
    """Say in words what the file system refused and what to do about it."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full; what was committed is kept: free some space and run the same command again"
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM) and writing:
        return "the folder is read-only; make it writable or choose another one with --out"
    if error.errno == errno.ENAMETOOLONG:
        return "the name is too long for this disk; choose a shorter one"
    return error.strerror or one_line(error)


class Sample(Protocol):
    """One sample as ``Run.sample`` returns it: its traces, and ways to look at them."""

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
        """Names of the traces, all different."""

    def trace(self, label: str) -> Any:
        """Return a trace by its label or id."""

    def piece(self, trace: Any, token_id: int) -> str:
        """Return the text of a token of one of the traces."""

    def show(self, order: str | None = None, against: str | None = None) -> Any:
        """Return traces to look at: text at a prompt, HTML in a notebook."""
