"""From sorted traces to the tables of a run, and the run in its folder."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from orderlens.errors import DataFileError, UserInputError
from orderlens.rules import spec_of
from orderlens.store.samples import DRAWN, likelihood
from orderlens.store.schema import TRACE_KEY, table_schema
from orderlens.store.writer import open_writer
from orderlens.texts.foreign.rows import COUNTS, FLAGS, LOG_PROBS, read_columns
from orderlens.texts.foreign.traces import ForeignTraces, check_same_text, per_trace, sort_traces
from orderlens.texts.rows import at_home

UNIT_ROWS = 1 << 17
"""Reveals from which on a unit is committed."""
UNKNOWN_TOKEN = -1
"""Id of tokens of which a file tells neither id nor text."""
GRADER = "imported"


@dataclass(frozen=True, slots=True)
class Imported:
    """What was imported: counts, which column was read as what, and what the reader should know."""

    run: str
    n_reveals: int
    n_traces: int
    n_samples: int
    columns: dict[str, str]
    notes: list[str]


def import_run(
    path: Path,
    out: str,
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
        columns: field → column of the file, where names do not tell.
        model: name of what decoded.
        block_size: tokens per block, counted from a trace's first position; only for files without ``block``.
        temperature: of rows that do not say; None for texts that were given and scored.

    Raises:
        DataFileError: something is missing or does not add up; the message names the row.
        RunError: the folder holds another run.
    """
    if block_size is not None and block_size < 1:
        raise UserInputError(f"block_size={block_size} must be at least 1")
    if temperature is not None and not 0 <= temperature < math.inf:
        raise UserInputError(f"temperature={temperature:g} must be 0 (greedy) or more, and finite")
    path = at_home(path)
    rows = read_columns(path, columns or {})
    traces = sort_traces(rows, temperature)
    if block_size is not None and traces.column("block") is not None:
        raise UserInputError(f"{path} has a column for blocks; leave out --block-size")
    ids, pieces = _tokens(traces)
    if pieces or traces.column("token_id") is not None:
        check_same_text(traces, ids)
    reveals = _reveals(traces, ids, block_size)
    others = _outputs(traces, ids, pieces), _verdicts(traces)
    notes = [*rows.header.notes(), *_notes(traces, pieces)]
    spec = _spec(path, traces, model, block_size, rows.header.columns, notes)
    units = dict(_units(traces, reveals, *others, pieces))
    with open_writer(out, spec) as writer:
        for key in writer.pending(units):
            writer.commit(key, units[key])
        writer.finish(units)
    samples = {(key[0], key[-1]) for key in traces.keys}
    return Imported(out, len(rows), len(traces.keys), len(samples), rows.header.columns, notes)


def _tokens(traces: ForeignTraces) -> tuple[list[int], dict[int, str]]:
    """Return the token ids and the texts of ids; where a file tells texts only, ids number them."""
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
    for place, (token, text) in enumerate(zip(ids, texts or [None] * len(ids), strict=True)):
        if token is None:
            raise DataFileError(f"{traces.where(place)}: token_id is missing; other rows have it")
        if text is not None and pieces.setdefault(token, text) != text:
            raise DataFileError(
                f"{traces.where(place)}: token {token} is {text!r} here and {pieces[token]!r} before; "
                "decode each id alone"
            )
    return ids, pieces


def _reveals(traces: ForeignTraces, ids: list[int], block_size: int | None) -> pa.Table:
    n = len(traces.by)
    schema = table_schema("reveals", real=pa.float64())
    keys = list(zip(*(traces.keys[trace] for trace in traces.trace), strict=True))
    columns: dict[str, Any] = {name: list(keys[i]) for i, name in enumerate(TRACE_KEY)}
    columns |= {"step": traces.step, "forward": traces.forward, "position": traces.position, "token_id": ids}
    columns |= {"logq": traces.column("logq"), "block": _blocks(traces, block_size)}
    columns["n_committed"] = _committed(traces)
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


def _committed(traces: ForeignTraces) -> Any:
    pairs = np.stack([traces.trace, traces.forward])
    _, inverse, counts = np.unique(pairs, axis=1, return_inverse=True, return_counts=True)
    return counts[inverse.reshape(-1)]


def _outputs(traces: ForeignTraces, ids: list[int], pieces: Mapping[int, str]) -> list[dict[str, Any]]:
    """Return one row per trace: its tokens in text order, its text where pieces are known, its prompt."""
    prompts = per_trace(traces, "prompt") or [None] * len(traces.keys)
    eos = traces.column("is_eos") or [None] * len(ids)
    past = np.array(traces.column("is_overflow") or [False] * len(ids), bool)
    stated = traces.column("token_id") is not None
    out = []
    for trace, (start, stop) in enumerate(_spans(traces)):
        places = start + np.argsort(traces.position[start:stop], kind="stable")
        places = places[~past[places]]
        end = next((i for i, place in enumerate(places) if eos[place]), len(places))
        text = "".join(pieces.get(ids[place], "") for place in places[:end]) if pieces else None
        row: dict[str, Any] = dict(zip(TRACE_KEY, traces.keys[trace], strict=True))
        row |= {"prompt_text": prompts[trace], "text": text, "n_requested": len(places)}
        out.append(row | ({"token_ids": [ids[place] for place in places]} if stated else {}))
    return out


