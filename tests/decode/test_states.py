"""Kept states: those of ``model.log_probs`` within the stated error, cut by the limit, off by default."""

from __future__ import annotations

import numpy as np
import pytest

import orderlens as ol
from orderlens.analysis.table import NO_STATES
from orderlens.analysis.traces import iter_states, trace_statistics
from orderlens.claims.catalogue import read
from orderlens.errors import UserInputError
from orderlens.figures.catalogue import draw_figures
from orderlens.store.schema import ENTROPY_UNITS, TOP_UNITS

MODEL = ol.load_model("hmm:seed=3,states=6,characters=20,block=8")
SAMPLES = [ol.Sample(str(i), [i, 4, 7], [(5 * i + 3 * k * k) % 19 for k in range(14)]) for i in range(3)]
ORDERS = ["forced-ar", "random:1", "max-prob", "max-prob+top=3"]
RUNS = {
    "score": lambda **more: ol.score(MODEL, SAMPLES, ORDERS, **more),
    "generate": lambda **more: ol.generate(
        MODEL, SAMPLES, ORDERS, max_new_tokens=14, temperature=0.8, **more
    ),
    "masked": lambda **more: ol.generate(MODEL, SAMPLES, ORDERS, max_new_tokens=14, overflow="mask", **more),
}


def plain_state(trace, forward, start, width):
    """Return the canvas up to the end of the block before a pass, rebuilt from the reveals."""
    tokens = np.full(start + width, MODEL.mask_id)
    first = int(trace["position"].min())
    sample = next(item for item in SAMPLES if item.id == trace["sample_id"].iloc[0])
    tokens[:first] = sample.prompt
    shown = trace[(trace["forward"] < forward) & (trace["position"] < len(tokens))]
    tokens[shown["position"]] = shown["token_id"]
    return tokens


@pytest.mark.parametrize("kind", RUNS)
def test_states_are_those_of_the_model(kind):
    run = RUNS[kind](states=True)
    reveals = run.reveals().to_pandas().drop(columns="self_certainty")
    without = RUNS[kind]().reveals().to_pandas()
    assert without.pop("self_certainty").isna().all()
    assert reveals.equals(without)
    traces = dict(list(run.reveals().to_pandas().groupby(["sample_id", "order"])))
    rows = run.table("states").to_pandas()
    for row in rows.itertuples():
        trace = traces[row.sample_id, row.order]
        tokens = plain_state(trace, row.forward, row.start, len(row.visible))
        hidden = tokens[row.start :] == MODEL.mask_id
        assert row.visible == "".join("0" if item else "1" for item in hidden)
        filled = trace[(trace["forward"] >= row.forward) & (trace["block"] == row.block)]["position"]
        place = row.start + np.flatnonzero(hidden)[: len(row.top)]
        assert sorted(filled) == place.tolist()
        log_p = MODEL.log_probs(tokens)[place]
        p = np.exp(log_p)
        entropy = -(p * np.where(p > 0, log_p, 0)).sum(axis=1)
        assert np.abs(np.asarray(row.top) / TOP_UNITS - p.max(axis=1)).max() <= 0.5 / TOP_UNITS + 1e-9
        assert np.abs(np.asarray(row.entropy) / ENTROPY_UNITS - entropy).max() <= 0.5 / ENTROPY_UNITS + 1e-9
    assert len(rows) == sum(trace["forward"].nunique() for trace in traces.values())


@pytest.mark.parametrize("kind", RUNS)
def test_self_certainty_is_of_the_pass_that_revealed(kind):
    run, defined = RUNS[kind](states=True), 0
    for _, trace in run.reveals().to_pandas().groupby(["sample_id", "order"]):
        for row in trace.itertuples():
            start = row.position - row.position % MODEL.block_size
            tokens = plain_state(trace, row.forward, start, MODEL.block_size)
            log_p = np.delete(MODEL.log_probs(tokens)[row.position], MODEL.mask_id)
            if np.isfinite(log_p).all():
                expected = -np.log(len(log_p)) - log_p.mean()
                assert row.self_certainty == pytest.approx(expected, abs=1e-12)
                defined += 1
            else:
                assert np.isnan(row.self_certainty)
    assert 0 < defined < run.reveals().to_pandas().shape[0]
    samples = ol.Study(run).samples
    mean = (
        run.reveals().to_pandas().query("not is_overflow").groupby(["sample_id", "order"])["self_certainty"]
    )
    expected = mean.apply(lambda values: values.mean(skipna=False))
    found = samples.set_index(["sample_id", "order"])["self_certainty"]
    assert np.allclose(found.sort_index(), expected.sort_index(), equal_nan=True)


def test_a_wrapped_network_with_excluded_and_impossible_ids():
    torch = pytest.importorskip("torch")
    table = torch.randn(12, 10, generator=torch.Generator().manual_seed(1))
    network = torch.nn.Embedding.from_pretrained(table)
    given = {"mask_id": 11, "vocab_size": 9, "excluded": [2, 11], "block_size": 4, "check": False}
    model = ol.wrap(network, **given)
    run = ol.generate(
        model, [ol.Sample("a", [1, 3])], ["max-prob"], max_new_tokens=4, temperature=0.7, states=True
    )
    log_p = torch.log_softmax(table.double()[11, [0, 1, 3, 4, 5, 6, 7, 8]], 0).numpy()
    found = run.reveals().to_pandas()["self_certainty"]
    assert np.allclose(found, -np.log(8) - log_p.mean(), atol=1e-6)
    table[11, 4] = -torch.inf
    run = ol.generate(model, [ol.Sample("a", [1, 3])], ["max-prob"], max_new_tokens=4, states=True)
    assert run.reveals().to_pandas()["self_certainty"].isna().all()


