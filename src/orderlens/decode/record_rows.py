"""The rows of ``runs import`` from what was recorded, and notes on what could not be.

Does not depend on how the decodes were recorded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from orderlens.decode.record_canvas import STATS, Changes, RecordedCanvas
from orderlens.errors import counted
from orderlens.models.wrapped import as_tokenizer, tokenizer_eos

if TYPE_CHECKING:
    from orderlens.texts.foreign.rows import Rows


LEAST_COMPARED = 8
"""Reveals from which on a missing or needless shift is reported."""


class Decode(Protocol):
    """One recorded decode, as it is saved; the members are those of ``RecordedCanvas``."""

    mask_id: int
    n_unexplained: int

    @property
    def changes(self) -> list[Changes]: ...

    @property
    def last_N(self) -> Tensor: ...

    def prompts(self) -> list[list[int]]: ...

    def left_masked(self) -> int: ...


def prompts_of(
    decodes: Sequence[tuple[Decode, Sequence[str]]], samples: Mapping[str, Mapping[str, Any]]
) -> dict[str, list[int]]:
    """Return the token ids of each prompt: as stated, or those before the first position to fill."""
    found = {}
    for canvas, names in decodes:
        for name, tokens in zip(names, canvas.prompts(), strict=True):
            found[name] = list(samples[name].get("prompt_ids", tokens))
    return found


def import_rows(
    decodes: Sequence[tuple[Decode, Sequence[str]]],
    samples: Mapping[str, Mapping[str, Any]],
    prompts: Mapping[str, Sequence[int]],
    tokenizer: Any,
    facts: Mapping[str, Any],
) -> Rows:
    """Return all changes as rows of an import.

    Args:
        decodes: each with the names of its texts.
        samples: name → its facts.
        prompts: name → token ids of its prompt.
        tokenizer: None shows token ids.
        facts: order and temperature of every row.
    """
    from orderlens.texts.foreign.rows import Header, Rows

    rows = Rows(Path("recording"), Header("recording", {}), [], {})
    pieces, eos = Pieces(tokenizer), tokenizer_eos(tokenizer)
    for canvas, names in decodes:
        events = event_rows(canvas.changes, canvas.mask_id, names)
        passes = silent_passes(canvas, names, events)
        for event in events:
            name, token = event["sample_id"], event.get("token_id")
            prompt = samples[name].get("prompt") or (
                pieces.of(tuple(prompts[name])) if prompts[name] else None
            )
            piece = None if token is None else pieces.of((token,))
            row = event | dict(facts) | {"n_passes": passes.get(name), "prompt": prompt, "text": piece}
            rows.add(len(rows), row | {"correct": samples[name].get("correct"), "is_eos": token in eos})
    return rows


def gaps(decodes: Sequence[Decode]) -> list[str]:
    """Return a note for tokens that could not be recorded."""
    notes = []
    idle = [canvas for canvas in decodes if not canvas.changes]
    if idle:
        notes.append(
            f"{counted(len(idle), 'decode')} without a change left out; the last pass of a decoder needs "
            "rec.finish(canvas)"
        )
    if left := sum(canvas.left_masked() for canvas in decodes if canvas not in idle):
        notes.append(
            f"{counted(left, 'position')} still masked when recording ended; the last pass of a decoder "
            "needs rec.finish(canvas)"
        )
    if unexplained := sum(canvas.n_unexplained for canvas in decodes):
        notes.append(f"{counted(unexplained, 'token')} written without a pass of the network; left out")
    impossible = sum(
        int(((found.stats[0].cpu() == -math.inf) & (found.new_C != canvas.mask_id)).sum())
        for canvas in decodes
        for found in canvas.changes
    )
    if impossible:
        notes.append(
            f"{counted(impossible, 'token')} left out, to which the network gave probability 0; decoders "
            "write such tokens themselves, for example padding after an early stop"
        )
    return notes


def shift_note(decodes: Sequence[RecordedCanvas], shift: bool) -> list[str]:
    """Return a note where tokens are the most probable ones of the neighbouring row."""
    found = [shares for canvas in decodes if (shares := canvas.neighbour_shares()) is not None]
    count = sum(n for n, _, _ in found)
    own, other = (sum(n * shares[side] for n, *shares in found) / max(count, 1) for side in (0, 1))
    if count < LEAST_COMPARED or own > 0.5 or other < 0.9:
        return []
    rows = ("row i − 1", "row i") if shift else ("row i", "row i − 1")
    note = (
        f"of {count} revealed tokens, {own:.0%} are the most probable ones of {rows[0]} and {other:.0%} "
        f"those of {rows[1]}: did you mean shift={not shift}?"
    )
    return [note]


def event_rows(changes: Sequence[Changes], mask_id: int, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the changes of a decode as rows of ``runs import``, in the order of the passes."""
    if not changes:
        return []
    places = [torch.stack([found.text_C, found.position_C, found.old_C, found.new_C]) for found in changes]
    stats = torch.cat([found.stats for found in changes], 1).tolist()  # one copy from the device
    forwards = [found.forward for found in changes for _ in range(len(found.text_C))]
    columns = zip(forwards, *torch.cat(places, 1).tolist(), *stats, strict=True)
    names_of = ("forward", "text", "position", "old", "new", *STATS)
    rows = (_row(dict(zip(names_of, values, strict=True)), mask_id, names) for values in columns)
    return list(_possible(rows))


def _possible(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the rows without tokens of probability 0: the decoder wrote them, not the network."""
    hidden = set()  # positions that hold such a token; they count as masked
    for row in rows:
        place = (row["sample_id"], row["position"])
        if row.get("logq") == -math.inf:
            if row["event"] == "reveal":
                hidden.add(place)
            continue
        if place not in hidden:
            yield row
            continue
        hidden.remove(place)
        if row["event"] == "edit":
            yield row | {"event": "reveal", "old_logq": None}


def silent_passes(canvas: Decode, names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the number of passes of texts that revise, or whose last passes changed nothing."""
    last = dict.fromkeys(names, -1)
    revised = set()
    for row in rows:
        last[row["sample_id"]] = max(last[row["sample_id"]], row["forward"])
        if row["event"] != "reveal":
            revised.add(row["sample_id"])
    masked = dict(zip(names, canvas.last_N.tolist(), strict=True))
    silent = (name for name in names if name in revised or masked[name] > last[name])
    return {name: max(masked[name], last[name]) + 1 for name in silent}


def _row(change: dict[str, Any], mask_id: int, names: Sequence[str]) -> dict[str, Any]:
    row = {"sample_id": names[change.pop("text")]}
    row |= {name: change.pop(name) for name in ("forward", "position")}
    old, new, old_logq = change.pop("old"), change.pop("new"), change.pop("old_logq")
    change["is_argmax"] = bool(change["is_argmax"])
    if new == mask_id:
        return row | {"event": "remask", "old_logq": old_logq}
    row |= change | {"token_id": new, "event": "reveal" if old == mask_id else "edit"}
    return row if old == mask_id else row | {"old_logq": old_logq}


class Pieces:
    """Texts of tokens and of prompts, decoded once; None without a tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = None if tokenizer is None else as_tokenizer(tokenizer)
        self._known: dict[tuple[int, ...], str] = {}

    def of(self, tokens: tuple[int, ...]) -> str | None:
        """Return the text of some tokens."""
        if self._tokenizer is None:
            return None
        if tokens not in self._known:
            self._known[tokens] = self._tokenizer.decode(list(tokens))
        return self._known[tokens]
