"""A folder on a local disk, and ``open_folder`` for a path or an address. Does not depend on runs."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa

from orderlens.common.files import lost_slash, refusal, storage_errors
from orderlens.common.machine import is_dead, process_tag
from orderlens.errors import MissingPackageError, RunError, UserInputError, one_line
from orderlens.store.protocol import Folder, Stamp

TEMPORARY = ".tmp-"
"""Prefix of the file name of a write in progress."""
SETTLED_NS = 2_000_000_000
"""Minimum age at which file times distinguish versions (some file systems have a resolution of 2 s)."""


class LocalFolder:
    """A folder on a local disk: temporary file, fsync, then rename or link."""

    exclusive = True

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).absolute()
        self.label = str(root)

    def read(self, name: str) -> bytes:
        with storage_errors(f"read {name}", self.label):
            return (self.root / name).read_bytes()

    def read_many(self, names: Sequence[str]) -> dict[str, bytes]:
        found = {}
        for name in names:
            with suppress(FileNotFoundError):
                found[name] = self.read(name)
        return found

    def put(self, name: str, data: bytes, *, durable: bool = True) -> None:
        with storage_errors(f"write {name}", self.label), self._temporary(name, data, durable) as temporary:
            temporary.replace(self.root / name)
            _sync_folder((self.root / name).parent, durable)

    def create(self, name: str, data: bytes, *, durable: bool = True) -> bool:
        with storage_errors(f"write {name}", self.label):
            if (self.root / name).exists():
                return False
            with self._temporary(name, data, durable) as temporary:
                made = _link(temporary, self.root / name)
            _sync_folder((self.root / name).parent, durable)
            return made

    def append(self, name: str, data: bytes) -> None:
        with storage_errors(f"write {name}", self.label):
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            with (self.root / name).open("ab") as handle:
                handle.write(data)

    @contextmanager
    def _temporary(self, name: str, data: bytes, durable: bool) -> Iterator[Path]:
        folder = (self.root / name).parent
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f"{TEMPORARY}{process_tag()}-{uuid4().hex[:12]}"
        try:
            with temporary.open("xb") as handle:
                handle.write(data)
                handle.flush()
                if durable:
                    os.fsync(handle.fileno())
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)

    def exists(self, name: str) -> bool:
        with storage_errors(f"read {name}", self.label):
            return (self.root / name).is_file()

    def sizes(self, under: str = "") -> dict[str, int]:
        found = {}
        with storage_errors("list files", self.label):
            for name in self._walk(under):
                with suppress(FileNotFoundError):  # removed by another worker since the listing
                    found[name] = (self.root / name).stat().st_size
        return found

    def names(self, under: str = "", *, deep: bool = True) -> list[str]:
        """Return the names of the files under a subfolder, without opening them."""
        with storage_errors("list files", self.label):
            return sorted(self._walk(under, deep=deep))

    def _walk(self, under: str = "", *, deep: bool = True) -> Iterator[str]:
        start = len(str(self.root)) + 1
        for folder, inner, names in os.walk(self.root / under, onerror=_raise_unless_gone):
            home = f"{folder[start:].replace(os.sep, '/')}/" if len(folder) > start else ""
            yield from (home + name for name in names)
            if not deep:
                inner.clear()

    def some_file(self) -> str | None:
        with storage_errors("list files", self.label):
            visible = (name for name in self._walk() if not name.rsplit("/", 1)[-1].startswith("."))
            return next(visible, None)

    def remove(self, name: str) -> None:
        with storage_errors(f"remove {name}", self.label):
            (self.root / name).unlink(missing_ok=True)

    def remove_many(self, names: Sequence[str]) -> None:
        for name in names:
            self.remove(name)

    def move(self, source: str, target: str) -> None:
        with storage_errors(f"move {source}", self.label):
            (self.root / target).parent.mkdir(parents=True, exist_ok=True)
            (self.root / source).replace(self.root / target)

    def open(self, name: str) -> pa.NativeFile:
        """Open a file for reading with Arrow's native reader."""
        return pa.OSFile(str(self.root / name), "rb")

    def fetch(self, name: str) -> pa.NativeFile:
        """Open a file for reading; the operating system caches it."""
        return self.open(name)

    def stamp(self, name: str) -> Stamp | None:
        """Return the file's identity, size and times; None while these might not show a change."""
        found = (self.root / name).stat()
        if time.time_ns() - max(found.st_mtime_ns, found.st_ctime_ns) < SETTLED_NS:
            return None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    def location(self, name: str) -> str:
        return str(self.root / name)

    def filesystem(self) -> Any:
        return None


