"""Search rules: paths, choices and costs against a plain second implementation."""

from __future__ import annotations

import numpy as np
import pytest

import orderlens as ol
from orderlens.common.rng import keyed_generator
from orderlens.decode.generate import GenerationSettings, generate_batch
from orderlens.errors import UserInputError
from orderlens.models.hmm import HiddenMarkovModel
from orderlens.rules import parse_policy
from orderlens.rules.orders.basic import RandomOrder
from orderlens.rules.search import MEASURES, NOT_ADDITIVE, Particles, path_measure
from orderlens.testing import StubModel
from orderlens.texts.samples import EncodedSample
from orderlens.theory.step import log_success

BLOCK, NEW = 6, 14
MODEL = HiddenMarkovModel(seed=2, n_states=4, block_size=BLOCK, incoherence=0.5)
SAMPLES = [EncodedSample(f"s{i}", keyed_generator(i, "p").integers(0, 20, 3 + 2 * i)) for i in range(3)]
SETTINGS = GenerationSettings(NEW, stop_at_eos=False)


def _paths(columns, sample, order=0):
    mine = (columns["sample"] == sample) & (columns["order"] == order)
    return {name: values[mine] for name, values in columns.items()}


def _measure(name, logq, entropies):
    """The measure of a path, written a second time."""
    if name == "entropy":
        return -sum(entropies) / len(entropies)
    if name == "recover":
        return sum(float(log_success(min(y, -1e-300), 1.0)) for y in logq)
    mean = sum(logq) / len(logq)
    spread = sum((y - mean) ** 2 for y in logq) / len(logq)
    return {"sum": sum(logq), "mean": mean, "min": min(logq), "var": -spread}[name]


