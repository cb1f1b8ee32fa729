"""Orders of published samplers against their formulas, and one clear line for every wrong argument."""

from __future__ import annotations

import json

import numpy as np
import pytest

from orderlens.decode.generate import GenerationSettings, generate_batch
from orderlens.errors import UserInputError
from orderlens.rules import parse_order, parse_policy
from orderlens.rules.orders.levels import revealed
from orderlens.rules.orders.published import gumbel
from orderlens.rules.stats import DrawStats, PositionStats
from orderlens.rules.view import MemoryTable, StepView
from orderlens.texts.samples import EncodedSample

P = np.array([0.7, 0.2, 0.5, 0.4])
SECOND = np.array([0.1, 0.15, 0.45, 0.05])
ENTROPY = np.array([0.9, 2.0, 0.8, 1.7])


def view(uniforms=None, eos=None, left=None, forward=0, filling=4, p=P, tokens=(3, 1, 9, 0)):
    """One chain with the given probabilities; ``left`` keeps some of the rows."""
    rows = np.arange(len(p)) if left is None else np.array(left)
    eos_R = np.full(len(p), -np.inf) if eos is None else np.log(eos)
    stats = PositionStats(np.array(tokens), np.log(p), np.log(SECOND[: len(p)]), ENTROPY[: len(p)], eos_R)
    one = StepView.of(stats.take(rows), rows)
    numbers = np.full(len(rows), 0.5) if uniforms is None else np.asarray(uniforms)
    return StepView(
        one.chain_R, rows, rows, one.block_C, one.step_C, one.forward_C + forward, np.array([filling]),
        one.stats, one.memory, lambda: numbers,
    )  # fmt: skip


def test_maskgit_noise_fades_over_the_planned_passes():
    uniforms = np.array([0.1, 0.9, 0.5, 0.01])
    order = parse_order("gumbel-prob:scale=2")
    for forward, share in ((0, 0.75), (2, 0.25), (3, 0.0), (7, 0.0)):
        seen = view(uniforms, forward=forward).with_extras({"planned_passes": np.full(4, 4.0)})
        assert order.scores(seen) == pytest.approx(np.log(P) + 2 * share * gumbel(uniforms))
    drawn = DrawStats(seen.stats, np.zeros(4, np.int64), np.log(P / 2), np.zeros(4))
    assert order.draw_scores(seen.seeing(drawn)) == pytest.approx(np.log(P / 2))


@pytest.mark.parametrize(
    ("spec", "confidence"),
    [
        ("sampled-position", P),
        ("sampled-position:by=margin", P - SECOND),
        ("sampled-position:by=entropy:temp=0.1", -ENTROPY),
    ],
)
def test_drawn_positions_have_dreams_law(spec, confidence):
    """The first of many draws falls on each position with the probability softmax(confidence / temp)."""
    order = parse_order(f"{spec}:7" if "temp" in spec else f"{spec}:temp=0.5:7")
    wanted = np.exp(confidence / order.temp) / np.exp(confidence / order.temp).sum()
    generator, n = np.random.default_rng(0), 4000
    first = [int(order.scores(view(generator.random(4))).argmax()) for _ in range(n)]
    found = np.bincount(first, minlength=4) / n
    assert np.abs(found - wanted).max() < 4.5 * np.sqrt(0.25 / n)
    assert (order.seed, order.randomised) == (7, True)


def test_gumbel_numbers_are_finite():
    assert np.isfinite(gumbel(np.array([0.0, 1 - 2**-53]))).all()
    assert gumbel(np.array([np.exp(-1.0)])) == pytest.approx([0.0])


def test_uncode_weighs_place_and_rarity(tmp_path):
    place = np.exp(-0.25 * np.arange(4))
    assert parse_order("position-content").scores(view()) == pytest.approx(place * P)
    corpus = tmp_path / "corpus.json"
    corpus.write_text(json.dumps({"num_token": 1000, "p_baseline_dict": {"3": 500, "1": 10}}))
    order = parse_order(f"position-content:lambda=0.5:alpha=2:frequencies={corpus}")
    rarity = -np.log([0.5, 0.01, 0.001, 0.001])  # tokens 9 and 0 are not in the corpus
    wanted = np.exp(-0.5 * np.arange(4)) * np.minimum(P * rarity, 2.0)
    assert order.scores(view()) == pytest.approx(wanted)
    assert parse_order(order.spec).spec == order.spec
    corpus.write_text(json.dumps({"num_token": 1000, "p_baseline_dict": {"3": 500, "1": 11}}))
    assert parse_order(order.spec).files != order.files


