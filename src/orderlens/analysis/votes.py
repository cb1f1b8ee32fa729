"""Several texts per item: accuracy of one text, of the most frequent answer among k, and of any of k.

``pass@k`` is the share of items that at least one of k texts answers, ``majority@k`` the share that their
most frequent answer does; answers with equally many votes share the verdict evenly. Both are exact
expectations over all sets of k of an item's n texts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from math import comb, nan

import numpy as np
import pandas as pd

from orderlens.analysis.frames import cells, graded_rows
from orderlens.analysis.study import Study
from orderlens.analysis.table import Cell, Column, Table, has_verdicts, table
from orderlens.analysis.tables_downstream import ungraded_table
from orderlens.analysis.traces import TRACE, all_passes
from orderlens.metrics.estimate import Clusters, means
from orderlens.metrics.significance import agreeing

ALL_ORDERS = "all orders"
_COLUMNS = (
    Column("accuracy", "one text %", 2),
    Column("majority", "majority@k %", 2),
    Column("passed", "pass@k %", 2),
    Column("passes", "passes of k texts", 1),
    Column("n_texts", "texts per item"),
    Column("n_items", "items"),
)


def pass_at(n: int, n_correct: int, k: int) -> float:
    """Return the probability that k of n texts, drawn without replacement, contain a correct one."""
    return 1 - comb(n - n_correct, k) / comb(n, k)


@lru_cache(maxsize=4096)
def vote_shares(votes: tuple[int, ...], k: int) -> tuple[float, ...]:
    """Return the probability that each answer wins a vote of k texts; equal votes share it evenly.

    Args:
        votes: number of texts with each answer.
        k: texts drawn without replacement, at most all.
    """
    shares: dict[int, float] = {}
    for own in set(votes):
        others = list(votes)
        others.remove(own)
        sets = sum(
            comb(own, most) * ways / (1 + tied)
            for most in range(1, min(own, k) + 1)
            for tied, ways in _ways(others, k - most, most).items()
        )
        shares[own] = sets / comb(sum(votes), k)
    return tuple(shares[own] for own in votes)


def _ways(votes: Sequence[int], k: int, most: int) -> dict[int, int]:
    """Count the sets of k texts with at most ``most`` of each answer, by number of answers that reach it."""
    found = Counter({(0, 0): 1})  # (texts, answers with ``most`` texts) → sets
    for own in votes:
        longer: Counter[tuple[int, int]] = Counter()
        for (texts, tied), ways in found.items():
            for more in range(min(own, most, k - texts) + 1):
                longer[texts + more, tied + (more == most)] += ways * comb(own, more)
        found = longer
    return {tied: ways for (texts, tied), ways in found.items() if texts == k}


def majority_at(answers: Sequence[str | None], correct: Sequence[float], k: int) -> float:
    """Return the expected verdict of the most frequent answer of k texts; no answer is an answer, too."""
    verdicts: dict[str | None, list[float]] = {}
    for answer, own in zip(answers, correct, strict=True):
        verdicts.setdefault(answer, []).append(own)
    found = sorted(verdicts.values(), key=len, reverse=True)
    shares = vote_shares(tuple(map(len, found)), k)
    return sum(share * sum(own) / len(own) for own, share in zip(found, shares, strict=True))


def votes_of(texts: pd.DataFrame, ks: Sequence[int]) -> pd.DataFrame:
    """Return one row per item and k: accuracy, majority and passed (0 … 1); NaN where k exceeds its texts.

    Args:
        texts: one row per text with ``item_id``, ``correct`` (0 or 1) and ``extracted``, the answer.
        ks: numbers of texts.
    """
    rows = []
    for (item,), own in cells(texts, ("item_id",)):
        answers = own["extracted"].astype(object).where(own["extracted"].notna(), None).tolist()
        correct = own["correct"].astype(float).tolist()
        n, right = len(correct), round(sum(correct))
        for k in ks:
            row = {"item_id": item, "k": k, "accuracy": right / n, "majority": nan, "passed": nan}
            if k <= n:
                row |= {"majority": majority_at(answers, correct, k), "passed": pass_at(n, right, k)}
            rows.append(row)
    return pd.DataFrame(rows)


@table("majority@k and pass@k over seeds, draws and orders", suits=has_verdicts)
def votes(study: Study) -> Table:
    """Return accuracy of one text, majority@k and pass@k per task and group of texts."""
    title = "Several texts per item: the most frequent answer, and any correct one"
    if not len(study.graded):
        return ungraded_table(study, "votes", title, _COLUMNS)
    judged = study.verdicts.reindex(columns=[*TRACE, "correct", "extracted"])
    texts, lost = graded_rows(study.decoded.merge(judged, on=TRACE, how="inner"))
    texts = texts.assign(
        task=texts["task"].astype(object).where(texts["task"].notna(), "(none)"),
        item_id=texts["prompt_key"],
        passes=all_passes(texts),
    )
    rows: list[dict[str, Cell]] = []
    for (task,), of_task in cells(texts, ("task",)):
        orders = study.orders(of_task)
        groups = {order: of_task[of_task["order"] == order] for order in orders}
        if len(orders) > 1:
            groups[ALL_ORDERS] = of_task
        for name, own in groups.items():
            rows += [{"task": str(task), "texts": name, **row} for row in _rows(study, own)]
    notes = (
        f"Temperature {study.temperature:g}. Texts of a group differ by the seed of order or draws.",
        "Exact expectations over all sets of k of an item's texts. Equal votes share the verdict evenly.",
        "A text without an answer votes for 'no answer'. Passes include look-ahead.",
        *([f"{lost} texts without a verdict are left out."] if lost else []),
    )
    return Table("votes", title, ("task", "texts", "k"), _COLUMNS, tuple(rows), notes)


def _rows(study: Study, texts: pd.DataFrame) -> list[dict[str, Cell]]:
    """Return one row per k = 1, 2, 4, … and the number of texts per item."""
    n = int(texts.groupby("item_id").size().max())
    ks = sorted({*(2**i for i in range(n.bit_length())), n})
    found = votes_of(texts, ks)
    spent = texts.groupby("item_id")["passes"].mean()
    rows: list[dict[str, Cell]] = []
    for k in ks:
        own = found[found["k"] == k]
        values = own[["accuracy", "majority", "passed"]].to_numpy(np.float64) * 100
        if texts["extracted"].isna().all():
            values[:, 1] = nan
        values = np.column_stack([values, k * spent[own["item_id"]].to_numpy(np.float64)])
        clusters = Clusters(own["item_id"], study.options.resampling)
        *shares, passes = means(values, clusters, "no text has an answer to vote for")
        estimates = [*(agreeing(cell, cell.n, clusters.resampling.level) for cell in shares), passes]
        cells_k = dict(zip(("accuracy", "majority", "passed", "passes"), estimates, strict=True))
        rows.append({"k": k, **cells_k, "n_texts": n, "n_items": len(own)})
    return rows
