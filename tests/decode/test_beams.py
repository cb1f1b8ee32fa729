"""Order-Token Search: kept texts, scores and costs against a plain second implementation."""

from __future__ import annotations

import numpy as np
import pytest

import orderlens as ol
from orderlens.common.rng import draw_stream, keyed_generator
from orderlens.common.temperature import TemperatureSchedule
from orderlens.decode.batches import BatchLimit
from orderlens.decode.generate import GenerationSettings, generate_batch
from orderlens.errors import UserInputError
from orderlens.models.hmm import HiddenMarkovModel
from orderlens.rules import parse_policy
from orderlens.testing import StubModel, write_small
from orderlens.texts.samples import EncodedSample

BLOCK, NEW, SEED = 6, 14, 5
SAMPLES = [EncodedSample(f"s{i}", keyed_generator(i, "p").integers(0, 20, 3 + 2 * i)) for i in range(3)]


def model(attention="block-causal"):
    return HiddenMarkovModel(seed=2, n_states=4, block_size=BLOCK, attention=attention, incoherence=0.5)


def drawn(log_p, heat, number):
    """One token by inversion of the tempered distribution."""
    weight = np.exp((log_p - log_p.max()) / heat)
    return int(np.searchsorted(np.cumsum(weight), number * weight.sum(), side="right"))


class Beam:
    """A path: its text, its score, its reveals and passes."""

    def __init__(self, text, score=0.0, reveals=(), passes=0):
        self.text, self.score, self.reveals, self.passes = text.copy(), score, list(reveals), passes

    def step(self, chain, places, numbers, heat, top):
        """Commit the ``top`` most probable drawn tokens of a pass; return all of them."""
        log_p = chain.log_probs(self.text)
        draws = {i: drawn(log_p[i], heat, numbers[i]) for i in places if self.text[i] == chain.mask_id}
        for i in sorted(draws, key=lambda i: (-log_p[i, draws[i]], i))[:top]:
            self.text[i] = draws[i]
            self.reveals.append((i, draws[i], float(log_p[i, draws[i]])))
        self.passes += 1
        return draws


