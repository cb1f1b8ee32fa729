"""A run made ready for tables: statistics per trace, verdicts joined to them, external scores on request.

Everything is computed at most once and only when a table asks for it. Does not format anything.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pandas as pd

from orderlens.analysis.estimate import Clusters, Estimate, Resampling, means
from orderlens.analysis.frames import cells, joined_keys
from orderlens.analysis.orders import in_paper_order, label
from orderlens.analysis.sample_table import KEYS, PARTS, matched_distinct, sample_table
from orderlens.errors import UserInputError
from orderlens.metrics.external import CausalEvaluator, ExternalScores, score_texts
from orderlens.store.reader import Run

NOT_GRADED = "not graded: the run holds no verdicts"
NO_TARGET = "no target: these traces were generated"
NOT_GENERATED = "nothing was generated: these traces were scored"


@dataclass(frozen=True, slots=True)
class Options:
    """What a user may choose about tables.

    Attributes:
        resampling: bootstrap behind the intervals.
        temperature: which temperature the tables of one temperature use; None takes the lowest present.
        evaluator: autoregressive model for external perplexity; None leaves those cells empty.
        grader: which grader's verdicts to use; None takes the first by name.
        null_reps: repetitions of the mean-only null.
    """

    resampling: Resampling = field(default_factory=Resampling)
    temperature: float | None = None
    evaluator: CausalEvaluator | None = None
    grader: str | None = None
    null_reps: int = 500


class Study:
    """A run and everything that its tables share."""

    def __init__(self, run: Run, options: Options | None = None, parts: Collection[str] = PARTS) -> None:
        self.run = run
        self.options = options or Options()
        self._parts = parts

    @cached_property
    def samples(self) -> pd.DataFrame:
        """One row per trace; ``label`` is the order, with its seed where there are several."""
        frame = sample_table(self.run, self._parts)
        if "run" not in frame.columns:
            frame["run"] = ""
        frame["label"] = _labels(frame)
        frame["prompt"] = pd.factorize(
            pd.Series(joined_keys(frame, ("run", "task", "sample_id")), dtype=object)
        )[0]
        for prefix in ("", "content_"):
            frame[f"{prefix}var_about"] = _var_about(frame, prefix)
        return frame

    @cached_property
    def scored(self) -> pd.DataFrame:
        """Traces of fixed targets."""
        return self.samples[self.samples["temperature"].isna()]

    @cached_property
    def generated(self) -> pd.DataFrame:
        """Traces of generated text, all temperatures."""
        return self.samples[self.samples["temperature"].notna()]

    @cached_property
    def temperature(self) -> float:
        """The temperature of the tables that show one; NaN when nothing was generated."""
        present, wanted = sorted(self.generated["temperature"].unique()), self.options.temperature
        if wanted is not None and wanted not in present:
            known = ", ".join(f"{value:g}" for value in present) or "none"
            raise UserInputError(f"no text was generated at temperature {wanted:g} (present: {known})")
        return float(present[0] if wanted is None else wanted) if present else math.nan

    @cached_property
    def decoded(self) -> pd.DataFrame:
        """Generated traces at the chosen temperature."""
        return self.generated[self.generated["temperature"] == self.temperature]

    def orders(self, frame: pd.DataFrame, column: str = "order") -> list[str]:
        """Return the orders of ``frame`` as the paper lists them."""
        return in_paper_order(frame[column].unique())

    @cached_property
    def verdicts(self) -> pd.DataFrame:
        """One verdict per generated text, from the chosen grader."""
        frame = self.run.table("verdicts").to_pandas()
        if "run" not in frame.columns:
            frame["run"] = ""
        if "generation" in frame.columns:
            frame = _newest(frame, per_grader=self.options.grader is not None)
        keep = np.zeros(len(frame), np.bool_)
        for _, rows in cells(frame.reset_index(drop=True), ("task",)):
            chosen = self._choose_grader(rows["grader"])
            keep[rows.index] = rows["grader"].isna() if chosen is None else rows["grader"] == chosen
        return frame[keep]

    def _choose_grader(self, names: pd.Series) -> str | None:
        known = sorted(str(name) for name in names.dropna().unique())
        wanted = self.options.grader
        if wanted is not None and wanted not in known:
            raise UserInputError(f"no verdicts of grader '{wanted}' (present: {', '.join(known) or 'none'})")
        return wanted or (known[0] if known else None)

    @cached_property
    def graders(self) -> list[str]:
        """Names of the graders in use."""
        return sorted(str(name) for name in self.verdicts["grader"].dropna().unique())

    @cached_property
    def graded(self) -> pd.DataFrame:
        """Graded samples with content statistics under the names task, order, item_id, correct, mean, var, n.

        An order with several seeds appears once per seed, so that a cell holds each item once.
        """
        on = ["run", *KEYS]
        verdicts = self.verdicts[[*on, "correct"]].drop_duplicates(on)
        joined = self.decoded.drop(columns=["mean", "var", "n", "min", "bottleneck_rate"]).merge(
            verdicts, on=on, how="inner"
        )
        names = {name: f"content_{name}" for name in ("mean", "var", "n", "min", "bottleneck_rate")}
        out = pd.DataFrame({"task": joined["task"].astype(object).where(joined["task"].notna(), "(none)")})
        out["order"] = joined["label"]
        out["base_order"] = joined["order"]
        out["item_id"] = joined["run"].astype(str) + "/" + joined["sample_id"].astype(str)
        out["correct"] = joined["correct"]
        for name, source in names.items():
            out[name] = joined[source]
        if "content_jensen_0.5" in joined.columns:
            out["jensen"] = joined["content_jensen_0.5"]
        return _sorted_by_order(out)

    @cached_property
    def external(self) -> pd.DataFrame | None:
        """External scores of the generated texts, None without an evaluator.

        Columns nll, n_scored, n_tokens; indexed like ``samples``.
        """
        if self.options.evaluator is None:
            return None
        outputs = self.run.outputs().to_pandas()
        if "run" not in outputs.columns:
            outputs["run"] = ""
        on = ["run", *KEYS]
        texts = outputs[[*on, "prompt_text", "text"]].drop_duplicates(on)
        joined = self.generated.reset_index().merge(texts, on=on, how="inner")
        scores: ExternalScores = score_texts(
            self.options.evaluator,
            joined["prompt_text"].fillna("").tolist(),
            joined["text"].fillna("").tolist(),
            joined["n_text"].astype(int).tolist(),
        )
        columns = {"nll": scores.nll, "n_scored": scores.n_scored, "n_tokens": scores.n_tokens}
        return pd.DataFrame(columns, index=pd.Index(joined["index"]))

    @cached_property
    def distinct_matched(self) -> pd.Series:
        """Distinct-3 of each generated text cut to the shortest one of the same prompt and temperature."""
        same_prompt = ["run", "task", "sample_id", "temperature"]
        shortest = self.samples.groupby(same_prompt, dropna=False)["n_tokens"].transform("min")
        values = matched_distinct(self.run, self.samples, shortest)
        return pd.Series(values, index=self.samples.index)

    def clusters(self, frame: pd.DataFrame) -> Clusters:
        """Return the prompts behind the rows of ``frame``."""
        return Clusters(frame["prompt"], self.options.resampling)

    def estimates(self, frame: pd.DataFrame, columns: Sequence[str]) -> list[Estimate]:
        """Return the mean of each column over the rows, with interval, counts and reasons."""
        if not len(frame):
            return [Estimate.undefined("no such trace")] * len(columns)
        found = means(frame[list(columns)].to_numpy(np.float64), self.clusters(frame))
        return [with_reason(cell, frame, name) for cell, name in zip(found, columns, strict=True)]


def with_reason(cell: Estimate, frame: pd.DataFrame, column: str) -> Estimate:
    """Return the cell with the reason why rows of ``column`` are undefined, if any are."""
    if not cell.n_undefined:
        return cell
    missing = frame[~np.isfinite(frame[column].astype(float))]
    reasons = []
    broken = int((missing["n_nonfinite"] > 0).sum())
    if broken:
        reasons.append(f"{broken} with NaN or −inf in the trace")
    rest = missing[missing["n_nonfinite"] == 0]
    empty = int((rest["content_n"] == 0).sum())
    if empty:
        reasons.append(f"{empty} without content tokens")
    short = int(((rest["content_n"] > 0) & (rest["content_n"] < 3)).sum())
    if short:
        reasons.append(f"{short} too short")
    if other := len(rest) - empty - short:
        reasons.append(f"{other} not recorded")
    return Estimate(cell.value, cell.low, cell.high, cell.n, cell.n_undefined, ", ".join(reasons))


def _var_about(frame: pd.DataFrame, prefix: str) -> pd.Series:
    """Return the mean square of log q about the mean per token of the other prompts of the same cell.

    The reference is held out: a prompt's own traces never enter it.
    """
    mean, var = frame[f"{prefix}mean"], frame[f"{prefix}var"]
    known = mean.notna()
    count = frame[f"{prefix}n"].where(known, 0.0)
    total = (mean * count).fillna(0.0)
    cell = joined_keys(frame, ("run", "task", "order", "temperature"))
    own = joined_keys(frame, ("run", "task", "order", "temperature", "sample_id"))
    sums = [
        column.groupby(cell).transform("sum") - column.groupby(own).transform("sum")
        for column in (total, count)
    ]
    reference = sums[0] / sums[1].where(sums[1] > 0)
    return var + (mean - reference) ** 2


def _newest(verdicts: pd.DataFrame, *, per_grader: bool) -> pd.DataFrame:
    """Keep the verdicts of each response's latest grading (a run may have been graded again)."""
    keys = ["run", *KEYS, *(["grader"] if per_grader else [])]
    generation = verdicts["generation"].fillna(0)
    latest = generation.groupby([verdicts[key] for key in keys], dropna=False).transform("max")
    return verdicts[generation == latest].reset_index(drop=True)


def _labels(frame: pd.DataFrame) -> list[str]:
    seeds = frame.groupby(["run", "order"], dropna=False)["seed"].transform("nunique")
    return [
        label(str(order), seed, count > 1)
        for order, seed, count in zip(frame["order"], frame["seed"], seeds, strict=True)
    ]


def _sorted_by_order(frame: pd.DataFrame) -> pd.DataFrame:
    rank = {name: place for place, name in enumerate(in_paper_order(frame["order"].unique()))}
    return (
        frame.assign(_rank=frame["order"].map(rank))
        .sort_values(["task", "_rank"], kind="stable")
        .drop(columns="_rank")
    )