def test_eos_is_damped_while_the_block_is_empty():
    order, eos = parse_order("eos-damped"), [0.7, 1e-9, 0.1, 0.1]
    assert order.scores(view(eos=eos)) == pytest.approx(np.log(P * [0.4, 1, 1, 1]))
    half = order.scores(view(eos=eos, left=[0, 2]))
    assert half == pytest.approx(np.log([0.7 * (0.4 + 0.6 * 0.5), 0.5]))
    assert parse_order("eos-damped:gamma=1").scores(view(eos=eos)) == pytest.approx(np.log(P))


def test_look_ahead_tries_the_best_and_draws_the_others():
    order = parse_order("lookahead-gain:n=3:temp=0.5")
    law = np.exp(P / 0.5) / np.exp(P / 0.5).sum()
    generator, n, counts = np.random.default_rng(1), 3000, np.zeros(4)
    for _ in range(n):
        tried = order.candidates(view(generator.random(4)))
        assert tried[0]
        assert 1 <= tried.sum() <= 3
        counts += tried
    wanted = 1 - (1 - law) ** 2  # drawn at least once in two draws
    assert np.abs(counts / n - wanted)[1:].max() < 4.5 * np.sqrt(0.25 / n)


def test_draws_beyond_three_per_position_change_nothing():
    for seed in range(20):
        numbers = np.random.default_rng(seed).random(4)
        enough, more = (parse_order(f"lookahead-gain:n={n}").candidates(view(numbers)) for n in (13, 10**6))
        assert enough.tolist() == more.tolist()


def test_look_ahead_without_draws_tries_the_most_probable():
    order = parse_order("lookahead-entropy:n=2:temp=0")
    assert order.candidates(view()).tolist() == [True, False, True, False]
    assert (order.seed, order.randomised) == (None, False)
    assert parse_policy("lookahead-entropy:temp=0").likelihood() == "exact"
    assert parse_policy("lookahead-entropy").likelihood() == "estimate"


def test_look_ahead_is_bypassed_when_all_are_sure():
    sure = view(p=np.array([0.9, 0.85, 0.95, 0.8]))
    for spec in ("lookahead-gain", "lookahead-gain:temp=0"):
        assert parse_order(spec).candidates(sure).tolist() == [False, False, True, False]
        assert parse_order(f"{spec}:bypass=0.81").candidates(sure).sum() > 1
    few = view(np.array([0.2, 0.7]), left=[1, 3])
    assert parse_order("lookahead-gain:n=8").candidates(few).tolist() == [True, True]


def test_every_objective_tries_the_same_positions_at_the_same_cost(hmm):
    """Only the functional differs: equal candidates in equal states, so equal counts in the first pass."""
    kinds = ("gain", "entropy", "ll", "min", "var", "recover")
    policies = [parse_policy(f"lookahead-{kind}:temp=0:bypass=1") for kind in kinds]
    sample, settings = EncodedSample("x", np.arange(5)), GenerationSettings(11, stop_at_eos=False)
    columns = generate_batch(hmm, [sample], policies, settings).columns
    counts = [columns["n_lookahead"][columns["order"] == o].tolist() for o in range(len(kinds))]
    assert all(count == counts[0] for count in counts)
    assert max(counts[0]) == 8
    paths = {tuple(columns["position"][columns["order"] == o]) for o in range(len(kinds))}
    assert len(paths) >= 4, "the objectives disagree"


def test_certain_positions_recover_certainly():
    order = parse_order("lookahead-recover")
    assert order.value(np.array([0.0, -np.log(2)])) == pytest.approx([0.0, -np.log(2)])


def test_the_running_mean_counts_what_was_revealed_and_not_what_waits():
    """Passes of several reveals, and a position that is masked again."""
    table, seen = MemoryTable(1, 4), []
    passes = [([0, 1, 2, 3], [-1.0, -2, -3, -4]), ([2, 3], [-5.0, -6]), ([1, 3], [-7.0, -8]), ([1], [-9.0])]
    for forward, (left, y) in enumerate(passes):
        one = view(
            left=left, forward=forward, p=np.exp([y[left.index(i)] if i in left else 0 for i in range(4)])
        )
        memory = table.at(np.zeros(1, int), one.chain_R, one.offset_R)
        seen.append(np.array(revealed(one.seeing(one.stats, memory)))[:, 0].tolist())
        memory.commit()
    assert seen[0] == [0, 0, 0]
    assert seen[1] == pytest.approx([2, -3, 5])
    assert seen[2] == pytest.approx([3, -8, 30]), "position 1 is masked again and stays in the sum"
    assert seen[3] == pytest.approx([4, -16, 94])


