"""Atomic writes: a file is written under a temporary name and renamed when it is complete.

A full disk, an interrupt or a crash leaves the old file unchanged. All files outside run folders (tables,
figures, pages, model folders) are written here. Errors of the file system become one line with a remedy.
Does not depend on the contents of the files.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from orderlens.errors import OrderLensError, StorageError, UserInputError, one_line

_MARK = ".orderlens-"
"""Prefix of the temporary name; the process id follows."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_LOCKED = (errno.EROFS, errno.EACCES, errno.EPERM)
_STREAMS = (Path("/dev"), Path("/dev/fd"), Path("/proc/self/fd"))
RUN_SPEC, RUN_FORMAT = "spec.json", "orderlens-run"
"""A folder with this file and this format name in it is a run."""


def refusal(error: OSError, *, writing: bool = True) -> str:
    """Return why the file system refused, with a remedy where one is known."""
    if error.errno in _FULL:
        return "the disk is full; finished work is kept: free some space and run the same command again"
    if error.errno == errno.EFBIG:
        return "the file would be larger than allowed here (ulimit -f)"
    if error.errno in _LOCKED and writing:
        return "it is read-only or belongs to another user; make it writable or choose another place"
    if error.errno == errno.ENAMETOOLONG:
        return "the name is too long for this file system; choose a shorter one"
    if error.errno == errno.ENOENT:
        return "there is no such file or folder"
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return "a part of the path is a file; choose another place"
    if error.errno == errno.EISDIR:
        return "it is a folder; name a file"
    if error.errno == errno.EMFILE:
        return "too many files are open; raise the limit (ulimit -n) or use fewer workers"
    return error.strerror or one_line(error)


@contextmanager
def storing(path: Path | str) -> Iterator[None]:
    """Turn file system errors inside the block into one line about ``path``.

    Raises:
        UserInputError: the name is not possible (too long, a NUL character, a file instead of a folder).
        StorageError: the disk is full, read-only or broken.
    """
    try:
        yield
    except OrderLensError:
        raise
    except Exception as error:
        refused = _system_error(error)
        if refused is not None:
            wrong_name = refused.errno in (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EEXIST, errno.EISDIR)
            kind = UserInputError if wrong_name else StorageError
            raise kind(f"cannot write {path}: {refusal(refused)}") from error
        if isinstance(error, UnicodeError) or (isinstance(error, ValueError) and "null" in str(error)):
            raise UserInputError(f"cannot write {str(path)!r}: no file can have this name") from error
        raise


@contextmanager
def storage_errors(action: str, label: str) -> Iterator[None]:
    """Turn an error of the file system into a ``StorageError``; a missing file to read stays what it is."""
    try:
        yield
    except OSError as error:
        writing = action.startswith(("write", "move", "remove"))
        if isinstance(error, FileNotFoundError) and not writing:
            raise
        raise StorageError(f"cannot {action} in {label}: {refusal(error, writing=writing)}") from error


def _system_error(error: BaseException) -> OSError | None:
    """Return the file system's error, also where a library wraps it (torch) or quotes it (Rust)."""
    if isinstance(error, OSError):
        return error
    if number := re.search(r"\(os error (\d+)\)", str(error)):
        return OSError(int(number[1]), os.strerror(int(number[1])))
    inner = error.__cause__ or error.__context__
    return None if inner is None else _system_error(inner)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; it replaces ``path`` if the block ends without an error.

    Missing folders are created. A link is followed; a device or a pipe (``/dev/stdout``) is written directly.
    """
    refuse_place(path)
    with storing(path):
        place = path.resolve() if path.is_symlink() else path
        if place.exists() and not place.is_file():
            yield place
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        _sweep(place.parent)
        fresh = place.with_name(f"{_MARK}{os.getpid()}-{uuid4().hex[:12]}{place.suffix[:8]}")
        try:
            yield fresh
            with fresh.open("rb+") as handle:
                os.fsync(handle.fileno())
            fresh.replace(place)
        finally:
            with suppress(OSError):
                fresh.unlink()


_LOST_SLASH = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/(?!/)")


def lost_slash(place: str) -> str | None:
    """Return the address that a path such as ``http:/host/x`` was meant to be; None for other paths."""
    found = _LOST_SLASH.match(place)
    return f"{found[0]}/{place[found.end() :]}" if found else None


def refuse_place(
    path: Path, *, folder: bool = False, overwrite: bool = True, files: Iterable[Path] | None = None
) -> None:
    """Refuse a path that cannot be written, before long work; creates nothing.

    Args:
        path: the file or folder; may contain links and ``..``.
        folder: ``path`` is a folder of files.
        overwrite: existing files may be replaced.
        files: the files of the folder that will be written; by default, any file in it counts.

    Raises:
        UserInputError: a folder where a file is expected or vice versa, inside a run, or it exists.
        StorageError: no permission to write.
    """
    with storing(path):
        if (run := run_around(path)) is not None:
            raise UserInputError(
                f"{path} is inside the run {run}, whose files must not be changed; choose a place outside it"
            )
        if path.is_dir() and not folder:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        nearest = next(part for part in (path, *path.absolute().parents) if part.exists())
        if not nearest.is_dir() and (folder or nearest != path):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(nearest, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if not overwrite and (found := _existing(path, files)) is not None:
            raise UserInputError(f"{found} exists; choose another place, or replace it with --overwrite")


def run_around(path: Path) -> Path | None:
    """Return the run folder that is or contains ``path``; links and ``..`` are followed."""
    place = path.expanduser().resolve()
    return next((part for part in (place, *place.parents) if _is_run(part)), None)


def _is_run(folder: Path) -> bool:
    try:
        return f'"{RUN_FORMAT}"'.encode() in (folder / RUN_SPEC).read_bytes()
    except OSError:
        return False


def _existing(path: Path, files: Iterable[Path] | None) -> Path | None:
    """Return a file that would be replaced; devices and pipes do not count."""
    if path.parent in _STREAMS:
        return None
    if path.is_dir() and files is None:
        files = (inner for inner in path.rglob("*") if not inner.name.startswith("."))
    return next((inner for inner in files or (path,) if inner.is_file()), None)


def _sweep(folder: Path) -> None:
    """Remove the temporary files of killed processes from ``folder``."""
    if os.name != "posix":  # signal 0 exists only on POSIX systems
        return
    for left in folder.glob(f"{_MARK}*"):
        owner = left.name.removeprefix(_MARK).partition("-")[0]
        if owner.isdigit() and not _runs(int(owner)):
            with suppress(OSError):
                left.unlink()


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def write_text(path: Path, text: str) -> Path:
    """Write or replace a UTF-8 file atomically; lone surrogates become U+FFFD."""
    return write_bytes(path, text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode())


def write_bytes(path: Path, data: bytes) -> Path:
    """Write or replace a file atomically."""
    with replacing(path) as fresh:
        fresh.write_bytes(data)
    return path


def make_folder(path: Path) -> Path:
    """Create a folder and its parents; it may exist already."""
    with storing(path):
        path.mkdir(parents=True, exist_ok=True)
    return path
