"""Parts: tables that passed their checks, as Parquet files named by content and compared when opened.

The checks work on sorted tables with complete traces; they run before a commit and again in ``verify``. A
part's size and sha256 are compared with its record before Arrow or DuckDB reads it. A process compares a
file again only when its stamp (identity, size and times) changes. Small queries over a large run therefore
cost one pass over the parts they read. Local parts are read with Arrow's native files. A Python file or
buffer that an Arrow thread releases while the interpreter exits would abort the process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from orderlens.errors import CorruptRunError, ModelOutputError, UserInputError, one_line
from orderlens.store.codec import encode, open_part, trace_starts
from orderlens.store.protocol import Folder, Stamp
from orderlens.store.records import Bundle, Part
from orderlens.store.schema import EVENTS, TRACE_KEY

_BLOCK = 1 << 20
_compared: set[tuple[str, Stamp, str]] = set()
"""(location, stamp, sha256) of the files that this process found equal to their records."""
_LISTED_SAMPLES = 4096


def make_part(table_name: str, prefix: str, table: pa.Table, note: Mapping[str, Any]) -> tuple[Part, bytes]:
    """Return the part of ``table`` and its bytes.

    The name ends in the content's digest. Two workers that compute the same unit write the same file, or two
    files of which the record names one. A committed file is never overwritten with other bytes.
    """
    data, layout = encode(table_name, table, note)
    sha256 = hashlib.sha256(data).hexdigest()
    path = f"{prefix}-{sha256[:16]}.parquet"
    return Part(table_name, path, table.num_rows, len(data), sha256, layout), data


def make_bundle(
    tables: Iterable[pa.Table],
    units: Mapping[str, Mapping[str, int]],
    parts: Iterable[Part],
    environments: Iterable[str],
) -> Bundle:
    """Return the bundle of some units with an index of its samples, orders and tasks."""
    found: dict[str, set[Any]] = {"sample_id": set(), "order": set(), "task": set()}
    for table in tables:
        for column, values in found.items():
            if column in table.column_names:
                values.update(pc.unique(table[column]).to_pylist())
    samples = sorted(found["sample_id"])
    return Bundle(
        units,
        tuple(parts),
        samples=tuple(samples) if len(samples) <= _LISTED_SAMPLES else None,
        first=samples[0] if samples else None,
        last=samples[-1] if samples else None,
        tasks=tuple(sorted(found["task"], key=lambda task: (task is not None, task))),
        orders=tuple(sorted(found["order"])),
        environments=tuple(sorted(set(environments))),
    )


@contextmanager
def opened(
    folder: Folder, part: Part, *, dictionaries: bool = False, recheck: bool = False
) -> Iterator[pq.ParquetFile]:
    """Open a part after comparing it with its record.

    Args:
        folder: the run.
        part: the part as its record describes it.
        dictionaries: keep the key strings as dictionaries.
        recheck: compare the bytes even if this process has compared them before.

    Raises:
        FileNotFoundError: the file is missing.
        CorruptRunError: it was truncated, changed or swapped, or cannot be read.
    """
    stamp = folder.stamp(part.path)
    known = not recheck and _is_known(folder, part, stamp)
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
        FileNotFoundError: a file is missing.
        CorruptRunError: a file was truncated, changed or swapped, or cannot be read.
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


CHECKED_COLUMNS = (*TRACE_KEY, "step", "forward", "position", "logq", "n_committed")
"""Columns of ``reveals`` that ``table_problems`` reads."""


def check_table(name: str, table: pa.Table, unit: str) -> None:
    """Reject a table that must not be stored.

    Raises:
        ModelOutputError: ``logq`` is NaN or positive.
        UserInputError: steps or positions do not form complete traces.
    """
    values = logq_problem(table) if name in _CHECKS else None
    if values:
        raise ModelOutputError(f"unit '{unit}': {values}; the model's log-probabilities are not normalised")
    shape = next((text for check in _CHECKS.get(name, ()) if (text := check(table))), None)
    if shape:
        raise UserInputError(f"unit '{unit}': {shape}; a unit must contain complete traces")


def table_problems(name: str, table: pa.Table) -> list[str]:
    """Return the problems of a sorted table, one line per kind."""
    checks = (logq_problem, *_CHECKS[name]) if name in _CHECKS else ()
    return [text for check in checks if (text := check(table))]


def logq_problem(table: pa.Table) -> str | None:
    """Describe the ``logq`` values that are NaN or above 0; null is allowed."""
    values = table["logq"].to_numpy()
    bad = np.flatnonzero(~(values <= 0) & table["logq"].is_valid().to_numpy())
    return f"logq = {values[bad[0]]} at {_where(table, int(bad[0]))}{_more(bad)}" if len(bad) else None


def trace_problem(table: pa.Table) -> str | None:
    """Describe where the steps of a trace are not 0…n−1, or a position occurs twice."""
    starts = trace_starts(table)
    lengths = np.diff(starts, append=table.num_rows)
    expected = np.arange(table.num_rows) - np.repeat(starts, lengths)
    steps = table["step"].to_numpy()
    wrong = np.flatnonzero(steps != expected)
    if len(wrong):
        row = int(wrong[0])
        return f"step {steps[row]} instead of {expected[row]} at {_where(table, row)}{_more(wrong)}"
    trace = np.repeat(np.arange(len(starts)), lengths)
    twice = _repeated(trace, table["position"].to_numpy())
    if len(twice):
        row = int(twice[0])
        return f"position {table['position'][row]} is revealed twice at {_where(table, row)}{_more(twice)}"
    return None


def pass_problem(table: pa.Table) -> str | None:
    """Describe where ``forward`` decreases in a trace, or a pass has more reveals than ``n_committed``."""
    forward = table["forward"].to_numpy()
    traces = np.zeros(table.num_rows, bool)
    traces[trace_starts(table)] = True
    back = np.flatnonzero((forward < 0) | (~traces & (np.diff(forward, prepend=0) < 0)))
    if len(back):
        row = int(back[0])
        return f"forward {forward[row]} after a later pass at {_where(table, row)}{_more(back)}"
    passes = np.flatnonzero(traces | (np.diff(forward, prepend=-1) != 0))
    lengths = np.diff(passes, append=table.num_rows)
    committed = table["n_committed"].fill_null(np.iinfo(np.int32).max).to_numpy()
    few = np.flatnonzero(committed < np.repeat(lengths, lengths))
    if len(few):
        row = int(few[0])
        return f"n_committed {committed[row]} in a pass with more reveals at {_where(table, row)}{_more(few)}"
    return None


def revision_problem(table: pa.Table) -> str | None:
    """Describe revisions with the wrong tokens: a remask has no new token, a reveal has no old one."""
    event = table["event"].to_numpy(zero_copy_only=False)
    old, new = (table[name].is_valid().to_numpy() for name in ("old_token", "new_token"))
    wrong = np.flatnonzero(
        ~np.isin(event, EVENTS) | (new == (event == "remask")) | (old == (event == "reveal"))
    )
    if len(wrong):
        row = int(wrong[0])
        tokens = [table[name][row].as_py() for name in ("old_token", "new_token")]
        return (
            f"event '{event[row]}' with old_token {tokens[0]} and new_token {tokens[1]} at "
            f"{_where(table, row)}{_more(wrong)}"
        )
    return None


_CHECKS = {"reveals": (trace_problem, pass_problem), "revisions": (revision_problem,)}
"""Table → its checks, in addition to that of ``logq``."""


def _repeated(trace: NDArray[np.int64], position: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the rows that repeat a (trace, position) of an earlier row."""
    ranked = np.lexsort((position, trace))
    same = (np.diff(trace[ranked]) == 0) & (np.diff(position[ranked]) == 0)
    return np.sort(ranked[1:][same])


def _where(table: pa.Table, row: int) -> str:
    names = ("sample_id", "order", "seed")
    values = {name: table[name][row].as_py() for name in names}
    return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)


def _more(rows: NDArray[np.int64]) -> str:
    return f" (and {len(rows) - 1} more rows)" if len(rows) > 1 else ""
