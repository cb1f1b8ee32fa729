"""What each figure shows, worked out by hand or by a slower independent way."""

from __future__ import annotations

import json
import math

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from orderlens.common.plaintext import plain
from orderlens.errors import UndefinedFigureError
from orderlens.figures import fixed_sequence, jensen, reveal_order, temperature
from orderlens.theory import jensen_loss


def by_order(items):
    return {item["order"]: item for item in items}


def test_the_plane_holds_per_sequence_averages(scored):
    points = by_order(fixed_sequence.data(scored)["points"])
    assert points["forced-ar"]["mean"]["value"] == pytest.approx(-1.5)
    assert points["forced-ar"]["var"]["value"] == 0.0
    assert points["reverse-ar"]["var"]["value"] == pytest.approx(0.25)
    # one value of −5.7 (or −9.7) among three of −0.1: Var = (3/16)·gap²
    assert points["oracle-min-q"]["var"]["value"] == pytest.approx(3 / 16 * (5.6**2 + 9.6**2) / 2)
    assert points["oracle-min-q"]["kind"] == "target-aware"
    assert points["random"]["n"] == 4


def test_points_rise_in_var_and_seeds_are_shown_apart(scored):
    found = fixed_sequence.data(scored)
    values = [item["var"]["value"] for item in found["points"]]
    assert values == sorted(values)
    assert [item["mean"] for item in found["random_seeds"]] == pytest.approx([-1.25, -1.5])
    assert found["n_sequences"] == 2


def test_the_plane_correlation_is_scipys(scored):
    found = fixed_sequence.data(scored)
    points = [(item["var"]["value"], item["mean"]["value"]) for item in found["points"]]
    assert found["spearman_var_mean"]["all"] == pytest.approx(stats.spearmanr(*zip(*points, strict=True))[0])
    assert math.isnan(found["spearman_var_mean"]["paper_six"])  # two of the six are missing


def test_argmax_accuracy_and_gini(scored):
    points = by_order(fixed_sequence.data(scored)["points"])
    assert points["oracle-min-q"]["argmax_accuracy"]["value"] == 0.75
    assert points["forced-ar"]["gini_block0"]["value"] == pytest.approx(0.0)
    gini = [
        np.abs(np.subtract.outer(s, s)).sum() / (2 * 4 * sum(s))
        for s in ([0.1] * 3 + [5.7], [0.1] * 3 + [9.7])
    ]
    assert points["oracle-min-q"]["gini_block0"]["value"] == pytest.approx(np.mean(gini))


def test_lorenz_curves_by_hand(scored):
    curves = by_order(fixed_sequence.LORENZ.data(scored)["curves"])
    assert curves["forced-ar"]["lorenz"] == pytest.approx([0, 0.25, 0.5, 0.75, 1])
    first = np.cumsum([0, 0.1, 0.1, 0.1, 5.7]) / 6.0
    second = np.cumsum([0, 0.1, 0.1, 0.1, 9.7]) / 10.0
    assert curves["oracle-min-q"]["lorenz"] == pytest.approx((first + second) / 2)


def test_gaps_are_paired_with_forced_ar(scored):
    found = fixed_sequence.coherence_data(scored)
    gaps = by_order(found["gaps"])
    assert "forced-ar" not in gaps
    assert gaps["reverse-ar"]["gap"]["value"] == pytest.approx(0.0)
    assert gaps["oracle-min-q"]["gap"]["value"] == pytest.approx(-0.5)
    # seeds first: s0 has −1 and −1.25, s1 has −1.5 and −1.75; against −1 and −2
    assert gaps["random"]["gap"]["value"] == pytest.approx((-0.125 + 0.375) / 2)
    assert list(gaps)[-1] == "oracle-min-q"  # orders that see the target come last


def test_ranges_are_named_and_the_noise_floor_is_the_largest(scored, by_hand):
    noise = pa.table(
        {
            "sample_id": ["s0", "s0"],
            "task": pa.array([None, None], pa.string()),
            "order": ["forced-ar"] * 2,
            "seed": pa.array([None, None], pa.int64()),
            "perturbation": ["batch-size", "bfloat16"],
            "log_prob": [-4.0, -4.0],
            "log_prob_perturbed": [-4.0, -4.04],
            "n": pa.array([4, 4], pa.int32()),
        }
    )
    study = by_hand.study_of([scored.run.reveals().to_arrow()], noise=noise)
    found = fixed_sequence.coherence_data(study)
    assert found["noise_floor"] == pytest.approx(0.01)
    cells = {(i["statistic"], i["scope"]): i["value"] for i in found["statistics"]}
    assert cells["range_of_means", "deployable"] < cells["mean_of_ranges", "deployable"] + 1e-12


