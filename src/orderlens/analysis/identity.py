"""Identity across runs: the setup that decoded them, and the prompt.

A setup is model, weights, block size, precision and temperature schedule; tables and figures never mix two
of them. Prompts with equal task, sample id and content are the same prompt in all runs, so that orders of
different runs are paired. If two runs use one id for different texts, the texts are kept separate and a
remark reports the conflict. A trace that two runs hold is counted once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from orderlens.analysis import paper
from orderlens.analysis.frames import joined_keys
from orderlens.errors import UserInputError, counted
from orderlens.metrics.segments import BoolArray
from orderlens.rules.cards import label
from orderlens.store.reader import Run
from orderlens.store.samples import CONTENT, content


@dataclass(frozen=True, slots=True)
class Setup:
    """What decoded a run: model, block size, precision, weights; None where its spec does not say.

    ``schedule`` is the text of a temperature schedule, None for constant temperatures. ``weight_format`` is
    ``fp8`` for weights in 8 bits, None for weights as stored.
    """

    model: str | None = None
    block_size: int | None = None
    precision: str | None = None
    digest: str | None = None
    schedule: str | None = None
    weight_format: str | None = None

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Setup:
        """Read a run's spec."""
        model = spec.get("model")
        if not isinstance(model, Mapping):
            return cls(None if model is None else str(model), spec.get("block_size"))
        varying = ", ".join(heat for heat in spec.get("temperatures") or () if isinstance(heat, str)) or None
        name, precision, digest = (model.get(field) for field in ("name", "precision", "digest"))
        return cls(name, spec.get("block_size"), precision, digest, varying, model.get("weights"))

    def fits(self, other: Setup) -> bool:
        """Whether all fields that both setups define are equal."""
        pairs = ((getattr(self, name), getattr(other, name)) for name in _WORDS)
        return all(a is None or b is None or a == b for a, b in pairs)


_WORDS = {
    "model": "model",
    "block_size": "block size",
    "precision": "precision",
    "weight_format": "weight format",
    "digest": "weights",
    "schedule": "temperature",
}
"""Fields in the order in which they distinguish setups, and their names in messages."""


def labels(setups: Sequence[Setup]) -> dict[Setup, str]:
    """Return a short label per distinct setup: the model, and the fields that distinguish it from others."""
    distinct = list(dict.fromkeys(setups))
    out = {item: item.model or "unnamed model" for item in distinct}
    for name, word in list(_WORDS.items())[1:]:
        groups: dict[str, set[Any]] = {}
        for item, text in out.items():
            groups.setdefault(text, set()).add(getattr(item, name))
        crowded = {text for text, values in groups.items() if len(values) > 1}
        out = {
            item: f"{text}, {word} {_short(getattr(item, name), name)}" if text in crowded else text
            for item, text in out.items()
        }
    return out


def differences(setups: Sequence[Setup]) -> str:
    """Return what differs, e.g. ``model (hmm, hmm:seed=7), block size (16, 32)``."""
    out = []
    for name, word in _WORDS.items():
        values = list(dict.fromkeys(getattr(item, name) for item in setups))
        if len(values) > 1:
            shown = [_said(value, name) if name == "model" else _short(value, name) for value in values]
            out.append(f"{word} ({', '.join(shown)})")
    return ", ".join(out)


_ABSENT = {"schedule": "constant", "weight_format": "as stored"}


def _said(value: Any, name: str) -> str:
    return _ABSENT.get(name, "not recorded") if value is None else str(value)


def _short(value: Any, name: str) -> str:
    text = _said(value, name)
    return text if len(text) <= 24 else f"{text[:12]}…"


RUNS_OF: dict[str, tuple[str, ...]] = {
    "score": ("score", "measure"),
    "generate": ("generate",),
    "ending": ("generate", "questions"),
    "sweep": ("generate", "sweep"),
}
"""Which run folders are read together; ``ending`` is for EOS: it includes the demo's questions."""


def is_replication(place: Path) -> bool:
    """Whether ``place`` is the folder of a replication."""
    return (place / paper.PLAN_FILE).is_file()


def add_identity(run: Run, frame: pd.DataFrame, setups: Mapping[str, Setup]) -> list[str]:
    """Add model, label, prompt_key, prompt, repeated and Var about other prompts to a sample table.

    Args:
        run: the runs that hold the traces.
        frame: one row per trace; changed in place.
        setups: the setup of each run that holds traces.

    Returns:
        Remarks on conflicting ids and repeated traces.
    """
    named = labels(list(setups.values()))
    frame["model"] = frame["run"].map({name: named[item] for name, item in setups.items()})
    frame["label"] = order_labels(frame)
    keys, conflicts = prompt_keys(run, frame)
    frame["prompt_key"] = keys
    frame["prompt"] = pd.factorize(pd.Series(keys, dtype=object))[0]
    frame["repeated"], repeats = repeated_traces(frame)
    for prefix in ("", "content_"):
        frame[f"{prefix}var_about"] = var_about(frame, prefix)
    return [*conflicts, *repeats]


_ID = ("task", "sample_id")
_AT_ONCE = 4096
"""Rows converted to Python objects at a time: as objects, tokens take ten times the memory."""
_TRACE = ("model", "prompt", "order", "seed", "temperature", "sample_seed")


