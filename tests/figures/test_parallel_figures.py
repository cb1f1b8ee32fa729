"""The figures couplings and frontier: what they show, redrawn from their sidecars, what is left out."""

from __future__ import annotations

import json

import pytest

import orderlens as ol
from orderlens.analysis import Options, Resampling, Study
from orderlens.common.plaintext import plain
from orderlens.errors import UndefinedFigureError
from orderlens.figures import fixed_sequence, parallel
from orderlens.testing import make_run, make_trace

QUICK = Options(resampling=Resampling(reps=20))


@pytest.fixture(scope="module")
def study() -> Study:
    samples = [ol.Sample(str(i), "hello", " there she is"[: 10 + i]) for i in range(3)]
    orders = ["forced-ar", "max-prob", "max-prob+top=2", "max-prob+top=4", "max-prob+threshold=0.2"]
    return Study(ol.score("hmm:block=8", samples, orders, couplings=99), QUICK)


def texts(figure) -> str:
    """All that is written in a figure."""
    from matplotlib.text import Text

    return "\n".join(item.get_text() for item in figure.findobj(Text))


def sidecar(data):
    return json.loads(json.dumps(plain(data)))


def test_couplings_draw_from_their_sidecar_with_rows_aligned(study: Study) -> None:
    data = parallel.couplings_data(study)
    assert {row["order"] for row in data["loss"]} == {row["order"] for row in data["var"]}
    assert [group["group"] for group in data["groups"]][:2] == ["2", "3–4"]
    figure = parallel.draw_couplings(sidecar(data))
    losses, parts = figure.axes[1:3]
    assert losses.get_ylim() == parts.get_ylim()
    assert "not every set measured" not in texts(figure)


def test_rows_without_all_sets_say_so(study: Study) -> None:
    data = sidecar(parallel.couplings_data(study))
    for row in data["var"]:
        if row["order"] == "max-prob+top=4":
            for name in ("between", "inside", "coupling_between", "coupling_inside"):
                row[name]["value"] = None
    assert "not every set measured" in texts(parallel.draw_couplings(data))


def test_the_frontier_joins_the_ladder(study: Study) -> None:
    data = parallel.frontier_data(study)
    assert data["ladder"] == ["max-prob", "max-prob+top=2", "max-prob+top=4"]
    (panel,) = data["panels"]
    assert panel["measure"] == "bits per byte"
    figure = parallel.draw_frontier(sidecar(data))
    lengths = sorted(
        len(line.get_xdata()) for line in figure.axes[0].get_lines() if len(line.get_xdata()) > 1
    )
    assert lengths == [3]  # one line over the three rungs; the other families have one point
    assert "bits per byte ↓" in texts(figure)


def test_a_measure_that_never_varies_is_named_below() -> None:
    traces = [
        make_trace(name, order, [-1.0 - scale * place, -2.0], forward=forward, temperature=0.0, tokens=[5, 6])
        for place, name in enumerate("ab")
        for order, forward, scale in (("max-prob", [0, 1], 0.1), ("max-prob+top=2", [0, 0], 0.3))
    ]
    verdicts = [
        {"sample_id": name, "order": order, "temperature": 0.0, "task": None, "correct": order == "max-prob"}
        for name in "ab"
        for order in ("max-prob", "max-prob+top=2")
    ]
    study = Study(make_run(traces, verdicts=verdicts), QUICK)
    data = parallel.frontier_data(study)
    assert [panel["measure"] for panel in data["panels"]] == ["texts that end, texts"]
    varied = {**data["panels"][0], "measure": "accuracy", "better": 1}
    varied["points"] = [
        {**point, "quality": {**point["quality"], "value": float(place)}}
        for place, point in enumerate(varied["points"])
    ]
    figure = parallel.draw_frontier(sidecar({**data, "panels": [*data["panels"], varied]}))
    assert "The same under every policy: texts that end, texts: 0 %." in texts(figure)


def test_families_of_one_frontier_never_look_alike() -> None:
    orders = ["forced-ar", "max-prob", "top-margin", "random", "reverse-ar"]
    rules = ["threshold=0.9", "factor=1", "bound=0.1", "above=0.9", "near=0.9", "credit=0.9"]
    orders += [f"entropy+{rule}" for rule in rules]
    points = [
        {"order": order, "front": True} | dict.fromkeys(("quality", "tokens_per_pass"), cell)
        for order, cell in zip(orders, ({"value": x, "low": x, "high": x} for x in range(1, 12)), strict=True)
    ]
    panel = {"measure": "x", "better": 1, "n": 3, "points": points}
    (legend,) = parallel.draw_frontier({"panels": [panel], "ladder": []}).legends
    looks = {(item.get_color(), item.get_marker()) for item in legend.legend_handles}
    assert len(looks) == len(orders)


def test_the_rungs_of_a_ladder_differ_where_each_has_a_line_of_its_own() -> None:
    orders = ["max-prob", "max-prob+top=2", "max-prob+top=8"]
    run = make_run([make_trace("a", order, [-1.0, -2.0 - place]) for place, order in enumerate(orders)])
    (legend,) = fixed_sequence.draw_lorenz(sidecar(fixed_sequence.LORENZ.data(Study(run, QUICK)))).legends
    assert len({item.get_marker() for item in legend.legend_handles}) == len(orders)


@pytest.mark.parametrize(
    ("order", "family"),
    [
        ("max-prob+threshold=0.9", "max-prob+threshold"),
        ("max-prob+klass=0.9:0.01+edit=0.9", "max-prob+klass+edit"),
        ("forced-ar", "forced-ar"),
    ],
)
def test_families(order: str, family: str) -> None:
    assert parallel.family_of(order) == family


def test_runs_that_cannot_fill_them_say_why() -> None:
    alone = Study(make_run([make_trace("a", "max-prob", [-1.0], temperature=0.0)]), QUICK)
    with pytest.raises(UndefinedFigureError, match="--couplings N"):
        parallel.couplings_data(alone)
    with pytest.raises(UndefinedFigureError, match="one policy"):
        parallel.frontier_data(alone)
