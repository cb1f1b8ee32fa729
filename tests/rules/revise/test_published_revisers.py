"""The published samplers that revise, restated plainly, against our presets on a model with known rows.

Every restatement below is a loop over one block written from the published code, without any of our rules: it
returns the block after every pass. At T > 0 it draws with the generator's keyed numbers.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from orderlens.common.rng import draw_stream, rule_stream
from orderlens.decode.generate import GenerationSettings, generate_batch
from orderlens.rules import parse_policy
from orderlens.rules.catalogue import PRESETS
from orderlens.rules.revise import BlockView
from orderlens.testing import StubModel
from orderlens.texts.samples import EncodedSample

BLOCK, VOCAB, MASK = 8, 7, 6
PROMPT, LENGTH = 3, 21
"""Blocks of 5, 8 and 8 positions to fill."""


@pytest.fixture(scope="module")
def model():
    generator = np.random.default_rng(8)
    own = generator.normal(size=(32, VOCAB - 1))
    seen = generator.normal(size=(VOCAB, 32, VOCAB - 1))

    def logits(visible, position):
        """Rows that depend on every visible token and on the distance to it; the own token, too."""
        places = np.arange(len(visible))
        return 1.5 * own[position] + 0.9 * seen[visible, (places - position) % 32].sum(axis=0)

    return StubModel(logits, vocab_size=VOCAB, block_size=BLOCK)


def restated(model, sampler, spec, temperature, seed=None):
    """Decode with a plain sampler block by block; return the canvas after every pass, and the last one."""
    canvas, history = np.arange(PROMPT) % 5, []
    for block, start in enumerate(range(0, PROMPT + LENGTH, BLOCK)):
        window = np.append(canvas, np.full(start + BLOCK - len(canvas), MASK))
        to_fill = np.flatnonzero(window == MASK)
        draws, coins = draw_stream(5, "s", spec, block), rule_stream(seed, "s", spec, block)

        def propose(window=window, to_fill=to_fill, draws=draws, coins=coins, start=start):
            """One forward pass at the places to fill: fresh tokens, all probabilities, the pass's coins."""
            log_p = model.log_probs(window.tolist())[to_fill]
            numbers, flips = draws.random(BLOCK)[to_fill - start], coins.random(BLOCK)[to_fill - start]
            if temperature == 0:
                return log_p.argmax(axis=1), np.exp(log_p), flips
            tempered = np.exp(log_p / temperature)
            shares = (tempered / tempered.sum(axis=1, keepdims=True)).cumsum(axis=1)
            fresh = (shares <= numbers[:, None]).sum(axis=1)
            return np.minimum(fresh, MASK - 1), np.exp(log_p), flips

        def apart(place, window=window, to_fill=to_fill):
            """The probability of the token at a place to fill where it alone is hidden."""
            hidden = window.copy()
            hidden[to_fill[place]] = MASK
            return float(np.exp(model.log_probs(hidden.tolist())[to_fill[place], window[to_fill[place]]]))

        propose.apart = apart

        def note(again=False, window=window):
            """Remember the whole canvas after a pass."""
            history[len(history) - again :] = [[*window.tolist(), *[MASK] * (PROMPT + LENGTH - len(window))]]

        sampler(window, to_fill, propose, note)
        canvas = window
    return history, canvas


def llada21(threshold, editing_threshold, max_post_steps=16, num_to_transfer=1):
    def sampler(window, to_fill, propose, note):
        post_steps = 0
        while True:
            active = window[to_fill] == MASK
            post_steps += not active.any()
            if post_steps > max_post_steps:
                break
            tokens, p, _ = propose()
            top, best = p.argmax(axis=1), p.max(axis=1)
            conf = np.where(active, p[np.arange(len(p)), tokens], -np.inf)
            transfer = conf > threshold
            if active.any() and transfer.sum() < num_to_transfer:
                transfer = np.isin(np.arange(len(p)), np.argsort(-conf, kind="stable")[:num_to_transfer])
            edits = ~active & (best > editing_threshold) & (top != window[to_fill])
            window[to_fill[transfer & active]] = tokens[transfer & active]
            window[to_fill[edits]] = top[edits]
            note()
            if not active.any() and not edits.any():
                break

    return sampler


