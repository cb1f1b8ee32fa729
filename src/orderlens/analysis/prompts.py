"""One meaning of "the same prompt" across runs: the same task, sample id and content, whatever run holds it.

Orders spread over several runs therefore pair. Where two runs use one id for different texts, the texts stay
apart and the conflict is named; a trace that two runs hold is counted once.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pandas as pd

from orderlens.errors import UserInputError, counted
from orderlens.metrics.segments import BoolArray
from orderlens.store.reader import Run
from orderlens.store.sample_identity import CONTENT, content

_ID = ("task", "sample_id")
_AT_ONCE = 4096
"""Rows that are Python objects at a time: a token then takes ten times the memory."""
_TRACE = ("model", "prompt", "order", "seed", "temperature", "sample_seed")


def prompt_keys(run: Run, frame: pd.DataFrame) -> tuple[list[str], list[str]]:
    """Return one key per trace that is equal for equal prompts, and a remark on ids with several texts.

    Args:
        run: the runs behind the traces.
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
    """Return one text per pair: ``TASK/ID``, or the id alone, behind a slash where it holds one itself."""
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
    return [f"Sample '{first}'{more}: another text in each of the runs {where}; counted as different."]


def repeated(frame: pd.DataFrame) -> tuple[BoolArray, list[str]]:
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
            f"order '{row['order']}'; read them apart, or give the samples ids of their own"
        )
    count = int(again.sum())
    stored = f"{counted(count, 'trace')} {'is' if count == 1 else 'are'} stored"
    return again, [f"{stored} in more than one run and counted once."]
