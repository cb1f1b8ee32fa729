"""Drawings against small golden pictures, with a tolerance for other font renderers; the saving loop.

To renew the pictures after a deliberate change, run this file with ORDERLENS_RENEW_GOLDEN=1.
"""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from orderlens.analysis.study import Study
from orderlens.errors import UnknownNameError
from orderlens.figures import fixed_sequence, temperature, unmask
from orderlens.figures.catalogue import FIGURES, draw_figures, figure_names
from orderlens.figures.style import look

GOLDEN = Path(__file__).parent.parent / "golden" / "figures"
DPI = 60
TOLERANCE = 0.02
"""Root mean square difference of grey values (0 to 1): blurred glyph edges stay far below it."""


def cell(value, half=0.0):
    return {"value": value, "low": value - half, "high": value + half, "n": 10}


def plane():
    names = ["forced-ar", "reverse-ar", "random", "oracle-max-q", "oracle-min-q"]
    points = [
        {
            "order": order,
            "kind": "target-aware" if order.startswith("oracle") else "deployable",
            "n": 10,
            "mean": cell(-3.0 - 0.1 * place, 0.03),
            "var": cell(2.0 + 0.8 * place, 0.2),
            "gini_block0": cell(0.5 + 0.03 * place, 0.01),
            "argmax_accuracy": cell(0.4 - 0.02 * place, 0.015),
        }
        for place, order in enumerate(names)
    ]
    seeds = [{"seed": s, "mean": -3.2 + 0.01 * s, "var": 3.6 + 0.02 * s} for s in range(3)]
    rho = {"all": -1.0, "paper_six": None}
    return {"points": points, "random_seeds": seeds, "spearman_var_mean": rho, "n_sequences": 10}


def sweep():
    orders = ["forced-ar", "max-prob", "max-prob:select=argmax", "random"]
    series = []
    for place, order in enumerate(orders):
        heights = [0.3, 1.0, 2.0] if ":" in order else [0.0, 0.3, 1.0, 2.0]
        points = [
            {
                "temperature": t,
                "external_ppl_whole": cell(8.0 * (1 + place * t) * np.exp(3 * t), 1.0),
                "var": cell(0.3 + (1 + place) * t, 0.1),
                "content_mean": cell(-0.6 - t, 0.1),
                "eos_fraction": cell(0.1 / (1 + t + place), 0.01),
            }
            for t in heights
        ]
        series.append({"order": order, "points": points})
    return {
        "series": series,
        "high_temperature": 1.3,
        "collapsed_from": 2.0,
        "evaluator": "tiny-ar",
        "n_prompts": 10,
    }


def tokens():
    pieces = [" The", " answer", " is", " 4", "2", ".", "\n", ""]
    kinds = ["content"] * 6 + ["special", "eos"]
    steps = [0, 1, 2, 4, 5, 6, 7, 3]
    items = [
        {"piece": p, "kind": k, "step": s, "logq": -0.5} for p, k, s in zip(pieces, kinds, steps, strict=True)
    ]
    example = {
        "rule": "nearest to left-to-right",
        "block": 0,
        "sample_id": "qa-01",
        "spearman_content": 0.98,
        "eos_cascade": 1,
        "cascade_start": 3.0,
        "content_resumes": 4.0,
        "tokens": items,
    }
    examples = [example, {"rule": "strongest EOS cascade", "missing": True}]
    return {"order": "max-prob", "temperature": 0.0, "n": 1, "examples": examples}


CASES = {
    "fixed-sequence": (fixed_sequence, plane),
    "temperature": (temperature, sweep),
    "unmask": (unmask, tokens),
}


def grey(figure):
    """Return the picture as grey values [height, width]."""
    buffer = io.BytesIO()
    with look():
        figure.savefig(buffer, format="png", dpi=DPI)
    buffer.seek(0)
    return imread(buffer)[..., :3].mean(axis=2), buffer.getvalue()


@pytest.mark.parametrize("name", CASES)
def test_the_drawing_looks_like_the_golden_picture(name):
    module, make = CASES[name]
    picture, data = grey(module.draw(make()))
    path = GOLDEN / f"{name}.png"
    if os.environ.get("ORDERLENS_RENEW_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    golden = imread(path)[..., :3].mean(axis=2)
    assert picture.shape == golden.shape
    assert float(np.sqrt(np.mean((picture - golden) ** 2))) < TOLERANCE


def test_the_comparison_notices_a_moved_point():
    data = plane()
    golden = imread(GOLDEN / "fixed-sequence.png")[..., :3].mean(axis=2)
    data["points"][0]["mean"] = cell(-3.4, 0.03)
    picture, _ = grey(fixed_sequence.draw(data))
    assert float(np.sqrt(np.mean((picture - golden) ** 2))) > TOLERANCE


def test_golden_pictures_stay_small():
    assert sum(path.stat().st_size for path in GOLDEN.glob("*.png")) < 120_000


def test_all_figures_of_a_scoring_run_or_why_not(scored, tmp_path, quick_figures):
    with quick_figures():
        drawn = {item.name: item for item in draw_figures(scored, tmp_path, formats=["png"])}
    assert list(drawn) == figure_names() == FIGURES.names()
    made = {name for name, item in drawn.items() if item.paths}
    assert made == {"fixed-sequence", "lorenz", "coherence", "hits", "jensen"}
    assert "nothing was generated" in drawn["reveal-order"].why
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        f"{name}.{kind}" for name in made for kind in ("json", "png")
    )
    assert json.loads((tmp_path / "lorenz.json").read_text())["length"] == 4


def test_a_replication_without_a_kind_of_traces_says_so(scored, tmp_path):
    study = Study(scored.run, views={"ending": ("generate",)})
    drawn = draw_figures(study, tmp_path, ["unmask"], ["png"])
    assert drawn[0].why == "there are no 'generate' traces"


def test_an_unknown_figure_is_named(scored, tmp_path):
    with pytest.raises(UnknownNameError, match="unknown figure 'lorentz'; did you mean 'lorenz'"):
        draw_figures(scored, tmp_path, ["lorentz"])


def test_figures_do_not_open_windows_or_leave_state(scored):
    import matplotlib.pyplot as plt

    before = plt.get_fignums()  # other tests' own
    fixed_sequence.draw(fixed_sequence.data(scored))
    assert plt.get_fignums() == before
