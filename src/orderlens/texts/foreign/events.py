"""Reveals, edits and remasks of foreign traces, stored as our own revising policies store them.

``reveals`` keep the last reveal of every position that ends with a token. All other events are ``revisions``:
edits, remasks, and reveals that were masked again. Does not depend on files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from orderlens.errors import DataFileError
from orderlens.store.schema import TRACE_KEY, table_schema
from orderlens.texts.foreign.rows import REVEAL
from orderlens.texts.foreign.traces import ForeignTraces, Ints


@dataclass(frozen=True, slots=True)
class SplitTraces:
    """Traces whose events are separated.

    Attributes:
        reveals: the last reveals.
        ids: their token ids [n].
        final: the token ids [n] at the same positions at the end, after edits.
        revisions: the table of all other events; empty if nothing was revised.
        committed: tokens [n] that the pass of each reveal committed, including those masked again later.
        n_implied: reveals of positions that were not masked; the rows of their remasks are missing.
        n_empty: traces that end without a token, which are left out.
    """

    reveals: ForeignTraces
    ids: list[int]
    final: list[int]
    revisions: pa.Table
    committed: Ints
    n_implied: int
    n_empty: int


def split_events(traces: ForeignTraces, ids: Sequence[int]) -> SplitTraces:
    """Separate the reveals that stay from all other events.

    Args:
        traces: sorted rows of all events.
        ids: token ids [n], sorted like them.

    Raises:
        DataFileError: an edit or a remask of a position that holds no token.
    """
    canvas = _Canvas(traces, ids)
    for place, event in enumerate(traces.column("event") or [None] * len(traces.by)):
        canvas.apply(place, event or REVEAL)
    kept = np.array(sorted(canvas.revealed.values()), np.int64)
    held = set(traces.trace[kept].tolist())
    at = {place: key for key, place in canvas.revealed.items()}
    return SplitTraces(
        traces.take(kept),
        [ids[place] for place in kept],
        [canvas.tokens[at[int(place)]] for place in kept],
        _table(traces, [row for row in canvas.rows if int(traces.trace[row[0]]) in held]),
        _committed(traces, canvas.is_reveal)[kept],
        canvas.n_implied,
        len(traces.keys) - len(held),
    )


class _Canvas:
    """The tokens of all traces while their events are replayed.

    Attributes:
        tokens: (trace, position) → token there now.
        revealed: (trace, position) → row of the reveal that still holds.
        rows: the revisions, as (row, event, old token, new token).
        is_reveal: which rows are reveals [n].
    """

    def __init__(self, traces: ForeignTraces, ids: Sequence[int]) -> None:
        self.traces, self.ids = traces, ids
        self.tokens: dict[tuple[int, int], int] = {}
        self.revealed: dict[tuple[int, int], int] = {}
        self.rows: list[tuple[int, str, int | None, int | None]] = []
        self.is_reveal = np.zeros(len(traces.by), bool)
        self.n_implied = 0

    def apply(self, place: int, event: str) -> None:
        """Apply the event of one sorted row."""
        key = int(self.traces.trace[place]), int(self.traces.position[place])
        if event == REVEAL:
            if key in self.tokens:
                self.n_implied += 1
                self._supersede(key)
            self.tokens[key], self.revealed[key] = self.ids[place], place
            self.is_reveal[place] = True
            return
        if key not in self.tokens:
            raise DataFileError(
                f"{self.traces.where(place)}: {event} of position {key[1]}, which holds no token; a reveal "
                "of an earlier pass must come first"
            )
        new = self.ids[place] if event == "edit" else None
        self.rows.append((place, event, self.tokens[key], new))
        if new is None:
            del self.tokens[key]
            self._supersede(key)
        else:
            self.tokens[key] = new

    def _supersede(self, key: tuple[int, int]) -> None:
        place = self.revealed.pop(key)
        self.rows.append((place, REVEAL, None, self.ids[place]))


def _committed(traces: ForeignTraces, is_reveal: np.ndarray[Any, np.dtype[np.bool_]]) -> Ints:
    """Return how many reveals share the trace and the pass of each row."""
    pairs = np.stack([traces.trace, traces.forward])
    inverse = np.unique(pairs, axis=1, return_inverse=True)[1].reshape(-1)
    return np.bincount(inverse, is_reveal).astype(np.int64)[inverse]


def _table(traces: ForeignTraces, rows: Sequence[tuple[int, str, int | None, int | None]]) -> pa.Table:
    """Return the table ``revisions``."""
    schema = table_schema("revisions", real=pa.float64())
    logq, old_logq = traces.column("logq"), traces.column("old_logq")
    out = []
    for place, event, old, new in sorted(rows, key=lambda row: row[0]):
        row: dict[str, Any] = dict(zip(TRACE_KEY, traces.keys[traces.trace[place]], strict=True))
        row |= {"event": event, "forward": int(traces.forward[place]), "old_token": old, "new_token": new}
        row |= {"position": int(traces.position[place])}
        row |= {"logq": None if new is None or logq is None else logq[place]}
        row |= {"old_logq": None if old is None or old_logq is None else old_logq[place]}
        out.append(row)
    return pa.Table.from_pylist(out, schema=schema)
