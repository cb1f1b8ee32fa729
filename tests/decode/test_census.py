"""The states of spans against ``score`` and plain forwards, on both kinds of attention."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import orderlens as ol
from orderlens.decode.batches import BatchLimit
from orderlens.decode.census import Span, census_batch, evaluate_spans
from orderlens.decode.measure import Replay
from orderlens.decode.score import score_batch
from orderlens.decode.target_states import plan_canvases
from orderlens.errors import ModelOutputError, UserInputError
from orderlens.metrics.census import SpanCensus
from orderlens.models.hmm import HiddenMarkovModel
from orderlens.rules import parse_policies
from orderlens.rules.orders.basic import ForcedAR
from orderlens.testing import StubModel
from orderlens.texts.samples import EncodedSample

POLICIES = (
    "forced-ar,reverse-ar,random:1,max-prob,top-margin,entropy,oracle-max-q,oracle-margin,oracle-min-q,"
    "forced-ar+top=2,max-prob+top=3,max-prob+threshold=0.3,max-prob+factor=1,lookahead-entropy,klass"
)


def odd_rule(tokens: np.ndarray, position: int) -> np.ndarray:
    """Return logits that depend on everything that is visible, without any joint distribution."""
    weights = np.sin(np.outer(np.arange(1, 8), (tokens + 2) * (np.arange(len(tokens)) + 1 + position)))
    return weights.sum(axis=1)


def model_of(attention: str) -> StubModel:
    return StubModel(odd_rule, vocab_size=8, block_size=8, attention=attention)  # type: ignore[arg-type]


def spans_of(model: Any, samples: list[EncodedSample], *places: tuple[int, int]) -> list[Span]:
    canvases = plan_canvases(model.block_size, samples, model.anchor)
    return [
        Span(sample, canvas, tuple(range(start, start + size)), f"{sample.id}@{start}")
        for sample, canvas in zip(samples, canvases, strict=True)
        for start, size in places
    ]


def encoded(name: str, n_prompt: int, n_target: int, n_suffix: int = 0) -> EncodedSample:
    text = np.random.default_rng(len(name) + n_prompt).integers(0, 7, n_prompt + n_target + n_suffix)
    return EncodedSample(
        name, text[:n_prompt], text[n_prompt : n_prompt + n_target], None, text[n_prompt + n_target :]
    )


@pytest.mark.parametrize("attention", ["block-causal", "full"])
@pytest.mark.parametrize("suffix", [0, 2])
def test_score_along_any_order_of_the_span_meets_the_states_of_the_table(attention: str, suffix: int) -> None:
    """The span is the beginning of the block's open positions: an order may reveal it first."""
    model, sample = model_of(attention), encoded("text", 10, 13, suffix)
    (table,), _ = census_batch(model, spans_of(model, [sample], (0, 5)), [])
    census = SpanCensus(table)
    for order in itertools.islice(itertools.permutations(range(5)), 0, None, 17):
        path = np.array([*order, 5])  # the block holds six open positions, the sixth comes last
        rest = (np.arange(7), np.arange(7))
        replay = Replay(ForcedAR(), recorded={("text", 0): (path, np.arange(6)), ("text", 1): rest})
        scored = score_batch(model, [sample], [replay])
        np.testing.assert_allclose(scored["logq"][:5], census.log_q(order), atol=1e-12)


@pytest.mark.parametrize("attention", ["block-causal", "full"])
def test_score_along_an_order_that_begins_with_scattered_positions_meets_their_states(attention: str) -> None:
    model, sample = model_of(attention), encoded("text", 8, 8)
    (canvas,) = plan_canvases(8, [sample], "zero")
    span = Span(sample, canvas, (2, 3, 6), "text")
    (table,), columns = census_batch(model, [span], parse_policies("forced-ar,max-prob,max-prob+top=2"))
    census = SpanCensus(table)
    for order in itertools.permutations(range(3)):  # positions before the span's first are given
        path = np.array([0, 1, *(span.offsets[place] for place in order), 4, 5, 7])
        replay = Replay(ForcedAR(), recorded={("text", 0): (path, np.arange(8))})
        scored = score_batch(model, [sample], [replay])
        np.testing.assert_allclose(scored["logq"][2:5], census.log_q(order), atol=1e-12)
    assert set(columns["position"].tolist()) == {10, 11, 14}
    assert columns["logq"][:3].sum() == pytest.approx(census.path([0, 1, 2]).log_p, abs=1e-12)


