"""On ``hmm`` every method gives the joint: exactly, or within its standard error."""

from __future__ import annotations

import numpy as np
import pytest

import orderlens as ol
from orderlens.errors import ModelOutputError, UserInputError
from orderlens.runs.likelihood import averages

NAMES = ["sample_id", "method", "log_prob", "std_error", "n_draws"]
NAMES += ["nats_per_token", "n_bytes", "bits_per_byte"]


def texts(model, n=4, prompt=5, target=21):
    rng = np.random.default_rng(3)
    letters = model.tokenizer.encode("the quick brown fox jumps over the lazy dog")
    draws = [rng.choice(letters, prompt + target).tolist() for _ in range(n)]
    return [ol.Sample(f"s{i}", row[:prompt], row[prompt:]) for i, row in enumerate(draws)]


def joint(model, sample):
    whole = model.joint_log_prob([*sample.prompt, *sample.target])
    return whole - model.joint_log_prob(list(sample.prompt))


@pytest.mark.parametrize("spec", ["hmm:block=8", "hmm:block=8,attention=full"])
def test_all_methods_give_the_joint(spec):
    model = ol.load_model(spec)
    samples = texts(model)
    truth = np.array([joint(model, sample) for sample in samples])
    for policy in ("forced-ar", "reverse-ar", "max-prob"):
        exact = ol.likelihood(model, samples, policy=policy).to_pandas()
        assert list(exact.columns) == NAMES
        assert exact["log_prob"].to_numpy() == pytest.approx(truth, abs=1e-9)
        assert (exact["std_error"] == 0).all()
    mixture = ol.likelihood(model, samples, method="mixture", draws=20).to_pandas()
    assert mixture["log_prob"].to_numpy() == pytest.approx(truth, abs=1e-9)  # every order has the same P
    elbo = ol.likelihood(model, samples, method="elbo", draws=600, seed=1).to_pandas()
    z = (elbo["log_prob"].to_numpy() - truth) / elbo["std_error"].to_numpy()
    assert np.abs(z).max() < 4
    assert (elbo["std_error"] > 0).all()
    assert elbo["n_draws"].tolist() == [600] * 4


def test_units():
    model = ol.load_model("hmm")
    sample = texts(model)[0]
    (row,) = ol.likelihood(model, [sample]).to_arrow().to_pylist()
    n_bytes = len(model.tokenizer.decode(sample.target).encode())
    assert row["nats_per_token"] == pytest.approx(-row["log_prob"] / 21)
    assert row["bits_per_byte"] == pytest.approx(-row["log_prob"] / np.log(2) / n_bytes)


def test_a_seed_repeats_the_draws_and_another_does_not():
    model = ol.load_model("hmm")
    first, again, other = (
        ol.likelihood(model, texts(model, 1), method="elbo", draws=8, seed=seed).to_pandas()["log_prob"][0]
        for seed in (0, 0, 1)
    )
    assert first == again != other


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"method": "bound"}, "unknown method 'bound'"),
        ({"draws": 0}, "draws"),
        ({"policy": "random"}, "no exact likelihood"),
        ({"policy": "oracle-max-q"}, "no exact likelihood"),
        ({"method": "mixture", "policy": "max-prob+top=2"}, "takes 'random', also with a commit rule"),
        ({"method": "elbo", "policy": "max-prob"}, "takes no policy, not 'max-prob'"),
    ],
)
def test_bad_input_is_one_line(given, said):
    with pytest.raises(UserInputError, match=said):
        ol.likelihood("hmm", texts(ol.load_model("hmm"), 1), **given)


@pytest.mark.parametrize("method", ["elbo", "mixture"])
def test_the_default_policy_may_be_named(method):
    model = ol.load_model("hmm:incoherence=0.5")
    named, left_out = (
        ol.likelihood(model, texts(model, 1), method=method, draws=4, **given).to_pandas()["log_prob"][0]
        for given in ({"policy": "forced-ar"}, {})
    )
    assert named == left_out


@pytest.mark.parametrize("method", ["policy", "elbo", "mixture"])
def test_a_text_of_probability_zero_is_refused(method):
    model = ol.load_model("hmm")
    ended = ol.Sample("ended", [1, 2], [model.tokenizer.eos_id, 3, 4, 5])
    with pytest.raises(ModelOutputError, match="sample 'ended': the model gives the target token"):
        ol.likelihood(model, [ended], method=method, draws=8)


def test_averages_of_a_method_over_its_texts():
    model = ol.load_model("hmm")
    table = ol.likelihood(model, texts(model, 3), method="elbo", draws=1)
    assert table.to_pandas()["n_draws"].tolist() == [1, 1, 1], "one draw is the smallest number"
    default = ol.likelihood(model, texts(model, 1), method="elbo", draws=8).to_pandas()["log_prob"][0]
    assert (
        default
        == ol.likelihood(model, texts(model, 1), method="elbo", draws=8, seed=0).to_pandas()["log_prob"][0]
    )
    several = [*texts(model, 2), *texts(model, 1, target=4)]
    several = [ol.Sample(str(i), sample.prompt, sample.target) for i, sample in enumerate(several)]
    table = ol.likelihood(model, several, method="elbo", draws=8)
    rows = table.to_pandas()
    (found,) = averages([table])
    assert (found["method"], found["n"], found["n_draws"]) == ("elbo", 3, 8)
    assert found["log_prob"] == pytest.approx(rows["log_prob"].mean())
    assert rows["n_bytes"].nunique() > 1
    bits = -rows["log_prob"].sum() / np.log(2)
    assert found["bits_per_byte"] == pytest.approx(bits / rows["n_bytes"].sum())
    assert found["std_error"] == pytest.approx(np.sqrt((rows["std_error"] ** 2).sum()) / 3)