def slow_beams(chain, sample, spec, width, top, heat):
    """Return the best path and the number of states that the model evaluated."""
    start, total = len(sample.prompt), len(sample.prompt) + NEW
    end = -(-total // BLOCK) * BLOCK
    blank = np.full(end, chain.mask_id)
    blank[:start] = sample.prompt
    beams, states = [Beam(blank) for _ in range(width)], 0
    for block, low in enumerate(range(start - start % BLOCK, end, BLOCK)):
        seen = low + BLOCK if chain.attention == "block-causal" else end

        def numbered(stream, low=low):
            return dict(enumerate(stream.random(BLOCK), start=low))

        drafts = []
        for j, beam in enumerate(beams):
            text = beam.text[:seen]
            places = [i for i in range(low, low + BLOCK) if text[i] == chain.mask_id]
            later = [i for i in range(low + BLOCK, seen) if text[i] == chain.mask_id]
            states += 1
            for i in range(width):
                key = f"{spec}/{j * width + i}" if j * width + i else spec
                stream = draw_stream(SEED, sample.id, key, block)
                own = Beam(text, beam.score, beam.reveals, beam.passes)
                draft = own.step(chain, places, numbered(stream), heat, top)
                log_p, guess = chain.log_probs(text), text.copy()
                numbers = keyed_generator(SEED, sample.id, key, "draft", block).random(len(later))
                for place, number in zip(later, numbers, strict=True):
                    guess[place] = drawn(log_p[place], heat, number)
                log_p = chain.log_probs(guess)
                states += bool(later)
                own.score += sum(log_p[i, token] for i, token in draft.items() if i < total)
                drafts.append((own, places, stream))
        beams = []
        for own, places, stream in sorted(drafts, key=lambda draft: -draft[0].score)[:width]:
            while (own.text[places] == chain.mask_id).any():
                own.step(chain, places, numbered(stream), heat, top)
                states += 1
            text = np.concatenate((own.text, blank[len(own.text) :]))
            beams.append(Beam(text, own.score, own.reveals, own.passes))
    return beams[0], states


@pytest.mark.parametrize("attention", ["block-causal", "full"])
@pytest.mark.parametrize(("width", "top", "heat"), [(2, 2, 0.7), (3, 1, 1.0), (1, 2, 0.4)])
def test_the_best_drafts_are_kept(attention, width, top, heat):
    chain = model(attention)
    rule = f"max-prob+top={top}" if top > 1 else "max-prob"
    policy = parse_policy(f"{rule}+beams={width}")
    found = generate_batch(chain, SAMPLES, [policy], GenerationSettings(NEW, heat, SEED, stop_at_eos=False))
    for done in found.chains:
        best, states = slow_beams(chain, SAMPLES[done.sample], rule, width, top, heat)
        mine = {
            name: values[found.columns["sample"] == done.sample] for name, values in found.columns.items()
        }
        assert done.tokens.tolist() == best.text.tolist()
        assert mine["position"].tolist() == [i for i, _, _ in best.reveals]
        assert mine["logq"] == pytest.approx([y for _, _, y in best.reveals], abs=1e-9)
        assert mine["step"].tolist() == list(range(len(best.reveals)))
        n_passes = len(np.unique(mine["forward"]))
        assert n_passes == best.passes
        assert n_passes + mine["n_lookahead"].sum() == states


@pytest.mark.parametrize("attention", ["block-causal", "full"])
def test_a_network_keeps_the_same_drafts(attention, tmp_path):
    """Rows of a torch model are hidden states, which are taken apart on its device."""
    pytest.importorskip("torch")
    write_small(tmp_path / "model", attention=attention, block_size=BLOCK)
    chain, heat = ol.load_model(str(tmp_path / "model"), device="cpu"), 0.8
    policy = parse_policy("max-prob+top=2+beams=2")
    found = generate_batch(chain, SAMPLES, [policy], GenerationSettings(NEW, heat, SEED, stop_at_eos=False))
    for done in found.chains:
        best, _ = slow_beams(chain, SAMPLES[done.sample], "max-prob+top=2", 2, 2, heat)
        assert done.tokens.tolist() == best.text.tolist()


def test_one_beam_is_the_plain_policy():
    orders = ["max-prob+top=2", "max-prob+top=2+beams=1"]
    made = generate_batch(
        model(), SAMPLES, [parse_policy(o) for o in orders], GenerationSettings(NEW, 0.8, 3)
    )
    plain, one = (
        {name: values[made.columns["order"] == p] for name, values in made.columns.items()} for p in range(2)
    )
    for name in ("token_id", "position", "logq", "forward", "n_lookahead"):
        assert plain[name] == pytest.approx(one[name], abs=1e-9)


def test_a_path_that_has_ended_stays_among_the_drafts():
    """Ends are likely: the sum of log p prefers them, as every sum over tokens does."""
    logits = np.zeros((6, 6))
    logits[:, 5] = -1e9  # the mask
    chain = StubModel(logits, block_size=2, eos_ids=(4,))
    samples = [EncodedSample(f"s{i}", np.arange(2)) for i in range(12)]
    found = generate_batch(
        chain, samples, [parse_policy("forced-ar+beams=2")], GenerationSettings(12, 1.0, 7)
    )
    assert len({done.stop for done in found.chains}) > 1
    for done in found.chains:
        mine = found.columns["sample"] == done.sample
        text = done.tokens[2 : done.stop]
        assert found.columns["token_id"][mine].tolist() == text.tolist()
        assert (4 in text) == (done.finish_reason == "eos")
        states = len(text) + int(found.columns["n_lookahead"][mine].sum())
        assert len(text) < states <= 2 * 12


@pytest.mark.parametrize(
    "spec", ["random+beams=2", "lookahead-entropy:temp=0:n=3+beams=2", "order-token-search"]
)
@pytest.mark.parametrize("attention", ["block-causal", "full"])
def test_texts_do_not_depend_on_the_batch(spec, attention, forgetful):
    chain, policies = model(attention), [parse_policy(spec), parse_policy("random+best=2:sum")]
    settings = GenerationSettings(NEW, 0.8, 3)
    whole = generate_batch(chain, SAMPLES, policies, settings).columns
    small = generate_batch(chain, SAMPLES, policies, settings, limit=BatchLimit(3)).columns
    make, failures = forgetful
    cut = generate_batch(make(chain, every=5), SAMPLES, policies, settings).columns
    assert failures
    alone = generate_batch(chain, SAMPLES[1:2], policies[:1], settings).columns
    mine = (whole["sample"] == 1) & (whole["order"] == 0)
    for name in ("position", "token_id", "n_lookahead", "forward"):
        assert whole[name].tolist() == small[name].tolist() == cut[name].tolist()
        assert whole[name][mine].tolist() == alone[name].tolist()


def test_blocks_without_a_gap_and_a_schedule_of_temperatures():
    chain = model("full")
    template = np.arange(18)
    template[[0, 2, 13]] = chain.mask_id  # nothing to fill in the second of three blocks
    sample = EncodedSample("g", np.zeros(0, np.int64), template=template)
    for heat in (TemperatureSchedule(0.9, 0.4), TemperatureSchedule(0.9, 0.4, by_position=True)):
        settings = GenerationSettings(18, heat, 1, stop_at_eos=False)
        made = generate_batch(chain, [sample], [parse_policy("max-prob+beams=3")], settings).columns
        assert sorted(made["position"].tolist()) == [0, 2, 13]
        # First block: 3 + 9 states and 3 in its second pass; third block: 3, and no later gap to draft.
        assert len(np.unique(made["forward"])) + made["n_lookahead"].sum() == 15 + 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: parse_policy("max-prob+beams=0"), "must be a whole number of at least 1"),
        (lambda: parse_policy("max-prob+edit=0.9+beams=2"), "leave one of them out"),
        (lambda: parse_policy("oracle-max-q+beams=2"), "sees the target and can only score"),
        (
            lambda: ol.score("hmm", ol.Sample("a", "b", "c"), "order-token-search"),
            "chooses among several texts",
        ),
        (
            lambda: ol.generate("hmm", "b", "random+beams=2"),
            "'beams' compares drawn texts; use a temperature > 0",
        ),
    ],
)
def test_refusals(call, message):
    with pytest.raises(UserInputError, match=message):
        call()
