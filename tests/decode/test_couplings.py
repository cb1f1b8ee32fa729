"""Couplings of sets: exact on ``hmm``, equal to a plain computation on a model without a joint."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest

import orderlens as ol
from orderlens.decode.couplings import PATHS
from orderlens.metrics.passes import pass_variance
from orderlens.models.hmm import HiddenMarkovModel

POLICIES = ["forced-ar", "forced-ar+top=3", "max-prob+top=4", "random:1+top=8", "max-prob+threshold=0.3"]


def own_texts(model: HiddenMarkovModel, n: int, length: int, prompt: int = 3) -> list[ol.Sample]:
    """Texts that the chain itself writes."""
    run = ol.generate(
        model,
        [ol.Sample(str(i), "") for i in range(n)],
        "forced-ar",
        max_new_tokens=length,
        temperature=1,
        stop_at_eos=False,
    )
    rows = run.outputs().to_arrow().to_pylist()
    return [ol.Sample(row["sample_id"], row["token_ids"][:prompt], row["token_ids"][prompt:]) for row in rows]


@pytest.fixture(scope="module")
def scored() -> tuple[HiddenMarkovModel, list[ol.Sample], ol.Run]:
    model = HiddenMarkovModel(n_states=5, n_characters=6, block_size=8)
    samples = own_texts(model, 6, 27)
    return model, samples, ol.score(model, samples, POLICIES, couplings=100)


def couplings(run: ol.Run) -> pd.DataFrame:
    return run.table("couplings").to_pandas()


def test_every_path_gives_the_coupling_of_the_joint(scored) -> None:
    frame = couplings(scored[2])
    assert len(frame) > 100
    assert np.abs(frame["coupling"] - frame["joint_coupling"]).max() < 1e-9
    assert frame["coupling"].abs().max() > 0.1


def test_likelihood_of_the_sampler_plus_couplings_is_the_joint(scored) -> None:
    """log P(policy) + Σ C = log p(text): the chain rule over sets, for every policy."""
    model, samples, run = scored
    frame, traces = couplings(run), run.samples().to_pandas()
    own = frame[frame["path"] == 0].groupby(["order", "sample_id"])["coupling"].sum()
    by_id = {sample.id: sample for sample in samples}
    assert (traces["n_passes"] < traces["n"]).any()
    for row in traces.itertuples():
        sample = by_id[row.sample_id]
        whole = model.joint_log_prob([*sample.prompt, *sample.target])
        joint = whole - model.joint_log_prob(sample.prompt)
        assert row.log_prob + own.get((row.order, row.sample_id), 0.0) == pytest.approx(joint, abs=1e-9)


def test_the_parts_of_var_add_up_to_that_of_one_token_per_pass(scored) -> None:
    """Between + inside + coupling = Var of the same path scored with one token per pass, to 1e-9."""
    model, samples, run = scored
    frame, reveals = couplings(run), run.reveals().to_pandas()
    for (order, name), rows in reveals.groupby(["order", "sample_id"]):
        own = frame[(frame["order"] == order) & (frame["sample_id"] == name) & (frame["path"] == 0)]
        logq, z = rows["logq"].to_numpy(), rows["logq"].to_numpy().copy()
        for measured in own.itertuples():
            z[rows["forward"].to_numpy() == measured.forward] = measured.sequential
        found = pass_variance(logq, rows["forward"], z)
        plain = one_by_one(model, next(s for s in samples if s.id == name), rows["position"].tolist())
        assert found.var == pytest.approx(np.var(logq), abs=1e-9)
        assert found.sequential_var == pytest.approx(np.var(plain), abs=1e-9)


def one_by_one(model: HiddenMarkovModel, sample: ol.Sample, path: Sequence[int]) -> np.ndarray:
    """log p along ``path`` with one token per pass, from whole-sequence conditionals."""
    text = [*sample.prompt, *sample.target]
    shown = [*sample.prompt, *[model.mask_id] * len(sample.target)]
    found = []
    for position in path:
        found.append(model.log_probs(shown)[position, text[position]])
        shown[position] = text[position]
    return np.array(found)


def test_var_over_tokens_falls_while_the_likelihood_falls(scored) -> None:
    """Why Var misleads between policies of different set sizes: the worst sampler looks the most even."""
    model = scored[0]
    sizes = (1, 2, 4, 8)
    samples = own_texts(model, 24, 24, prompt=0)
    run = ol.score(model, samples, [f"forced-ar+top={k}" for k in sizes], couplings=100)
    traces = run.samples().to_pandas().groupby("order")[["log_prob", "var"]].mean()
    names = ["forced-ar", *(f"forced-ar+top={k}" for k in sizes[1:])]
    likelihood, var = traces.loc[names, "log_prob"], traces.loc[names, "var"]
    assert (np.diff(likelihood) < 0).all()
    assert (np.diff(var) < 0).all()


def test_a_model_without_a_joint_is_measured_along_several_paths() -> None:
    model = HiddenMarkovModel(n_states=5, n_characters=6, block_size=8, incoherence=0.8)
    samples = own_texts(model, 2, 19)
    run = ol.score(model, samples, ["forced-ar+top=4"], couplings=100)
    frame = couplings(run)
    assert frame["joint_coupling"].isna().all()
    spread = frame.groupby(["sample_id", "forward"])["coupling"].agg(np.ptp)
    assert spread.max() > 1e-3
    for row in frame.itertuples():
        sample = next(item for item in samples if item.id == row.sample_id)
        before = range(len(sample.prompt), frame_low(row))
        path = [*before, *row.positions]
        plain = one_by_one(model, sample, path)[len(before) :]
        assert row.sequential == pytest.approx(plain, abs=1e-9)
        assert row.coupling == pytest.approx(plain.sum() - np.sum(row.logq), abs=1e-9)


def frame_low(row) -> int:
    """First position of a left-to-right set."""
    return int(min(row.positions))


def test_mean_coupling_is_total_correlation_and_lies_below_the_entropy_bound() -> None:
    """All texts of two letters and three tokens: E[C] = Σ H − H(joint) ≤ Σ H − max H."""
    model = HiddenMarkovModel(n_states=3, n_characters=2, block_size=3)
    letters = range(3)  # two characters and EOS
    texts = [t for t in itertools.product(letters, repeat=3) if np.isfinite(model.joint_log_prob(t))]
    log_p = np.array([model.joint_log_prob(t) for t in texts])
    run = ol.score(
        model,
        [ol.Sample(str(i), [], list(t)) for i, t in enumerate(texts)],
        "forced-ar+top=3",
        couplings=1,
    )
    frame = couplings(run)
    frame = frame[frame["path"] == 0].set_index("sample_id").loc[[str(i) for i in range(len(texts))]]
    assert np.exp(log_p).sum() == pytest.approx(1.0, abs=1e-9)
    total_correlation = np.exp(log_p) @ frame["coupling"].to_numpy()
    reveals = run.reveals().to_pandas()
    entropies = reveals[reveals["sample_id"] == "0"]["entropy"]
    assert total_correlation == pytest.approx(entropies.sum() + np.exp(log_p) @ log_p, abs=1e-9)
    assert 0 < total_correlation < frame["entropy_bound"].iloc[0]
    assert frame["coupling"].max() > frame["entropy_bound"].iloc[0] or frame["coupling"].min() < 0


def test_paths_are_different_and_the_first_is_the_trace(scored) -> None:
    run = scored[2]
    reveals = run.reveals().to_pandas()
    for (order, name, forward), rows in couplings(run).groupby(["order", "sample_id", "forward"]):
        paths = [tuple(path) for path in rows.sort_values("path")["positions"]]
        assert len(set(paths)) == len(paths) == (2 if rows["size"].iloc[0] == 2 else PATHS)
        trace = reveals[
            (reveals["order"] == order) & (reveals["sample_id"] == name) & (reveals["forward"] == forward)
        ]
        assert paths[0] == tuple(trace["position"])
        assert paths[1] == paths[0][::-1]


def test_some_sets_of_each_trace(scored) -> None:
    model, samples, whole = scored
    few = couplings(ol.score(model, samples, POLICIES, couplings=2, batch_size=1))
    everything = couplings(whole)
    per_trace = few[few["path"] == 0].groupby(["order", "sample_id"])
    assert per_trace.size().max() == 2
    assert (per_trace["n_sets"].first() > 2).any()
    keys = ["order", "sample_id", "forward", "path"]
    both = few.merge(everything, on=keys, suffixes=("", "_whole"))
    assert len(both) == len(few)
    assert np.abs(both["coupling"] - both["coupling_whole"]).max() < 1e-9


@pytest.mark.parametrize("attention", ["block-causal", "full"])
def test_given_text_after_the_target(attention: str) -> None:
    model = HiddenMarkovModel(n_states=4, n_characters=5, block_size=8, attention=attention)
    text = own_texts(model, 1, 15, prompt=0)[0].target
    sample = ol.Sample("a", text[:3], text[3:13], text[13:])
    frame = couplings(ol.score(model, [sample], "max-prob+top=4", couplings=9))
    assert np.abs(frame["coupling"] - frame["joint_coupling"]).max() < 1e-9


def test_one_token_per_pass_leaves_an_empty_table() -> None:
    run = ol.score("hmm", [ol.Sample("a", "hel", "lo there")], "forced-ar", couplings=4)
    assert run.spec["couplings"] == 4
    assert len(couplings(run)) == 0


@pytest.mark.needs_torch
def test_a_trained_model_agrees_with_its_plain_forward() -> None:
    model = ol.load_model("tiny")
    text = model.tokenizer.encode("The ferry leaves the harbour at nine and comes back before dark.")
    sample = ol.Sample("a", text[:4], text[4:])
    frame = couplings(ol.score(model, [sample], "forced-ar+top=4", couplings=2))
    for row in frame.itertuples():
        low = frame_low(row)
        shown = [*text[:low], *[model.mask_id] * (model.block_size - low)]
        for position, logp in zip(row.positions, row.sequential, strict=True):
            assert logp == pytest.approx(model.log_probs(shown)[position, text[position]], abs=2e-4)
            shown[position] = text[position]
