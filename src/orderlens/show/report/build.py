"""The report of any runs: all tables they can fill, all figures, all findings, some samples.

Samples are chosen by rule and compressed into the page, so that it works offline.
"""

from __future__ import annotations

import base64
import gzip
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orderlens.analysis.coherence import measure_coherence
from orderlens.analysis.study import Study
from orderlens.analysis.table import Table, has_temperatures
from orderlens.analysis.tables_fixed import first_block_curves
from orderlens.analysis.traces import all_passes
from orderlens.claims.catalogue import FINDINGS
from orderlens.claims.fixed import fixed_findings
from orderlens.claims.judge import RULES, Finding, Reading, judge
from orderlens.common.plaintext import printable
from orderlens.errors import UndefinedFigureError, UserInputError, counted
from orderlens.figures.catalogue import draw_figures
from orderlens.metrics.trace_table import overflow_note
from orderlens.show.report.page import Packed, Page, picture, run_details, write_report
from orderlens.show.report.questions import Question, questions
from orderlens.show.views import column_terms, fetch_sample, plain_rows, plain_sample
from orderlens.store.reader import Place, Run

SAMPLES = 12
"""Default number of samples in a report."""
MOST_BYTES = 1_000_000
"""Maximum size of the packed samples in one page; the page names how many were left out."""
BUILT_IN = (
    *("fixed", "decoding", "sweep", "correctness", "census"),
    *("independence", "locality", "tolerance"),
)


def report(
    study: Study | Place | Run | Sequence[Place | Run],
    path: str | Path = "report.html",
    *,
    samples: int = SAMPLES,
    title: str | None = None,
    figures: Sequence[str] | None = None,
    tables: Sequence[str] | None = None,
) -> Path:
    """Write the report of a study and return its path; an existing file is replaced.

    Args:
        study: a study, or one or several runs (opened, or their folders).
        path: the HTML file.
        samples: number of samples that can be explored in it; 0 keeps all texts out of the file.
        title: of the page.
        figures: names of the figures; all by default.
        tables: names of the tables; by default all that the runs can fill. Findings on fixed texts need
            coherence and theory.
    """
    study = study if isinstance(study, Study) else Study.open(study)
    made = study.tables(tables)
    reading, why = read_findings(study, made)
    with tempfile.TemporaryDirectory() as folder:
        drawn = draw_figures(study, folder, figures, ["svg"])
        page = Page(
            title or "What the reveal order does",
            run_facts(study),
            first_screen(study, made, reading),
            reading,
            RULES,
            [picture(item) for item in drawn],
            made,
            run_details(study.run),
            pack_samples(study, samples),
            why_no_samples="" if samples else "This report was written without samples (--samples 0).",
            why_no_findings=why,
        )
        return write_report(Path(path), page)


def read_findings(study: Study, tables: Sequence[Table]) -> tuple[Reading | None, str]:
    """Return every built-in finding that the runs allow, judged together, or why there is none.

    Args:
        study: any runs.
        tables: all that the runs can fill; fixed findings need coherence and theory among them.
    """
    try:
        study.one_setup()
    except UserInputError as error:
        return None, f"Findings are about one model at a time: {error}."
    found = [finding for name in BUILT_IN for finding in _claims(study, name, tables)]
    if not found:
        return None, "No finding applies to these runs."
    return judge(found, study.options.resampling.level), ""


def _claims(study: Study, name: str, tables: Sequence[Table]) -> list[Finding]:
    """Return the findings of one kind; none where the runs lack the data."""
    named = {table.name for table in tables}
    if name == "fixed":
        return fixed_findings(study.view("score")) if {"coherence", "theory"} <= named else []
    if name == "sweep" and not has_temperatures(study):
        return []
    try:
        claims = FINDINGS.get(name)(study)
    except UserInputError:  # the first screen names what was not measured
        return []
    return [claims] if isinstance(claims, Finding) else claims


def first_screen(study: Study, tables: Sequence[Table], reading: Reading | None) -> list[Question]:
    """Return the three questions about a study."""
    named = {table.name: table for table in tables}
    findings = () if reading is None else reading.findings
    coherence = None
    if "coherence" in named:
        coherence = next(iter(study.view("score").by_setup().values())).shared(measure_coherence)
    at = f" at T = {study.temperature:g}" if has_temperatures(study) else ""
    return questions(named, findings, _lorenz(study), policies(study), coherence, at)


def _lorenz(study: Study) -> Mapping[str, Any] | None:
    if len(study.by_setup()) > 1 or not study.has_view("score"):
        return None
    try:
        return first_block_curves(study.view("score"))
    except UndefinedFigureError:
        return None


