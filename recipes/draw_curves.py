"""Draw the loss curves of the bundled models and of the autoregressive twin from their metrics logs.

    PYTHONPATH=src python recipes/draw_curves.py docs/results/bundled-curves.svg

Training losses are of single batches, smoothed; held-out windows alternate between all sources.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from orderlens.models.small.folder import BUNDLED, bundled_folder

COLOURS = {"tiny": "#1a273f", "tiny-ar": "#ac530f", "twin": "#3f7d6e"}
TWIN_LOG = Path(__file__).parent / "twin" / "metrics.jsonl"  # of the twin only the log is in the repository
SPAN = 5  # logged losses per running mean; each is the loss of a single batch


def read_log(name: str) -> list[dict[str, Any]]:
    path = bundled_folder(name) / "metrics.jsonl" if name in BUNDLED else TWIN_LOG
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def draw(axes: Any, name: str) -> None:
    lines = read_log(name)
    tokens = np.array([line["tokens"] for line in lines]) / 1e6
    loss = np.convolve([line["loss"] for line in lines], np.ones(SPAN) / SPAN, mode="valid")
    axes.plot(tokens[SPAN // 2 : -(SPAN // 2)], loss, color=COLOURS[name], label=f"{name}, training mixture")
    heldout = [(line["tokens"] / 1e6, line["heldout_loss"]) for line in lines if "heldout_loss" in line]
    label = f"{name}, held out, all sources"
    axes.plot(
        *zip(*heldout, strict=True), "o:", color=COLOURS[name], markersize=3, linewidth=0.8, label=label
    )


def main() -> None:
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    settings = {"svg.hashsalt": "orderlens", "svg.fonttype": "none", "font.size": 8.5}
    with mpl.rc_context(settings):
        figure, axes = plt.subplots(figsize=(5.4, 2.9), layout="constrained")
        for name in COLOURS:
            draw(axes, name)
        axes.set(xlabel="tokens predicted, millions", ylabel="nats per token", ylim=(1.0, 6.0))
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(sys.argv[1], metadata={"Date": None})
    print(f"{sys.argv[1]}: {Path(sys.argv[1]).stat().st_size} bytes")


if __name__ == "__main__":
    main()