def _raise_unless_gone(error: OSError) -> None:
    """Raise the error unless the folder does not exist: a missing folder counts as empty."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def _link(temporary: Path, target: Path) -> bool:
    """Give ``temporary`` its final name, unless that file exists."""
    try:
        os.link(temporary, target)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        return _reserve(temporary, target)
    return True


def _reserve(temporary: Path, target: Path) -> bool:
    """Do the same on a disk without hard links: O_EXCL reserves the name, a rename adds the content.

    A crash between the two leaves an empty file, which readers of records treat as absent.
    """
    try:
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    temporary.replace(target)
    return True


def _sync_folder(folder: Path, durable: bool) -> None:
    """Make a rename durable; on Windows this is neither possible nor needed."""
    if not durable or os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_abandoned(name: str) -> bool:
    """Return whether a file is an unfinished write of a dead process."""
    base = name.rsplit("/", 1)[-1]
    return base.startswith(TEMPORARY) and is_dead(base.removeprefix(TEMPORARY).rpartition("-")[0])


def open_folder(path: str | os.PathLike[str], filesystem: Any = None) -> Folder:
    """Return the folder at a local path or an address such as ``s3://bucket/run``.

    Args:
        path: path or address.
        filesystem: the fsspec or pyarrow file system of ``path``; None derives it from ``path``.
    """
    if filesystem is None and "://" not in str(path):
        return _local(path)
    try:
        import fsspec
        from fsspec.implementations.arrow import ArrowFSWrapper

        from orderlens.store.remote import RemoteFolder, protocols
    except ImportError as error:
        raise MissingPackageError(f"{path} needs fsspec (pip install fsspec)") from error
    if filesystem is None:
        filesystem, path = _remote_files(fsspec, str(path))
    elif not isinstance(filesystem, fsspec.AbstractFileSystem):
        filesystem = ArrowFSWrapper(filesystem)
    if protocols(filesystem) & {"file", "local"}:
        return _local(filesystem._strip_protocol(str(path)))
    return RemoteFolder(filesystem, str(path))


def _remote_files(fsspec: Any, address: str) -> tuple[Any, str]:
    try:
        found: tuple[Any, str] = fsspec.core.url_to_fs(address)
    except ImportError as error:
        raise MissingPackageError(f"{address} needs another package ({one_line(error)})") from error
    except ValueError as error:
        raise RunError(
            f"{address} is not the address of a folder ({one_line(error)}); "
            "give a path or an address such as s3://bucket/run"
        ) from error
    except OSError as error:
        raise RunError(
            f"{address} cannot be reached ({one_line(error)}); give a path or an address such as s3://bucket/run"
        ) from error
    return found


def _local(path: str | os.PathLike[str]) -> LocalFolder:
    if "\0" in str(path):
        raise UserInputError(f"{path!r} cannot be a folder: its name contains a zero byte; use another name")
    if (meant := lost_slash(str(path))) is not None:
        raise RunError(f"'{path}' is an address without its second slash; did you mean {meant}?")
    try:
        if not str(path):
            raise RunError("the path of the run folder is empty; give a folder")
        found = Path(path)
        _refuse_files(found)
        if found.absolute() == found.absolute().parent:
            raise RunError(f"{path} is the root of the disk, not a run folder; give a folder in it")
        return LocalFolder(path)
    except OSError as error:  # the name is too long, a parent is not accessible, no working directory
        raise RunError(f"{_shortened(path)} cannot be a folder: {refusal(error, writing=False)}") from error


def _refuse_files(path: Path) -> None:
    """Reject a path that is a file, has a file as parent, or contains a broken link."""
    if path.exists() and not path.is_dir():
        raise RunError(f"{path} is a file, not a folder; give the folder of a run")
    for part in (path, *path.parents):
        if part.is_symlink() and not part.exists():
            raise RunError(
                f"{part} is a link to {part.readlink()}, which does not exist; create that folder or "
                "remove the link"
            )
        if part.exists() and not part.is_dir():
            raise RunError(f"{path} cannot be a folder: {part} is a file; choose another place")


def _shortened(path: str | os.PathLike[str]) -> str:
    text = str(path)
    return text if len(text) <= 120 else f"{text[:60]}…{text[-40:]}"
