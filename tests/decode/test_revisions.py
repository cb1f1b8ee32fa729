"""Revisions: every canvas can be replayed, every log q is of the pass that chose, every text ends."""

from __future__ import annotations

import numpy as np
import pytest

import orderlens as ol
from orderlens.decode.batches import BatchLimit
from orderlens.decode.generate import GenerationSettings, generate_batch
from orderlens.decode.reference import reference_text
from orderlens.errors import ModelOutputError, PluginError, UserInputError
from orderlens.models.hmm import HiddenMarkovModel
from orderlens.rules import parse_policies, parse_policy
from orderlens.rules.policy import Policy
from orderlens.rules.revise import Moves, Revise
from orderlens.show.views.replay import canvas as canvas_after
from orderlens.testing import StubModel
from orderlens.texts.samples import EncodedSample

SPECS = [
    "max-prob+above=0.3+edit=0.2",
    "forced-ar+top=4+edit=0.3:2",
    "max-prob+p2",
    "max-prob+rcr=6",
    "max-prob+mask-predict=5",
    "max-prob+refine=6",
    "random:1+remdm-cap=20:0.2",
    "random+remdm-conf=14",
    "random+remdm-loop=20:0.1",
]


class Watched(HiddenMarkovModel):
    """Remembers the window of every pass."""

    def __init__(self, **options):
        super().__init__(seed=5, n_states=4, incoherence=3.0, **options)
        self.seen = []

    def open_session(self):
        session = super().open_session()
        evaluate = session.evaluate

        def watching(states):
            self.seen.append((int(states.starts_N[0]), states.tokens_NW[0].copy()))
            return evaluate(states)

        session.evaluate = watching
        return session


def events_of(generation, sample=0, order=0):
    """All events of one chain as (pass, position, token now, log q, kind)."""
    columns, revisions = generation.columns, generation.revisions
    mine = (columns["sample"] == sample) & (columns["order"] == order)
    names = ("forward", "position", "token_id", "logq")
    events = [(*row, "reveal") for row in zip(*(columns[name][mine] for name in names), strict=True)]
    if revisions:
        mine = (revisions["sample"] == sample) & (revisions["order"] == order)
        names = ("forward", "position", "new_token", "logq", "event")
        events += zip(*(revisions[name][mine] for name in names), strict=True)
    return sorted(events, key=lambda event: (event[0], event[1]))


@pytest.mark.parametrize(("attention", "temperature"), [("block-causal", 0.0), ("full", 1.0)])
@pytest.mark.parametrize("spec", SPECS)
def test_replaying_gives_every_canvas_that_the_model_saw(spec, temperature, attention):
    model, prompt = Watched(block_size=8, attention=attention), np.arange(5)
    settings = GenerationSettings(19, temperature, stop_at_eos=False)
    generation = generate_batch(model, [EncodedSample("s", prompt)], [parse_policy(spec)], settings)
    (done,), events = generation.chains, events_of(generation)
    assert len({(event[0], event[1]) for event in events}) == len(events), "one event per pass and position"
    canvas = np.where(np.arange(len(done.tokens)) < 5, done.tokens, model.mask_id)
    for forward, (start, window) in enumerate(model.seen):
        assert canvas[start : start + len(window)].tolist() == window.tolist()
        log_p = model.log_probs(canvas.tolist())
        for _, position, token, logq, kind in (event for event in events if event[0] == forward):
            assert (canvas[position] == model.mask_id) == (kind == "reveal")
            canvas[position] = token
            if kind != "remask":
                assert logq == pytest.approx(log_p[position, token], abs=1e-9)
    assert canvas.tolist() == done.tokens.tolist()
    assert done.n_passes == len(model.seen)