def _spans(traces: ForeignTraces) -> list[tuple[int, int]]:
    starts = [*np.flatnonzero(np.diff(traces.trace, prepend=-1)).tolist(), len(traces.by)]
    return list(pairwise(starts))


def _verdicts(traces: ForeignTraces) -> list[dict[str, Any]]:
    """Return one row per trace that a column ``correct`` judges."""
    found = per_trace(traces, "correct") or []
    return [
        dict(zip(TRACE_KEY, key, strict=True)) | {"correct": value, "grader": GRADER, "generation": 0}
        for key, value in zip(traces.keys, found, strict=False)
        if value is not None
    ]


def _units(
    traces: ForeignTraces,
    reveals: pa.Table,
    outputs: list[dict[str, Any]],
    verdicts: list[dict[str, Any]],
    pieces: Mapping[int, str],
) -> Iterator[tuple[str, dict[str, pa.Table]]]:
    """Yield units of whole traces; the texts of tokens and the verdicts go with the first."""
    small = {
        "verdicts": pa.Table.from_pylist(verdicts, schema=table_schema("verdicts")),
        "tokens": pa.table(
            {"token_id": list(pieces), "piece": list(pieces.values())}, schema=table_schema("tokens")
        ),
    }
    extra = {name: table for name, table in small.items() if table.num_rows}
    spans, first, number = _spans(traces), 0, 0
    for last, (_, stop) in enumerate(spans):
        start = spans[first][0]
        if stop - start >= UNIT_ROWS or last == len(spans) - 1:
            said = pa.Table.from_pylist(outputs[first : last + 1], schema=table_schema("outputs"))
            yield (
                f"import-{number:05d}",
                {"reveals": reveals.slice(start, stop - start), "outputs": said} | extra,
            )
            extra, first, number = {}, last + 1, number + 1


def _notes(traces: ForeignTraces, pieces: Mapping[int, str]) -> list[str]:
    """Return what the file does not tell, and what follows from that."""
    notes = []
    if traces.column("position") is None:
        notes.append(
            "no position: places are those of the reveals, so path shapes (reveal order) mean nothing"
        )
    if traces.column("step") is None and traces.column("forward") is None:
        notes.append("no step: rows of a trace are taken in the order of the file")
    if not pieces:
        notes.append("no token text: samples are shown with token ids only")
    if all(key[TRACE_KEY.index("temperature")] is None for key in traces.keys):
        notes.append(
            "no temperature: texts count as given and scored; --temperature T if they were generated"
        )
    return notes


def _spec(
    path: Path,
    traces: ForeignTraces,
    model: str | None,
    block_size: int | None,
    columns: Mapping[str, str],
    notes: list[str],
) -> dict[str, Any]:
    keys = [dict(zip(TRACE_KEY, key, strict=True)) for key in traces.keys]
    temperatures = sorted({key["temperature"] for key in keys} - {None})
    digest = hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    samples = {(key["task"], key["sample_id"]) for key in keys}
    return {
        "kind": "import",
        "model": {"name": model or path.name},
        **({} if block_size is None else {"block_size": block_size}),
        "orders": sorted({spec_of(key["order"], key["seed"]) for key in keys}),
        "data": {"source": path.name, "n_samples": len(samples), "digest": digest},
        **({"temperatures": temperatures} if temperatures else {}),
        "likelihood": _likelihoods(traces),
        "imported": {"columns": dict(columns), "notes": notes},
    }


def _likelihoods(traces: ForeignTraces) -> dict[str, str]:
    """Return what sums of log q are by label; nothing for rules that we do not know or that do not fit.

    A label that means one token per pass says nothing about traces that committed more.
    """
    together = {
        traces.trace[i] for i in np.flatnonzero((np.diff(traces.forward) == 0) & (traces.step[1:] > 0))
    }
    found: dict[str, str] = {}
    wrong = set()
    for number, key in enumerate(traces.keys):
        named = dict(zip(TRACE_KEY, key, strict=True))
        label = named["order"] + (DRAWN if named["temperature"] else "")
        kind = likelihood(None, named["order"], named["temperature"])
        if kind is None or (number in together and "+" not in named["order"]):
            wrong |= {label, named["order"]}  # a drawn trace would fall back to what holds for greedy ones
        else:
            found[label] = kind
    return {label: kind for label, kind in found.items() if label not in wrong}
