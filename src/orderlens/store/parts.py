"""Opening committed parts: nobody reads bytes that differ from what was committed.

A part's size and sha256 are compared with its record before its first byte is used, by Arrow or by DuckDB.
A process remembers which files it compared and does so again only when a file's stamp (identity, size and
times) changes, so that many small queries over a large run cost one pass over the parts they touch. Local
parts are read through Arrow's own files: a Python file or buffer that one of Arrow's threads lets go while
the interpreter ends would abort the process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from orderlens.errors import CorruptRunError, one_line
from orderlens.store.codec import open_part
from orderlens.store.protocol import Folder, Stamp
from orderlens.store.records import Part

_BLOCK = 1 << 20
_compared: set[tuple[str, Stamp, str]] = set()
"""(place, stamp, sha256) of the files that this process found equal to their records."""


@contextmanager
def opened(
    folder: Folder, part: Part, *, dictionaries: bool = False, afresh: bool = False
) -> Iterator[pq.ParquetFile]:
    """Open a part that equals its record.

    Args:
        folder: the run.
        part: the part as its record describes it.
        dictionaries: keep the key strings as dictionaries.
        afresh: compare the bytes even if this process did before.

    Raises:
        FileNotFoundError: the file is gone.
        CorruptRunError: it was cut short, changed or swapped, or cannot be read.
    """
    stamp = folder.stamp(part.path)
    known = not afresh and _is_known(folder, part, stamp)
    try:
        with (folder.open if known else folder.fetch)(part.path) as handle:
            if not known:
                _compare(handle, part)
                if stamp is not None:
                    _compared.add((folder.location(part.path), stamp, part.sha256))
                handle.seek(0)
            yield open_part(handle, dictionaries=dictionaries)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise CorruptRunError(f"{part.path} is damaged ({one_line(error)})") from error


def compare(folder: Folder, parts: Iterable[Part]) -> None:
    """Compare parts with their records before another program (DuckDB) opens them.

    Raises:
        FileNotFoundError: a file is gone.
        CorruptRunError: a file was cut short, changed or swapped, or cannot be read.
    """
    for part in parts:
        if not _is_known(folder, part, folder.stamp(part.path)):
            with opened(folder, part):
                pass


def _is_known(folder: Folder, part: Part, stamp: Stamp | None) -> bool:
    return stamp is not None and (folder.location(part.path), stamp, part.sha256) in _compared


def _compare(handle: pa.NativeFile, part: Part) -> None:
    size = handle.size()
    if size != part.size:
        raise CorruptRunError(f"{part.path} is damaged ({size} bytes instead of {part.size})")
    digest = hashlib.sha256()
    while len(block := handle.read_buffer(_BLOCK)):
        digest.update(block)
    if digest.hexdigest() != part.sha256:
        raise CorruptRunError(f"{part.path} is damaged (its digest does not match its record)")