def policies(study: Study) -> list[dict[str, Any]]:
    """Return passes, tokens and mean log q of generated text by policy, on prompts that all of them decoded.

    Compares policies that commit several tokens per pass with the orders they are based on; empty without
    such a policy. Tokens past the requested length count, because passes were spent on them too.
    """
    frame = study.decoded
    frame = frame.assign(filled=frame["n"] + frame["n_overflow"], passes=all_passes(frame))
    total = frame.groupby("order")[["passes", "filled"]].sum()
    passes = total["passes"] < total["filled"]
    parallel = [str(name) for name in passes.index[passes]]
    single = {name.partition("+")[0] for name in parallel} & {str(name) for name in passes.index[~passes]}
    compared = sorted({*parallel, *single})
    frame = frame[frame["order"].isin(compared) & (frame["n"] > 0)]
    seen = frame.groupby("prompt")["order"].nunique()
    frame = frame[frame["prompt"].isin(seen.index[seen == len(compared)])]
    return [
        {
            "order": str(order),
            "passes": float(part["passes"].mean()),
            "n": float(part["filled"].mean()),
            "mean": float(part["mean"].mean()),
        }
        for order, part in frame.groupby("order", sort=True)
    ]


def run_facts(study: Study) -> list[str]:
    """Return sentences that describe the runs."""
    frame = study.samples
    models = ", ".join(study.by_setup())
    orders = study.orders(frame)
    shown = ", ".join(orders[:10]) + (f" and {len(orders) - 10} more" if len(orders) > 10 else "")
    kinds = []
    if len(study.scored):
        kinds.append(f"{counted(study.scored['prompt'].nunique(), 'fixed text')} scored")
    if len(study.generated):
        warm = ", ".join(f"{value:g}" for value in sorted(study.generated["temperature"].unique()))
        kinds.append(f"{counted(study.generated['prompt'].nunique(), 'prompt')} decoded at T = {warm}")
    tasks = [str(name) for name in frame["task"].dropna().unique()]
    about = f" ({', '.join(tasks)})" if tasks else ""
    traces = f"{counted(len(frame), 'trace')} with {counted(int(frame['n'].sum()), 'token')}"
    runs = study.run.names
    named = ", ".join(runs[:6]) + (f" and {len(runs) - 6} more" if len(runs) > 6 else "")
    return [
        f"Model {models}; {' and '.join(kinds) or 'no traces'}{about}.",
        f"{counted(len(orders), 'order')}: {shown}. {traces}.",
        f"{'Runs' if len(runs) > 1 else 'Run'}: {named}.",
        *filter(None, [overflow_note(study.generated["n_overflow_before"].to_numpy())]),
        *study.remarks,
    ]


def pack_samples(study: Study, count: int) -> Packed | None:
    """Choose up to ``count`` samples and pack them; None where ``count`` is 0 or there are none.

    Samples are ranked by the mean Var of their traces, and taken evenly from the lowest to the highest.
    """
    chosen, total = choose_samples(study, count)
    if not chosen:
        return None
    return pack(study.run, chosen, total)


def choose_samples(study: Study, count: int) -> tuple[list[tuple[str, str]], int]:
    """Return the chosen (run, sample id) pairs, highest mean Var first, and how many samples there are.

    A sample that several runs hold under one id and prompt is one sample, named by the first of them.
    """
    frame = study.all_traces
    by_prompt = frame.groupby("prompt_key", sort=True, dropna=False)
    ranked = by_prompt.agg(run=("run", "first"), sample_id=("sample_id", "first"), var=("var", "mean"))
    ranked = ranked.sort_values(["var", "sample_id"], ascending=False, kind="stable", na_position="last")
    total, wanted = len(ranked), min(max(count, 0), len(ranked))
    if not wanted:
        return [], total
    rows = np.unique(np.linspace(0, total - 1, wanted).round().astype(int))
    return [(str(ranked["run"].iloc[row]), str(ranked["sample_id"].iloc[row])) for row in rows], total


def pack(run: Run, chosen: Sequence[tuple[str, str]], total: int) -> Packed:
    """Pack samples in this order, until they reach ``MOST_BYTES``."""
    samples: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    size = 0
    for name, sample_id in chosen:
        view = fetch_sample(run, sample_id, name=name)
        plain = plain_sample(view)
        size += len(_squeezed(plain)) * 4 // 3
        if samples and size > MOST_BYTES:
            break
        samples.append(plain)
        rows += plain_rows(view)
    orders = sorted({row["order"] for row in rows})
    runs = [{"name": name, "facts": ""} for name in dict.fromkeys(row["run"] for row in rows)]
    graded = any(row["correct"] is not None for row in rows)
    catalogue = {"runs": runs, "orders": orders, "graded": graded, "notes": [], "terms": column_terms()}
    bundle = {"catalogue": catalogue, "rows": rows, "samples": samples}
    note = (
        f"All samples: {total}."
        if len(samples) == total
        else f"{len(samples)} of {total} samples, evenly from the highest to the lowest mean Var."
    )
    return Packed(base64.b64encode(_squeezed(bundle)).decode(), printable(note))


def _squeezed(value: Any) -> bytes:
    """Return JSON as gzip, the same bytes for the same value."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return gzip.compress(text.encode("utf-8", "backslashreplace"), 9, mtime=0)