def test_gain_counts_the_position_itself_and_lookum_does_not():
    seen = view().with_extras({"entropy_after": np.array([1.0, np.nan, 1.2, 0.0])})
    assert parse_order("lookahead-gain").scores(seen)[[0, 2, 3]] == pytest.approx([-1.9, -2.0, -1.7])
    assert parse_order("lookahead-entropy").scores(seen)[[0, 2, 3]] == pytest.approx([-1.0, -1.2, 0.0])
    assert parse_order("lookahead-entropy").scores(seen)[1] < -1e5


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("gumbel-prob:scale=x", "scale must be a finite number of at least 0"),
        ("gumbel-prob:scale=inf", "scale must be a finite number of at least 0"),
        ("gumbel-prob:loud", "'loud' is not understood; allowed are scale=VALUE, a seed"),
        ("gumbel-prob:1:2", "'2' is not understood"),
        ("gumbel-prob:scale=1:scale=2", "once each"),
        ("gumbel-prob:9999999999999999999", "at most 18 digits"),
        ("sampled-position:by=luck", "by must be prob or margin or entropy"),
        ("sampled-position:temp=0", "temp must be a finite number of at least"),
        ("position-content:3", "allowed are lambda=VALUE, alpha=VALUE, frequencies=VALUE"),
        ("position-content:alpha=0", "alpha must be a finite number of at least"),
        (
            "position-content:frequencies=/nowhere.json",
            "frequencies=/nowhere.json: No such file or directory; check the path",
        ),
        ("eos-damped:gamma=2", "gamma must be a number between"),
        ("lookahead-gain:n=1", "n must be a number between 2"),
        ("lookahead-gain:n=2.5", "n must be a whole number"),
        ("lookahead-entropy:temp=0:4", "takes no seed"),
        ("lookahead-entropy:bypass=", "'bypass=' is not understood"),
        ("lookahead-recover:sigma=0", "sigma must be a number between 0.001 and 1,000"),
        ("lookahead-var:sigma=1", "'sigma=1' is not understood; allowed are n=VALUE"),
        ("defer:tau=-1", "tau must be a finite number of at least 0"),
        ("level:mu=0.5", "mu must be a number between"),
    ],
)
def test_a_wrong_argument_gets_one_line(spec, message):
    with pytest.raises(UserInputError, match=message) as caught:
        parse_order(spec)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["[]", "{", '{"num_token": 3, "p_baseline_dict": {"a": 1}}', '{"num_token": 3, "p_baseline_dict": 4}'],
)
def test_a_file_that_is_no_table_of_frequencies_is_named(tmp_path, text):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(UserInputError, match=r"bad.json must be a JSON object with 'num_token'"):
        parse_order(f"position-content:frequencies={path}")
    path.write_text('{"num_token": 3, "p_baseline_dict": {"1": 0}}')
    with pytest.raises(UserInputError, match="counts that are not positive"):
        parse_order(f"position-content:frequencies={path}")


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("gumbel-prob:3:scale=1.0", "gumbel-prob:3"),
        ("gumbel-prob:scale=4.50", "gumbel-prob:scale=4.5:0"),
        ("sampled-position:temp=0.1:by=entropy", "sampled-position:by=entropy:0"),
        ("lookahead-gain:n=4:temp=0", "lookahead-gain:n=4:temp=0"),
        ("lookahead-recover:temp=0:sigma=0.50", "lookahead-recover:sigma=0.5:temp=0"),
        ("defer:tau=0.90", "defer"),
        ("level:mu=-2.0", "level:mu=-2"),
        ("maskgit:5", "gumbel-prob:5+cosine=12"),
        ("info-gain", "lookahead-gain:0+unanimous=0.8"),
    ],
)
def test_specs_are_canonical(text, spec):
    policy = parse_policy(text)
    assert policy.spec == spec
    assert parse_policy(policy.spec).spec == spec
