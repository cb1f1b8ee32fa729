"""Findings on runs whose answer is known: an exact joint, a broken one, and texts made by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from orderlens import api
from orderlens.analysis.study import Options, Study
from orderlens.claims.checks import NOT_SUPPORTED, OPEN, SUPPORTED
from orderlens.claims.decoding import decoding_findings
from orderlens.claims.fixed import fixed_findings
from orderlens.claims.judge import judge
from orderlens.claims.sweep import sweep_findings
from orderlens.metrics.estimate import Resampling
from orderlens.models.loading import load_model
from orderlens.testing import make_run, make_trace
from orderlens.texts.loading import SplitRule, load_data

ORDERS = "forced-ar,reverse-ar,random:0,random:1,max-prob,oracle-max-q,oracle-margin,oracle-min-q"
OPTIONS = Options(Resampling(200))


def judged(findings):
    return {item.id: item for item in judge(findings).findings}


def fixed_read(spec, *, noise=True, n=8):
    model = load_model(spec)
    samples = load_data("passages", model.tokenizer, SplitRule(16, 32), limit=n).samples
    run = api.score(model, samples, ORDERS, noise_floor=noise, circulation=3 if noise else 0)
    study = Study(run, OPTIONS)
    return judged(fixed_findings(study))


def numbers(finding):
    return {item.label: item for item in (*finding.checks, *finding.numbers)}


def test_an_exact_joint_does_not_support_chain_rule_deviation():
    findings = fixed_read("hmm")
    finding = findings["chain-rule"]
    assert finding.outcome == findings["chain-rule-per-text"].outcome == NOT_SUPPORTED
    assert "1e-09 nats per token" in finding.rule
    cell = numbers(finding)["range_of_means, deployable orders (nats/token)"].estimate
    assert 0 <= cell.value < 1e-9


def test_a_broken_joint_does():
    """Every text shifts, but not all in the same direction: eight texts do not settle the average."""
    findings = fixed_read("hmm:incoherence=0.5")
    assert findings["chain-rule-per-text"].outcome == SUPPORTED
    assert findings["chain-rule"].outcome == OPEN
    found = numbers(findings["chain-rule"])
    ours, all_orders = (
        found[f"range_of_means, {scope} orders (nats/token)"].estimate for scope in ("deployable", "all")
    )
    assert 0 <= ours.value < all_orders.value
    assert found["range_of_means, all orders (nats/token)"].paper == 0.49
    per_text = numbers(findings["chain-rule-per-text"])["mean_of_ranges, deployable orders (nats/token)"]
    assert per_text.estimate.low > ours.value


def test_without_a_noise_floor_the_deviation_is_left_open():
    finding = fixed_read("hmm:incoherence=0.5", noise=False)["chain-rule"]
    assert finding.outcome == OPEN
    assert "noise floor was not measured" in finding.sentence()
    assert not numbers(finding)["noise floor (nats/token)"].estimate.is_defined


def test_too_few_texts_decide_nothing():
    findings = fixed_read("hmm:incoherence=0.5", n=3)
    assert {item.outcome for item in findings.values()} == {OPEN}
    assert "3 of at least 6 texts" in findings["chain-rule"].sentence()


def reveals(sample, order, path, tokens, logq, *, seed=None, temperature=None):
    values = np.broadcast_to(np.asarray(logq, np.float64), len(path))
    return make_trace(
        sample, order, values, path=path, tokens=tokens, seed=seed, temperature=temperature, n_prompt=4
    )


def study_of(traces, outputs=None, evaluator=None):
    run = make_run(traces, outputs=outputs or ())
    return Study(run, Options(Resampling(200), evaluator=evaluator))


L2R = list(range(8))
SEALED = [0, 1, 7, 6, 5, 2, 3, 4]
CONTENT, ENDING = [5, 6, 7, 8, 9, 10, 11, 12], [5, 6, 7, 8, 9, 0, 0, 0]


def decoded(max_prob_path, max_prob_tokens, random_logq):
    rng = np.random.default_rng(0)
    traces = []
    for place in range(16):
        name, jitter = f"s{place}", 0.01 * place
        half = np.array([-0.2, -0.9] * 4) - jitter
        traces.append(reveals(name, "forced-ar", L2R, CONTENT, half, temperature=0.0))
        traces += [
            reveals(name, order, max_prob_path, max_prob_tokens, half, temperature=0.0)
            for order in ("max-prob", "top-margin")
        ]
        path = rng.permutation(8)
        traces.append(reveals(name, "random", path, CONTENT, random_logq - jitter, seed=0, temperature=0.0))
    study = study_of(traces)
    return judged(decoding_findings(study, study))


WIDE = np.array([-0.1, -4.0] * 4)


def test_paths_that_go_left_to_right_and_seal_the_tail_early_support_the_paper():
    found = decoded(SEALED, ENDING, WIDE)
    assert {item.outcome for item in found.values()} == {SUPPORTED}
    cells = numbers(found["near-left-to-right"])
    assert cells["content Spearman with left-to-right, max-prob"].estimate.value == pytest.approx(1.0)
    cascade = numbers(found["eos-cascade"])
    assert cascade["EOS fraction, max-prob − forced-ar"].estimate.value == pytest.approx(3 / 8)
    assert cascade["texts with a cascade of ≥ 3 EOS before more content, max-prob"].estimate.value == 1.0


def test_reversed_paths_without_eos_and_a_calm_random_order_do_not():
    found = decoded(L2R[::-1], CONTENT, np.array([-0.2, -0.3] * 4))
    assert found["near-left-to-right"].outcome == NOT_SUPPORTED
    assert found["random-tier"].outcome == NOT_SUPPORTED
    assert found["eos-cascade"].outcome == OPEN
    assert "no text of this run holds an EOS token" in found["eos-cascade"].sentence()


def test_a_tail_sealed_only_at_the_end_is_no_early_cascade():
    found = decoded([0, 1, 2, 3, 4, 7, 6, 5], ENDING, WIDE)["eos-cascade"]
    share = numbers(found)["texts with a cascade of ≥ 3 EOS before more content, max-prob"].estimate
    assert share.value == 0.0
    assert share.high > 0  # sixteen texts cannot rule it out
    assert found.outcome == OPEN


class Evaluator:
    """Gives each token of a text the log-probability −(number in the text)."""

    name = "by-hand"

    def token_logprobs(self, pairs):
        return [np.full(3, -float(text.removeprefix("p"))) for _, text in pairs]


def swept(nll, spread, *, evaluator=True):
    """``nll`` and ``spread`` map order → temperature → mean NLL, and → half distance of the two log q."""
    traces, outputs = [], []
    for order, by_temperature in nll.items():
        for temperature, value in by_temperature.items():
            for place in range(16):
                gap = spread[order][temperature] + 0.01 * place
                seed = 0 if order == "random" else None
                key = {"sample_id": f"s{place}", "order": order, "seed": seed, "temperature": temperature}
                logq = [-3 + gap, -3 - gap] * 2
                traces.append(
                    reveals(
                        f"s{place}", order, range(4), [5, 6, 7, 8], logq, seed=seed, temperature=temperature
                    )
                )
                sample_seed = 0 if temperature else None
                text = {"text": str(value + 0.01 * place), "prompt_text": "p", "task": None}
                outputs.append({**key, "sample_seed": sample_seed, **text})
    return judged(sweep_findings(study_of(traces, outputs, Evaluator() if evaluator else None)))


ALL = ("forced-ar", "max-prob", "top-margin", "random", "max-prob:select=argmax")


def paper_like():
    rise = {
        "forced-ar": 2.5,
        "max-prob": 0.3,
        "top-margin": 3.0,
        "random": 4.0,
        "max-prob:select=argmax": 3.0,
    }
    nll = {order: {t: 2.0 + rise[order] * t + (2.5 * (t > 1.2)) for t in (0.0, 1.0, 1.5)} for order in ALL}
    nll["random"][0.0] = 2.4
    for order in ALL:
        nll[order][1.5] = 8.0
    spread = {order: {t: 0.5 + rise[order] * t / 5 for t in (0.0, 1.0, 1.5)} for order in ALL}
    for table in (nll, spread):
        del table["max-prob:select=argmax"][0.0]
    return nll, spread


def test_a_sweep_like_the_papers_supports_every_finding():
    found = swept(*paper_like())
    assert {name: item.outcome for name, item in found.items()} == dict.fromkeys(found, SUPPORTED)
    lead = numbers(found["max-prob-stable"])
    assert lead["rise of log median PPL to T = 1: smallest other − max-prob"].estimate.value == pytest.approx(
        2.2
    )
    # under the argmax rule the same order rises more than forced-ar
    assert lead["the first with the argmax rule"].estimate.value == pytest.approx(-0.5)
    assert lead["median external PPL at T = 1, max-prob"].paper == 10.35
    hot = numbers(found["high-temperature"])
    assert hot["content mean log q at T = 1.5, random"].estimate.value == pytest.approx(-3.0)
    assert hot["content mean log q at T = 1.5, random"].paper == "below −12"
    assert hot["EOS fraction at T = 1.5, random"].estimate.value == 0.0


def test_a_sweep_that_turns_it_round_supports_none():
    nll, spread = paper_like()
    for order in ALL[:4]:
        nll[order] = {0.0: 6.0, 1.0: 3.0, 1.5: 2.0}
        spread[order] = {0.0: 1.0, 1.0: 0.6, 1.5: 0.4}
    nll["max-prob"][1.0] = 5.0
    nll["random"][0.0] = 8.0
    spread["max-prob"][1.0] = 0.9
    words = {name: item.outcome for name, item in swept(nll, spread).items()}
    assert words == dict.fromkeys(words, NOT_SUPPORTED)


def test_without_an_evaluator_only_var_is_judged():
    found = swept(*paper_like(), evaluator=False)
    assert found["var-grows"].outcome == SUPPORTED
    assert {found[name].outcome for name in ("greedy-lowest", "spread-grows", "high-temperature")} == {OPEN}
    assert any("was not measured" in line for line in found["greedy-lowest"].lines())


def test_perplexities_are_medians():
    nll, spread = paper_like()
    cell = numbers(swept(nll, spread)["greedy-lowest"])["median external PPL at T = 0, forced-ar"].estimate
    assert cell.value == pytest.approx((math.exp(2.07) + math.exp(2.08)) / 2)