def _slow_best(sample, n, measure):
    """Decode block by block along n random paths; keep the best one at the end of each block."""
    start, total = len(sample.prompt), len(sample.prompt) + NEW
    end = -(-total // BLOCK) * BLOCK
    tokens = np.full(end, MODEL.mask_id)
    tokens[:start] = sample.prompt
    logq, entropies, path = [], [], []
    for block, low in enumerate(range(start - start % BLOCK, end, BLOCK)):
        places = [i for i in range(low, low + BLOCK) if tokens[i] == MODEL.mask_id]
        tries = []
        for seed in range(n):
            text, own, heats = tokens[: low + BLOCK].copy(), [], []
            for place in RandomOrder(seed).path(len(places), sample.id, block).tolist():
                rows = MODEL.log_probs(text)
                masked = rows[[i for i in places if text[i] == MODEL.mask_id]]
                p = np.exp(masked)
                heats.append(float(-(p * np.where(p > 0, masked, 0)).sum(axis=1).mean()))
                i = places[place]
                text[i] = int(np.argmax(rows[i]))
                own.append((i, float(rows[i].max())))
            counted = logq + [y for i, y in own if i < total]
            tries.append((_measure(measure, counted, entropies + heats), text, own, heats))
        best = max(range(n), key=lambda m: (tries[m][0], -m))
        _, text, own, heats = tries[best]
        tokens[: low + BLOCK] = text
        logq, entropies, path = logq + [y for i, y in own if i < total], entropies + heats, path + own
    return tokens, path


@pytest.mark.parametrize("measure", [name for name in MEASURES if name not in NOT_ADDITIVE])
def test_the_best_path_of_each_block_is_kept(measure):
    policy = parse_policy(f"random+best=3:{measure}")
    found = generate_batch(MODEL, SAMPLES, [policy], SETTINGS)
    for chain in found.chains:
        tokens, path = _slow_best(SAMPLES[chain.sample], 3, measure)
        mine = _paths(found.columns, chain.sample)
        assert chain.tokens.tolist() == tokens.tolist()
        assert mine["position"].tolist() == [i for i, _ in path]
        assert mine["step"].tolist() == list(range(len(path)))
        assert mine["logq"] == pytest.approx([y for _, y in path], abs=1e-9)
        assert mine["n_lookahead"].sum() == 2 * len(path)  # two other paths, one state per reveal


@pytest.mark.parametrize("measure", ["mean", "var", "sum"])
def test_the_best_whole_text_is_one_of_the_single_paths(measure):
    orders = ["random", "random:1", "random:2", f"random+best=3:{measure}:text"]
    found = generate_batch(MODEL, SAMPLES, [parse_policy(order) for order in orders], SETTINGS)
    for s in range(len(SAMPLES)):
        single = [_paths(found.columns, s, order) for order in range(3)]
        values = [_measure(measure, one["logq"][~one["is_overflow"]].tolist(), []) for one in single]
        best, kept = single[int(np.argmax(values))], _paths(found.columns, s, 3)
        for name in ("position", "token_id", "logq", "forward", "block"):
            assert kept[name].tolist() == best[name].tolist()
    assert [(chain.sample, chain.order) for chain in found.chains] == [
        (s, p) for s in range(3) for p in range(4)
    ]


def test_restart_decodes_again_only_below_its_threshold():
    plain = generate_batch(MODEL, SAMPLES, [parse_policy("random")], SETTINGS).columns
    never, always, best = (
        generate_batch(MODEL, SAMPLES, [parse_policy(spec)], SETTINGS).columns
        for spec in ("random+restart=-1000000:mean", "random+restart=0:mean:3", "random+best=3:mean")
    )
    assert never["token_id"].tolist() == plain["token_id"].tolist()
    assert never["n_lookahead"].sum() == 0
    assert always["token_id"].tolist() == best["token_id"].tolist()
    assert always["n_lookahead"].sum() == 2 * len(always["step"])
    halfway = f"random+restart={np.mean(plain['logq']):.3f}:mean:3"
    some = generate_batch(MODEL, SAMPLES, [parse_policy(halfway)], SETTINGS).columns
    assert 0 < some["n_lookahead"].sum() < 2 * len(some["step"])


def test_particles_resample_in_proportion_to_their_weights():
    rule, zeros = Particles(4, 1.0, "sum"), np.zeros(4)
    gain = np.log([0.9, 0.05, 0.03, 0.02])
    counts = np.zeros(4)
    for uniform in np.arange(0.5, 1000) / 1000:
        source, weight = rule.survivors(zeros, gain, zeros, float(uniform))
        assert weight.tolist() == [0, 0, 0, 0]
        counts += np.bincount(source, minlength=4)
    assert counts / 4000 == pytest.approx(np.exp(gain), abs=2e-3)
    source, weight = rule.survivors(zeros, np.log([0.3, 0.3, 0.2, 0.2]), zeros, 0.5)
    assert source.tolist() == [0, 1, 2, 3]  # the effective sample size is above 2, so weights are kept
    assert weight == pytest.approx(np.log([0.3, 0.3, 0.2, 0.2]))


def test_a_path_that_has_ended_stays_a_particle():
    logits = np.zeros((6, 6))
    logits[:, 5] = -1e9  # the mask
    model = StubModel(logits, block_size=2, eos_ids=(4,))
    samples = [EncodedSample(f"s{i}", np.arange(2)) for i in range(12)]
    policy = parse_policy("forced-ar+particles=3:2:sum")
    found = generate_batch(model, samples, [policy], GenerationSettings(12, 1.0, 7))
    lengths = {chain.stop for chain in found.chains}
    assert len(lengths) > 2
    for chain in found.chains:
        mine = _paths(found.columns, chain.sample)
        text = chain.tokens[2 : chain.stop]
        assert mine["position"].tolist() == list(range(2, chain.stop))
        assert mine["token_id"].tolist() == text.tolist()
        assert (4 in text) == (chain.finish_reason == "eos")
        states = len(text) + int(mine["n_lookahead"].sum())  # one pass per token
        assert len(text) + 4 <= states <= 3 * 12  # the other two paths decode at least the first block


def test_paths_without_a_seed_differ_by_their_draws():
    orders = ["max-prob", "max-prob+best=4:sum:text", "max-prob+best=1:sum"]
    settings = GenerationSettings(NEW, 1.0, 3, stop_at_eos=False)
    found = generate_batch(MODEL, SAMPLES, [parse_policy(order) for order in orders], settings).columns
    for s in range(len(SAMPLES)):
        one, best, same = (_paths(found, s, order) for order in range(3))
        assert same["token_id"].tolist() == one["token_id"].tolist()
        assert best["logq"][~best["is_overflow"]].sum() >= one["logq"][~one["is_overflow"]].sum()
    assert found["token_id"][found["order"] == 0].tolist() != found["token_id"][found["order"] == 1].tolist()


def test_majority_takes_the_most_frequent_text():
    def row(visible, position):
        return np.log([0.7, 0.3])

    model = StubModel(row, vocab_size=3, block_size=1)
    samples = [EncodedSample(f"s{i}", np.zeros(1, np.int64)) for i in range(200)]
    found = generate_batch(
        model, samples, [parse_policy("forced-ar+best=5:majority")], GenerationSettings(1, 1.0, 1)
    )
    share = np.mean([chain.tokens[1] == 0 for chain in found.chains])
    exact = sum(_binomial(5, k) * 0.7**k * 0.3 ** (5 - k) for k in (3, 4, 5))
    assert share == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 200))