def mask_predict(iterations):
    def sampler(window, to_fill, propose, note):
        n, stored = len(to_fill), np.zeros(len(to_fill))
        for counter in range(iterations):
            masked = window[to_fill] == MASK
            tokens, p, _ = propose()
            window[to_fill[masked]] = tokens[masked]
            stored[masked] = p[np.arange(n), tokens][masked]
            if counter + 1 < iterations:
                num_mask = max(1, int(n * Fraction(iterations - counter - 1, iterations)))
                window[to_fill[np.argsort(-stored, kind="stable")[n - num_mask :]]] = MASK
            note()

    return sampler


def rcr(steps, cosine=False):
    def sampler(window, to_fill, propose, note):
        n, overtime = len(to_fill), np.zeros(len(to_fill))
        for i in range(steps):
            share = np.cos(np.pi / 2 * (i + 1) / steps) if cosine else Fraction(steps - i - 1, steps)
            left = int(np.floor(n * share + 1e-12)) if cosine else int(n * share)
            masked = window[to_fill] == MASK
            tokens, p, _ = propose()
            window[to_fill[masked]] = tokens[masked]
            overtime[masked] = p[np.arange(n), tokens][masked]
            worst = np.argsort(-overtime, kind="stable")[n - left :]
            window[to_fill[worst]] = MASK
            note()
            if left == 0:
                break

    return sampler


def rcr_in_parts(steps, part, cosine=False):
    """MDPO's loop over its blocks (here the parts of one of ours); confidences of all are compared."""

    def sampler(window, to_fill, propose, note):
        n = len(to_fill)
        overtime = np.zeros(n)
        for start in range(0, n, part):
            end = min(start + part, n)
            for i in range(steps):
                masked = (window[to_fill] == MASK) & (np.arange(n) < end)
                tokens, p, _ = propose()
                window[to_fill[masked]] = tokens[masked]
                overtime[masked] = p[np.arange(n), tokens][masked]
                share = np.cos(np.pi / 2 * (i + 1) / steps) if cosine else Fraction(steps - i - 1, steps)
                left = int(np.floor((end - start) * share + 1e-12)) if cosine else int((end - start) * share)
                without_zeros = np.where(overtime == 0, 1.0, overtime)[:end]
                window[to_fill[np.argsort(-without_zeros, kind="stable")[end - left :]]] = MASK
                note()
                if not (window[to_fill] == MASK).any():
                    return

    return sampler