@pytest.mark.parametrize("attention", ["block-causal", "full"])
def test_a_later_span_sees_the_target_before_it_and_masks_after_it(attention: str) -> None:
    model, sample = model_of(attention), encoded("text", 3, 20, 2)
    span = spans_of(model, [sample], (8, 4))[0]
    (table,), _ = census_batch(model, [span], [])
    first = int(span.positions[0])
    text = np.concatenate([sample.prompt, sample.target, sample.suffix])
    for shown in range(15):
        canvas = np.full(span.canvas.total if attention == "full" else 24, model.mask_id)
        canvas[:first] = text[:first]
        if attention == "full" or len(canvas) > 23:
            canvas[23 : 23 + len(sample.suffix)] = sample.suffix[: len(canvas) - 23]
        revealed = [i for i in range(4) if shown >> i & 1]
        canvas[[first + i for i in revealed]] = text[[first + i for i in revealed]]
        if attention == "block-causal":
            canvas = canvas[:16]  # blocks of eight: the span is in the second
        rows = model.log_probs(canvas.tolist())
        for i in set(range(4)) - set(revealed):
            expected = rows[first + i, text[first + i]]
            assert table[shown, i] == pytest.approx(expected, abs=1e-12)


def test_rules_walk_the_states_as_score_walks_a_target_of_that_length() -> None:
    model = model_of("block-causal")
    samples = [encoded("one", 8, 7), encoded("three", 8, 7)]
    policies = parse_policies(POLICIES)
    spans = [
        Span(sample, canvas, tuple(range(7)), sample.id)
        for sample, canvas in zip(samples, plan_canvases(8, samples, "zero"), strict=True)
    ]
    tables, columns = census_batch(model, spans, policies)
    scored = score_batch(model, samples, policies)
    assert set(scored) == set(columns)
    for name in scored:
        np.testing.assert_allclose(columns[name], scored[name], atol=1e-12, err_msg=name)
    for place, table in enumerate(tables):
        census = SpanCensus(table)
        for o, policy in enumerate(policies):
            mine = (scored["sample"] == place) & (scored["order"] == o)
            assert scored["logq"][mine].sum() <= 0
            if (scored["n_committed"][mine] == 1).all():
                path = census.path((scored["position"][mine] - 8).tolist())
                assert path.log_p == pytest.approx(scored["logq"][mine].sum(), abs=1e-9), policy.spec
                assert census.worst.log_p - 1e-9 <= path.log_p <= census.best.log_p + 1e-9


def test_a_rule_that_reads_whole_distributions_has_the_log_p_of_its_path_in_the_table() -> None:
    """Its states are evaluated twice, in other batches, and a device rounds them differently."""
    calls = itertools.count()

    def rounded_rule(tokens: np.ndarray, position: int) -> np.ndarray:
        return odd_rule(tokens, position) * (1 + 1e-6 * next(calls))

    model = StubModel(rounded_rule, vocab_size=8, block_size=8)
    spans = spans_of(model, [encoded("text", 8, 8)], (0, 5))
    (table,), columns = census_batch(model, spans, parse_policies("max-prob,klass"))
    first, again = np.split(columns["logq"], 2)
    path = SpanCensus(table).log_q((columns["position"][5:] - 8).tolist())
    np.testing.assert_array_equal(again, path)
    np.testing.assert_array_equal(again, first)


def test_spans_of_different_sizes_and_canvases_are_evaluated_together() -> None:
    model = model_of("full")
    samples = [encoded("a", 8, 6), encoded("bb", 8, 14), encoded("ccc", 5, 9)]
    spans = spans_of(model, samples, (0, 3), (1, 2))
    alone = [census_batch(model, [span], [])[0][0] for span in spans]
    for one, other in zip(census_batch(model, spans, [])[0], alone, strict=True):
        np.testing.assert_array_equal(one, other)


class SmallMemory(StubModel):
    """Fails for more than a number of states per batch."""

    most = 40
    seen: list[int]

    def open_session(self) -> Any:
        session, outer = super().open_session(), self
        evaluate = session.evaluate

        def checked(states: Any) -> Any:
            outer.seen.append(len(states.slots_N))
            if len(states.slots_N) > outer.most:
                raise MemoryError
            return evaluate(states)

        session.evaluate = checked  # type: ignore[method-assign]
        return session


