"""A folder on an fsspec file system: object stores, where one PUT is atomic and a rename is not."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import numpy as np
import pyarrow as pa

from orderlens.errors import OrderLensError, StorageError, one_line
from orderlens.store.protocol import Stamp, storage_errors

_MEMORY_LOCK = threading.Lock()
_CONFLICT_PAUSES_S = (0.1, 0.5, 2.0)
"""S3 answers 409 where two conditional writes cross and neither has won yet: the loser asks again."""


@contextmanager
def _remote_errors(action: str, label: str) -> Iterator[None]:
    """Turn what a service refuses into a ``StorageError``: each brings a tree of exceptions of its own."""
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
        self._conditional = bool(protocols(filesystem) & {"s3", "s3a"})  # one request says all
        # s3fs asks for the size of an object before it reads it, unless it may not read it in pieces.
        self._whole = {"max_concurrency": 1} if self._conditional else {}
        # In-memory files are checked and written in two steps, which threads could interleave.
        self._creation: AbstractContextManager[Any] = (
            _MEMORY_LOCK if "memory" in protocols(filesystem) else nullcontext()
        )

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def read(self, name: str) -> bytes:
        with _remote_errors(f"read {name}", self.label):
            return bytes(self._files.cat_file(self._path(name), **self._whole))

    def read_many(self, names: Sequence[str]) -> dict[str, bytes]:
        """Return the bytes of several objects, fetched side by side where the file system can."""
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
        """Write a new object with a conditional request where the service knows it."""
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
                return found == data  # another writer was first, or a retry met our own earlier request
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
        """Write the object again with more at its end: object stores cannot append."""
        with suppress(FileNotFoundError):
            data = self.read(name) + data
        self.put(name, data)

    def _make_parent(self, name: str) -> None:
        if not self._conditional:  # an object store has no folders, and asking for its bucket is a request
            self._files.makedirs(self._files._parent(self._path(name)), exist_ok=True)

    def exists(self, name: str) -> bool:
        """Say whether there is such an object, past any listing cache."""
        with _remote_errors(f"read {name}", self.label):
            try:  # isfile would take a refused request for an absent file
                return self._asked(name)
            except FileNotFoundError:
                return False

    def _asked(self, name: str) -> bool:
        if self._conditional:  # info would go on and look for a folder of that name
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
        if self._conditional and under:  # with a path alone, an empty folder costs two requests more
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
        """Delete objects, a thousand with one request where the service knows that."""
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
        """Copy an object into memory, a large one in pieces side by side; Arrow owns that memory."""
        with _remote_errors(f"read {name}", self.label):
            data = self._files.cat_file(self._path(name))
        memory = pa.allocate_buffer(len(data))
        np.asarray(memory)[:] = np.frombuffer(data, np.uint8)
        return pa.BufferReader(memory)

    def stamp(self, name: str) -> Stamp | None:
        """Return the object's size and tag; None where the service gives none."""
        with _remote_errors(f"read {name}", self.label):
            self._files.invalidate_cache()
            entry = self._files.info(self._path(name))
        return (entry["size"], entry["ETag"]) if "ETag" in entry else None

    def location(self, name: str) -> str:
        return str(self._files.unstrip_protocol(self._path(name)))

    def filesystem(self) -> Any:
        return self._files


def _has_exclusive_create(filesystem: Any) -> bool:
    """Name the file systems whose exclusive creation is tested; on others the last writer may win."""
    return bool(protocols(filesystem) & {"s3", "s3a", "memory"})


def _code(error: OSError) -> object:
    """Return the name that S3 gave to what it refused; None where it gave none."""
    return getattr(error.__cause__, "response", {}).get("Error", {}).get("Code")


def protocols(filesystem: Any) -> set[str]:
    """Return the names under which a file system is known."""
    names = filesystem.protocol
    return {names} if isinstance(names, str) else set(names)
