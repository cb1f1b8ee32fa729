"""A folder on an fsspec file system: object stores, where one PUT is atomic and a rename is not."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import numpy as np
import pyarrow as pa

from orderlens.common.files import storage_errors
from orderlens.errors import OrderLensError, StorageError, one_line
from orderlens.store.protocol import Stamp

_MEMORY_LOCK = threading.Lock()
_CONFLICT_PAUSES_S = (0.1, 0.5, 2.0)
"""Pauses between retries: S3 answers 409 while two conditional writes overlap and neither has succeeded."""


@contextmanager
def _remote_errors(action: str, label: str) -> Iterator[None]:
    """Turn any error of a storage service into a ``StorageError``; every service has its own exceptions."""
    try:
        with storage_errors(action, label):
            yield
    except (OrderLensError, FileNotFoundError, FileExistsError):
        raise
    except Exception as error:
        kind = type(error).__name__
        raise StorageError(
            f"cannot {action} in {label}: {one_line(error)} ({kind}); check address, network and credentials"
        ) from error


class RemoteFolder:
    """A folder on an fsspec file system, where one PUT is atomic and a rename is not."""

    def __init__(self, filesystem: Any, root: str) -> None:
        self._files = filesystem
        self._root = str(filesystem._strip_protocol(root)).rstrip("/")
        self.label = str(filesystem.unstrip_protocol(self._root))
        self.exclusive = _has_exclusive_create(filesystem)
        self._conditional = bool(protocols(filesystem) & {"s3", "s3a"})  # creates with one request
        # s3fs requests the size of an object before reading, unless concurrent reads are switched off.
        self._whole = {"max_concurrency": 1} if self._conditional else {}
        # In-memory files are checked and written in two steps: a lock prevents races between threads.
        self._creation: AbstractContextManager[Any] = (
            _MEMORY_LOCK if "memory" in protocols(filesystem) else nullcontext()
        )

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def read(self, name: str) -> bytes:
        with _remote_errors(f"read {name}", self.label):
            return bytes(self._files.cat_file(self._path(name), **self._whole))

    def read_many(self, names: Sequence[str]) -> dict[str, bytes]:
        """Return the bytes of several objects, fetched in parallel if the file system supports it."""
        if not names:
            return {}
        with _remote_errors("read records", self.label):
            found = self._files.cat([self._path(name) for name in names], on_error="omit", **self._whole)
        return {name: bytes(found[self._path(name)]) for name in names if self._path(name) in found}

    def put(self, name: str, data: bytes, *, durable: bool = True) -> None:
        with _remote_errors(f"write {name}", self.label):
            self._make_parent(name)
            self._files.pipe_file(self._path(name), data)

    def create(self, name: str, data: bytes, *, durable: bool = True) -> bool:
        """Write a new object, with a conditional request if the service supports it."""
        with _remote_errors(f"write {name}", self.label), self._creation:
            self._make_parent(name)
            if not self._conditional and self.exists(name):
                return False
            return self._created(name, data, _CONFLICT_PAUSES_S)

    def _created(self, name: str, data: bytes, pauses: Sequence[float]) -> bool:
        try:
            self._files.pipe_file(self._path(name), data, mode="create")
        except FileExistsError:
            return False
        except OSError as error:
            if (found := self._present(name)) is not None:
                return (
                    found == data
                )  # equal: our own earlier request succeeded; else another writer was first
            if not pauses or _code(error) != "ConditionalRequestConflict":
                raise
            time.sleep(pauses[0])
            return self._created(name, data, pauses[1:])
        return True

    def _present(self, name: str) -> bytes | None:
        try:
            return self.read(name)
        except FileNotFoundError:
            return None

    def append(self, name: str, data: bytes) -> None:
        """Rewrite the object with the data appended: object stores cannot append."""
        with suppress(FileNotFoundError):
            data = self.read(name) + data
        self.put(name, data)

    def _make_parent(self, name: str) -> None:
        if not self._conditional:  # S3 has no folders, and checking the bucket would cost a request
            self._files.makedirs(self._files._parent(self._path(name)), exist_ok=True)

    def exists(self, name: str) -> bool:
        """Return whether the object exists, without using a listing cache."""
        with _remote_errors(f"read {name}", self.label):
            try:  # isfile would report a rejected request as a missing file
                return self._is_file(name)
            except FileNotFoundError:
                return False

    def _is_file(self, name: str) -> bool:
        if self._conditional:  # info would also search for a folder of that name
            bucket, key, _ = self._files.split_path(self._path(name))
            self._files.call_s3("head_object", Bucket=bucket, Key=key)
            return True
        self._files.invalidate_cache()
        return bool(self._files.info(self._path(name))["type"] == "file")

    def sizes(self, under: str = "") -> dict[str, int]:
        try:
            with _remote_errors("list files", self.label):
                self._files.invalidate_cache()
                found = self._found(under)
        except FileNotFoundError:
            return {}
        start = len(self._root) + 1
        return {path[start:]: int(entry["size"]) for path, entry in sorted(found.items())}

    def _found(self, under: str) -> dict[str, Any]:
        if self._conditional and under:  # without a prefix, an empty folder costs two more requests
            found: dict[str, Any] = self._files.find(self._root, prefix=f"{under}/", detail=True)
        else:
            found = self._files.find(self._path(under), detail=True)
        return found

    def names(self, under: str = "", *, deep: bool = True) -> list[str]:
        if deep:
            return list(self.sizes(under))
        try:
            with _remote_errors("list files", self.label):
                self._files.invalidate_cache()
                found = self._files.ls(self._path(under), detail=True)
        except FileNotFoundError:
            return []
        start = len(self._root) + 1
        return sorted(entry["name"][start:] for entry in found if entry["type"] == "file")

    def some_file(self) -> str | None:
        return min(
            (name for name in self.names() if not name.rsplit("/", 1)[-1].startswith(".")), default=None
        )

    def remove(self, name: str) -> None:
        with _remote_errors(f"remove {name}", self.label), suppress(FileNotFoundError):
            self._files.rm_file(self._path(name))

    def remove_many(self, names: Sequence[str]) -> None:
        """Delete objects, a thousand per request if the service supports it."""
        if not self._conditional:
            for name in names:
                self.remove(name)
        elif names:
            with _remote_errors("remove files", self.label):
                self._files.rm([self._path(name) for name in names])

    def move(self, source: str, target: str) -> None:
        """Copy, then delete."""
        self.put(target, self.read(source))
        self.remove(source)

    def open(self, name: str) -> pa.NativeFile:
        with _remote_errors(f"read {name}", self.label):
            return pa.PythonFile(self._files.open(self._path(name), "rb"), "r")

    def fetch(self, name: str) -> pa.NativeFile:
        """Copy an object into memory owned by Arrow; large objects are fetched in parallel ranges."""
        with _remote_errors(f"read {name}", self.label):
            data = self._files.cat_file(self._path(name))
        memory = pa.allocate_buffer(len(data))
        np.asarray(memory)[:] = np.frombuffer(data, np.uint8)
        return pa.BufferReader(memory)

    def stamp(self, name: str) -> Stamp | None:
        """Return the object's size and ETag; None if the service has no ETags."""
        with _remote_errors(f"read {name}", self.label):
            self._files.invalidate_cache()
            entry = self._files.info(self._path(name))
        return (entry["size"], entry["ETag"]) if "ETag" in entry else None

    def location(self, name: str) -> str:
        return str(self._files.unstrip_protocol(self._path(name)))

    def filesystem(self) -> Any:
        return self._files


def _has_exclusive_create(filesystem: Any) -> bool:
    """Return whether exclusive creation is tested on this file system; on others the last writer may win."""
    return bool(protocols(filesystem) & {"s3", "s3a", "memory"})


def _code(error: OSError) -> object:
    """Return the error code of S3; None for other errors."""
    return getattr(error.__cause__, "response", {}).get("Error", {}).get("Code")


def protocols(filesystem: Any) -> set[str]:
    """Return the protocol names of a file system."""
    names = filesystem.protocol
    return {names} if isinstance(names, str) else set(names)
