"""The named tables on small runs: every table comes, cells that are undefined say why, values are right."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest

import orderlens
from orderlens.analysis import Options, Resampling, Study, table_names
from orderlens.analysis.agreement import agreement_matrix
from orderlens.analysis.curves import lorenz_curves
from orderlens.analysis.estimate import Estimate
from orderlens.analysis.tables import table_recipe
from orderlens.errors import UnknownNameError, UserInputError
from orderlens.metrics import coherence, gini, lorenz
from orderlens.store.schema import table_schema
from orderlens.theory import d2, jensen_loss, success_k

QUICK = Options(resampling=Resampling(reps=30), null_reps=20)
FIXED_NAMES = (
    "fixed-sequence, generation, reveal-order, coherence, temperature, downstream, within-cell, quadrants, "
    "selectors, content, controls, theory"
)
EOS = 0


@pytest.fixture(scope="module")
def scored(builders):
    return builders.scoring_run(seeds=9)


@pytest.fixture(scope="module")
def graded(builders):
    return builders.graded_run(tasks=("arith", "ifeval"))


def table(run, name, options=QUICK):
    return Study(run, options).table(name)


def undefined_cells(tables):
    cells = [cell for t in tables for row in t.rows for cell in row.values() if isinstance(cell, Estimate)]
    return [cell for cell in cells if not cell.is_defined]


def test_the_fixed_names_are_all_there():
    assert set(FIXED_NAMES.split(", ")) <= set(table_names())
    with pytest.raises(UnknownNameError, match="did you mean 'quadrants'"):
        Study(None, QUICK).tables(["quadrant"])


def all_tables(run, without=()):
    study = Study(run, QUICK)
    return {name: table_recipe(name)(study) for name in table_names() if name not in without}


@pytest.mark.parametrize(("kind", "without"), [("scored", ("theory",)), ("graded", ())])
def test_every_table_comes_from_every_kind_of_run(kind, without, request):
    for tables in all_tables(request.getfixturevalue(kind), without).values():
        assert tables
        assert tables[0].rows
        for one in tables:
            for row in one.rows:
                assert {*one.keys, *(column.name for column in one.columns)} == set(row)
        assert all(cell.why for cell in undefined_cells(tables))


def test_tables_suited_to_a_run(scored, graded):
    assert list(Study(scored).suited()) == ["fixed-sequence", "coherence", "order-pairs", "theory"]
    names = Study(graded).suited()
    assert {"generation", "downstream", "within-cell", "null"} <= set(names)
    assert "temperature" not in names


def test_fixed_sequence_averages_per_sequence(scored):
    frame = scored.samples().to_pandas()
    found = table(scored, "fixed-sequence")
    cell = found.cell("var", order="random")
    assert cell.value == pytest.approx(frame.loc[frame["order"] == "random", "var"].mean())
    assert (found.cell("seeds", order="random"), found.cell("n", order="random")) == (9, 108)
    assert found.cell("kind", order="oracle-min-q") == "target-aware"
    assert cell.low < cell.value < cell.high


def test_fixed_sequence_of_a_generated_run_says_there_is_no_target(graded):
    found = table(graded, "fixed-sequence")
    assert [row["order"] for row in found.rows] == ["forced-ar", "max-prob", "random"]
    assert {row["mean"].why for row in found.rows} == {"no target: these traces were generated"}


def test_held_out_reference_leaves_the_prompt_out(builders):
    rows = {"a": [-1.0, -1.0], "b": [-2.0, -4.0], "c": [-3.0, -3.0]}
    run = builders.make_run([builders.trace(key, "forced-ar", y) for key, y in rows.items()])
    samples = Study(run, QUICK, ()).samples.set_index("sample_id")
    reference = np.mean(rows["a"] + rows["c"])
    assert samples.loc["b", "var_about"] == pytest.approx(np.mean((np.array(rows["b"]) - reference) ** 2))


def test_coherence_equals_the_metrics(scored):
    frame = scored.samples().to_pandas()
    wide = frame.pivot_table(index="sample_id", columns="order", values="mean")
    found = table(scored, "coherence")
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
    assert "1 order(s)" in single.why
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
    found = table(builders.scoring_run(seeds=3), "coherence")
    assert (
        found.cell("value", statistic="dispersion", scope="random").why == "only 3 random orders (8 wanted)"
    )
    none = table(builders.scoring_run(seeds=0), "coherence")
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
    first, second = Study(run, QUICK).tables(["coherence"])
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


def test_theory_table_has_the_exact_loss_and_a_fit(builders):
    rng = np.random.default_rng(0)
    logs = [-rng.gamma(0.7, 2.0, 128) for _ in range(6)]
    traces = [builders.trace(f"s{i}", "forced-ar", y) for i, y in enumerate(logs)]
    hits = [pa.array(rng.random(128) < success_k(np.exp(y), 10, 0.8)) for y in logs]
    place = traces[0].column_names.index("is_argmax")
    run = builders.make_run([t.set_column(place, "is_argmax", h) for t, h in zip(traces, hits, strict=True)])
    losses, fit = Study(run, QUICK).tables(["theory"])
    for sigma in (0.1, 1.0):
        cell = losses.cell("jensen", order="forced-ar", sigma=f"{sigma:g}")
        assert cell.value == pytest.approx(np.mean([jensen_loss(y, sigma) for y in logs]), rel=1e-9)
        mean = np.array([y.mean() for y in logs])
        var = np.array([y.var() for y in logs])
        second = losses.cell("second_order", order="forced-ar", sigma=f"{sigma:g}").value
        assert second == pytest.approx(np.mean(-64 * d2(mean, sigma) * var), rel=1e-9)
    assert losses.cell("outside_radius", order="forced-ar", sigma="1").value == 1.0
    assert 0.4 < fit.cell("sigma", orders="deployable").value < 1.6
    assert fit.cell("n", orders="deployable") == 6 * 128
    assert fit.cell("sigma", orders="target-aware").why == "no such order was scored"
    assert any("q > 1/2" in note for note in fit.notes)


def test_generation_table_is_the_papers_layout(graded):
    found = table(graded, "generation")
    frame = graded.samples().to_pandas()
    of_order = frame[frame["order"] == "random"]
    assert [column.name for column in found.columns[1:]] == ["forced-ar", "max-prob", "random"]
    assert found.cell("random", metric="content_var").value == pytest.approx(of_order["content_var"].mean())
    assert found.cell("random", metric="eos_fraction").value == pytest.approx(
        (of_order["n_eos"] / of_order["n"]).mean()
    )
    assert "--evaluator" in found.cell("random", metric="external_ppl").why


class Counting:
    """Gives every character probability ½."""

    name = "coin"

    def token_logprobs(self, pairs):
        return [np.full(len(text), math.log(0.5)) for _, text in pairs]


def test_external_perplexity_joins_the_texts(graded):
    options = Options(resampling=Resampling(20), evaluator=Counting())
    found = table(graded, "generation", options)
    assert found.cell("random", metric="external_ppl").value == pytest.approx(2.0)
    assert found.cell("random", metric="external_ppl_of_mean").value == pytest.approx(2.0)
    assert found.cell("random", metric="external_tokens").value == 120 * len("text 0")
    lengths = Study(graded, options).samples.query("order == 'random'")["n_text"].sum()
    assert found.cell("random", metric="retokenization_ratio").value == pytest.approx(720 / lengths)


def test_temperature_table_has_one_row_per_order_and_temperature(builders):
    rng = np.random.default_rng(0)
    traces = [
        builders.trace(f"s{i}", order, -rng.gamma(0.5, 1 + t, 40), temperature=t, sample_seed=0)
        for i in range(4)
        for order in ("forced-ar", "max-prob")
        for t in (0.0, 0.7)
    ]
    run = builders.make_run(traces)
    found = table(run, "temperature")
    assert [(r["order"], r["temperature"]) for r in found.rows] == [
        ("forced-ar", "0"),
        ("forced-ar", "0.7"),
        ("max-prob", "0"),
        ("max-prob", "0.7"),
    ]
    assert "temperature" in Study(run).suited()
    assert table(run, "generation").notes[0].startswith("Temperature 0;")
    warm = table(run, "generation", Options(resampling=Resampling(5), temperature=0.7))
    assert warm.notes[0].startswith("Temperature 0.7;")


def test_agreement_matrix_is_symmetric(scored):
    study = Study(scored, QUICK)
    matrix = agreement_matrix(study, study.scored)
    assert matrix["forced-ar"]["forced-ar"].value == pytest.approx(1.0)
    assert matrix["forced-ar"]["random"] == matrix["random"]["forced-ar"]
    assert abs(matrix["forced-ar"]["random"].value) < 0.4


def test_agreement_looks_at_a_bounded_number_of_samples(scored, monkeypatch):
    monkeypatch.setattr("orderlens.analysis.agreement.MAX_SAMPLES", 5)
    study = Study(scored, QUICK)
    assert agreement_matrix(study, study.scored)["forced-ar"]["max-prob"].n == 5


def test_lorenz_curves_average_block_0(builders):
    rng = np.random.default_rng(0)
    logs = [-rng.gamma(0.5, size=40) for _ in range(3)]
    run = builders.make_run([builders.trace(f"s{i}", "forced-ar", y) for i, y in enumerate(logs)])
    curves = lorenz_curves(run)
    assert curves["length"].unique().tolist() == [32]
    np.testing.assert_allclose(curves["lorenz"], np.mean([lorenz(-y[:32]) for y in logs], axis=0))
    assert curves["gini"].iloc[0] == pytest.approx(np.mean([gini(-y[:32]) for y in logs]))
    everything = lorenz_curves(run, block=None)
    assert sorted(everything["length"].unique()) == [8, 32]
    broken = builders.make_run([builders.trace("s", "forced-ar", [-0.1, np.nan])])
    assert lorenz_curves(broken)["n_undefined"].iloc[0] == 1


def test_downstream_joins_verdicts_and_shows_paired_tests(graded):
    first, paired, chosen = Study(graded, QUICK).tables(["downstream"])
    verdicts = graded.table("verdicts").to_pandas()
    expected = 100 * verdicts.query("task == 'arith' and order == 'random'")["correct"].mean()
    cell = first.cell("accuracy", task="arith", order="random")
    assert cell.value == pytest.approx(expected)
    assert (cell.n, cell.n_undefined) == (60, 0)
    assert len(paired.rows) == 6
    assert paired.cell("n", task="arith", first="forced-ar", second="random") == 60
    assert any("structured − random" in note for note in first.notes)
    assert {row["scope"] for row in chosen.rows} == {"all orders", "structured orders"}


def test_content_statistics_stand_in_the_correctness_tables(graded):
    study = Study(graded, QUICK, ())
    samples = graded.samples().to_pandas()
    row = study.graded.iloc[0]
    match = samples.query(f"task == '{row.task}' and order == '{row.order}'")
    assert np.isclose(match["content_var"], row["var"]).any()
    assert not np.isclose(match["var"], row["var"]).any()


def test_several_seeds_become_separate_cells(builders):
    rng = np.random.default_rng(0)
    traces, rows = [], []
    for item in range(6):
        for seed in (0, 1):
            key = {"task": "t", "seed": seed, "temperature": 0.0}
            traces.append(builders.trace(f"i{item}", "random", -rng.gamma(0.5, size=20), **key))
            rows.append(
                {"sample_id": f"i{item}", "order": "random", "correct": bool(item % 2), "grader": "g", **key}
            )
    run = builders.make_run(traces, verdicts=rows)
    assert [row["order"] for row in table(run, "within-cell").rows] == ["random:0", "random:1"]


def test_one_grader_is_chosen_and_named(graded, builders):
    verdicts = graded.table("verdicts").to_arrow()
    other = verdicts.set_column(
        verdicts.column_names.index("grader"), "grader", pa.array(["h"] * verdicts.num_rows)
    )
    other = other.set_column(
        verdicts.column_names.index("correct"), "correct", pa.array([True] * verdicts.num_rows)
    )
    both = builders.make_run([graded.reveals().to_arrow()], verdicts=pa.concat_tables([verdicts, other]))
    assert Study(both, QUICK, ()).graders == ["g"]
    chosen = Study(both, Options(resampling=Resampling(5), grader="h"), ())
    assert chosen.graded["correct"].all()
    assert len(chosen.graded) == verdicts.num_rows


def test_choices_that_do_not_exist_are_refused(graded):
    with pytest.raises(UserInputError, match=r"temperature 0\.4 \(present: 0\)"):
        table(graded, "generation", Options(temperature=0.4))
    with pytest.raises(UserInputError, match="grader 'x' \\(present: g\\)"):
        table(graded, "downstream", Options(grader="x"))


def test_a_coherent_model_has_no_gap_while_var_differs():
    model = orderlens.load_model("hmm")
    letters = model.tokenizer.decode(range(6))
    samples = [orderlens.Sample(f"s{i}", letters[:3], (letters[i:] + letters[:i]) * 8) for i in range(4)]
    orders = ["forced-ar", "reverse-ar", "max-prob", "oracle-min-q", "random:0", "random:1"]
    run = orderlens.score(model, samples, orders=orders, block_size=16)
    found = table(run, "coherence")
    for name in ("range_of_means", "mean_of_ranges"):
        assert found.cell("value", statistic=name, scope="all").value < 1e-9
    assert found.cell("value", statistic="dispersion", scope="random").value < 1e-9
    assert found.cell("value", statistic="ensemble_gap", scope="random").value < 1e-9
    spread = [row["var"].value for row in table(run, "fixed-sequence").rows]
    assert max(spread) - min(spread) > 1e-3


def test_runs_without_verdicts_get_the_table_and_the_reason(scored):
    for name in ("downstream", "within-cell", "quadrants", "selectors", "controls"):
        found = table(scored, name)
        assert found.rows
        assert {cell.why for cell in undefined_cells([found])} == {"not graded: the run holds no verdicts"}


def awkward_run(builders):
    """One order; all-EOS, one-token and NaN traces; constant correctness."""
    traces = [
        builders.trace("eos", "max-prob", [-0.1, -0.2], tokens=[EOS, EOS], task="t", temperature=0.0),
        builders.trace("one", "max-prob", [-0.4], task="t", temperature=0.0),
        builders.trace("nan", "max-prob", [-0.1, np.nan, -0.2], task="t", temperature=0.0),
        builders.trace("fine", "max-prob", [-0.1, -0.5, -0.2, -0.9], task="t", temperature=0.0),
    ]
    key = {"task": "t", "order": "max-prob", "temperature": 0.0, "correct": True}
    verdicts = [{"sample_id": name} | key for name in ("eos", "one", "nan", "fine")]
    return builders.make_run(traces, verdicts=verdicts)


def test_awkward_samples_never_break_a_table(builders):
    for tables in all_tables(awkward_run(builders)).values():
        assert tables[0].rows
        assert all(cell.why for cell in undefined_cells(tables))


def test_awkward_samples_are_counted_with_reasons(builders):
    run = awkward_run(builders)
    cell = table(run, "content").cell("content_var", task="t", order="max-prob")
    assert (cell.n, cell.n_undefined) == (2, 2)
    assert cell.why == "1 with NaN or −inf in the trace, 1 without content tokens"
    within = table(run, "within-cell")
    assert within.cell("rho", task="t", order="max-prob").why == "all 2 samples are correct"
    assert within.cell("n_undefined", task="t", order="max-prob") == 2
    chosen = table(run, "selectors").cell("min_v", task="t", scope="all orders")
    assert chosen.why == "1 order(s): nothing to choose from"


def test_an_empty_run_still_gives_tables(builders):
    run = builders.make_run([builders.trace("a", "forced-ar", [])])
    assert all(all_tables(run).values())


def test_several_runs_are_read_as_one(builders, tmp_path):
    from orderlens.store.reader import Run

    a, b = builders.graded_run(n_items=5, seed=1), builders.graded_run(n_items=5, seed=2, prefix="j")
    both = Run([*a._sources.values(), *b._sources.values()])
    found = table(both, "downstream")
    assert found.cell("accuracy", task="arith", order="random").n == 10
    assert len(Study(both, QUICK).tables(["reveal-order", "generation"])) == 3
