"""The exact control against brute-force enumeration."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from orderlens.errors import UserInputError
from orderlens.models.hmm import TILT_PERIOD, HiddenMarkovModel
from orderlens.models.loading import load_model


@pytest.fixture(scope="module")
def small() -> HiddenMarkovModel:
    return HiddenMarkovModel(seed=3, n_states=3, n_characters=3, block_size=4)


@pytest.mark.parametrize("device", [None, "auto", "cpu", "cpu:0"])
def test_it_runs_on_the_cpu(device: str | None) -> None:
    assert load_model("hmm", device=device).digest == load_model("hmm").digest


@pytest.mark.parametrize("device", ["cuda", "cuda:7", "mps"])
def test_a_device_that_is_missing_is_refused_as_by_the_other_models(device: str, monkeypatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    said = []
    for name in ("hmm", "tiny"):
        with pytest.raises(UserInputError, match="use --device cpu") as caught:
            load_model(name, device=device)
        said.append(str(caught.value))
    assert said[0] == said[1]


@pytest.mark.parametrize(
    "device", ["nonsense", "", "CPU", "gpu", "xpu", "cuda:x", "cuda:", "cuda:01", "cuda:256", "cpu\n"]
)
def test_what_is_no_device_is_refused_as_by_the_other_models(device: str) -> None:
    pytest.importorskip("torch")
    said = []
    for name in ("hmm", "tiny"):
        with pytest.raises(UserInputError) as caught:
            load_model(name, device=device)
        said.append(str(caught.value))
    assert said == [f"device '{device}' is unknown; use auto, cpu, cuda, cuda:N or mps"] * 2


def test_a_dtype_is_ignored_but_must_be_one() -> None:
    assert load_model("hmm", dtype="bfloat16").digest == load_model("hmm").digest
    with pytest.raises(UserInputError, match="dtype 'nonsense' is unknown; allowed are auto, bfloat16"):
        load_model("hmm", dtype="nonsense")


def enumerated_joint(model: HiddenMarkovModel, tokens: tuple[int, ...]) -> float:
    """Sum over all hidden paths, the definition of the joint."""
    p, total = model.parameters, 0.0
    for path in product(range(len(p.initial_K)), repeat=len(tokens)):
        mass = p.initial_K[path[0]] * p.emission_KV[path[0], tokens[0]]
        for before, here, token in zip(path, path[1:], tokens[1:], strict=False):
            mass *= p.transition_KK[before, here] * p.emission_KV[here, token]
        total += mass
    return total


def test_joint_equals_the_sum_over_hidden_paths(small):
    for tokens in [(0, 1, 2), (2, 2, 0, 1), (1, 3, 3), (0,)]:
        assert np.exp(small.joint_log_prob(tokens)) == pytest.approx(
            enumerated_joint(small, tokens), rel=1e-12
        )


def test_joint_sums_to_one_over_all_sequences(small):
    total = sum(np.exp(small.joint_log_prob(tokens)) for tokens in product(range(4), repeat=4))
    assert total == pytest.approx(1.0, abs=1e-12)


def test_conditionals_equal_bayes_over_the_enumerated_joint(small):
    """p(x_i | visible) from all completions of the block, later blocks summed out."""
    mask = small.mask_id
    tokens = [0, 2, 1, 1, mask, 2, mask, mask]
    log_p = small.log_probs(tokens)
    hidden = [i for i, token in enumerate(tokens) if token == mask]
    weight = {}
    for filling in product(range(4), repeat=len(hidden)):
        full = list(tokens)
        for i, token in zip(hidden, filling, strict=True):
            full[i] = token
        weight[filling] = np.exp(small.joint_log_prob(full))
    for place, i in enumerate(hidden):
        for token in range(4):
            wanted = sum(w for f, w in weight.items() if f[place] == token) / sum(weight.values())
            assert np.exp(log_p[i, token]) == pytest.approx(wanted, rel=1e-10, abs=1e-300)


def test_later_blocks_do_not_change_earlier_rows(small):
    mask = small.mask_id
    first = [0, mask, 1, mask]
    assert np.array_equal(small.log_probs(first), small.log_probs([*first, 2, 2, 0, 1])[:4])


def test_eos_absorbs_and_eos_free_text_is_always_possible(small):
    eos = small.tokenizer.eos_id
    assert small.joint_log_prob([0, eos, 1]) == -np.inf
    assert all(np.isfinite(small.joint_log_prob(t)) for t in product(range(3), repeat=5))


def test_mask_is_excluded_and_rows_are_normalised(hmm):
    log_p = hmm.log_probs([hmm.mask_id] * 20)
    assert (log_p[:, hmm.mask_id] == -np.inf).all()
    assert np.allclose(np.exp(log_p).sum(axis=1), 1.0, atol=1e-12)


def test_incoherent_conditionals_follow_the_written_formula():
    """log p'(v) = log p(v) + ε cos(Σ phases of the other visible tokens + angle_v) − log Z, by hand."""
    exact = HiddenMarkovModel(seed=3, n_states=3, n_characters=3, block_size=4)
    tilted = HiddenMarkovModel(seed=3, n_states=3, n_characters=3, block_size=4, incoherence=0.7)
    mask = exact.mask_id
    tokens = [0, 2, 1, 1, mask, 2, mask, 0]
    plain, found = exact.log_probs(tokens), tilted.log_probs(tokens)
    tables = tilted.parameters
    for i in range(4, 8):
        phase = sum(
            tables.phase_PV[j % TILT_PERIOD, token]
            for j, token in enumerate(tokens)
            if token != mask and j != i
        )
        raw = {v: plain[i, v] + 0.7 * np.cos(phase + tables.angle_V[v]) for v in range(4)}
        norm = np.log(sum(np.exp(x) for x in raw.values()))
        for v in range(4):
            assert found[i, v] == pytest.approx(raw[v] - norm, abs=1e-12)


def test_name_loads_the_same_model_again():
    model = load_model("hmm:incoherence=0.25,states=5,seed=2")
    again = load_model(model.name)
    assert again.digest == model.digest
    assert again.name == model.name == "hmm:seed=2,states=5,incoherence=0.25"
    assert load_model("hmm").digest != model.digest


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("hmm:colour=3", "unknown option 'colour'"),
        ("hmm:seed=x", "'seed=x' is not key=number"),
        ("hmm:incoherence=-1", "incoherence=-1"),
        ("hmm:characters=1", "characters=1"),
        ("hmm:block=0", "block=0"),
    ],
)
def test_bad_options_are_named(spec, message):
    with pytest.raises(UserInputError, match=message):
        load_model(spec)
