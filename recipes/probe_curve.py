"""Trains a small model on the bundled passages, probes it during training, and draws the order gap.

    PYTHONPATH=src python recipes/probe_curve.py docs/probe-curve.svg

The model is that of ``orderlens train`` at its default size. The probe reads texts that are held out of
training.
"""

from __future__ import annotations

import copy
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import orderlens as ol
from orderlens.models.files.tokenizer import TOKENIZER, FastTokenizer
from orderlens.models.small.model import TransformerModel
from orderlens.texts.sources import load_passages
from orderlens.training.from_text import HELDOUT_EVERY, TextTraining, make_trainer, prepare
from orderlens.training.loop import Trainer
from orderlens.training.optimiser import LearningRateSchedule

STEPS, EVERY, BUDGET = 1200, 60, 4000
PROMPT, TARGET = 32, 32
ORDERS = ("forced-ar", "reverse-ar", "random", "max-prob")


def passages() -> list[str]:
    """Return the bundled passages that are one text."""
    return [passage.text for passage in load_passages() if passage.text]


def heldout_samples(tokenizer: FastTokenizer) -> list[ol.Sample]:
    """Return the passages that training does not see, as prompt and target."""
    ids = [tokenizer.encode(text) for text in passages()[HELDOUT_EVERY - 1 :: HELDOUT_EVERY]]
    cut = PROMPT + TARGET
    return [
        ol.Sample(f"heldout-{i}-{start}", row[start : start + PROMPT], row[start + PROMPT : start + cut])
        for i, row in enumerate(ids)
        for start in range(0, len(row) - cut + 1, cut)
    ]


class Probe:
    """Receives the lines of the training log and probes every ``EVERY`` steps."""

    def __init__(self, trainer: Trainer, tokenizer: FastTokenizer) -> None:
        self._trainer, self._tokenizer = trainer, tokenizer
        self._samples = heldout_samples(tokenizer)
        self.points: list[dict[str, float]] = []

    def __call__(self, line: dict[str, Any]) -> None:
        if line["step"] % EVERY == 0:
            network = copy.deepcopy(self._trainer.model)
            model = TransformerModel(network, self._tokenizer, name=f"step {line['step']}", digest="probe")
            self.points.append(
                {"step": line["step"], **ol.probe(model, self._samples, ORDERS, budget=BUDGET)}
            )
            print(json.dumps(self.points[-1]), flush=True)


def train(folder: Path) -> list[dict[str, float]]:
    options = TextTraining(steps=STEPS)
    texts = folder / "passages.jsonl"
    texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in passages()), encoding="utf-8")
    prepare([texts], folder / "model", options)
    trainer = make_trainer(folder / "model", options, LearningRateSchedule(STEPS, None, warmup_steps=100))
    probe = Probe(trainer, FastTokenizer.from_file(folder / "model" / TOKENIZER))
    probe({"step": 0})
    trainer.run(probe)
    return probe.points


def draw(points: list[dict[str, float]], out: str) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    settings = {"svg.hashsalt": "orderlens", "svg.fonttype": "none", "font.size": 8.5}
    with mpl.rc_context(settings):
        figure, (gap, swap, level) = plt.subplots(1, 3, figsize=(7.8, 2.4), layout="constrained")
        steps = [point["step"] for point in points]
        low, high = ([point[f"order_gap_{end}"] for point in points] for end in ("low", "high"))
        gap.fill_between(steps, low, high, color="#1a273f", alpha=0.15, linewidth=0)
        gap.plot(steps, [point["order_gap"] for point in points], color="#1a273f")
        gap.set(xlabel="training step", ylabel="order gap, nats per token", ylim=(0, None))
        swap.plot(steps, [point["circulation"] for point in points], color="#ac530f")
        swap.set(xlabel="training step", ylabel="median |Γ|, nats", ylim=(0, None))
        level.plot(steps, [point["any_order_bound"] for point in points], color="#3f7d6e")
        level.set(xlabel="training step", ylabel="any-order bound, nats per token")
        for axes in (gap, swap, level):
            axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(out, metadata={"Date": None})


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        draw(train(Path(folder)), sys.argv[1])


if __name__ == "__main__":
    main()
