"""Builds the tables of a run from imported traces, and writes the run."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from orderlens.errors import DataFileError, UserInputError, counted
from orderlens.rules import spec_of
from orderlens.store.samples import DRAWN, likelihood
from orderlens.store.schema import TRACE_KEY, table_schema
from orderlens.store.writer import open_writer
from orderlens.texts.foreign.events import SplitTraces, split_events
from orderlens.texts.foreign.rows import COUNTS, FLAGS, LOG_PROBS, Rows, read_columns
from orderlens.texts.foreign.traces import ForeignTraces, check_same_text, per_trace, sort_traces
from orderlens.texts.rows import expand_home

UNIT_ROWS = 1 << 17
"""Minimum number of reveals per unit."""
UNKNOWN_TOKEN = -1
"""Token id where the file has neither id nor text."""
GRADER = "imported"


@dataclass(frozen=True, slots=True)
class Imported:
    """Summary of an import: counts, columns by field, and notes."""

    run: str
    n_reveals: int
    n_traces: int
    n_samples: int
    columns: dict[str, str]
    notes: list[str]


def import_run(
    path: str | Path,
    out: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    model: str | None = None,
    block_size: int | None = None,
    temperature: float | None = None,
) -> Imported:
    """Read traces from a file and write them as a run.

    Args:
        path: CSV, JSON lines or Parquet with at least sample, order, log q (nats) and step or position.
        out: folder or address of the run.
        columns: field → column of the file, for columns with other names.
        model: name of the model that decoded.
        block_size: tokens per block, counted from a trace's first position; only for files without ``block``.
        temperature: temperature of rows without one; None for given texts that were scored.

    Raises:
        DataFileError: a value is missing or inconsistent; the message names the row.
        RunError: the folder contains another run.
    """
    if block_size is not None and block_size < 1:
        raise UserInputError(f"block_size={block_size} must be at least 1")
    if temperature is not None and not 0 <= temperature < math.inf:
        raise UserInputError(f"temperature={temperature:g} must be 0 (greedy) or more, and finite")
    path, out = expand_home(Path(path)), str(out)
    rows = read_columns(path, columns or {})
    if block_size is not None and "block" in rows.columns:
        raise UserInputError(f"{path} has a column for blocks; leave out --block-size")
    content = foreign_tables(rows, block_size=block_size, temperature=temperature)
    notes = [*rows.header.notes(), *content.notes]
    digest = hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    spec = content.spec("import", model or path.name, path.name, digest) | {
        **({} if block_size is None else {"block_size": block_size}),
        "imported": {"columns": rows.header.columns, "notes": notes},
    }
    save_units(out, spec, content.units)
    traces = content.traces
    samples = {(key[0], key[-1]) for key in traces.keys}
    reveals = len(traces.by)
    return Imported(out, reveals, len(traces.keys), len(samples), rows.header.columns, notes)


@dataclass(frozen=True, slots=True)
class ForeignTables:
    """The tables of foreign traces by unit, and what their reader should know.

    Attributes:
        traces: the reveals that stay.
        units: unit → table name → table.
        notes: what the rows do not tell.
    """

    traces: ForeignTraces
    units: dict[str, dict[str, pa.Table]]
    notes: list[str]

    def spec(self, kind: str, model: str, source: str, digest: str) -> dict[str, Any]:
        """Return the spec of a run of these tables."""
        keys = [dict(zip(TRACE_KEY, key, strict=True)) for key in self.traces.keys]
        temperatures = sorted({key["temperature"] for key in keys} - {None})
        samples = {(key["task"], key["sample_id"]) for key in keys}
        return {
            "kind": kind,
            "model": {"name": model},
            "orders": sorted({spec_of(key["order"], key["seed"]) for key in keys}),
            "data": {"source": source, "n_samples": len(samples), "digest": digest},
            **({"temperatures": temperatures} if temperatures else {}),
            "likelihood": _likelihoods(self.traces),
        }


def foreign_tables(
    rows: Rows,
    *,
    block_size: int | None = None,
    temperature: float | None = None,
    prompts: Mapping[str, Sequence[int]] | None = None,
    decode: Callable[[Sequence[int]], str] | None = None,
    prefix: str = "import",
) -> ForeignTables:
    """Sort rows into traces and return the tables of a run.

    Args:
        rows: checked values, one row per event.
        block_size: tokens per block, counted from a trace's first position; None: the rows tell.
        temperature: of rows that do not say.
        prompts: sample → token ids of its prompt, where they are known.
        decode: token ids → text; None joins the texts of the tokens.
        prefix: how the keys of units start.
    """
    events = sort_traces(rows, temperature)
    event_ids, pieces = _tokens(events)
    split = split_events(events, event_ids)
    traces, ids = split.reveals, split.final
    if not ids:
        raise DataFileError(f"{rows.path} holds no reveal that stays: every token is masked again")
    if pieces or traces.column("token_id") is not None:
        check_same_text(traces, ids)
    outputs = _outputs(events, traces, ids, pieces, decode)
    for row in outputs:
        row["prompt_ids"] = (prompts or {}).get(row["sample_id"])
    tables = {
        "reveals": _reveals(split, block_size),
        "revisions": split.revisions,
        "outputs": pa.Table.from_pylist(outputs, schema=table_schema("outputs")),
        "verdicts": pa.Table.from_pylist(_verdicts(events, traces), schema=table_schema("verdicts")),
        "tokens": pa.table(
            {"token_id": list(pieces), "piece": list(pieces.values())}, schema=table_schema("tokens")
        ),
    }
    units = {f"{prefix}-{n:05d}": unit for n, unit in enumerate(_units(traces, tables))}
    return ForeignTables(traces, units, _notes(split, pieces))


def merged_tables(units: Mapping[str, Mapping[str, pa.Table]]) -> dict[str, pa.Table]:
    """Return the tables of all units by name."""
    names = dict.fromkeys(name for unit in units.values() for name in unit)
    return {name: pa.concat_tables(unit[name] for unit in units.values() if name in unit) for name in names}


def save_units(out: str, spec: Mapping[str, Any], units: Mapping[str, dict[str, pa.Table]]) -> None:
    """Write units as a complete run."""
    with open_writer(out, spec) as writer:
        for key in writer.pending(units):
            writer.commit(key, units[key])
        writer.finish(units)


def _tokens(traces: ForeignTraces) -> tuple[list[int], dict[int, str]]:
    """Return the token ids and their texts; if the file has only texts, ids are assigned."""
    ids, texts = traces.column("token_id"), traces.column("text")
    if ids is None and texts is None:
        return [UNKNOWN_TOKEN] * len(traces.by), {}
    if ids is None:
        number: dict[str, int] = {}
        made = [
            UNKNOWN_TOKEN if text is None else number.setdefault(text, len(number)) for text in texts or ()
        ]
        return made, {token: text for text, token in number.items()}
    pieces: dict[int, str] = {}
    events = traces.column("event")
    for place, (token, text) in enumerate(zip(ids, texts or [None] * len(ids), strict=True)):
        if token is None and not (events and events[place] == "remask"):
            raise DataFileError(f"{traces.where(place)}: token_id is missing; other rows have it")
        if text is not None and pieces.setdefault(token, text) != text:
            raise DataFileError(
                f"{traces.where(place)}: token {token} is {text!r} here and {pieces[token]!r} before; "
                "decode each id separately"
            )
    return [UNKNOWN_TOKEN if token is None else token for token in ids], pieces


def _reveals(split: SplitTraces, block_size: int | None) -> pa.Table:
    traces, n = split.reveals, len(split.ids)
    schema = table_schema("reveals", real=pa.float64())
    keys = list(zip(*(traces.keys[trace] for trace in traces.trace), strict=True))
    columns: dict[str, Any] = {name: list(keys[i]) for i, name in enumerate(TRACE_KEY)}
    columns |= {"step": traces.step, "forward": traces.forward, "position": traces.position}
    columns |= {"token_id": split.ids}
    columns |= {"logq": traces.column("logq"), "block": _blocks(traces, block_size)}
    columns["n_committed"] = split.committed
    for name in (*LOG_PROBS, *FLAGS, *COUNTS):
        if (values := traces.column(name)) is not None:
            columns[name] = values
    return pa.table(
        [pa.array(columns.get(name, [None] * n), schema.field(name).type) for name in schema.names],
        schema=schema,
    )


def _blocks(traces: ForeignTraces, block_size: int | None) -> Any:
    given = traces.column("block")
    if given is not None:
        if None in given:
            raise DataFileError(f"{traces.where(given.index(None))}: block is missing; other rows have it")
        return given
    if block_size is None:
        return np.zeros(len(traces.by), np.int64)
    first = np.full(len(traces.keys), np.iinfo(np.int64).max)
    np.minimum.at(first, traces.trace, traces.position)
    return (traces.position - first[traces.trace]) // block_size


def _outputs(
    events: ForeignTraces,
    traces: ForeignTraces,
    ids: list[int],
    pieces: Mapping[int, str],
    decode: Callable[[Sequence[int]], str] | None,
) -> list[dict[str, Any]]:
    """Return one row per trace: its tokens in text order, its text if known, and its prompt."""
    prompts, passes = (_stated(events, traces, field) for field in ("prompt", "n_passes"))
    eos = traces.column("is_eos") or [None] * len(ids)
    past = np.array(traces.column("is_overflow") or [False] * len(ids), bool)
    stated = traces.column("token_id") is not None
    out = []
    for trace, (start, stop) in enumerate(_spans(traces)):
        places = start + np.argsort(traces.position[start:stop], kind="stable")
        places = places[~past[places]]
        end = next((i for i, place in enumerate(places) if eos[place]), len(places))
        words = [ids[place] for place in places[:end]]
        text = "".join(pieces.get(token, "") for token in words) if pieces else None
        text = text if decode is None else decode(words)
        row: dict[str, Any] = dict(zip(TRACE_KEY, traces.keys[trace], strict=True))
        row |= {"prompt_text": prompts[trace], "text": text, "n_requested": len(places)}
        row |= {"n_passes": passes[trace]}
        out.append(row | ({"token_ids": [ids[place] for place in places]} if stated else {}))
    return out


def _stated(events: ForeignTraces, traces: ForeignTraces, field: str) -> list[Any]:
    """Return one value per trace of ``traces``, stated in any row of its events; None where none is."""
    found = dict(zip(events.keys, per_trace(events, field) or [None] * len(events.keys), strict=True))
    return [found[key] for key in traces.keys]


def _spans(traces: ForeignTraces) -> list[tuple[int, int]]:
    starts = [*np.flatnonzero(np.diff(traces.trace, prepend=-1)).tolist(), len(traces.by)]
    return list(pairwise(starts))


def _verdicts(events: ForeignTraces, traces: ForeignTraces) -> list[dict[str, Any]]:
    """Return one row per trace with a value of ``correct``."""
    found = _stated(events, traces, "correct")
    return [
        dict(zip(TRACE_KEY, key, strict=True)) | {"correct": value, "grader": GRADER, "generation": 0}
        for key, value in zip(traces.keys, found, strict=True)
        if value is not None
    ]


def _units(traces: ForeignTraces, tables: Mapping[str, pa.Table]) -> Iterator[dict[str, pa.Table]]:
    """Yield units of whole traces; revisions, texts of tokens and verdicts go with the first."""
    extra = {name: table for name, table in tables.items() if name not in ("reveals", "outputs")}
    extra = {name: table for name, table in extra.items() if table.num_rows}
    spans, first = _spans(traces), 0
    for last, (_, stop) in enumerate(spans):
        start = spans[first][0]
        if stop - start >= UNIT_ROWS or last == len(spans) - 1:
            texts = tables["outputs"].slice(first, last + 1 - first)
            yield {"reveals": tables["reveals"].slice(start, stop - start), "outputs": texts} | extra
            extra, first = {}, last + 1


def _notes(split: SplitTraces, pieces: Mapping[int, str]) -> list[str]:
    """Return a note for each missing column and its consequence."""
    traces, notes = split.reveals, []
    if split.n_implied:
        notes.append(
            f"{counted(split.n_implied, 'reveal')} of positions that were not masked: rows with event remask "
            "are missing, so replays show the earlier token until then"
        )
    if split.n_empty:
        notes.append(f"{counted(split.n_empty, 'trace')} left out: every token was masked again")
    if traces.column("position") is None:
        notes.append(
            "no position: the step is used instead, so statistics of the reveal order are meaningless"
        )
    if traces.column("step") is None and traces.column("forward") is None:
        notes.append("no step: the rows of a trace are read in the order of the file")
    if not pieces:
        notes.append("no token text: samples are shown with token ids only")
    if all(key[TRACE_KEY.index("temperature")] is None for key in traces.keys):
        notes.append(
            "no temperature: texts count as given and scored; if they were generated, add --temperature T"
        )
    return notes


def _likelihoods(traces: ForeignTraces) -> dict[str, str]:
    """Return per label whether the sum of log q is a likelihood; unknown rules are left out.

    A label of one token per pass is also left out if its traces committed several tokens per pass.
    """
    joint = {traces.trace[i] for i in np.flatnonzero((np.diff(traces.forward) == 0) & (traces.step[1:] > 0))}
    found: dict[str, str] = {}
    wrong = set()
    for number, key in enumerate(traces.keys):
        named = dict(zip(TRACE_KEY, key, strict=True))
        label = named["order"] + (DRAWN if named["temperature"] else "")
        kind = likelihood(None, named["order"], named["temperature"])
        if kind is None or (number in joint and "+" not in named["order"]):
            wrong |= {label, named["order"]}  # else a drawn trace would get the value of greedy traces
        else:
            found[label] = kind
    return {label: kind for label, kind in found.items() if label not in wrong}