def remdm_current(loops, number=1):
    """PC-Sampler's loop: a pass for the probabilities of the held tokens, a pass to fill."""

    def fill(window, to_fill, propose, count):
        n, masked = len(to_fill), window[to_fill] == MASK
        tokens, p, _ = propose()
        confidence = np.where(masked, p[np.arange(n), tokens], -np.inf)
        best = np.argsort(-confidence, kind="stable")[: min(count, int(masked.sum()))]
        window[to_fill[best]] = tokens[best]

    def sampler(window, to_fill, propose, note):
        n = len(to_fill)
        for _ in range(max(1, int(n * 0.875) // number)):
            fill(window, to_fill, propose, number)
            note()
        for _ in range(loops):
            held = window[to_fill] != MASK
            _, p, _ = propose()
            current = np.where(held, p[np.arange(n), np.where(held, window[to_fill], 0)], np.inf)
            count = min(number, int(held.sum()))
            window[to_fill[np.argsort(current, kind="stable")[:count]]] = MASK
            note()
            fill(window, to_fill, propose, count)
            note()
        while (window[to_fill] == MASK).any():
            fill(window, to_fill, propose, number)
            note()

    return sampler


def p2(steps=None):
    def sampler(window, to_fill, propose, note):
        n, total = len(to_fill), steps or len(to_fill)
        for i in range(total):
            mask_index = window[to_fill] == MASK
            if not mask_index.any():
                break
            tokens, p, _ = propose()
            confidence = p[np.arange(n), tokens]
            num_to_mask = int(n * (1 - Fraction(i + 1, total)))
            to_mask = np.isin(np.arange(n), np.argsort(-confidence, kind="stable")[n - num_to_mask :])
            window[to_fill[to_mask]] = MASK
            keep = mask_index & ~to_mask
            window[to_fill[keep]] = tokens[keep]
            note()

    return sampler


def remdm_llada(loops, number=1):
    def sampler(window, to_fill, propose, note):
        n = len(to_fill)
        stored = np.full(n, np.inf)
        threshold = max(min(int(n * 7 / 8), n - 1), 1)
        remasking = [False] * threshold + [True] * loops + [False] * (n - threshold)
        for is_remasking in remasking:
            if is_remasking:  # taken back before this pass: part of the canvas that the last pass left
                worst = np.argsort(stored, kind="stable")[: min(number, int(np.isfinite(stored).sum()))]
                window[to_fill[worst]], stored[worst] = MASK, np.inf
                note(again=True)
            masked = window[to_fill] == MASK
            tokens, p, _ = propose()
            confidence = np.where(masked, p[np.arange(n), tokens], -np.inf)
            count = min(number if is_remasking else 1, int(masked.sum()))
            best = np.argsort(-confidence, kind="stable")[:count]
            window[to_fill[best]], stored[best] = tokens[best], confidence[best]
            note()

    return sampler


def loop_rates(t, s, eta, t_on=0.55, t_off=0.05, alpha_on=0.9):
    """σ and the α of both ends of a step of remdm-loop."""
    if t > t_on:
        return 0, (1 - t) * alpha_on / (1 - t_on), (1 - s) * alpha_on / (1 - t_on)
    if t <= t_off:
        return 0, 1 - t * (1 - alpha_on) / t_off, 1 - s * (1 - alpha_on) / t_off
    return eta, alpha_on, alpha_on


def remdm(kind, eta=0.0, steps=None):
    def sampler(window, to_fill, propose, note):
        n, eps = len(to_fill), 1e-5
        total = steps or n
        dt, stored = (1 - eps) / total, np.full(n, -np.inf)
        for i in range(total):
            masked = window[to_fill] == MASK
            tokens, p, coins = propose()
            t = 1 - i * dt
            alpha_t, alpha_s = 1 - t, 1 - (t - dt)
            largest = min(1, (1 - alpha_s) / alpha_t) if alpha_t > 0 else 1
            if kind == "loop":
                sigma, alpha_t, alpha_s = loop_rates(t, t - dt, eta)
            elif kind == "forward-backward":
                sigma = (alpha_s - alpha_t) / alpha_t if alpha_t > 0 else 1
            elif kind == "conf":
                weight = np.exp(stored) if np.isfinite(stored).any() else np.ones(n)
                sigma = np.where(masked, 0, weight / weight.sum() * largest)
            else:
                sigma = min(eta, largest) if kind == "cap" else eta * largest
            fill = (alpha_s - (1 - sigma) * alpha_t) / (1 - alpha_t)
            revealed, taken = masked & (coins < fill), ~masked & (coins < sigma)
            window[to_fill[revealed]] = tokens[revealed]
            stored[revealed] = -p[np.arange(n), tokens][revealed]
            window[to_fill[taken]], stored[taken] = MASK, -np.inf
            note()
        if (window[to_fill] == MASK).any():
            masked = window[to_fill] == MASK
            tokens, _, _ = propose()
            window[to_fill[masked]] = tokens[masked]
            note()

    return sampler


def hierarchy_remask(low, threshold, remask=0.4):
    def sampler(window, to_fill, propose, note):
        n = len(to_fill)
        while (window[to_fill] == MASK).any():
            mask_index = window[to_fill] == MASK
            tokens, p, _ = propose()
            conf = p[np.arange(n), tokens]
            again = (conf < remask) & ~mask_index
            mask_new = mask_index | again
            transfer = np.zeros(n, bool)
            for i in range(n):
                if mask_new[i] and (i == 0 or not mask_new[i - 1]):
                    stop = next((j for j in range(i, n) if not mask_new[j]), n)
                    transfer[i + conf[i:stop].argmax()] = True
            transfer = mask_new & ((transfer & (conf > low)) | (conf > threshold))
            gap = again.sum() + 1 - transfer.sum()
            if gap > 0:
                transfer[np.argsort(-np.where(mask_new & ~transfer, conf, -np.inf), kind="stable")[:gap]] = (
                    True
                )
            window[to_fill[transfer]] = tokens[transfer]
            window[to_fill[again & ~transfer]] = MASK
            note()

    return sampler


def wino(threshold, threshold_back):
    def sampler(window, to_fill, propose, note):
        n, last_accept = len(to_fill), 30
        while (masked := window[to_fill] == MASK).any():
            max_accept = min(max(int(masked.sum()) * 7 // 10, 5), 20)
            tokens, p, _ = propose()
            conf = np.where(masked, p[np.arange(n), tokens], -np.inf)
            wanted = min(max(int((conf > threshold).sum()), 1), max_accept)
            accepted = np.argsort(-conf, kind="stable")[:wanted]
            back = np.array([np.inf if masked[i] else propose.apart(i) for i in range(n)])
            worst = [i for i in np.argsort(back, kind="stable") if back[i] < threshold_back]
            worst = np.array(worst[: last_accept - 1] if wanted > 1 else [], int)
            window[to_fill[accepted]] = tokens[accepted]
            window[to_fill[worst]], last_accept = MASK, wanted
            note()

    return sampler


SAMPLERS = {
    "max-prob+above=0.95+edit=0.9": llada21(0.95, 0.9),
    "max-prob+above=0.5+edit=0": llada21(0.5, 0.0),
    "max-prob+above=0.7+edit=0.5": llada21(0.7, 0.5),
    "max-prob+above=0.3+edit=0.4:2": llada21(0.3, 0.4, 2),
    "max-prob+mask-predict=10": mask_predict(10),
    "max-prob+mask-predict=3": mask_predict(3),
    "max-prob+rcr=16": rcr(16),
    "max-prob+rcr=3:cosine": rcr(3, cosine=True),
    "max-prob+rcr=6:cosine": rcr(6, cosine=True),
    "max-prob+rcr=3:linear:3": rcr_in_parts(3, 3),
    "max-prob+rcr=4:cosine:4": rcr_in_parts(4, 4, cosine=True),
    "max-prob+refine-current=6": remdm_current(6),
    "max-prob+refine-current=5:2": remdm_current(5, 2),
    "random:0+remdm-fb": remdm("forward-backward"),
    "random:3+remdm-fb=20": remdm("forward-backward", steps=20),
    "max-prob+p2": p2(),
    "max-prob+p2=3": p2(3),
    "max-prob+refine=32": remdm_llada(32),
    "max-prob+refine=5:2": remdm_llada(5, 2),
    "random:0+remdm-cap": remdm("cap", 0.008),
    "random:4+remdm-cap=30:0.3": remdm("cap", 0.3, 30),
    "random:0+remdm-rescale": remdm("rescale", 0.015),
    "random:0+remdm-rescale=12:0.6": remdm("rescale", 0.6, 12),
    "random:0+remdm-conf": remdm("conf"),
    "random:2+remdm-conf=25": remdm("conf", steps=25),
    "random:0+remdm-loop": remdm("loop", 0.02),
    "random:0+remdm-loop=40:0.1": remdm("loop", 0.1, 40),
    "random:0+remdm-loop=2": remdm("loop", 0.02, 2),
    "max-prob+hierarchy-remask=0.4:0.9": hierarchy_remask(0.4, 0.9),
    "max-prob+hierarchy-remask=0.2:0.5:0.7": hierarchy_remask(0.2, 0.5, 0.7),
    "max-prob+wino=0.6:0.9": wino(0.6, 0.9),
    "max-prob+wino=0.1:0.8": wino(0.1, 0.8),
}


def replayed(generation):
    """Return the canvas after every pass, from the reveals and revisions of a single chain."""
    (done,), columns, revisions = generation.chains, generation.columns, generation.revisions
    events = [*zip(columns["forward"], columns["position"], columns["token_id"], strict=True)]
    if revisions:
        events += zip(revisions["forward"], revisions["position"], revisions["new_token"], strict=True)
    canvas, history = [*(np.arange(PROMPT) % 5).tolist(), *[MASK] * LENGTH], []
    for forward in range(done.n_passes):
        for _, position, token in (event for event in events if event[0] == forward):
            canvas[position] = int(token)
        history.append(list(canvas))
    return history


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("spec", SAMPLERS)
def test_every_canvas_is_that_of_the_published_sampler(model, spec, temperature):
    policy = parse_policy(spec)
    sample, settings = EncodedSample("s", np.arange(PROMPT) % 5), GenerationSettings(LENGTH, temperature, 5)
    generation = generate_batch(model, [sample], [policy], settings)
    expected, text = restated(model, SAMPLERS[spec], policy.spec, temperature, policy.seed)
    assert generation.chains[0].tokens.tolist() == text.tolist()
    assert replayed(generation) == expected


def test_revisions_happen_in_these_fixtures(model):
    """The comparison above means something: every kind of rule takes back or edits here."""
    quiet = {
        "random:0+remdm-cap", "random:0+remdm-rescale", "random:0+remdm-loop", "random:0+remdm-loop=2",
        "max-prob+mask-predict=3", "max-prob+above=0.95+edit=0.9",
    }  # fmt: skip
    sample, settings = EncodedSample("s", np.arange(PROMPT) % 5), GenerationSettings(LENGTH, 1.0, 5)
    specs = sorted(set(SAMPLERS) - quiet)
    generation = generate_batch(model, [sample], [parse_policy(spec) for spec in specs], settings)
    changed = {specs[o] for o in generation.revisions["order"]}
    assert changed == set(specs)


def test_every_preset_that_revises_is_among_the_fixtures():
    revising = {name for name in PRESETS.names() if parse_policy(name).revise is not None}
    assert {parse_policy(name).spec for name in revising} <= set(SAMPLERS)
    assert {
        "llada2.1",
        "remdm",
        "remdm-rescale",
        "remdm-conf",
        "remdm-loop",
        "rcr",
        "p2",
        "mask-predict",
    } <= revising
    for name in revising:
        preset = PRESETS.get(name)
        assert preset.source
        assert preset.reading
        assert preset.differs


def view_at(spec, n, forward, masked=None, uniforms=None):
    """A block of n positions at its pass ``forward``, without a model."""
    offset, zero = np.arange(n), np.zeros(n, np.int64)
    masked = np.ones(n, bool) if masked is None else masked
    logq = np.where(masked, np.nan, np.log(0.5))
    flat = np.full(n, np.log(0.5))
    one = np.array([n])
    return parse_policy(spec).revise, BlockView(
        zero, offset, offset, masked, zero, logq, logq, zero, flat, None, one * 0 + forward, one, None,
        lambda: uniforms,
    )  # fmt: skip


@pytest.mark.parametrize(("n", "steps"), [(48, 12), (24, 24), (32, 7), (5, 9), (1, 1)])
def test_counts_are_whole_numbers_not_products_of_floats(n, steps):
    for t in range(steps):
        rule, view = view_at(f"max-prob+p2={steps}", n, t)
        assert rule.left_C(view).tolist() == [int(n * (1 - Fraction(t + 1, steps)))]
    rule, view = view_at("max-prob+rcr=3:cosine", 32, 1)
    assert rule.left_C(view).tolist() == [16]  # cos(π/3) is ½


@pytest.mark.parametrize("spec", ["remdm-cap=50:0.05", "remdm-rescale=50:0.3", "remdm-loop=50:0.05"])
def test_the_revealed_share_follows_the_grid_whatever_is_taken_back(spec):
    n, generator = 20_000, np.random.default_rng(0)
    masked, taken = np.ones(n, bool), 0
    for forward in range(50):
        rule, view = view_at(f"random+{spec}", n, forward, masked, generator.random(n))
        plan = rule.revise(view)
        taken += plan.remask_R.sum()
        masked = masked & ~plan.commit_R | plan.remask_R
        s = 1 - (forward + 1) / 50
        share = s
        if spec.startswith("remdm-loop"):
            t = s + 1 / 50
            share = 0.1 if 0.05 < t <= 0.55 else 1 - (1 - s) * 0.9 / 0.45 if t > 0.55 else s * 0.1 / 0.05
        assert masked.mean() == pytest.approx(max(share, 0), abs=0.03)
    assert taken > 100
