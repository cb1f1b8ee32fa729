"""External perplexity: an evaluator's scores are stored by text, so that no text is scored twice.

``analysis.external`` replaces the evaluator afterwards, so that tables and figures need no
model. Does not depend on orders or temperatures.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from orderlens.errors import OrderLensError, one_line
from orderlens.metrics.external import OFFLINE_EVALUATOR, CausalEvaluator, StartsScoring, load_evaluator
from orderlens.metrics.segments import FloatArray
from orderlens.runs.loop import execute
from orderlens.runs.options import ProgressSink
from orderlens.store.reader import Run, open_run
from orderlens.store.records import SPEC
from orderlens.store.schema import table_schema
from orderlens.store.writer import open_writer

if TYPE_CHECKING:  # a machine that only decodes has no pandas, which the analysis needs
    from orderlens.analysis.external import Pair, StoredScores

Group: TypeAlias = "dict[str, Pair]"
"""Texts by their key."""
UNIT = 256
"""Texts per work unit."""


def is_bundled(name: str) -> bool:
    """Return whether this installation has the weights of a bundled model, and torch to run it."""
    weights = files("orderlens").joinpath(f"models/data/{name}/model.safetensors")
    return weights.is_file() and find_spec("torch") is not None


def find_evaluator(spec: str, device: str | None) -> tuple[CausalEvaluator | None, str | None]:
    """Return the evaluator, or None and the reason why there is none."""
    if spec == OFFLINE_EVALUATOR and not is_bundled(spec):
        return None, "its weights are not part of this installation"
    try:
        return load_evaluator(spec, device), None
    except OrderLensError as error:
        return None, one_line(error)


def external_folder(runs: Path, evaluator: str) -> Path:
    """Return the folder of an evaluator's scores."""
    name = "".join(letter if letter.isalnum() or letter in "-." else "-" for letter in evaluator)
    return runs / f"external-{name}"


def score_texts(
    run: Run, evaluator: CausalEvaluator, folder: Path, progress: ProgressSink | None = None
) -> StoredScores:
    """Score every generated text of ``run`` that has no score in ``folder``; ``progress`` counts texts.

    A text is scored given its prompt, and once more as one text with its prompt.
    """
    from orderlens.analysis.external import StoredScores

    units = _units(run)

    def work(group: Group) -> Callable[[], dict[str, pa.Table]]:
        wait = _start(evaluator, list(group.values()), progress)
        return lambda: {"external": score_table(evaluator.name, list(group), wait())}

    with open_writer(folder, {"kind": "external", "evaluator": evaluator.name}) as writer:
        if progress is not None:
            progress.set_total(sum(len(units[key]) for key in writer.pending(units)))
        execute(writer, units, work)
    return StoredScores.of(open_run(folder), evaluator.name)


def _start(
    evaluator: CausalEvaluator, pairs: list[Pair], progress: ProgressSink | None
) -> Callable[[], list[FloatArray]]:
    """Start scoring texts; an evaluator without asynchronous scoring is done when this returns."""
    report = (lambda _: None) if progress is None else progress
    if isinstance(evaluator, StartsScoring):
        return evaluator.start(pairs, report)
    rows = evaluator.token_logprobs(pairs)
    report(len(pairs))
    return lambda: rows


def score_table(evaluator: str, keys: Sequence[str], rows: Sequence[FloatArray]) -> pa.Table:
    """Return the ``external`` rows of texts by key."""
    ends = np.cumsum([0, *map(len, rows)], dtype=np.int32)
    columns = {
        "evaluator": pa.repeat(evaluator, len(keys)),
        "text_key": pa.array(keys, pa.string()),
        "logprobs": pa.ListArray.from_arrays(ends, np.concatenate([np.empty(0), *rows])),
    }
    return pa.table(columns, schema=table_schema("external"))


def read_scores(runs: Path, evaluator: str) -> StoredScores | None:
    """Return the stored scores of an evaluator; None if they are missing or incomplete."""
    from orderlens.analysis.external import StoredScores

    folder = external_folder(runs, evaluator)
    if not (folder / SPEC).is_file():
        return None
    run = open_run(folder)
    return StoredScores.of(run, str(run.spec["evaluator"])) if run.is_complete else None


def _units(run: Run) -> dict[str, Group]:
    """Return fixed groups of distinct texts by a digest of their content."""
    from orderlens.analysis.external import pair_key, pairs_of

    table = run.outputs().to_arrow(["temperature", "prompt_text", "text"])
    rows = table.filter(table["temperature"].is_valid())
    texts = zip(rows["prompt_text"].to_pylist(), rows["text"].to_pylist(), strict=True)
    pairs = sorted({pair for prompt, text in texts if text for pair in pairs_of(prompt or "", text)})
    groups = [pairs[start : start + UNIT] for start in range(0, len(pairs), UNIT)]
    keyed = [{pair_key(pair): pair for pair in group} for group in groups]
    return {hashlib.blake2b("".join(group).encode(), digest_size=12).hexdigest(): group for group in keyed}