def _binomial(n, k):
    return float(np.prod([(n - i) / (i + 1) for i in range(k)]))


def test_a_random_choice_keeps_the_law_of_the_texts():
    """The null of every comparison: choosing at random among draws is one more draw."""
    model = StubModel(lambda visible, position: np.log([0.6, 0.4]), vocab_size=3, block_size=2)
    samples = [EncodedSample(f"s{i}", np.zeros(2, np.int64)) for i in range(400)]
    orders = [parse_policy("forced-ar+best=4:random"), parse_policy("forced-ar+best=4:sum")]
    found = generate_batch(model, samples, orders, GenerationSettings(4, 1.0, 5)).columns
    share = [float(np.mean(found["token_id"][found["order"] == p] == 0)) for p in range(2)]
    assert share[0] == pytest.approx(0.6, abs=4 * np.sqrt(0.24 / 1600))
    assert share[1] > 0.8


def test_end_tokens_count_in_sums_only():
    logq, is_eos = np.array([-1.0, -3.0, -0.5]), np.array([False, False, True])
    assert path_measure("sum", logq, is_eos, 0.0) == -4.5
    assert path_measure("mean", logq, is_eos, 0.0) == -2.0
    assert path_measure("var", logq, is_eos, 0.0) == -1.0
    assert path_measure("min", logq[2:], is_eos[2:], 0.0) == -0.5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: parse_policy("random+best=4"), "'best' takes 2 to 3 values"),
        (lambda: parse_policy("random+best=4:variance"), "S is 'variance' and must be one of sum, mean"),
        (lambda: parse_policy("random+best=0:var"), "N is '0' and must be a whole number of at least 1"),
        (lambda: parse_policy("random+particles=4:1:majority"), "must be one of sum, mean, min, var"),
        (lambda: parse_policy("random+best=2:var+best=2:sum"), "two rules of one kind"),
        (lambda: parse_policy("max-prob+edit=0.9+best=2:var"), "leave one of them out"),
        (lambda: parse_policy("oracle-max-q+best=2:var"), "sees the target and can only score"),
        (
            lambda: ol.score("hmm", ol.Sample("a", "b", "c"), "random+best=2:var"),
            "chooses among several texts",
        ),
        (lambda: ol.generate("hmm", "b", "max-prob+best=2:var"), "at temperature 0 decodes 2 equal paths"),
        (
            lambda: ol.generate("hmm", "b", "random+best=2:var", states=True),
            "leave out `states` or this policy",
        ),
    ],
)
def test_refusals(call, message):
    with pytest.raises(UserInputError, match=message):
        call()


def test_equal_paths_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(UserInputError, match="decodes 2 equal paths"):
        ol.generate("hmm", ["a"], "random,max-prob+best=2:sum", max_new_tokens=4, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_units_of_a_search_are_as_short_as_others():
    samples = [f"text {i}" for i in range(40)]
    alone, search = (
        ol.generate("hmm", samples, order, max_new_tokens=40).spec["batch_size"]
        for order in ("random", "random+best=8:sum")
    )
    assert search < alone


def test_a_run_stores_the_kept_path_and_its_cost(tmp_path):
    run = ol.generate("hmm", ["The ferry"], "random+best=3:var", max_new_tokens=20, out=tmp_path / "run")
    (row,) = ol.open_run(tmp_path / "run").samples().to_arrow().to_pylist()
    assert row["order"] == "random+best=3:var"
    assert row["likelihood"] == "none"
    assert row["n_passes_lookahead"] == 2 * row["n_passes"]
    assert run.samples().to_arrow().num_rows == 1
