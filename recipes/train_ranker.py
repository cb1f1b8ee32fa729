"""Fit the weights of the order ``learned`` and write them to ``learned.json``.

PYTHONPATH=src:recipes python recipes/train_ranker.py ITEMS src/orderlens/rules/orders/learned.json

ITEMS is the folder that ``recipes/online.py items`` writes; only the development items are read. Teachers:

- oracle-margin: the order that reveals the position with the largest gap between target and competitor;
- census: the likeliest of all orders of the first eight positions of the solution.

A state contributes one pair per position that the teacher did not reveal, with weights that sum to 1. Half of
the items are held out; the file holds the share of held-out states in which the ranker's first choice is the
teacher's, next to that of max-prob and of left to right.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize

import orderlens as ol
from orderlens.decode.score import score_batch
from orderlens.rules.orders import OracleOrder, Scores
from orderlens.rules.orders.basic import OracleMargin
from orderlens.rules.orders.learned import FEATURES, features
from orderlens.rules.policy import Policy
from orderlens.texts.samples import EncodedSample

SPAN = 8
RIDGE = 1e-4


class Teacher(OracleOrder):
    """Follows a teacher and keeps, per state, the features of its candidates and the one it reveals."""

    id = "teacher"
    summary = "records what a teacher reveals"

    def __init__(self, first: dict[int, int] | None = None) -> None:
        """``first`` gives the place of each position in the teacher's order; None for oracle-margin."""
        self.first = first
        self.states: list[tuple[np.ndarray, int]] = []

    def scores(self, view: Any) -> Scores:
        rows = features(view, view.stats.positions)
        if self.first is None:
            scores = OracleMargin().scores(view)
            eligible = np.ones(len(view), bool)
        else:
            place = np.array([self.first.get(int(p), 10**6 + int(p)) for p in view.position_R])
            scores, eligible = -place.astype(np.float64), place < 10**6
        for chain in range(len(view.block_C)):
            mine = np.flatnonzero((view.chain_R == chain) & eligible)
            if len(mine) > 1:
                self.states.append((rows[mine], int(np.argmax(scores[mine]))))
        return scores


def texts(folder: Path, model: Any, limit: int) -> list[EncodedSample]:
    """Return the development items of both tasks with their worked solutions as targets."""
    found = []
    for task in ("arith", "choice"):
        lines = (folder / f"{task}-dev.jsonl").read_text().splitlines()[:limit]
        for item in map(json.loads, lines):
            prompt = np.asarray(model.tokenizer.encode(item["prompt"]))
            target = np.asarray(model.tokenizer.encode(" " + item["solution"]))
            found.append(EncodedSample(item["id"], prompt, target))
    return found


def imitate_margin(model: Any, samples: list[EncodedSample]) -> list[tuple[np.ndarray, int]]:
    teacher = Teacher()
    score_batch(model, samples, [Policy(teacher)])
    return teacher.states


def imitate_census(model: Any, samples: list[EncodedSample]) -> list[tuple[np.ndarray, int]]:
    room = model.block_size - SPAN  # a span lies inside one block
    long = [s for s in samples if len(s.target) >= SPAN and len(s.prompt) % model.block_size <= room]
    found = ol.census(
        model,
        [ol.Sample(s.id, s.prompt.tolist(), s.target.tolist()) for s in long],
        span=SPAN,
    )
    best = {row["sample_id"]: row["best_order"] for row in found.spans().to_arrow().to_pylist()}
    starts = {row["sample_id"]: row["start"] for row in found.spans().to_arrow().to_pylist()}
    states = []
    for sample in long:
        first = len(sample.prompt) + starts[sample.id]
        teacher = Teacher({first + offset: place for place, offset in enumerate(best[sample.id])})
        target = sample.target[: starts[sample.id] + SPAN]
        score_batch(model, [EncodedSample(sample.id, sample.prompt, target)], [Policy(teacher)])
        states += teacher.states
    return states


def fit(states: list[tuple[np.ndarray, int]]) -> np.ndarray:
    """Return the weights that minimise the pairwise logistic loss, with a small ridge."""
    differences, weight = [], []
    for rows, best in states:
        others = np.delete(np.arange(len(rows)), best)
        differences.append(rows[best] - rows[others])
        weight.append(np.full(len(others), 1 / len(others)))
    pairs, share = np.concatenate(differences), np.concatenate(weight)
    share /= share.sum()
    scale = np.maximum(pairs.std(axis=0), 1e-2)
    scaled = pairs / scale

    def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
        margin = scaled @ w
        slope = -share / (1 + np.exp(margin))
        value = share @ np.logaddexp(0, -margin) + RIDGE * w @ w
        return float(value), slope @ scaled + 2 * RIDGE * w

    found = minimize(loss, np.zeros(len(FEATURES)), jac=True, method="L-BFGS-B")
    return found.x / scale


def agreement(states: list[tuple[np.ndarray, int]], score: Any) -> float:
    """Return the share of states in which the largest score is the teacher's choice."""
    return float(np.mean([int(np.argmax(score(rows))) == best for rows, best in states]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("items", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--limit", type=int, default=300, help="items per task")
    parser.add_argument("--device", default=None)
    given = parser.parse_args()
    model = ol.load_model("tiny", device=given.device)
    samples = texts(given.items, model, given.limit)
    halves = samples[::2], samples[1::2]
    weights, about = {}, {}
    for name, teach in (("oracle-margin", imitate_margin), ("census", imitate_census)):
        train, held = (teach(model, list(half)) for half in halves)
        weights[name] = [round(float(w), 6) for w in fit(train)]
        own = np.asarray(weights[name])
        about[name] = {
            "states": len(train),
            "held_out_states": len(held),
            "agreement": round(agreement(held, lambda rows, own=own: rows @ own), 4),
            "agreement_max_prob": round(agreement(held, lambda rows: rows[:, 0]), 4),
            "agreement_left_to_right": round(agreement(held, lambda rows: -np.arange(len(rows))), 4),
        }
        print(name, about[name], dict(zip(FEATURES, weights[name], strict=True)), flush=True)
    given.out.write_text(
        json.dumps({"features": FEATURES, "weights": weights, "held_out": about}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
