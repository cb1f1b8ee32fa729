"""``Census``: what the states of a run's spans say about all their orders, and where the run's rules stand.

Reads the tables ``census`` and ``reveals`` of a run; derives everything else from them, once. Needs no model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from orderlens.errors import RunError, UserInputError
from orderlens.metrics.census import SpanCensus
from orderlens.metrics.census_front import greatest_variance, least_variance
from orderlens.metrics.path import SIGMAS, log_success_rows
from orderlens.metrics.segments import FloatArray
from orderlens.registry import suggest
from orderlens.rules.policy import spec_of
from orderlens.store.frame import Frame
from orderlens.store.reader import Place, Run, open_run


@dataclass(frozen=True, slots=True)
class RulePath:
    """The path of one rule through a span.

    Attributes:
        order: the rule's label.
        seed: its seed, None where it has none.
        sets: offsets in the order of reveal, by pass.
        log_q: log q of each reveal, in the order of reveal.
    """

    order: str
    seed: int | None
    sets: tuple[tuple[int, ...], ...]
    log_q: FloatArray


class Census:
    """The spans of a census run and the paths of its rules.

    Args:
        run: one run with a table ``census``.

    Attributes:
        run: the run; its traces are the paths of the rules.
    """

    def __init__(self, run: Run) -> None:
        if not {"census", "census_texts"} & set(run.tables):
            raise RunError(f"{run!r} holds no census; make one with 'orderlens census'")
        if len(run.names) > 1:
            raise RunError(f"a Census reads one run, not {', '.join(run.names)}; open one of them")
        self.run = run
        self._counted: dict[str, SpanCensus] = {}

    @classmethod
    def open(cls, path: Place) -> Census:
        """Open the census in a run folder."""
        return cls(open_run(path))

    def __repr__(self) -> str:
        return f"Census({self.run!r})"

    def spans(self) -> Frame:
        """Return one row per span: the extremes, mean, mixture and spread of log P over all its orders.

        Log P are sums over the span in nats, Var has ddof 0, orders are lists of offsets: places in
        ``positions``, which are offsets in the target. ``var_greatest`` is reached by an order, and none
        exceeds ``var_greatest_bound``. ``recoverability_S`` is the largest sum of log f at noise σ = S.
        """
        return Frame.of(pa.Table.from_pylist([self._span_row(key) for key in self._stored]))

    def rules(self) -> Frame:
        """Return one row per span and rule: log P, Var, regret to the best order, share of all orders below.

        ``share_error`` is the standard error of that share: 0 up to 12 positions, where it is counted
        exactly. The columns ``sequential_…`` say what the best, mean and worst way of revealing the rule's
        sets one token per step gives; they equal ``log_p`` for rules that reveal one token per step.
        """
        return Frame.of(pa.Table.from_pylist([row for key in self._stored for row in self._rule_rows(key)]))

    def texts(self) -> Frame:
        """Return one row per prompt and text that order alone produces (``census --generate``).

        A prompt whose search reached its limit has one row without a text, ``finished`` False.
        """
        return self._table("census_texts")

    def choices(self) -> list[dict[str, Any]]:
        """Return the share of correct answers of policies that choose among all orders of each prompt.

        Only finished prompts count; ``correct`` is None where nothing was graded.
        """
        frame = self.texts().to_pandas()
        return _choices(frame[frame["finished"].astype(bool)])

    def table(self, sample_id: str, start: int | None = None) -> NDArray[Any]:
        """Return log p(x_i | revealed set) ``[2^size, size]`` of one span, NaN where i is in the set.

        Bit i of the row number says that offset i is revealed.
        """
        table: NDArray[Any] = self._stored[self._key(sample_id, start)]["log_p"]
        return table

    def span(self, sample_id: str, start: int | None = None) -> SpanCensus:
        """Return all orders of one span, for further questions."""
        return self._span(self._key(sample_id, start))

    def paths(self, sample_id: str, start: int | None = None) -> list[RulePath]:
        """Return the paths of the rules through one span."""
        return self._paths.get(self._key(sample_id, start), [])

    @property
    def ids(self) -> list[str]:
        """Sample id of the traces of every span."""
        return list(self._stored)

    @property
    def places(self) -> list[tuple[str, int]]:
        """Text id and start of every span."""
        return [(row["text_id"], row["start"]) for row in self._stored.values()]

    def _table(self, name: str) -> Frame:
        """Return a table of the run, or say which methods its kind of census has."""
        if name not in self.run.tables:
            kind, methods = (
                ("followed all orders from prompts", "texts() and choices()")
                if name == "census"
                else ("evaluated fixed texts", "spans(), rules() and table()")
            )
            raise RunError(f"this census {kind}; use {methods}")
        return self.run.table(name)

    def _key(self, sample_id: str, start: int | None) -> str:
        """Return the trace id of a span; without a start the only one of the text, or the one at 0."""
        named = {row["start"]: key for key, row in self._stored.items() if sample_id in (row["text_id"], key)}
        if not named:
            known = list(dict.fromkeys(text for text, _ in self.places))
            some = f"; it has {', '.join(known[:3])}{', …' if len(known) > 3 else ''}"
            raise UserInputError(f"the census has no text '{sample_id}'{suggest(sample_id, known) or some}")
        wanted = start if start is not None else 0 if len(named) > 1 else next(iter(named))
        if wanted not in named:
            starts = ", ".join(map(str, named))
            raise UserInputError(f"text '{sample_id}' has no span at {wanted}; its spans start at {starts}")
        return named[wanted]

    @cached_property
    def _stored(self) -> dict[str, dict[str, Any]]:
        """The rows of the table ``census`` by trace id, with log p as an array ``[2^size, size]``."""
        table = self._table("census").to_arrow()
        rows = table.drop_columns(["log_p"]).to_pylist()
        values = [table["log_p"][place].values.to_numpy() for place in range(len(rows))]
        return {
            row["sample_id"]: row | {"log_p": log_p.reshape(-1, len(row["positions"]))}
            for row, log_p in zip(rows, values, strict=True)
        }

    def _span(self, key: str) -> SpanCensus:
        if key not in self._counted:
            self._counted[key] = SpanCensus(self._stored[key]["log_p"])
        return self._counted[key]

    @cached_property
    def _paths(self) -> dict[str, list[RulePath]]:
        """The rules' paths by span, in the order of the spec."""
        names = ["sample_id", "order", "seed", "step", "forward", "position", "logq"]
        frame = self.run.reveals().to_arrow(names).to_pandas()
        found: dict[str, list[RulePath]] = {}
        for (key, order, seed), trace in frame.groupby(
            ["sample_id", "order", "seed"], dropna=False, sort=False
        ):
            steps = trace.sort_values("step")
            places = np.searchsorted(self._stored[key]["positions"], steps["position"]).tolist()
            sets = groupby(zip(steps["forward"], places, strict=True), key=lambda pair: pair[0])
            path = tuple(tuple(place for _, place in pairs) for _, pairs in sets)
            log_q = steps["logq"].to_numpy(np.float64)
            seeded = None if pd.isna(seed) else int(seed)
            found.setdefault(key, []).append(RulePath(order, seeded, path, log_q))
        place = {spec: index for index, spec in enumerate(self.run.spec["orders"])}
        for paths in found.values():
            paths.sort(key=lambda path: place.get(spec_of(path.order, path.seed), len(place)))
        return found

    def _span_row(self, key: str) -> dict[str, Any]:
        row, census = self._stored[key], self._span(key)
        least, shares = least_variance(census), census.shares()
        reached, bound = greatest_variance(census)
        first = row["positions"][0] - row["start"]
        return {
            "sample_id": row["text_id"],
            "start": row["start"],
            "size": census.size,
            "log_p_best": census.best.log_p,
            "log_p_worst": census.worst.log_p,
            "log_p_mean": census.mean,
            "log_p_mixture": census.mixture,
            "log_p_sd": census.sd,
            "var_least": least.var,
            "best_order": list(census.best.order),
            "worst_order": list(census.worst.order),
            "least_var_order": list(least.order),
            "positions": [position - first for position in row["positions"]],
            "log_p_least_var": least.log_p,
            "var_best": census.best.var,
            "var_greatest": reached,
            "var_greatest_bound": bound,
            **{f"recoverability_{sigma:g}": _recoverability(census, sigma) for sigma in SIGMAS},
            "circulation": census.circulation,
            **{f"share_{name}": share for name, share in shares._asdict().items()},
        }

    def _rule_rows(self, key: str) -> Iterator[dict[str, Any]]:
        row, paths, census = self._stored[key], self._paths.get(key, []), self._span(key)
        log_p = [float(path.log_q.sum()) for path in paths]
        for path, total, share, error in zip(paths, log_p, *census.share_below(log_p), strict=True):
            yield {
                "sample_id": row["text_id"],
                "start": row["start"],
                "order": path.order,
                "seed": path.seed,
                "log_p": total,
                "var": float(path.log_q.var()),
                "regret": census.best.log_p - total,
                "share_worse": float(share),
                "share_error": float(error),
                "n_passes": len(path.sets),
                **_sequential(census, path.sets, total),
            }