def test_falls_and_distances_equal_plain_loops():
    run = RUNS["score"](states=True)
    for _, states in iter_states(run):
        found, falls, sure, passes = trace_statistics(states), {1: [], 2: []}, {1: [], 2: []}, []
        for p, shown in enumerate(states.visible_PB):
            passes.append(np.nanmean(states.entropy_PB[p]))
            held = np.flatnonzero(shown).tolist() + ([-1] if states.start_P[p] else [])
            for b in np.flatnonzero(~np.isnan(states.entropy_PB[p])):
                distance = min((abs(b - other) for other in held), default=0)
                sure.setdefault(distance, []).append(states.entropy_PB[p, b])
            if p + 1 == len(states.forward_P) or states.start_P[p + 1] != states.start_P[p]:
                continue
            new = np.flatnonzero(states.visible_PB[p + 1] & ~shown)
            for b in np.flatnonzero(~states.visible_PB[p + 1]) if len(new) == 1 else ():
                change = states.entropy_PB[p, b] - states.entropy_PB[p + 1, b]
                if np.isfinite(change):
                    falls.setdefault(abs(int(b - new[0])), []).append(change)
        assert found["denoising_entropy"] == pytest.approx(np.mean(passes), abs=1e-9)
        for place, distance in enumerate((1, 2)):
            for name, values in (("fall", falls[distance]), ("entropy", sure[distance])):
                expected = np.mean(values) if values else np.nan
                assert found[f"{name}_{place}"] == pytest.approx(expected, abs=1e-9, nan_ok=True)
                assert found[f"n_{name}_{place}"] == len(values)


def test_the_limit_keeps_whole_passes_from_the_first_on():
    run = RUNS["score"](states=True, limit_states=20)
    rows = run.table("states").to_pandas()
    for _, part in rows.groupby(["sample_id", "order"]):
        assert part["forward"].tolist() == list(range(len(part)))
        assert part["top"].str.len().sum() <= 20
    assert "states" not in RUNS["score"]().tables


def test_states_of_rules_that_revise(tmp_path):
    run = ol.generate(MODEL, SAMPLES, ["wino", "remdm"], max_new_tokens=14, states=True, out=tmp_path / "run")
    passes = run.samples().to_pandas().groupby("order")["n_passes"].max()
    found = run.table("states").to_pandas().groupby("order")["forward"].max()
    assert (found < passes).all()
    assert ol.open_run(tmp_path / "run").table("states").to_pandas().equals(run.table("states").to_pandas())


def test_only_the_limit_cuts_traces():
    """Rules that edit have passes without masked positions, which have no states."""
    orders = ["max-prob", "max-prob+edit=0.2", "max-prob+edit=0.9", "wino", "remdm"]
    for limit in (65536, 30):
        run = ol.generate(MODEL, SAMPLES, orders, max_new_tokens=14, states=True, limit_states=limit)
        study = ol.Study(run)
        frame = study.samples.join(study.states)
        assert frame["is_cut"].tolist() == [limit == 30] * len(frame)
        assert np.isnan(frame["denoising_entropy"]).tolist() == frame["is_cut"].tolist()
        told = [note for note in study.table("locality").notes if "cut by --limit-states" in note]
        assert told == (
            [f"{len(frame)} of {len(frame)} traces are cut by --limit-states."] if limit == 30 else []
        )


def test_a_pass_that_ends_exactly_at_the_limit_is_kept():
    """forced-ar in a block of 8 after 3 given tokens: 5, then 5 + 4 = 9 masked positions."""

    def kept(limit):
        run = ol.score(MODEL, SAMPLES[:1], ["forced-ar"], states=True, limit_states=limit)
        return len(run.table("states").to_pandas())

    assert [kept(limit) for limit in (5, 8, 9)] == [1, 1, 2]


def test_states_of_generated_texts_are_shown_next_to_scores_without_states(tmp_path):
    ol.score(MODEL, SAMPLES, ["forced-ar"], out=tmp_path / "score")
    ol.generate(MODEL, SAMPLES, ["max-prob"], max_new_tokens=14, states=True, out=tmp_path / "generate")
    study = ol.Study.open([tmp_path / "score", tmp_path / "generate"])
    assert {row["order"] for row in study.table("locality").rows} == {"max-prob"}
    (drawn,) = draw_figures(study, tmp_path, ["locality"], ["png"])
    assert drawn.paths
    claims = read(study, "locality").findings
    assert [claim.id for claim in claims] == ["neighbours-learn-most", "neighbours-are-surest"]
    (absent,) = draw_figures(ol.Study.open(tmp_path / "score"), tmp_path, ["locality"], ["png"])
    assert absent.why == NO_STATES


def test_states_of_several_paths_are_refused_before_a_folder_is_made(tmp_path):
    orders = ["max-prob", "random+best=2:mean"]
    with pytest.raises(UserInputError, match=r"random:0\+best=2:mean.*leave out `states`"):
        ol.generate(MODEL, SAMPLES, orders, max_new_tokens=14, states=True, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_undefined_state_statistics_say_why():
    found = ol.Study(ol.score(MODEL, SAMPLES, ["max-prob+top=3"], states=True, limit_states=20))
    distances, passes = found.tables(["locality"])
    assert {row["fall"].why for row in distances.rows} == {"3 without such a position or pass"}
    assert passes.rows[0]["denoising_entropy"].why == "3 cut by --limit-states"
