"""Studies: opened runs with their statistics, ready for tables, figures and findings.

A study joins statistics per trace, verdicts and external scores. Everything is computed on first use and at
most once. Runs of different models, weights, block sizes or precisions are reported separately and never
averaged. Does not format anything.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from orderlens.analysis.external import external_scores, find_evaluator, why_no_evaluator
from orderlens.analysis.frames import graded_samples, refuse_missing, with_reason
from orderlens.analysis.identity import RUNS_OF, Setup, add_identity, differences, is_replication, labels
from orderlens.analysis.table import Table, TableRecipe, by_model, table_recipe, table_recipes
from orderlens.analysis.traces import (
    TRACE,
    in_sets,
    matched_distinct,
    sample_table,
    state_statistics,
    trace_rows,
)
from orderlens.errors import RunError, UserInputError
from orderlens.metrics.estimate import Clusters, Estimate, Resampling, means
from orderlens.metrics.external import CausalEvaluator
from orderlens.metrics.trace_table import GROUPS, ContentDrops
from orderlens.rules.cards import in_paper_order
from orderlens.store.reader import Place, Run, join_runs, open_run
from orderlens.store.verdicts import latest_verdicts

NOT_GRADED = "not graded: the run holds no verdicts"
NO_TARGET = "no target: these traces were generated"
NOT_GENERATED = "nothing was generated: these traces were scored"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Options:
    """Options of tables and figures.

    Attributes:
        resampling: bootstrap settings of the intervals.
        temperature: temperature of tables that show only one; None takes the lowest present.
        evaluator: autoregressive model for external perplexity, or its name: scores that the runs hold are
            used where they cover every text. None takes the stored scores, if they are of one evaluator.
        device: where a named evaluator runs.
        grader: which grader's verdicts to use; None takes one rule per task (``store.verdicts``).
        null_reps: repetitions of the mean-only null.
        content: the tokens that content statistics leave out: ``eos`` alone, as the paper does, or
            ``special`` tokens too.
    """

    resampling: Resampling = field(default_factory=Resampling)
    temperature: float | None = None
    evaluator: CausalEvaluator | str | None = None
    device: str | None = None
    grader: str | None = None
    null_reps: int = 500
    content: ContentDrops = "eos"

    @property
    def content_note(self) -> str:
        """The sentence that says which tokens are content."""
        if self.content == "eos":
            return "Content excludes EOS tokens only, as in the paper (--content special: special ones too)."
        return "Content excludes EOS and special tokens; the paper excludes EOS only."


class Study:
    """Runs, with the frames and estimates that their tables and figures share."""

    def __init__(
        self,
        run: Run,
        options: Options | None = None,
        parts: Collection[str] = tuple(GROUPS),
        views: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Wrap opened runs; see ``open`` for folders.

        Args:
            run: one or several runs.
            options: intervals, temperature, evaluator, grader.
            parts: groups of statistics that ``samples`` holds unless a table needs fewer.
            views: run names by kind of traces, for runs that belong to one replication.
        """
        self.run = run
        self.options = options or Options()
        self._wanted = tuple(parts)
        self._computed: tuple[str, ...] | None = None
        self._frame = pd.DataFrame()
        self._views = views
        self._narrowed: dict[tuple[str, ...], Study] = {}
        self._shared: dict[Callable[[Study], Any], Any] = {}
        self._whole = self

    @classmethod
    def open(cls, runs: Place | Run | Sequence[Place | Run], options: Options | None = None) -> Study:
        """Open runs, folders that hold runs, or a replication.

        Args:
            runs: one or several of paths and opened runs.
            options: intervals, temperature, evaluator, grader.

        Raises:
            RunError: there is no run at one of the places, or no run has traces.
        """
        given = [runs] if isinstance(runs, str | os.PathLike | Run) else list(runs)
        if not given:
            raise UserInputError("no run given; name at least one run folder")
        opened = [item if isinstance(item, Run) else open_run(item) for item in given]
        if not any({"reveals", "external"} & set(run.tables) for run in opened):
            raise RunError("; ".join(note for run in opened for note in run.incomplete or [run.no_traces()]))
        if len(given) > 1:
            return cls(join_runs(opened), options)
        whole = not isinstance(given[0], Run) and is_replication(Path(given[0]))
        return cls(opened[0], options, views=RUNS_OF if whole else None)

    def __repr__(self) -> str:
        return f"Study({', '.join(self.run.names)})"

    def tables(self, names: Iterable[str] | None = None) -> list[Table]:
        """Return the named tables with those that belong to them, or every table that the runs can fill.

        With several models (or weights, block sizes, precisions) each row names its model.
        """
        recipes = self.suited() if names is None else {name: table_recipe(name) for name in names}
        with self.needing(sorted({part for recipe in recipes.values() for part in recipe.needs})):
            return [table for recipe in recipes.values() for table in self.build(recipe)]

    def table(self, name: str) -> Table:
        """Return one table by its name (see ``orderlens analyze --list``)."""
        found = self.tables([name])
        return next((item for item in found if item.name == name), found[0])

    def suited(self) -> dict[str, TableRecipe]:
        """Return the tables that the runs can fill."""
        with self.needing(()):
            return {n: item for n, item in table_recipes().items() if item.suits(self.view(item.traces))}

    def build(self, recipe: TableRecipe) -> list[Table]:
        """Return the tables of a recipe, one row group per model where there are several."""
        study = self.view(recipe.traces)
        parts = study.by_setup()
        if len(parts) == 1 or recipe.across_models:
            found = recipe(study)
        else:
            found = by_model({name: recipe(part) for name, part in parts.items()})
        has_targets = recipe.traces == "score" and len(study.scored)
        chosen = [] if has_targets else study._chosen_temperature()
        return [t.with_notes(study.remarks + ([] if "temperature" in t.keys else chosen)) for t in found]

    def _chosen_temperature(self) -> list[str]:
        """Return the remark under tables of one temperature; none if the runs have only one."""
        others = sorted(set(self.generated["temperature"]) - {self.temperature})
        present = ", ".join(f"{value:g}" for value in others)
        note = f"Generated at temperature {self.temperature:g}; also present: {present} (--temperature)."
        return [note] if others else []

    def view(self, traces: str | None) -> Study:
        """Return the study of one kind of traces of a replication (``identity.RUNS_OF``), else itself."""
        if self._views is None or traces is None or traces not in self._views:
            return self
        names = [name for name in self._views[traces] if name in self.run.names]
        return self.narrowed(names) if names else self

    def has_view(self, traces: str) -> bool:
        """Whether the runs hold this kind of traces, judging by their names."""
        return self._views is None or self.main_run(traces) in self.run.names

    def main_run(self, traces: str) -> str:
        """Return the name of the run that a kind of traces of a replication requires."""
        return "generate" if traces == "ending" else traces

    def narrowed(self, names: Sequence[str]) -> Study:
        """Return the study of some of the runs; the evaluator stays that of all of them."""
        key = tuple(name for name in self.run.names if name in names)
        if key == tuple(self.run.names):
            return self
        if key not in self._narrowed:
            part = Study(self.run.only(key), self.options, self._wanted)
            part._whole = self._whole
            self._narrowed[key] = part
        return self._narrowed[key]

    @cached_property
    def setups(self) -> dict[str, Setup]:
        """The setup of each run that holds traces, by run name."""
        specs = self.run.specs
        holding = [name for name in self.run.names if "reveals" in self.run.only([name]).tables]
        return {name: Setup.of(specs[name]) for name in holding}

    def by_setup(self) -> dict[str, Study]:
        """Return one study per model, weights, block size and precision, by a distinguishing label."""
        named = labels(list(self.setups.values()))
        if len(named) < 2:
            return {next(iter(named.values()), "unnamed model"): self}
        bare = {name: Setup.of(spec) for name, spec in self.run.specs.items() if name not in self.setups}
        out = {}
        for setup, text in named.items():
            own = [name for name, item in self.setups.items() if item == setup]
            out[text] = self.narrowed([*own, *(name for name, item in bare.items() if item.fits(setup))])
        return out

    def one_setup(self) -> Study:
        """Return itself if one model decoded all runs.

        Raises:
            UserInputError: the runs differ in model, weights, block size or precision; the message says how.
        """
        if len(self.by_setup()) > 1:
            found = differences(list(self.setups.values()))
            raise UserInputError(f"the runs differ in {found}; give runs of one model at a time")
        return self

    @contextmanager
    def needing(self, parts: Collection[str]) -> Iterator[None]:
        """Inside the block, ``samples`` holds at least these groups of statistics; no others are computed."""
        before, self._wanted = self._wanted, tuple(parts)
        try:
            yield
        finally:
            self._wanted = before

    @property
    def all_traces(self) -> pd.DataFrame:
        """One row per trace as the runs hold them, in the order of the store."""
        missing = [part for part in self._wanted if self._computed is None or part not in self._computed]
        if self._computed is None:
            self._frame = sample_table(self.run, missing, self.options.content)
            self._identity_remarks = add_identity(self.run, self._frame, self.setups)
            self._computed = tuple(missing)
        elif missing:
            more = sample_table(self.run, missing, self.options.content)
            new = [name for name in more.columns if name not in self._frame.columns]
            self._frame = pd.concat([self._frame, more[new]], axis=1)
            self._computed = (*self._computed, *missing)
        return self._frame

    @property
    def samples(self) -> pd.DataFrame:
        """One row per trace, each once; ``label`` is the order, with its seed where there are several.

        ``prompt`` numbers the prompts over all runs, ``model`` says what decoded the trace. The index counts
        the rows of ``all_traces``.
        """
        frame = self.all_traces
        return frame[~frame["repeated"]] if frame["repeated"].any() else frame

    @property
    def remarks(self) -> list[str]:
        """Remarks on these runs that belong under every table."""
        _ = self.all_traces
        heats = [f"{item.schedule} within each block" for item in self.setups.values() if item.schedule]
        varying = [f"Temperature {heat}; rows show its mean." for heat in dict.fromkeys(heats)]
        return [*(f"{note}." for note in self.run.incomplete), *self._identity_remarks, *varying]

    @property
    def scored(self) -> pd.DataFrame:
        """Traces of fixed targets."""
        return self.samples[self.samples["temperature"].isna()]

    @cached_property
    def one_token_per_pass(self) -> pd.DataFrame:
        """Scored traces of orders that reveal one token per pass, to which the chain rule applies.

        Tokens committed in the same pass are scored as if independent, so sums of such policies may differ
        even for a model with one joint distribution.
        """
        frame = self.scored
        return frame[~frame["order"].isin(frame.loc[in_sets(frame), "order"].unique())]

    @property
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

    @property
    def decoded(self) -> pd.DataFrame:
        """Generated traces at the chosen temperature."""
        return self.generated[self.generated["temperature"] == self.temperature]

    def orders(self, frame: pd.DataFrame, column: str = "order") -> list[str]:
        """Return the orders of ``frame`` as the paper lists them."""
        return in_paper_order(frame[column].unique())

    @cached_property
    def verdicts(self) -> pd.DataFrame:
        """One verdict per generated text, from the chosen grader."""
        table = latest_verdicts(self.run.table("verdicts").to_arrow(), self.options.grader)
        found: pd.DataFrame = table.to_pandas()
        return found if "run" in found.columns else found.assign(run=self.run.names[0])

    @cached_property
    def graders(self) -> list[str]:
        """Names of the graders in use."""
        return sorted(str(name) for name in self.verdicts["grader"].dropna().unique())

    @cached_property
    def states(self) -> pd.DataFrame:
        """Statistics of the states that the runs keep (``--states``); indexed like ``samples``."""
        return state_statistics(self.run, self.all_traces)

    @property
    def graded(self) -> pd.DataFrame:
        """Graded samples with content statistics under the names task, order, item_id, correct, mean, var, n.

        An order with several seeds appears once per seed, so that a cell holds each item once.
        """
        frame = self.decoded
        if "states" in self.run.tables:
            frame = frame.join(self.states["denoising_entropy"].rename("content_denoising_entropy"))
        return graded_samples(frame, self.verdicts)

    @cached_property
    def _texts(self) -> pd.DataFrame:
        """The generated texts with their prompts; ``index`` is the row of ``samples``."""
        outputs = trace_rows(self.run, "outputs", "prompt_text", "text")
        texts = outputs.drop_duplicates(TRACE).fillna({"prompt_text": "", "text": ""})
        with self.needing(("text",)):
            return self.generated.reset_index().merge(texts, on=TRACE, how="inner")

    @cached_property
    def evaluator(self) -> CausalEvaluator | None:
        """The chosen evaluator, or the scores that the runs hold where they are of one evaluator."""
        if self._whole is not self:
            return self._whole.evaluator
        return find_evaluator(self.run, self.options.evaluator, self.options.device, lambda: self._texts)

    @property
    def no_evaluator(self) -> str:
        """Why there is no external perplexity."""
        return why_no_evaluator(self._whole.run)

    @cached_property
    def external(self) -> pd.DataFrame | None:
        """External scores of the generated texts, None without an evaluator.

        Columns nll, n_scored, n_tokens (of the text given its prompt) and nll_whole (of prompt and text as
        one text, as the paper scores); indexed like ``samples``.
        """
        return None if self.evaluator is None else external_scores(self.evaluator, self._texts)

    @cached_property
    def distinct_matched(self) -> pd.Series:
        """Distinct-3 of each generated text cut to the shortest one of the same prompt and temperature."""
        frame = self.all_traces
        shortest = frame.groupby(["prompt", "temperature"], dropna=False)["n_tokens"].transform("min")
        return pd.Series(matched_distinct(self.run, frame, shortest), index=frame.index)

    def shared(self, compute: Callable[[Study], T]) -> T:
        """Return ``compute(self)``, computed at most once and shared by tables, figures and findings."""
        if compute not in self._shared:
            self._shared[compute] = compute(self)
        found: T = self._shared[compute]
        return found

    def clusters(self, frame: pd.DataFrame) -> Clusters:
        """Return the prompt of each row of ``frame`` as clusters for resampling."""
        return Clusters(frame["prompt"], self.options.resampling)

    def estimates(self, frame: pd.DataFrame, columns: Sequence[str]) -> list[Estimate]:
        """Return the mean of each column over the rows, with interval, counts and reasons.

        Raises:
            UserInputError: a column is missing; the message says how a table declares more statistics.
        """
        if not len(frame):
            return [Estimate.undefined("no such trace")] * len(columns)
        refuse_missing(frame, columns)
        found = means(frame[list(columns)].to_numpy(np.float64), self.clusters(frame))
        return [with_reason(cell, frame, name) for cell, name in zip(found, columns, strict=True)]