def prompt_keys(run: Run, frame: pd.DataFrame) -> tuple[list[str], list[str]]:
    """Return one key per trace that is equal for equal prompts, and a remark on ids with several texts.

    Args:
        run: the runs that hold the traces.
        frame: columns run, task, sample_id and temperature, one row per trace.
    """
    tasks = frame["task"].astype(object).where(frame["task"].notna(), None)
    ids = [_id(task, sample) for task, sample in zip(tasks, frame["sample_id"], strict=True)]
    runs_of = frame["run"].groupby(ids).nunique()
    shared = set(runs_of.index[runs_of > 1])
    if not shared:
        return ids, []
    known = _content(run, shared)
    scored = frame["temperature"].isna()
    rows = zip(ids, frame["run"], scored, strict=True)
    digests = [known.get((name, str(source), bool(flag)), "") for name, source, flag in rows]
    kinds = pd.Series(digests).groupby([ids, scored.to_numpy()]).nunique()
    several = sorted({str(key[0]) for key, count in kinds.items() if isinstance(key, tuple) and count > 1})
    clash = set(several)
    keys = [f"{name}@{digest}" if name in clash else name for name, digest in zip(ids, digests, strict=True)]
    return keys, _conflict(frame, ids, several)


def _id(task: str | None, sample_id: str) -> str:
    """Return one key per pair: ``TASK/ID``, or the id alone; one with a slash gets a leading slash."""
    if task is None:
        return f"/{sample_id}" if "/" in sample_id else sample_id
    return f"{task.replace('%', '%25').replace('/', '%2F') or '%'}/{sample_id}"


def _content(run: Run, wanted: set[str]) -> dict[tuple[str, str, bool], str]:
    """Return a digest of the prompt (and of a fixed target) by id, run and whether it was scored."""
    frame = run.outputs()
    names = [name for name in ("run", *_ID, *CONTENT) if name in frame.columns]
    out: dict[tuple[str, str, bool], str] = {}
    batches = frame.to_arrow(names).to_batches(_AT_ONCE)
    for row in (row for batch in batches for row in batch.to_pylist()):
        name = _id(row.get("task"), row["sample_id"])
        key = (name, str(row.get("run", "")), row["temperature"] is None)
        if name in wanted and key not in out:
            text = repr(content(row)).encode("utf-8", "surrogatepass")
            out[key] = hashlib.blake2b(text, digest_size=6).hexdigest()
    return out


def _conflict(frame: pd.DataFrame, ids: list[str], several: list[str]) -> list[str]:
    if not several:
        return []
    runs = frame["run"][[name in set(several) for name in ids]].unique()
    first = several[0].removeprefix("/")
    more = f" and {len(several) - 1} more" if len(several) > 1 else ""
    where = ", ".join(map(str, runs))
    return [f"Sample '{first}'{more}: different texts in the runs {where}; counted as different samples."]


def repeated_traces(frame: pd.DataFrame) -> tuple[BoolArray, list[str]]:
    """Return which traces repeat one of an earlier run, and a remark on them.

    Raises:
        UserInputError: two runs hold different traces of the same prompt, order, seeds and temperature.
    """
    again = frame.duplicated(list(_TRACE)).to_numpy(np.bool_)
    if not again.any():
        return again, []
    first = frame[~again][[*_TRACE, "n", "log_prob"]]
    both = frame[again].merge(first, on=list(_TRACE), suffixes=("", "_first"))
    same = (both["n"] == both["n_first"]) & np.isclose(
        both["log_prob"], both["log_prob_first"], rtol=1e-4, equal_nan=True
    )
    if not same.all():
        row = both[~same].iloc[0]
        raise UserInputError(
            f"run '{row['run']}' and another hold different traces of sample '{row['sample_id']}' under "
            f"order '{row['order']}'; open the runs separately, or give the samples different ids"
        )
    count = int(again.sum())
    stored = f"{counted(count, 'trace')} {'is' if count == 1 else 'are'} stored"
    return again, [f"{stored} in more than one run and counted once."]


def order_labels(frame: pd.DataFrame) -> list[str]:
    """Return the order of each trace, with its seed where there are several."""
    seeds = frame.groupby(["model", "order"], dropna=False)["seed"].transform("nunique")
    return [
        label(str(order), seed, count > 1)
        for order, seed, count in zip(frame["order"], frame["seed"], seeds, strict=True)
    ]


def var_about(frame: pd.DataFrame, prefix: str) -> pd.Series:
    """Return the mean square of log q about the mean per token of the other prompts of the same cell.

    The reference is held out: a prompt's own traces never enter it.
    """
    mean, var = frame[f"{prefix}mean"], frame[f"{prefix}var"]
    known = np.isfinite(mean)
    count = frame["n_content" if prefix else "n"].where(known, 0.0)
    total = mean.where(known, 0.0) * count
    cell = joined_keys(frame, ("model", "task", "order", "temperature"))
    own = joined_keys(frame, ("model", "task", "order", "temperature", "prompt"))
    sums = [
        column.groupby(cell).transform("sum") - column.groupby(own).transform("sum")
        for column in (total, count)
    ]
    reference = sums[0] / sums[1].where(sums[1] > 0)
    return var + (mean - reference) ** 2
