"""External perplexity as a stage of its own: scores are kept by text, so nothing is scored twice.

``analysis.stored_scores`` stands in for the evaluator afterwards, which lets tables and figures be made again
without any model. Knows nothing of orders or temperatures.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from orderlens.errors import OrderLensError, one_line
from orderlens.metrics.external import OFFLINE_EVALUATOR, CausalEvaluator, load_evaluator
from orderlens.replicate.plan import is_bundled
from orderlens.store.execute import execute
from orderlens.store.reader import Run, open_run
from orderlens.store.records import SPEC
from orderlens.store.schema import table_schema
from orderlens.store.writer import open_writer

if TYPE_CHECKING:  # a machine that only decodes has no pandas, which the analysis needs
    from orderlens.analysis.stored_scores import Pair, StoredScores

UNIT = 256
"""Texts per work unit."""


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
    run: Run, evaluator: CausalEvaluator, folder: Path, advance: Callable[[int], None] | None = None
) -> StoredScores:
    """Score every generated text of ``run`` that ``folder`` does not know yet."""
    from orderlens.analysis.stored_scores import StoredScores, pair_key

    units = dict(_units(run))

    def work(pairs: Sequence[Pair]) -> dict[str, pa.Table]:
        rows = evaluator.token_logprobs(pairs)
        if advance is not None:
            advance(len(pairs))
        columns = {
            "evaluator": [evaluator.name] * len(pairs),
            "text_key": [pair_key(pair) for pair in pairs],
            "logprobs": [row.tolist() for row in rows],
        }
        return {"external": pa.table(columns, schema=table_schema("external"))}

    with open_writer(folder, {"kind": "external", "evaluator": evaluator.name}) as writer:
        execute(writer, units, work)
    return StoredScores.of(open_run(folder), evaluator.name)


def read_scores(runs: Path, evaluator: str) -> StoredScores | None:
    """Return the scores that an evaluator left beside the runs, None where it left none."""
    from orderlens.analysis.stored_scores import StoredScores

    folder = external_folder(runs, evaluator)
    if not (folder / SPEC).is_file():
        return None
    run = open_run(folder)
    return StoredScores.of(run, str(run.spec["evaluator"])) if run.is_complete else None


def count_texts(run: Run) -> int:
    """Return how many different texts there are to score."""
    return sum(len(pairs) for _, pairs in _units(run))


def _units(run: Run) -> Iterator[tuple[str, list[Pair]]]:
    """Yield fixed groups of distinct (prompt, text) pairs, keyed by their content."""
    from orderlens.analysis.stored_scores import pair_key

    table = run.outputs().to_arrow(["temperature", "prompt_text", "text"])
    rows = table.filter(table["temperature"].is_valid())
    texts = zip(rows["prompt_text"].to_pylist(), rows["text"].to_pylist(), strict=True)
    pairs = sorted({(prompt or "", text) for prompt, text in texts if text})
    for start in range(0, len(pairs), UNIT):
        group = pairs[start : start + UNIT]
        digest = hashlib.blake2b("".join(pair_key(pair) for pair in group).encode(), digest_size=12)
        yield digest.hexdigest(), group
