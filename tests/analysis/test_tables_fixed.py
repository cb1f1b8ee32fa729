"""Fixed sequences under several orders: means, spread, coherence with its noise floor."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest

import orderlens
from orderlens.analysis import Study
from orderlens.metrics import coherence
from orderlens.store.schema import table_schema


def test_fixed_sequence_averages_per_sequence(scored, builders):
    frame = scored.samples().to_pandas()
    found = builders.table(scored, "fixed-sequence")
    cell = found.cell("var", order="random")
    assert cell.value == pytest.approx(frame.loc[frame["order"] == "random", "var"].mean())
    assert (found.cell("seeds", order="random"), found.cell("n", order="random")) == (9, 108)
    assert found.cell("kind", order="oracle-min-q") == "target-aware"
    assert cell.low < cell.value < cell.high


def test_fixed_sequence_of_a_generated_run_says_there_is_no_target(graded, builders):
    found = builders.table(graded, "fixed-sequence")
    assert [row["order"] for row in found.rows] == ["forced-ar", "max-prob", "random"]
    assert {row["mean"].why for row in found.rows} == {"no target: these traces were generated"}


def test_likelihoods_are_explained_only_where_an_order_sees_the_target(scored, builders):
    seen = [note for note in builders.table(scored, "fixed-sequence").notes if "target-aware" in note]
    run = builders.make_run([builders.trace(key, "forced-ar", [-1.0, -2.0]) for key in "ab"])
    unseen = [note for note in builders.table(run, "fixed-sequence").notes if "target-aware" in note]
    assert (len(seen), len(unseen)) == (1, 0)


def test_held_out_reference_leaves_the_prompt_out(builders):
    rows = {"a": [-1.0, -1.0], "b": [-2.0, -4.0], "c": [-3.0, -3.0]}
    run = builders.make_run([builders.trace(key, "forced-ar", y) for key, y in rows.items()])
    samples = Study(run, builders.QUICK, ()).samples.set_index("sample_id")
    reference = np.mean(rows["a"] + rows["c"])
    assert samples.loc["b", "var_about"] == pytest.approx(np.mean((np.array(rows["b"]) - reference) ** 2))


def test_coherence_equals_the_metrics(scored, builders):
    frame = scored.samples().to_pandas()
    wide = frame.pivot_table(index="sample_id", columns="order", values="mean")
    found = builders.table(scored, "coherence")
    for name, metric in (("observed_range", "range_of_means"), ("mean_of_ranges", "mean_of_ranges")):
        expected = getattr(coherence, metric)(wide.to_numpy())
        assert found.cell("value", statistic=name, scope="all").value == pytest.approx(expected)
    deployable = wide[["forced-ar", "max-prob", "random"]].to_numpy()
    plain = coherence.range_of_means(deployable)
    assert found.cell("value", statistic="observed_range", scope="deployable").value == pytest.approx(plain)
    corrected = found.cell("value", statistic="range_of_means", scope="deployable")
    assert 0 <= corrected.low <= corrected.value <= plain <= corrected.high
    assert 0 < found.cell("p", statistic="range_of_means", scope="deployable").value <= 1
    single = found.cell("value", statistic="range_of_means", scope="target-aware")
    assert "fewer than two orders" in single.why
    seeds = frame[frame["order"] == "random"].pivot_table(
        index="sample_id", columns="seed", values="log_prob"
    )
    spread = coherence.dispersion(seeds.to_numpy() / 64).mean()
    assert found.cell("value", statistic="dispersion", scope="random").value == pytest.approx(spread)
    gap = coherence.ensemble_gap(seeds.to_numpy(), np.full(12, 64)).mean()
    assert found.cell("value", statistic="ensemble_gap", scope="random").value == pytest.approx(gap)
    assert (
        found.cell("value", statistic="noise_floor", scope="(all)").why
        == "not measured: score with --noise-floor"
    )


def test_few_random_seeds_are_called_rough(builders):
    found = builders.table(builders.scoring_run(seeds=3), "coherence")
    assert (
        found.cell("value", statistic="dispersion", scope="random").why == "only 3 random orders (8 wanted)"
    )
    none = builders.table(builders.scoring_run(seeds=0), "coherence")
    assert not none.cell("value", statistic="dispersion", scope="random").is_defined


def measured(builders):
    """A scored run with a noise and a circulation table."""
    rng = np.random.default_rng(0)
    noise = {name: [None] * 8 for name in table_schema("noise").names}
    noise |= {"sample_id": [f"s{i % 4}" for i in range(8)], "order": ["forced-ar"] * 8, "n": [10] * 8}
    noise |= {"perturbation": ["cache"] * 4 + ["bfloat16"] * 4, "log_prob": [-20.0] * 8}
    noise |= {"log_prob_perturbed": [-20.01] * 4 + [-20.2] * 4}
    count = 50
    moves = {name: [None] * count for name in table_schema("circulation").names}
    moves |= {"sample_id": [f"s{i % 4}" for i in range(count)], "order": ["random"] * count}
    moves |= {"gamma": [*rng.normal(size=count - 1), math.nan], "distance": rng.integers(1, 30, count)}
    moves |= {"mask_ratio": rng.uniform(0.05, 1.0, count)}
    tables = {}
    for name, columns in (("noise", noise), ("circulation", moves)):
        tables[name] = pa.table(
            columns, schema=pa.schema([field.with_nullable(True) for field in table_schema(name)])
        )
    reveals = builders.scoring_run(n_samples=4).reveals().to_arrow()
    return builders.make_run([reveals], **tables), moves["gamma"]


def test_gaps_stand_beside_the_noise_floor_and_circulation_is_binned(builders):
    run, gamma = measured(builders)
    first, second = Study(run, builders.QUICK).tables(["coherence"])
    assert first.cell("value", statistic="noise_floor", scope="cache").value == pytest.approx(0.001)
    assert first.cell("value", statistic="noise_floor", scope="bfloat16").value == pytest.approx(0.02)
    gap = first.cell("value", statistic="range_of_means", scope="all").value
    assert first.cell("noise_floor", statistic="range_of_means", scope="all").value == pytest.approx(0.02)
    assert first.cell("times_noise", statistic="range_of_means", scope="all").value == pytest.approx(
        gap / 0.02
    )
    known = np.array(gamma[:-1])
    assert second.cell("median_abs", group="all").value == pytest.approx(np.median(np.abs(known)))
    assert second.cell("rms", group="all").value == pytest.approx(np.sqrt(np.mean(known**2)))
    assert second.cell("n_undefined", group="all") == 1
    groups = [str(row["group"]) for row in second.rows]
    for kind in ("distance", "mask ratio"):
        assert sum(row["n"] for row in second.rows if str(row["group"]).startswith(kind)) == len(known)
    assert "distance [17, …]" in groups


def test_a_coherent_model_has_no_gap_while_var_differs(builders):
    model = orderlens.load_model("hmm")
    letters = model.tokenizer.decode(range(6))
    samples = [orderlens.Sample(f"s{i}", letters[:3], (letters[i:] + letters[:i]) * 8) for i in range(4)]
    orders = ["forced-ar", "reverse-ar", "max-prob", "oracle-min-q", "random:0", "random:1"]
    run = orderlens.score(model, samples, orders=orders, block_size=16)
    found = builders.table(run, "coherence")
    for name in ("range_of_means", "mean_of_ranges"):
        assert found.cell("value", statistic=name, scope="all").value < 1e-9
    assert found.cell("value", statistic="dispersion", scope="random").value < 1e-9
    assert found.cell("value", statistic="ensemble_gap", scope="random").value < 1e-9
    spread = [row["var"].value for row in builders.table(run, "fixed-sequence").rows]
    assert max(spread) - min(spread) > 1e-3
    pairs = [note for note in builders.table(run, "fixed-sequence").notes if note.startswith("Pairs")]
    assert pairs == ["Pairs in which the higher mean has the higher Var: none."]


def test_an_impossible_token_leaves_its_text_out(builders):
    traces = [
        builders.trace(f"s{i}", order, [-1.0, -np.inf if i == 0 else -2.0 - place])
        for i in range(3)
        for place, order in enumerate(("forced-ar", "max-prob"))
    ]
    cell = builders.table(builders.make_run(traces), "coherence").cell(
        "value", statistic="mean_of_ranges", scope="all"
    )
    assert (cell.value, cell.n, cell.n_undefined) == (pytest.approx(0.5), 2, 1)


def test_rounding_is_no_order_effect(builders):
    """Means that differ in the last bits are equal: no rank, no multiple of an even smaller noise floor."""
    noise = {name: [None] * 8 for name in table_schema("noise").names}
    noise |= {"sample_id": [f"s{i}" for i in range(8)], "order": ["forced-ar"] * 8, "n": [4] * 8}
    noise |= {"perturbation": ["cache"] * 8, "log_prob": [-8.0] * 8, "log_prob_perturbed": [-8.0 - 1e-15] * 8}
    rng, tables = np.random.default_rng(0), []
    for sample in range(8):
        for place, order in enumerate(("forced-ar", "max-prob", "reverse-ar")):
            wide = (place + 1) * np.array([-0.5, 0.5, -0.5, 0.5])
            tables.append(builders.trace(f"s{sample}", order, -3.0 + wide + 1e-13 * rng.normal()))
    schema = pa.schema([field.with_nullable(True) for field in table_schema("noise")])
    run = builders.make_run(tables, noise=pa.table(noise, schema=schema))
    found = builders.table(run, "coherence")
    cell = found.cell("value", statistic="range_of_means", scope="all")
    assert (cell.value, cell.low) == (0.0, 0.0)
    assert cell.high < 1e-12
    assert found.cell("p", statistic="range_of_means", scope="all").value == 1.0
    for row in found.rows[:9]:
        assert "the noise floor is only rounding error" in row["times_noise"].why
    notes = "\n".join(builders.table(run, "fixed-sequence").notes)
    assert "is undefined because their means (or Var) are equal" in notes
    assert "higher Var: none" in notes
    for row in builders.table(run, "order-pairs").rows:
        assert (row["wins"], row["losses"], row["p"].value) == (0, 0, 1.0)


def test_a_measurement_that_two_runs_hold_counts_once(builders, tmp_path):
    model = orderlens.load_model("hmm:incoherence=0.5")
    samples = [orderlens.Sample(f"s{i}", "abc", "defghijk"[i:] + "abc"[:i]) for i in range(3)]
    options = {"orders": ["forced-ar", "random"], "circulation": 4, "noise_floor": True}
    for name in "ab":
        orderlens.score(model, samples, **options, out=tmp_path / name)
    one = Study.open(tmp_path / "a", builders.QUICK).tables(["coherence"])
    two = Study.open([tmp_path / "a", tmp_path / "b"], builders.QUICK).tables(["coherence"])
    assert [table.rows for table in two] == [table.rows for table in one]
