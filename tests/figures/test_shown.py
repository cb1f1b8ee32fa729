"""Content of each figure, read back from matplotlib: marks, error bars, axes, legends, limits."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.text import Text

from orderlens.figures.catalogue import FIGURES
from orderlens.figures.style import look
from orderlens.rules.cards import display_name, is_target_aware

GOLDEN = Path(__file__).parent.parent / "golden" / "figures"
_DRAWN: dict[str, tuple] = {}


def drawn(name):
    """Return the stored numbers of a figure and its drawing; each is drawn once."""
    if name not in _DRAWN:
        data = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
        _DRAWN[name] = data, FIGURES.get(name).draw(data)
    return _DRAWN[name]


def marks(panel):
    """Return every mark of a panel as rounded (x, y)."""
    pairs = [pair for line in panel.lines for pair in zip(line.get_xdata(), line.get_ydata(), strict=True)]
    return [rounded(pair) for pair in pairs]


def rounded(pair):
    return tuple(round(float(value), 6) for value in pair)


def error_lengths(panel):
    """Return the ends of every interval drawn, as ((x0, y0), (x1, y1))."""
    return [
        (rounded(piece[0]), rounded(piece[-1]))
        for box in panel.collections
        if hasattr(box, "get_segments")
        for piece in box.get_segments()
    ]


def texts(legend):
    return [text.get_text() for text in legend.get_texts()]


AXES = {
    "fixed-sequence": [
        ("mean log q of the target (nats per token)", "Var(log q) (nats²)"),
        ("Gini, block 0", ""),
        ("argmax accuracy", ""),
    ],
    "lorenz": [
        ("share of steps, easiest first", "share of −Σ log q"),
        ("share of steps, easiest first", "distance below uniform"),
    ],
    "coherence": [
        ("Δ mean log q to forced-ar (nats/token)", ""),
        ("distance of the pair", "|Γ| (nats)"),
        ("masked share", ""),
    ],
    "hits": [
        ("span (tokens)", "share of spans recovered"),
        ("span (tokens)", "log(recovered / product)"),
        ("lag (reveals)", "correlation of hits given q"),
    ],
    "locality": [
        ("distance (positions)", "entropy (nats)"),
        ("distance (positions)", "fall of entropy (nats)"),
        ("place in block 0", "pass"),
        ("place in block 0", "pass"),
    ],
    "couplings": [
        ("tokens in the set", "nats per set"),
        ("loss (nats/token); mark: total", ""),
        ("Var (nats²)", ""),
    ],
    "census": [
        ("log P per token (nats)", "share of all orders"),
        ("log P per token (nats)", "Var(log q) (nats²)"),
        ("share of orders below", ""),
    ],
    "census-lattice": [("revealed positions", "states, leftmost positions first")],
    "frontier": [("tokens per pass", "bits/byte")],
    "reveal-order": [
        ("place in the block", "reveal step"),
        ("place in the block", ""),
        ("place in the block", ""),
        ("", "share of texts, content"),
    ],
    "unmask": [("", "")],
    "temperature": [
        ("", "median external perplexity"),
        ("", "Var(log q) (nats²)"),
        ("temperature", "content mean log q (nats)"),
        ("temperature", "EOS fraction"),
    ],
    "tolerance": [("temperature", "predicted loss (nats/token)"), ("temperature", "")],
    "jensen": [
        ("q of the target", "share that is the argmax"),
        ("Var(log q) (nats²)", "Jensen loss per token (nats)"),
        ("noise scale σ", "Spearman with the loss"),
    ],
    "plane": [("mean log q (nats)", "Var(log q) (nats²)"), *[("mean log q (nats)", "")] * 2],
    "accuracy-var": [("content Var(log q) (nats²)", "accuracy (%)")],
    "accuracy-by-var": [("content Var(log q) (nats²)", "accuracy (%)")],
    "predictors": [("AUROC", "")],
    "var-effect": [("log-odds per sd of Var", "")],
}


@pytest.mark.parametrize("name", FIGURES.names())
def test_axes_say_what_they_measure(name):
    _, figure = drawn(name)
    assert [(panel.get_xlabel(), panel.get_ylabel()) for panel in figure.axes] == AXES[name]


@pytest.mark.parametrize("name", [name for name in FIGURES.names() if name not in ("unmask", "reveal-order")])
def test_panels_of_several_have_a_letter_and_a_title(name):
    _, figure = drawn(name)
    titles = [panel.get_title(loc="left") for panel in figure.axes]
    assert all(len(title.strip()) > len("(a)") for title in titles)
    letters = [title[:3] for title in titles]
    if name == "frontier":
        assert letters == ["bit"]
    else:
        assert letters == ["(a)", "(b)", "(c)", "(d)"][: len(letters)]


@pytest.mark.parametrize("name", FIGURES.names())
def test_notes_titles_and_labels_are_not_cut_off(name):
    _, figure = drawn(name)
    figure.draw_without_rendering()
    labels = [label for panel in figure.axes for label in (panel.xaxis.label, panel.yaxis.label)]
    titles = [text for panel in figure.axes for text in panel.findobj(Text) if text.get_text()[:1] == "("]
    for text in filter(Text.get_text, (*figure.texts, *labels, *titles)):
        box = text.get_window_extent()
        assert box.x0 >= -1, (name, text.get_text())
        assert box.x1 <= figure.bbox.x1 + 1, (name, text.get_text())
    boxes = [text.get_window_extent() for text in titles]
    assert not [1 for i, box in enumerate(boxes) if any(box.overlaps(other) for other in boxes[:i])], name


@pytest.mark.parametrize("name", FIGURES.names())
def test_nothing_that_is_drawn_lies_outside_its_panel(name):
    """Marks and error bars are inside the limits, so that nothing is cut off."""
    _, figure = drawn(name)
    for panel in figure.axes:
        left, right = sorted(panel.get_xlim())
        low, high = sorted(panel.get_ylim())
        for line in panel.lines:
            if line.get_transform() is not panel.transData or line.get_marker() in ("None", "", None):
                continue
            x, y = (np.asarray(values, float) for values in line.get_data())
            known = np.isfinite(x) & np.isfinite(y)
            assert (x[known] >= left - 1e-9).all(), (name, panel.get_xlabel())
            assert (x[known] <= right + 1e-9).all(), (name, panel.get_xlabel())
            assert (y[known] >= low - 1e-9).all(), (name, panel.get_ylabel())
            assert (y[known] <= high + 1e-9).all(), (name, panel.get_ylabel())


def test_the_plane_has_each_order_at_its_mean_and_var_with_both_arms():
    data, figure = drawn("fixed-sequence")
    plane, gini, accuracy = figure.axes
    for item in data["points"]:
        mean, var = item["mean"], item["var"]
        assert rounded((mean["value"], var["value"])) in marks(plane)
        assert (rounded((mean["low"], var["value"])), rounded((mean["high"], var["value"]))) in error_lengths(
            plane
        )
        assert (rounded((mean["value"], var["low"])), rounded((mean["value"], var["high"]))) in error_lengths(
            plane
        )
    for seed in data["random_seeds"]:
        assert rounded((seed["mean"], seed["var"])) in marks(plane)
    for panel, name in ((gini, "gini_block0"), (accuracy, "argmax_accuracy")):
        expected = [rounded((item[name]["value"], place)) for place, item in enumerate(data["points"])]
        assert marks(panel) == expected
        assert panel.get_ylim() == (len(expected) - 0.5, -0.5), "the first order is on top"
    names = [label.get_text() for label in gini.get_yticklabels()]
    assert names == [display_name(item["order"]) for item in data["points"]]


def test_numbers_below_the_plane_do_not_touch():
    data, _ = drawn("fixed-sequence")
    mean = {"value": -4.489, "low": -4.569, "high": -4.409}
    points = [item | {"mean": item["mean"] | mean} for item in data["points"]]
    with look():
        figure = FIGURES.get("fixed-sequence").draw(data | {"points": points, "random_seeds": []})
        figure.draw_without_rendering()
        boxes = [tick.label1.get_window_extent() for tick in figure.axes[0].xaxis.get_major_ticks()]
    assert all(b.x0 - a.x1 > 4 for a, b in pairwise(boxes))


@pytest.mark.parametrize("name", ["fixed-sequence", "coherence"])
def test_hollow_marks_are_those_of_orders_that_see_the_target(name):
    data, figure = drawn(name)
    items = data["points"] if name == "fixed-sequence" else data["gaps"]
    panel = figure.axes[1 if name == "fixed-sequence" else 0]
    hollow = [
        line.get_markerfacecolor() == "white"
        for line in panel.lines
        if line.get_marker() not in ("None", "", None)
    ]
    assert hollow == [is_target_aware(item["order"]) for item in items]
    assert any(hollow)
    assert not all(hollow)


def test_lorenz_curves_run_from_corner_to_corner_and_beside_them_their_depth():
    data, figure = drawn("lorenz")
    whole, depth = figure.axes
    steps = np.linspace(0, 1, data["length"] + 1)
    shown = [line for line in whole.lines if len(line.get_xdata()) == len(steps)]
    below = [line for line in depth.lines if len(line.get_xdata()) == len(steps)]
    assert len(shown) == len(below) == len(data["curves"])
    for item, line, under in zip(data["curves"], shown, below, strict=True):
        np.testing.assert_allclose(line.get_xdata(), steps)
        np.testing.assert_allclose(line.get_ydata(), item["lorenz"])
        np.testing.assert_allclose(under.get_ydata(), steps - np.array(item["lorenz"]))
    assert (whole.get_xlim(), whole.get_ylim()) == ((0, 1), (0, 1))
    (legend,) = figure.legends
    ginis = [f"{item['gini']:.3f}" for item in data["curves"]]
    names = [display_name(item["order"]) for item in data["curves"]]
    assert texts(legend) == [f"{name} ({gini})" for name, gini in zip(names, ginis, strict=True)]


def test_gaps_lie_on_rows_beside_a_band_of_twice_the_floor():
    data, figure = drawn("coherence")
    panel = figure.axes[0]
    for place, item in enumerate(data["gaps"]):
        gap = item["gap"]
        assert rounded((gap["value"], place)) in marks(panel)
        assert (rounded((gap["low"], place)), rounded((gap["high"], place))) in error_lengths(panel)
    floor = max(item["value"] for item in data["statistics"] if item["statistic"] == "noise_floor")
    (band,) = panel.patches
    assert (band.get_x(), band.get_width()) == pytest.approx((-floor, 2 * floor))
    names = [label.get_text() for label in panel.get_yticklabels()]
    assert names == [display_name(item["order"]) for item in data["gaps"]]


def test_gaps_near_zero_name_their_power_of_ten_in_the_label():
    data, _ = drawn("coherence")
    gaps = [item | {"gap": {"value": 9e-16, "low": 0.0, "high": 1.8e-15}} for item in data["gaps"]]
    with look():
        panel = FIGURES.get("coherence").draw(data | {"gaps": gaps, "noise_floor": 0.0}).axes[0]
        panel.figure.draw_without_rendering()
    assert panel.get_xlabel() == "Δ mean log q to forced-ar (10⁻¹⁵ nats/token)"
    assert "1.5" in [tick.get_text() for tick in panel.get_xticklabels()]
    assert not panel.xaxis.get_offset_text().get_text()


def test_circulation_is_drawn_by_distance_and_by_mask_ratio_on_one_scale():
    data, figure = drawn("coherence")
    for panel, kind in zip(figure.axes[1:], ("distance", "mask ratio"), strict=True):
        groups = [g for g in data["circulation"] if g["group"].startswith(f"{kind} ") and g["n"] >= 4]
        for line, name in zip(panel.lines, ("rms", "median_abs"), strict=True):
            np.testing.assert_allclose(line.get_ydata(), [group[name]["value"] for group in groups])
        assert len(panel.get_xticklabels()) == len(groups)
    assert figure.axes[1].get_ylim() == figure.axes[2].get_ylim()
    assert figure.axes[1].get_ylim()[0] == 0
    assert texts(figure.axes[1].get_legend()) == ["RMS", "median"]


def test_bars_of_loss_and_var_add_up_to_the_mark():
    data, figure = drawn("couplings")
    _, loss, var = figure.axes
    assert texts(loss.get_legend()) == ["order", "coupling"]
    assert texts(var.get_legend()) == [
        "between passes",
        "inside passes",
        "coupling, between",
        "coupling, inside",
    ]
    losses, parts = data["loss"], {row["order"]: row for row in data["var"]}
    widths = np.array([patch.get_width() for patch in loss.patches]).reshape(len(losses), 2)
    np.testing.assert_allclose(
        widths, [[row["of_order"]["value"], row["of_coupling"]["value"]] for row in losses], atol=1e-9
    )
    for place, row in enumerate(losses):
        total = row["loss"]
        assert rounded((total["value"], place)) in marks(loss)
        assert total["value"] == pytest.approx(widths[place].sum(), abs=1e-6), "the bars add up to the mark"
        assert (rounded((total["low"], place)), rounded((total["high"], place))) in error_lengths(loss)
    bars = np.array([(patch.get_x(), patch.get_width()) for patch in var.patches]).reshape(len(losses), 4, 2)
    for row, own in zip(losses, bars, strict=True):
        names = ("between", "inside", "coupling_between", "coupling_inside")
        for place, ((left, width), name) in enumerate(zip(own, names, strict=True)):
            assert width == pytest.approx(parts[row["order"]][name]["value"], abs=1e-9)
            before = [other for _, other in own[:place] if (other >= 0) == (width >= 0)]
            assert left == pytest.approx(sum(before)), "stacked on those of the same sign"
    names = [label.get_text() for label in loss.get_yticklabels()]
    assert names[0] == "forced-ar"
    assert "max-prob+top=4" in names


def test_the_frontier_has_every_policy_at_its_pace_and_quality():
    data, figure = drawn("frontier")
    (panel,), (measure,) = figure.axes, data["panels"]
    assert panel.get_xscale() == "log"
    for point in measure["points"]:
        assert rounded((point["tokens_per_pass"]["value"], point["quality"]["value"])) in marks(panel)
    assert panel.get_title(loc="left") == "bits per byte ↓", "less is better"
    (legend,) = figure.legends
    assert texts(legend) == ["forced-ar", "forced-ar+top", "max-prob+threshold", "max-prob+top"]


def test_heat_maps_show_the_shares_with_the_first_step_on_top():
    data, figure = drawn("reveal-order")
    for panel, item in zip(figure.axes, data["maps"], strict=False):
        (image,) = panel.images
        share = np.array(item["content_share"])
        np.testing.assert_allclose(np.ma.filled(image.get_array(), 0.0), share)
        left, right, bottom, top = image.get_extent()
        width = data["width"]
        assert (left, right, bottom, top) == (0.5, width + 0.5, width + 0.5, 0.5)
        rho = item["spearman_l2r_block0"]["value"]
        shown = f"{abs(rho):.2f}"
        assert panel.get_title(loc="left").startswith(
            f"{display_name(item['order'])}\nρ = {'−' if rho < 0 else ''}{shown}"
        )


def test_the_sweep_has_greedy_marks_apart_and_lines_through_the_rest():
    data, figure = drawn("temperature")
    names = ("external_ppl_whole", "var", "content_mean", "eos_fraction")
    for panel, name in zip(figure.axes, names, strict=True):
        for item in data["series"]:
            for point in item["points"]:
                x, y = point["temperature"], point[name]["value"]
                if x > 0:
                    assert rounded((x, y)) in marks(panel)
                else:
                    near = [found for found in marks(panel) if abs(found[0]) < 0.1]
                    assert round(y, 6) in [found[1] for found in near]
        hottest = max(point["temperature"] for item in data["series"] for point in item["points"])
        assert panel.get_xlim() == pytest.approx((-0.16, hottest + 0.08))
    places = [found[0] for found in marks(figure.axes[1]) if abs(found[0]) < 0.1]
    assert len(set(places)) == len(data["series"]), "marks at T = 0 are moved apart"
    assert sum(places) == pytest.approx(0)
    assert [panel.get_yscale() for panel in figure.axes] == ["log", "log", "linear", "linear"]
    (legend,) = figure.legends
    assert texts(legend) == [display_name(item["order"]) for item in data["series"]]


def test_losses_are_points_of_the_traces_and_correlations_lie_between_minus_one_and_one():
    data, figure = drawn("jensen")
    fit, loss, rho = figure.axes
    shown = marks(loss)
    for trace in data["traces"]:
        assert rounded((trace["var"], trace["loss"])) in shown
    assert fit.get_xscale() == rho.get_xscale() == "log"
    assert rho.get_ylim() == (-1.05, 1.05)
    known = marks(rho)
    for item in data["correlations"]:
        if not item.get("is_fitted"):
            for name in ("var", "min"):
                assert rounded((item["sigma"], item[name])) in known
    assert texts(fit.get_legend()) == ["fitted σ, k", "fitted σ, k = 1", "observed"]
    assert texts(loss.get_legend())[0] == "forced-ar"
    assert texts(rho.get_legend()) == ["Var", "−min log q", "share q < ½"]


def test_every_answer_is_on_the_plane_in_the_colour_of_its_verdict():
    data, figure = drawn("plane")
    (task,) = data["tasks"]
    assert len(figure.axes) == len(task["orders"]) == 3
    for panel, item in zip(figure.axes, task["orders"], strict=True):
        right, wrong, vertical, horizontal = panel.lines
        for line, verdict in ((right, True), (wrong, False)):
            answers = zip(item["mean"], item["var"], item["correct"], strict=True)
            expected = [(mean, var) for mean, var, correct in answers if correct is verdict]
            assert list(zip(*line.get_data(), strict=True)) == expected
        assert set(vertical.get_xdata()) == {task["medians"]["mean"]}
        assert set(horizontal.get_ydata()) == {task["medians"]["var"]}
        assert len(panel.child_axes) == 2, "one strip per axis"


def graded_plane(orders, lowest):
    """Return answers whose Var goes down to ``lowest``, in four tasks; a quarter of the values are 0."""
    var = np.geomspace(1.0, lowest, 12) * (np.arange(12) % 4 > 0)
    rows = {"mean": np.linspace(-1, 0, 12).tolist(), "var": var.tolist(), "correct": [True, False] * 6}
    tasks = ["gsm8k", "hellaswag", "ifeval", "a-task-with-a-long-name"]
    medians, cells = {"mean": -0.5, "var": 0.1}, [{"order": order} | rows for order in orders]
    return {"tasks": [{"task": t, "medians": medians, "orders": cells} for t in tasks], "temperature": 0.0}


@pytest.mark.parametrize("lowest", [0.02, 3e-5, 1e-33])
def test_names_and_numbers_of_sixteen_planes_are_inside_and_apart(lowest):
    from orderlens.figures import plane

    orders = ["forced-ar", "max-prob", "random", "max-prob+threshold=0.6+edit=0.8"]
    figure = plane.draw(graded_plane(orders, lowest))
    figure.draw_without_rendering()
    titles = [panel._left_title.get_window_extent() for panel in figure.axes]
    assert max(box.x1 for box in titles) <= figure.bbox.x1
    assert not any(a.overlaps(b) for place, a in enumerate(titles) for b in titles[place + 1 :])
    for panel in figure.axes:
        low, high = panel.get_ylim()
        shown = [text for text in panel.get_yticklabels() if low <= text.get_position()[1] <= high]
        assert 3 <= len(shown) <= 9
        assert not any("e-" in text.get_text() for text in shown)
        boxes = [text.get_window_extent() for text in shown]
        assert not any(a.overlaps(b) for place, a in enumerate(boxes) for b in boxes[place + 1 :])


def test_panels_after_the_alphabet_have_two_letters():
    from orderlens.figures import plane

    figure = plane.draw(graded_plane(["forced-ar", "max-prob", "random"] * 3, 0.01))
    letters = [panel.get_title(loc="left").partition(")")[0][1:] for panel in figure.axes]
    assert letters[:36] == [*"abcdefghijklmnopqrstuvwxyz", *(f"a{letter}" for letter in "abcdefghij")]


def test_the_plane_splits_answers_as_the_table_of_quadrants_does(golden_studies):
    data, _ = drawn("plane")
    (table,) = golden_studies["evaluate"].tables(["quadrants"])
    (task,), (row,) = data["tasks"], table.rows
    answers = [
        item
        for order in task["orders"]
        for item in zip(*(order[k] for k in ("mean", "var", "correct")), strict=True)
    ]
    for name, high_mean, high_var in (
        ("hi_mean_lo_var", 1, 0),
        ("hi_mean_hi_var", 1, 1),
        ("lo_mean_lo_var", 0, 0),
        ("lo_mean_hi_var", 0, 1),
    ):
        inside = [
            correct
            for mean, var, correct in answers
            if (mean > task["medians"]["mean"]) == high_mean and (var > task["medians"]["var"]) == high_var
        ]
        assert row[name].value == pytest.approx(100 * sum(inside) / len(inside))


def test_spans_and_lags_are_drawn_and_no_share_near_zero():
    data, figure = drawn("hits")
    recovered, excess, lags = figure.axes
    for name in ("observed", "by_rate", "fitted"):
        for point in data["pooled"]:
            is_marked = rounded((point["span"], point[name]["value"])) in marks(recovered)
            assert is_marked == (point[name]["value"] >= 1e-6)
    assert recovered.get_ylim()[0] > 1e-7
    for item in data["orders"]:
        for point in item["lags"]:
            assert rounded((point["lag"], point["correlation"]["value"])) in marks(lags)
        for point in item["spans"]:
            if point["log_excess"]["value"] is not None:
                assert rounded((point["span"], point["log_excess"]["value"])) in marks(excess)


def test_maps_of_entropy_have_the_first_pass_on_top():
    data, figure = drawn("locality")
    by_order = {item["order"]: np.array(item["entropy"], float) for item in data["maps"]}
    for panel, order in zip(figure.axes[2:], ("max-prob", "random"), strict=True):
        (image,) = panel.images
        np.testing.assert_allclose(np.ma.filled(image.get_array(), np.nan), by_order[order])
        assert panel.get_ylim()[0] > panel.get_ylim()[1]
    for panel, name in zip(figure.axes, ("entropy", "fall"), strict=False):
        heights = [y for _, y in marks(panel)]
        for item in data["series"]:
            for point in item["points"]:
                if point[name]["value"] is not None:
                    assert round(point[name]["value"], 6) in heights


def test_predicted_losses_are_drawn_at_their_temperatures():
    data, figure = drawn("tolerance")
    for panel, name in zip(figure.axes, ("loss_lowest", "loss_own"), strict=True):
        for item in data["series"]:
            for point in item["points"]:
                if point[name]["value"] is not None:
                    assert rounded((point["temperature"], point[name]["value"])) in marks(panel)


def test_tasks_have_a_panel_each_with_every_order():
    data, figure = drawn("accuracy-var")
    for panel, task in zip(figure.axes, data["tasks"], strict=True):
        assert panel.get_title(loc="left").endswith(task["task"])
        for item in task["points"]:
            assert rounded((item["var"]["value"], item["accuracy"]["value"])) in marks(panel)
            for seed in item["seeds"]:
                assert rounded((seed["var"], seed["accuracy"])) in marks(panel)
    (legend,) = figure.legends
    assert texts(legend) == [display_name(item["order"]) for item in data["tasks"][0]["points"]]


def test_bins_are_lines_through_medians_with_arms():
    data, figure = drawn("accuracy-by-var")
    (task,), (panel,) = data["tasks"], figure.axes
    for item in task["series"]:
        for one in item["bins"]:
            accuracy = one["accuracy"]
            assert rounded((one["var"], accuracy["value"])) in marks(panel)
            assert (
                rounded((one["var"], accuracy["low"])),
                rounded((one["var"], accuracy["high"])),
            ) in error_lengths(panel)


@pytest.mark.parametrize(
    ("name", "field", "parts", "line"),
    [
        ("predictors", "auroc", ("var", "mean", "n"), 0.5),
        ("var-effect", "effect", ("alone", "given_length", "given_mean", "given_both"), 0.0),
    ],
)
def test_rows_hold_one_mark_per_predictor_around_the_orders_place(name, field, parts, line):
    data, figure = drawn(name)
    (task,), (panel,) = data["tasks"], figure.axes
    series = [line for line in panel.lines if line.get_marker() not in ("None", "", None)]
    for place, (line_of, part) in enumerate(zip(series, parts, strict=True)):
        cells = [row[field][part] for row in task["rows"]]
        known = [(number, cell) for number, cell in enumerate(cells) if cell["value"] is not None]
        assert line_of.get_xdata() == pytest.approx([cell["value"] for _, cell in known])
        shifts = line_of.get_ydata() - np.array([number for number, _ in known])
        assert len({round(float(shift), 9) for shift in shifts}) == 1
        assert np.sign(round(float(shifts[0]), 9)) == np.sign(place - (len(parts) - 1) / 2)
        assert abs(shifts[0]) < 0.45, "marks of neighbouring orders stay apart"
        for (number, cell), shift in zip(known, shifts, strict=True):
            ends = [rounded((cell[end], number + shift)) for end in ("low", "high")]
            assert tuple(ends) in error_lengths(panel)
    guide = next(found for found in panel.lines if set(found.get_xdata()) == {line})
    assert guide.get_linestyle() != "-"
    assert panel.get_ylim() == (len(task["rows"]) - 0.5, -0.5)


def test_tokens_are_boxes_in_text_order_with_their_steps():
    data, figure = drawn("unmask")
    (panel,) = figure.axes
    words = [text.get_text() for text in panel.texts]
    tokens = [
        token for example in data["examples"] if not example.get("missing") for token in example["tokens"]
    ]
    steps = [word for word in words if word.isdigit()]
    assert sorted(map(int, steps)) == sorted(token["step"] + 1 for token in tokens), "steps count from 1"
    assert len(panel.patches) >= len(tokens)
    assert {"content", "EOS", "special"} <= set(words)


def test_many_orders_stand_in_rows_of_four_and_no_heading_touches_the_next():
    from orderlens.figures import reveal_order

    shape = {name: {"value": 0.5, "low": 0.1, "high": 0.9} for name in reveal_order.SHAPES}
    share = np.eye(4).tolist()
    orders = ["forced-ar", "max-prob", "max-prob+threshold=0.9", "max-prob+top=4", "top-margin", "random"]
    maps = [{"order": order, "n": 3, "content_share": share, "eos_share": share} | shape for order in orders]
    figure = reveal_order.draw({"width": 4, "temperature": 0.0, "maps": maps})
    figure.draw_without_rendering()
    titles = [panel._left_title.get_window_extent() for panel in figure.axes if panel.get_title(loc="left")]
    assert len(titles) == len(orders)
    assert not any(a.overlaps(b) for place, a in enumerate(titles) for b in titles[place + 1 :])


def test_a_single_row_of_reveal_orders_has_room_for_headings_and_note():
    """As written to SVG, which draws the figure once."""
    from orderlens.figures import reveal_order

    shape = {name: {"value": 0.5, "low": 0.1, "high": 0.9} for name in reveal_order.SHAPES}
    kinds = {"content_share": np.eye(32).tolist(), "eos_share": np.zeros((32, 32)).tolist()}
    orders = ["forced-ar", "max-prob", "top-margin", "random"]
    maps = [{"order": order, "n": 6} | kinds | shape for order in orders]
    figure = reveal_order.draw({"width": 32, "temperature": 0.0, "maps": maps})
    figure.draw_without_rendering()
    note = figure._supxlabel.get_window_extent()
    for panel in figure.axes[: len(orders)]:
        assert panel._left_title.get_window_extent().y1 <= figure.bbox.y1
        assert panel.xaxis.label.get_window_extent().y0 >= note.y1