def test_a_batch_of_states_that_does_not_fit_is_halved_and_nothing_changes() -> None:
    model, small = model_of("block-causal"), SmallMemory(odd_rule, vocab_size=8, block_size=8)
    small.seen = []
    samples, done = [encoded("one", 8, 8), encoded("three", 8, 8)], []
    limit = BatchLimit(512)
    found, _ = census_batch(small, spans_of(small, samples, (0, 7)), [], done.append, limit)
    whole, _ = census_batch(model, spans_of(model, samples, (0, 7)), [])
    np.testing.assert_array_equal(found, whole)
    assert sum(done) == 2 * 127
    assert limit.sequences is not None
    assert limit.sequences <= 40
    assert max(small.seen) == 254


def test_only_the_first_states_of_a_span_are_evaluated_on_request() -> None:
    """Timing a few states of a large span must not cost the memory of all."""
    model, done = model_of("block-causal"), list[int]()
    span = spans_of(model, [encoded("one", 8, 8)], (0, 8))[0]
    few = evaluate_spans(model, [span], BatchLimit(64), done.append, n_states=3)
    whole = evaluate_spans(model, [span], BatchLimit(64))
    assert sum(done) == 3
    np.testing.assert_array_equal(few.target_logprob, whole.target_logprob[: 8 + 7 + 7])


@pytest.mark.parametrize("start", [0, 13])
def test_every_order_of_a_coherent_model_has_one_log_p(start: int) -> None:
    model = HiddenMarkovModel(n_states=5, n_characters=6, block_size=16)
    sample = EncodedSample("t", np.arange(4) % 6, np.arange(25) % 5)
    (table,), _ = census_batch(model, spans_of(model, [sample], (start, 8 if start else 10)), [])
    census = SpanCensus(table)
    assert census.best.log_p - census.worst.log_p <= 1e-9
    before = np.concatenate([sample.prompt, sample.target[:start]]).tolist()
    whole = np.concatenate([before, sample.target[start : start + census.size]]).tolist()
    joint = model.joint_log_prob(whole) - model.joint_log_prob(before)
    assert census.mean == pytest.approx(joint, abs=1e-9)
    assert census.mixture == pytest.approx(joint, abs=1e-9)


def test_coupling_of_sets_is_that_of_score_on_a_model_with_one_joint() -> None:
    model = HiddenMarkovModel(n_states=5, n_characters=6, block_size=8)
    samples = [ol.Sample(str(i), [1, 2, 0], [(i + k * k) % 6 for k in range(5)]) for i in range(4)]
    orders = ["max-prob+top=3", "forced-ar+top=2", "forced-ar"]
    rules = (
        ol.census(model, samples, span=5, orders=orders).rules().to_pandas().set_index(["sample_id", "order"])
    )
    scored = ol.score(model, samples, orders, couplings=9).table("couplings").to_pandas()
    expected = scored[scored["path"] == 0].groupby(["sample_id", "order"])["coupling"].sum()
    assert len(expected) == 8
    for key, value in expected.items():
        row = rules.loc[key]
        for name in ("best", "mean", "worst"):
            assert row[f"sequential_{name}"] - row["log_p"] == pytest.approx(value, abs=1e-9)
    alone = rules.xs("forced-ar", level="order")
    assert (alone["sequential_best"] == alone["log_p"]).all()


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ((0, 9), "a span from 0 to 8 crosses a block boundary at 6"),
        ((4, 6), "--start 6"),
        ((10, 8), "from 10 to 17 ends past its target of 14 tokens"),
    ],
)
def test_spans_that_do_not_fit_are_refused_with_the_remedy(place: tuple[int, int], message: str) -> None:
    model = model_of("block-causal")
    with pytest.raises(UserInputError, match=message):
        census_batch(model, spans_of(model, [encoded("text", 10, 14)], place), [])


def test_a_token_of_probability_zero_is_named() -> None:
    def rule(tokens: np.ndarray, position: int) -> np.ndarray:
        return np.where(np.arange(3) == 2, -np.inf, 0.0)

    model = StubModel(rule, vocab_size=4, block_size=8)
    sample = EncodedSample("t", np.array([1]), np.array([0, 1, 2]))
    with pytest.raises(ModelOutputError, match=r"position 3 probability zero"):
        census_batch(model, spans_of(model, [sample], (0, 3)), [])


def test_policies_that_revise_are_refused() -> None:
    model = model_of("block-causal")
    with pytest.raises(UserInputError, match="a fixed text has no path"):
        census_batch(
            model, spans_of(model, [encoded("t", 8, 6)], (0, 3)), parse_policies("max-prob+edit=0.9")
        )