def test_circulation_groups_are_kept_with_their_counts(scored, by_hand):
    rows = {"gamma": [0.1, -0.3, 0.5], "distance": [1, 1, 20], "mask_ratio": [1.0, 0.4, 0.1]}
    table = pa.table(
        {
            "sample_id": ["s0", "s0", "s1"],
            "task": pa.array([None] * 3, pa.string()),
            "order": ["random"] * 3,
            **{name: pa.array(values) for name, values in rows.items()},
        }
    )
    study = by_hand.study_of([scored.run.reveals().to_arrow()], circulation=table)
    groups = {item["group"]: item for item in fixed_sequence.coherence_data(study)["circulation"]}
    assert groups["all"]["rms"]["value"] == pytest.approx(math.sqrt((0.01 + 0.09 + 0.25) / 3))
    assert groups["distance [1, 2)"]["median_abs"]["value"] == pytest.approx(0.2)
    assert sum(item["n"] for name, item in groups.items() if name.startswith("mask")) == 3


def test_heat_maps_count_places_and_steps(by_hand):
    eos = by_hand.EOS
    traces = [
        by_hand.trace("a", "max-prob", [0, 3, 2, 1], [5, 6, eos, eos], [-0.1] * 4, temperature=0.0),
        by_hand.trace("b", "max-prob", [0, 1, 2, 3], [5, 6, 7, 8], [-0.1] * 4, temperature=0.0),
        by_hand.trace("a", "max-prob", [3, 2, 1, 0], [5, 6, 7, 8], [-0.1] * 4, temperature=1.0),
    ]
    found = reveal_order.data(by_hand.study_of(traces))
    item = found["maps"][0]
    content, sealed = np.array(item["content_share"]), np.array(item["eos_share"])
    assert item["n"] == 2  # the text at T = 1 is not greedy
    assert content[0, 0] == 1.0
    assert content[3, 1] == content[3, 3] == 0.5
    assert (sealed[1, 3], sealed[2, 2]) == (0.5, 0.5)
    assert content.sum() + sealed.sum() == pytest.approx(4.0)
    assert item["spearman_l2r_block0"]["value"] == pytest.approx(1.0)


def test_only_block_zero_is_shown(by_hand):
    traces = [
        by_hand.trace(
            "a", "random", [1, 0, 3, 2], [5, 6, 7, 8], [-0.1] * 4, seed=0, temperature=0.0, block_size=2
        )
    ]
    found = reveal_order.data(by_hand.study_of(traces))
    assert found["width"] == 2
    assert np.array(found["maps"][0]["content_share"]).tolist() == [[0.0, 1.0], [1.0, 0.0]]


class Evaluator:
    """Gives every token of a text the log-probability −(number in the text)."""

    name = "by-hand"

    def token_logprobs(self, pairs):
        return [np.full(3, -float(text.removeprefix("p"))) for _, text in pairs]


def sweep_study(by_hand, nll, evaluator):
    """One prompt per column of ``nll``: order → temperature → list of mean NLLs."""
    traces, rows = [], []
    for order, by_temperature in nll.items():
        for value, numbers in by_temperature.items():
            for place, number in enumerate(numbers):
                seed = 0 if order == "random" else None
                traces.append(
                    by_hand.trace(
                        f"s{place}", order, [0, 1], [5, 6], [-0.5, -0.5 - value], seed=seed, temperature=value
                    )
                )
                rows.append(
                    {
                        "sample_id": f"s{place}",
                        "task": None,
                        "order": order,
                        "seed": seed,
                        "temperature": value,
                        "sample_seed": 0 if value else None,
                        "prompt_text": "p",
                        "text": str(number),
                    }
                )
    return by_hand.study_of(traces, evaluator=evaluator, outputs=rows)


def test_the_sweep_shows_medians_and_where_all_orders_collapsed(by_hand):
    nll = {
        "forced-ar": {0.0: [1, 2, 3], 1.3: [7, 8, 9], 2.0: [9, 9, 9]},
        "random": {0.0: [2, 2, 2], 1.3: [6, 6, 6], 2.0: [8, 8, 8]},
    }
    found = temperature.data(sweep_study(by_hand, nll, Evaluator()))
    series = {(i["order"], p["temperature"]): p for i in found["series"] for p in i["points"]}
    assert series["forced-ar", 0.0]["external_ppl_whole"]["value"] == pytest.approx(math.exp(2))
    assert series["random", 1.3]["external_ppl_whole"]["value"] == pytest.approx(
        math.exp(6)
    )  # 403 is below 1,000
    assert found["collapsed_from"] == 2.0
    assert series["forced-ar", 2.0]["var"]["value"] == pytest.approx(1.0)
    assert found["evaluator"] == "by-hand"


