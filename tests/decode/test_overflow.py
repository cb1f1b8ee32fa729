"""Positions past the requested length: what is called exact is the joint of ``hmm``, and mask keeps them.

The joint is that of ``hmm`` itself, which decoding does not use.
"""

from __future__ import annotations

import numpy as np
import pytest

import orderlens as ol
from orderlens.decode.generate import GenerationSettings, generate_batch
from orderlens.decode.reference import reference_generate
from orderlens.decode.score import score_batch
from orderlens.rules import parse_policies
from orderlens.texts.samples import EncodedSample

PROMPT, NEW = 16, 32
"""The last block of 32 holds 16 requested positions and 16 past them."""
ORDERS = [
    *("forced-ar", "reverse-ar", "random:3", "max-prob:argmax", "top-margin", "entropy"),
    *("lookahead-gain:n=3:temp=0", "lookahead-entropy:temp=0"),
]


@pytest.fixture(scope="module")
def hmm():
    return ol.load_model("hmm")


@pytest.fixture(scope="module")
def prompts(hmm):
    text = "".join(chr(97 + i % 7) for i in range(200))
    ids = hmm.tokenizer.encode(text)
    return [ol.Sample(f"s{i}", ids[i : i + PROMPT]) for i in range(3)]


def joint(hmm, row, texts):
    """Return log P(text | prompt) from the joint."""
    prompt, text = texts[row["sample_id"], row["order"], row["seed"]]
    return hmm.joint_log_prob([*prompt, *text]) - hmm.joint_log_prob(list(prompt))


def texts_of(run, prompts):
    by_id = {sample.id: sample.prompt for sample in prompts}
    found = {}
    for row in run.reveals().to_arrow().to_pylist():
        if not row["is_overflow"]:
            key = row["sample_id"], row["order"], row["seed"]
            found.setdefault(key, {})[row["position"]] = row["token_id"]
    return {key: (by_id[key[0]], [text[at] for at in sorted(text)]) for key, text in found.items()}


def decoded(hmm, prompts, temperature, **options):
    run = ol.generate(
        hmm, prompts, ORDERS, max_new_tokens=NEW, temperature=temperature, stop_at_eos=False, **options
    )
    return run.samples().to_arrow().to_pylist(), texts_of(run, prompts)


def test_what_is_called_exact_is_the_joint(hmm, prompts):
    rows, texts = decoded(hmm, prompts, 1.0)
    for row in rows:
        gap = abs(row["log_prob"] - joint(hmm, row, texts))
        if row["likelihood"] == "none":
            assert row["n_overflow_before"] > 0
        else:
            assert gap < 1e-9, (row["order"], gap)
            assert row["n_overflow_before"] == 0
    kinds = {order: {row["likelihood"] for row in rows if row["order"] == order} for order in ORDERS}
    assert kinds["forced-ar"] == {"exact"}
    assert kinds["reverse-ar"] == {"none"}
    wrong = [abs(row["log_prob"] - joint(hmm, row, texts)) for row in rows if row["n_overflow_before"]]
    assert max(wrong) > 0.5, "without the rule these sums would be called exact"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_masked_overflow_is_exact_for_every_order(hmm, prompts, temperature):
    rows, texts = decoded(hmm, prompts, temperature, overflow="mask")
    assert len(rows) == len(ORDERS) * len(prompts)
    for row in rows:
        assert (row["n"], row["n_overflow"], row["n_overflow_before"]) == (NEW, 0, 0)
        assert row["likelihood"] in ("exact", "estimate")
        assert abs(row["log_prob"] - joint(hmm, row, texts)) < 1e-9


@pytest.mark.parametrize("kind", ["tiny", "hmm"])
def test_masked_overflow_scores_as_the_same_text(kind):
    """Scoring never fills positions past the target, so a generated text scores as it was generated."""
    model = ol.load_model(kind)
    policies = parse_policies("reverse-ar,max-prob,top-margin,max-prob+threshold=0.5")
    prompt = np.arange(5, 5 + 20)
    settings = GenerationSettings(21, stop_at_eos=False, overflow="mask")
    made = generate_batch(model, [EncodedSample("a", prompt)], policies, settings)
    for place, policy in enumerate(policies):
        text = made.chains[place].tokens[20:41]
        scored = score_batch(model, [EncodedSample("a", prompt, text)], [policy])
        mine = made.columns["order"] == place
        assert made.columns["position"][mine].tolist() == scored["position"].tolist()
        assert made.columns["logq"][mine] == pytest.approx(
            scored["logq"], abs=2e-4 if kind == "tiny" else 1e-9
        )
        assert (made.chains[place].tokens[41:] == model.mask_id).all()


def test_the_slow_decoder_agrees(hmm):
    sample, settings = (
        EncodedSample("a", np.arange(3, 20)),
        GenerationSettings(9, 0.7, 2, False, overflow="mask"),
    )
    policies = parse_policies("reverse-ar,top-margin")
    columns = generate_batch(hmm, [sample], policies, settings).columns
    for place, policy in enumerate(policies):
        slow = reference_generate(
            hmm, sample, policy, 9, temperature=0.7, sample_seed=2, stop_at_eos=False, overflow="mask"
        )
        mine = columns["order"] == place
        assert columns["position"][mine].tolist() == [event.position for event in slow]
        assert columns["token_id"][mine].tolist() == [event.token for event in slow]


def test_overflow_in_the_same_pass_does_not_count(hmm, prompts):
    """Tokens of one pass do not depend on each other, so a set that holds both is still exact."""
    run = ol.generate(hmm, prompts[:1], "forced-ar+top=8", max_new_tokens=20, stop_at_eos=False)
    (row,) = run.samples().to_arrow().to_pylist()
    assert (row["n_overflow"], row["n_overflow_before"], row["likelihood"]) == (28, 0, "exact")


def test_a_scored_text_counts_no_positions_past_its_end(hmm, prompts):
    """A rule that splits the block evenly makes smaller sets of the 16 positions than of the 32."""
    sums = {}
    for overflow in ("mask", "fill"):
        run = ol.generate(hmm, prompts, "forced-ar+steps=4", max_new_tokens=NEW, overflow=overflow)
        assert set(run.samples().to_pandas()["likelihood"]) == {"exact"}
        texts = texts_of(run, prompts)
        samples = [ol.Sample(key[0], *pair) for key, pair in texts.items()]
        scored = ol.score(hmm, samples, "forced-ar+steps=4").samples().to_pandas()["log_prob"]
        sums[overflow] = np.abs(scored - run.samples().to_pandas()["log_prob"]).max()
    assert sums["mask"] < 1e-9
    assert sums["fill"] > 0.1