def _recoverability(census: SpanCensus, sigma: float) -> float:
    return census.best_sum(lambda y: log_success_rows(y, sigma))[0]


def _sequential(census: SpanCensus, sets: tuple[tuple[int, ...], ...], log_p: float) -> dict[str, float]:
    """Return log P of the best, mean and worst way of revealing the sets one token per step."""
    best = mean = worst = log_p
    revealed: list[int] = []
    for chosen in sets:
        if len(chosen) > 1:
            part = census.after(revealed, chosen)
            best += part.best.log_p - part.joint
            mean += part.mean - part.joint
            worst += part.worst.log_p - part.joint
        revealed += chosen
    return {"sequential_best": best, "sequential_mean": mean, "sequential_worst": worst}


CHOICES: dict[str, tuple[str, bool]] = {
    "least Var": ("var_least", True),
    "largest mean log q": ("log_q_best", False),
    "largest minimum log q": ("min_best", False),
    "text of most orders": ("share", False),
    "best text": ("correct", False),
    "worst text": ("correct", True),
}
"""A policy that chooses among all orders → the column by which it does, and whether the least is best."""


def _choices(frame: pd.DataFrame) -> list[dict[str, Any]]:
    frame = frame.assign(correct=frame["correct"].astype("float64"))
    groups = [part for _, part in frame.groupby(["task", "sample_id"], dropna=False, sort=False)]
    if not groups or frame["correct"].isna().any():
        return [{"policy": name, "n": len(groups), "correct": None} for name in ("random order", *CHOICES)]
    found = {"random order": [float((part["share"] * part["correct"]).sum()) for part in groups]}
    for name, (column, least) in CHOICES.items():
        sign = -1.0 if least else 1.0
        places = [int((sign * part[column]).argmax()) for part in groups]
        found[name] = [part["correct"].to_numpy()[place] for part, place in zip(groups, places, strict=True)]
    return [{"policy": name, "n": len(groups), "correct": float(np.mean(v))} for name, v in found.items()]