def test_without_an_evaluator_the_sweep_still_has_its_other_panels(by_hand):
    found = temperature.data(sweep_study(by_hand, {"random": {0.0: [1], 1.0: [2]}}, None))
    points = found["series"][0]["points"]
    assert math.isnan(points[0]["external_ppl_whole"]["value"])
    assert points[1]["var"]["value"] == pytest.approx(0.25)
    assert math.isnan(found["collapsed_from"])


def test_one_temperature_is_no_sweep(by_hand):
    study = sweep_study(by_hand, {"random": {0.0: [1]}}, None)
    with pytest.raises(UndefinedFigureError, match="two temperatures"):
        temperature.data(study)


def noisy_study(by_hand, n=40):
    rng = np.random.default_rng(0)
    traces = []
    for place in range(n):
        for order in ("forced-ar", "oracle-max-q"):
            logq = -rng.gamma(0.8, 1.5, 16)
            hits = rng.random(16) < stats.norm.cdf(stats.logistic.ppf(np.exp(logq)) / (0.8 * math.sqrt(2)))
            traces.append(
                by_hand.trace(f"s{place}", order, np.arange(16), np.arange(16) + 5, logq, hits=hits)
            )
    return by_hand.study_of(traces)


def test_the_fitted_noise_is_the_one_that_was_put_in(by_hand):
    found = jensen.data(noisy_study(by_hand))
    assert found["sigma_one"] == pytest.approx(0.8, abs=0.2)
    assert len(found["traces"]) == 80


def test_losses_are_the_librarys_and_correlations_scipys(by_hand):
    study = noisy_study(by_hand, 6)
    found = jensen.data(study)
    frame = study.run.reveals().to_pandas()
    slow = {
        key: float(jensen_loss(part.sort_values("step")["logq"].to_numpy(), found["sigma_one"])) / 16
        for key, part in frame.groupby(["order", "sample_id"])
    }
    fast = sorted(item["loss"] for item in found["traces"])
    assert fast == pytest.approx(sorted(slow.values()), abs=1e-10)
    own = [item for item in found["traces"] if item["order"] == "forced-ar"]
    fitted = next(item for item in found["correlations"] if item.get("is_fitted"))
    expected = stats.spearmanr([i["var"] for i in own], [i["loss"] for i in own])[0]
    assert fitted["var"] == pytest.approx(expected)
    assert fitted["min"] == pytest.approx(
        -stats.spearmanr([i["min"] for i in own], [i["loss"] for i in own])[0]
    )


def test_a_run_without_misses_cannot_be_fitted(by_hand):
    study = by_hand.study_of(
        [by_hand.trace("a", "forced-ar", [0, 1], [5, 6], [-0.1, -0.2], hits=[True, True])]
    )
    with pytest.raises(UndefinedFigureError, match="no noise can be fitted"):
        jensen.data(study)


@pytest.mark.parametrize(
    "recipe", [fixed_sequence.RECIPE, fixed_sequence.LORENZ, fixed_sequence.COHERENCE, jensen.RECIPE]
)
def test_generated_traces_alone_have_no_fixed_targets(recipe, by_hand):
    study = by_hand.study_of(
        [by_hand.trace("a", "random", [0, 1], [5, 6], [-0.1, -0.2], seed=0, temperature=0.0)]
    )
    with pytest.raises(UndefinedFigureError, match="nothing was scored"):
        recipe.data(study)


def test_scored_traces_alone_have_no_decoded_paths(scored):
    with pytest.raises(UndefinedFigureError, match="nothing was generated"):
        reveal_order.data(scored)


def test_every_figure_can_be_drawn_from_its_sidecar(scored):
    for recipe in (fixed_sequence.RECIPE, fixed_sequence.LORENZ, fixed_sequence.COHERENCE):
        figure = recipe.draw(json.loads(json.dumps(plain(recipe.data(scored)))))
        shown = [panel for panel in figure.axes if panel.lines or panel.collections or panel.patches]
        assert shown, recipe.title
        assert any(panel.get_xlabel() for panel in shown)