def test_a_stored_run_replays_to_its_texts(tmp_path):
    out = tmp_path / "run"
    ol.generate(
        "hmm",
        ["the ferry", "a"],
        orders=[*SPECS[::2], "llada2.1"],
        max_new_tokens=24,
        temperature=1.0,
        out=out,
    )
    run = ol.open_run(out)
    assert {"reveal", "remask", "edit"} == set(run.table("revisions").to_pandas()["event"])
    outputs = run.outputs().to_pandas().set_index(["sample_id", "order", "seed"])["token_ids"]
    passes = run.samples().to_pandas().set_index(["sample_id", "order", "seed"])["n_passes"]
    for sample in ("0", "1"):
        for trace in run.sample(sample).traces:
            key = (sample, trace.key.order, np.nan if trace.key.seed is None else trace.key.seed)
            text = [cell.token_id for cell in canvas_after(trace, trace.n_passes)]
            assert text[:24] == outputs.loc[key].tolist()
            assert passes.loc[key] >= trace.n_passes
            cells = canvas_after(trace, trace.n_passes // 2)
            assert len(cells) == len(text)
    frame = ol.Study.open(out).samples.set_index(["sample_id", "order", "seed"])["n_passes"]
    assert frame.sort_index().tolist() == passes.sort_index().tolist()


def flipping(eos=()):
    """Always prefers the next token id: no text ever settles."""

    def logits(visible, position):
        own = int(visible[position])
        row = np.zeros(5)
        row[0 if own == 5 else (own + 1) % 5] = 8.0
        return row

    return StubModel(logits, vocab_size=6, block_size=4, eos_ids=eos)


def test_a_model_that_never_settles_is_left_after_the_post_passes():
    prompts = [EncodedSample("a", np.array([1, 1])), EncodedSample("b", np.array([2, 2, 2, 2]))]
    for spec, post in (("max-prob+edit=0", 16), ("max-prob+edit=0.5:3", 3), ("max-prob+top=4+edit=0:0", 0)):
        policy = parse_policy(spec)
        generation = generate_batch(flipping(), prompts, [policy], GenerationSettings(8))
        for done, fills in zip(generation.chains, ([2, 4, 4], [4, 4]), strict=True):
            each = [-(-n // policy.commit.k) + post for n in fills]
            assert done.n_passes == sum(each)
            assert done.n_passes <= sum(policy.revise.max_passes(n) for n in fills)
            assert not (done.tokens == 5).any()


class Regret(Revise):
    """Takes everything back for ever."""

    id, summary, spec = "regret", "regret: takes everything back", "regret"

    @classmethod
    def parse(cls, values):
        return cls()

    def passes(self, n_positions):
        return 4 * n_positions

    def revise(self, view):
        return Moves(remask_R=~view.masked_R)


class Idle(Revise):
    """Never fills anything in four passes."""

    id, summary, spec, order_id = "idle", "idle: does nothing", "idle", "max-prob"

    @classmethod
    def parse(cls, values):
        return cls()

    def passes(self, n_positions):
        return 4

    def revise(self, view):
        return Moves(np.zeros(len(view), bool), np.zeros(len(view), bool))


class Coin(Revise):
    """Edits and takes back by the toss of a coin."""

    id, summary, spec, draws_proposals = "coin", "coin: edits or masks at random", "coin", False

    @classmethod
    def parse(cls, values):
        return cls()

    def passes(self, n_positions):
        return 4 * n_positions

    def is_done(self, n_full, changed):
        return not changed or n_full >= 3

    def revise(self, view):
        held, numbers = ~view.masked_R, view.uniforms_R
        return Moves(remask_R=held & (numbers > 0.8), edit_R=held & (numbers < 0.1))


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize(
    "base", ["max-prob+cosine=3", "random:1+top=2", "max-prob+klass=0.2:0.5", "max-prob+dilated", "forced-ar"]
)
def test_masks_that_come_back_suit_every_kind_of_commit_rule(base, temperature):
    model = HiddenMarkovModel(seed=5, n_states=4, block_size=6, incoherence=3.0)
    part, sample = parse_policy(base), EncodedSample("a", np.arange(4))
    policy = Policy(part.order, part.commit, Coin())
    settings = GenerationSettings(8, temperature, 2, stop_at_eos=False)
    generation = generate_batch(model, [sample], [policy], settings)
    (done,) = generation.chains
    options = {"temperature": temperature, "sample_seed": 2, "stop_at_eos": False}
    slow = reference_text(model, sample, policy, 8, **options)
    assert done.tokens.tolist() == slow.tokens.tolist()
    assert done.n_passes == slow.n_passes <= sum(policy.revise.max_passes(n) for n in (2, 6))
    assert {"remask", "reveal", "edit"} <= set(generation.revisions["event"].tolist())


def one_text(policy, model=None, **options):
    settings = GenerationSettings(8, **options)
    return generate_batch(model or flipping(), [EncodedSample("a", np.arange(4))], [policy], settings)


@pytest.mark.parametrize("rule", [Regret(), Idle()])
def test_rules_that_never_finish_end_at_their_bound(rule):
    generation = one_text(Policy(parse_policy("max-prob").order, revise=rule))
    (done,) = generation.chains
    assert done.n_passes <= 2 * rule.max_passes(4)
    assert done.n_passes == (10 if isinstance(rule, Idle) else done.n_passes)
    assert not (done.tokens == 5).any()
    assert sorted(generation.columns["position"].tolist()) == list(range(4, 12))


def test_rules_that_answer_nonsense_are_named():
    order = parse_policy("max-prob").order
    wrong = {
        "fill only masked": lambda view: Moves(~view.masked_R | (view.offset_R == 0), view.masked_R & False),
        "mask only filled": lambda view: Moves(view.masked_R & False, view.masked_R),
        "one boolean per position": lambda view: Moves(view.masked_R[:1], view.masked_R & False),
    }
    for message, plan in wrong.items():
        rule = Idle()
        rule.revise = plan
        with pytest.raises(ModelOutputError, match=f"revise rule 'idle' must return .*{message}"):
            one_text(Policy(order, revise=rule))
    rule = Regret()
    rule.revise = lambda view: Moves(None, ~view.masked_R, ~view.masked_R)
    with pytest.raises(ModelOutputError, match="edit only filled positions that it does not mask"):
        one_text(Policy(order, revise=rule))
    rule.revise = lambda view: Moves(view.masked_R)
    with pytest.raises(ModelOutputError, match=r"fill only masked positions \(none with a commit rule\)"):
        one_text(Policy(order, revise=rule))
    rule.revise = lambda view: view.no_such_field
    with pytest.raises(
        PluginError, match=r"revise rule 'regret' of '.*test_revisions' failed: AttributeError"
    ):
        one_text(Policy(order, revise=rule))


class MaskLover(StubModel):
    """Finds the mask most probable, where a token is already filled; its rows do not exclude it."""

    def row(self, visible, position):
        log_p = np.full(self.vocab_size, np.log(0.02))
        log_p[1 if visible[position] == self.mask_id else self.mask_id] = np.log(0.9)
        return log_p


def test_an_edit_never_writes_the_mask():
    model = MaskLover(np.zeros(5), block_size=4)
    generation = one_text(parse_policy("max-prob+edit=0.5"), model)
    assert not generation.revisions
    assert generation.chains[0].tokens.tolist()[4:] == [1] * 8


def eos_model(first, then):
    """Says ``first`` while position 4 is masked; then prefers ``then`` there, and 1 elsewhere."""

    def logits(visible, position):
        row = np.zeros(4)
        row[(first if visible[4] == 4 else then) if position == 4 else 1] = 9.0
        return row

    return StubModel(logits, vocab_size=5, block_size=4, eos_ids=(3,))


def test_an_eos_that_is_edited_away_ends_nothing_and_one_that_is_edited_in_ends_the_text():
    policy = parse_policy("forced-ar+edit=0.5")
    away = one_text(policy, eos_model(first=3, then=2))
    (done,) = away.chains
    assert (done.finish_reason, done.stop) == ("length", 12)
    assert done.tokens.tolist() == [0, 1, 2, 3, 2, 1, 1, 1, 1, 1, 1, 1]
    assert away.columns["token_id"][away.columns["position"] == 4].tolist() == [3], (
        "the reveal keeps its token"
    )
    assert away.revisions["event"].tolist() == ["edit"]
    (done,) = one_text(policy, eos_model(first=2, then=3)).chains
    assert (done.finish_reason, done.stop) == ("eos", 8)
    assert done.tokens.tolist()[4:] == [3, 1, 1, 1, 4, 4, 4, 4]


def test_an_eos_cascade_that_is_taken_back_does_not_end_the_text():
    """EOS everywhere while the block is empty; once a token is filled, the words are likelier."""

    def logits(visible, position):
        empty = (visible[4:8] == 4).all()
        row = np.zeros(4)
        row[3 if empty or (position == 7 and (visible[4:7] == 4).any()) else 1] = 4.0 + (position == 7) * 1.0
        return row

    model = StubModel(logits, vocab_size=5, block_size=4, eos_ids=(3,))
    plain = one_text(parse_policy("max-prob"), model).chains[0]
    assert plain.finish_reason == "eos"
    revised = one_text(parse_policy("max-prob+edit=0.5"), model)
    assert revised.chains[0].finish_reason == "length"
    assert 3 not in revised.chains[0].tokens[4:8]


def test_overflow_past_the_request_is_revised_with_its_block_and_marked():
    model = flipping()
    sample = EncodedSample("a", np.arange(4))
    generation = generate_batch(model, [sample], [parse_policy("max-prob+edit=0:2")], GenerationSettings(6))
    overflow = generation.columns["is_overflow"]
    assert sorted(generation.columns["position"][overflow].tolist()) == [10, 11]
    assert set(generation.revisions["position"].tolist()) == set(range(4, 12))


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_revisions_are_the_same_alone_in_any_batch_and_after_a_failure(temperature, forgetful):
    make, failures = forgetful
    policies = parse_policies([SPECS[0], SPECS[2], SPECS[6], "max-prob", "random:3+top=2"])
    samples = [EncodedSample(name, np.arange(n)) for name, n in (("a", 5), ("b", 7))]
    settings = GenerationSettings(11, temperature, stop_at_eos=False)
    options = {"seed": 5, "n_states": 4, "block_size": 6, "incoherence": 3.0}
    whole = generate_batch(HiddenMarkovModel(**options), samples, policies, settings)
    failing = generate_batch(make(HiddenMarkovModel(**options), every=7), samples, policies, settings)
    cut = generate_batch(HiddenMarkovModel(**options), samples, policies, settings, limit=BatchLimit(4))
    assert failures
    for other in (failing, cut):
        for name in ("position", "token_id", "forward", "step", "n_committed"):
            assert other.columns[name].tolist() == whole.columns[name].tolist()
        for name in ("event", "forward", "position", "old_token", "new_token"):
            assert other.revisions[name].tolist() == whole.revisions[name].tolist()
    told = []
    generate_batch(HiddenMarkovModel(**options), samples, policies, settings, told.append)
    assert sum(told) == len(whole.columns["position"]), "progress counts every position once"
    alone = generate_batch(HiddenMarkovModel(**options), samples[1:2], policies[1:2], settings)
    assert [event[:3] for event in events_of(alone)] == [event[:3] for event in events_of(whole, 1, 1)]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "entropy+p2",
            r"'p2' chooses the positions itself and needs order 'max-prob' .* write 'max-prob\+p2'",
        ),
        ("max-prob+top=2+rcr=4", r"without a commit rule; write 'max-prob\+rcr=4'"),
        ("max-prob:select=argmax+mask-predict", "needs order 'max-prob'"),
        ("max-prob+remdm-cap", r"needs order 'random' without a commit rule; write 'random\+remdm-cap'"),
        ("max-prob+p2=0", "'p2=0': the value must be a whole number of at least 1"),
        ("max-prob+p2=2:3", "'p2' takes one value or none"),
        ("max-prob+rcr=4:linear:0", "'rcr': PART is '0' and must be a whole number of at least 1"),
        ("max-prob+rcr=4:sine", r"linear or cosine\) .* e.g. rcr=16:cosine"),
        ("random+remdm-cap=4:2", "'remdm-cap': ETA is '2' and must be a number between 0 and 1"),
        ("random+remdm-conf=4:1", "'remdm-conf' takes one value or none"),
        ("random+remdm-loop=4:1:1", "'remdm-loop' takes up to two values"),
        ("max-prob+refine=", "'refine' takes up to two values"),
        ("max-prob+hierarchy-remask=0.4", "takes 2 to 3 values, e.g. hierarchy-remask=0.4:0.9"),
        (
            "max-prob+hierarchy-remask=0.4:2",
            "'hierarchy-remask': T is '2' and must be a number between",
        ),
        ("max-prob+wino=0.6", "'wino' takes 2 values, e.g. wino=0.6:0.9"),
        ("entropy+wino", r"needs order 'max-prob' without a commit rule; write 'max-prob\+wino=0.6:0.9'"),
        ("max-prob+edit=1.5", "'edit': TAU is '1.5' and must be a number between 0 and 1"),
        ("max-prob+edit=0.5+p2", "names two rules of one kind"),
    ],
)
def test_a_wrong_parameter_gets_one_clear_line(spec, message):
    with pytest.raises(UserInputError, match=message) as found:
        parse_policy(spec)
    assert "\n" not in str(found.value)


def test_a_planner_cannot_score_and_has_no_likelihood():
    policy = parse_policy("remdm-llada")
    assert policy.likelihood() == "none"
    with pytest.raises(UserInputError, match="score with 'max-prob' or use it with generate"):
        policy.refuse_to_score()
