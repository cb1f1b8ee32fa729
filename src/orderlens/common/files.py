"""Whole files or none: a file is written beside its place and takes it only when it is complete.

A full disk, an interrupt or a crash leaves what stood there before. Everything outside run folders (tables,
figures, pages, model folders) is written through here; what the file system refuses becomes one line with
its remedy. Knows nothing of what the files hold.
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
"""Begins the name of a file that is being written; the process's number follows."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_LOCKED = (errno.EROFS, errno.EACCES, errno.EPERM)
_STREAMS = (Path("/dev"), Path("/dev/fd"), Path("/proc/self/fd"))
RUN_SPEC, RUN_FORMAT = "spec.json", "orderlens-run"
"""The file that makes a folder a run, and what it says it is."""


def refusal(error: OSError) -> str:
    """Return why the file system refused, with a remedy where one is known."""
    if error.errno in _FULL:
        return "the disk is full; what was finished is kept: free some space and run the same command again"
    if error.errno == errno.EFBIG:
        return "the file would be larger than allowed here (ulimit -f)"
    if error.errno in _LOCKED:
        return "it is read-only or belongs to somebody else; make it writable or choose another place"
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
    """Turn what the file system refuses inside the block into one line about ``path``.

    Raises:
        UserInputError: the name itself cannot work (too long, a NUL character, a file for a folder).
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


def _system_error(error: BaseException) -> OSError | None:
    """Return what the file system said, also through libraries that wrap it (torch) or spell it (Rust's)."""
    if isinstance(error, OSError):
        return error
    if number := re.search(r"\(os error (\d+)\)", str(error)):
        return OSError(int(number[1]), os.strerror(int(number[1])))
    inner = error.__cause__ or error.__context__
    return None if inner is None else _system_error(inner)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path to write to; the file takes the place of ``path`` when the block ends well.

    Missing folders are made. A link is followed; a device or a pipe (``/dev/stdout``) is written directly.
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


def refuse_place(
    path: Path, *, folder: bool = False, overwrite: bool = True, files: Iterable[Path] | None = None
) -> None:
    """Refuse a place that a file (or a folder of files) cannot take; called before long work, makes nothing.

    Args:
        path: the file or folder, with links and ``..`` as given.
        folder: it is a folder of files.
        overwrite: files that exist may be replaced.
        files: those of the folder that will be written; by default, any file in it counts.

    Raises:
        UserInputError: it is a folder (a file), leads through a file, is inside a run, or exists.
        StorageError: it may not be written to.
    """
    with storing(path):
        if (run := run_around(path)) is not None:
            raise UserInputError(
                f"{path} is inside the run {run}, and only the store writes there; choose a place outside it"
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
    """Return the run folder that ``path`` is, or is in; links and ``..`` are followed."""
    place = path.expanduser().resolve()
    return next((part for part in (place, *place.parents) if _is_run(part)), None)


def _is_run(folder: Path) -> bool:
    try:
        return f'"{RUN_FORMAT}"'.encode() in (folder / RUN_SPEC).read_bytes()
    except OSError:
        return False


def _existing(path: Path, files: Iterable[Path] | None) -> Path | None:
    """Return a file that would be replaced; devices, pipes and what ``/dev/stdout`` is are written to."""
    if path.parent in _STREAMS:
        return None
    if path.is_dir() and files is None:
        files = (inner for inner in path.rglob("*") if not inner.name.startswith("."))
    return next((inner for inner in files or (path,) if inner.is_file()), None)


def _sweep(folder: Path) -> None:
    """Remove what a process that was killed while writing left in ``folder``."""
    if os.name != "posix":  # elsewhere nobody can be asked by signal 0
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
    """Write or replace a UTF-8 file as a whole; half characters (lone surrogates) become U+FFFD."""
    return write_bytes(path, text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode())


def write_bytes(path: Path, data: bytes) -> Path:
    """Write or replace a file as a whole."""
    with replacing(path) as fresh:
        fresh.write_bytes(data)
    return path


def make_folder(path: Path) -> Path:
    """Make a folder and its parents; one that is there is fine."""
    with storing(path):
        path.mkdir(parents=True, exist_ok=True)
    return path
