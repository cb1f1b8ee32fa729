"""A rule treats every chain as if it were alone: whatever shares the pass, at whatever pass it stands."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from orderlens.rules import parse_policy
from orderlens.rules.catalogue import COMMITS
from orderlens.rules.revise import BlockView
from orderlens.rules.stats import PositionStats
from orderlens.rules.view import MemoryTable, StepView

BLOCK = 9
LOSSES = Path(__file__).parents[1] / "support" / "losses.json"
COMMIT_SPECS = {
    "top": "top=2",
    "steps": "steps=4",
    "cosine": "cosine=5",
    "dream": "dream=6",
    "ancestral": "ancestral=5",
    "threshold": "threshold=0.6",
    "above": "above=0.7:5",
    "near": "near=0.8:0.05",
    "credit": "credit=0.5",
    "unanimous": "unanimous=0.3",
    "factor": "factor=1",
    "bound": "bound=0.8",
    "klass": "klass=0.3:0.4:1",
    "power": "power=4",
    "schedule": f"schedule=4:{LOSSES}",
    "dilated": "dilated",
    "dilated-sure": "dilated-sure=0.5",
    "spaced": "threshold=0.4+spaced=4",
    "hierarchy": "hierarchy=0.3:0.8",
    "lookahead-sets": "lookahead-sets=3",
}
PLANNERS = [
    "max-prob+mask-predict=4",
    "max-prob+rcr=4",
    "max-prob+p2=5",
    "max-prob+rcr=3:linear:3",
    "max-prob+refine=3:2",
    "max-prob+refine-current=3:2",
    "max-prob+wino=0.5:0.8",
    "max-prob+hierarchy-remask=0.4:0.8",
    "random+remdm-conf=6",
    "random+remdm-cap=6",
    "random+remdm-rescale=6",
    "random+remdm-loop=6",
]


def number(*key):
    """One repeatable number in [0, 1) per (chain, pass, offset, purpose)."""
    return np.random.default_rng(list(key)).random()


class World:
    """Chains of different sizes whose statistics depend on chain, pass and offset alone."""

    def __init__(self, sizes, delays):
        self.sizes, self.delays = sizes, delays

    def stats(self, chains, offsets, passes):
        keys = list(zip(chains, passes, offsets, strict=True))
        top = np.array([0.2 + 0.79 * number(*key, 0) for key in keys])
        second = (1 - top) * np.array([number(*key, 1) for key in keys])
        entropy = np.array([2 * number(*key, 2) for key in keys])
        token = np.array([int(5 * number(*key, 3)) for key in keys])
        return PositionStats(token, np.log(top), np.log(second), entropy, np.full(len(keys), -np.inf))


def select(rule, world, members, memory, state, chain_pass):
    """One pass of the given chains; returns what each of them reveals."""
    rows = [(place, chain, offset) for place, chain in enumerate(members) for offset in sorted(state[chain])]
    place = np.array([row[0] for row in rows])
    chain = np.array([row[1] for row in rows])
    offset = np.array([row[2] for row in rows])
    passes = np.array([chain_pass[c] for c in chain])
    stats = world.stats(chain, offset, passes)
    filling = np.array([world.sizes[c] for c in members])
    count = np.array([len(state[c]) for c in members])
    keys = list(zip(chain, passes, offset, strict=True))
    uniforms = np.array([number(*key, 4) for key in keys])
    kl = np.array([number(*key, 5) if key[1] else np.inf for key in keys])

    def logprob_of(row, token):
        pairs = zip(row, token, strict=True)
        return np.log([0.05 + 0.1 * number(*keys[r], 6, int(t)) for r, t in pairs])

    def entropy_after(sets):
        return np.array([np.mean([number(*keys[r], 7) for r in rows]) for rows in sets])

    view = StepView(
        place, offset + 40, offset, np.zeros(len(members), np.int64), filling - count,
        np.array([chain_pass[c] for c in members]), filling, stats,
        memory.at(np.array(members), place, offset), lambda: uniforms,
    ).with_extras({"kl_previous": kl}, logprob_of, entropy_after)  # fmt: skip
    pick = rule.pick(view, stats.top_logprob)
    view.memory.commit()
    tokens = (
        stats.top_token if pick.token_R is None else np.where(pick.token_R < 0, stats.top_token, pick.token_R)
    )
    taken = {}
    for c in members:
        mine = pick.chosen_R & (chain == c)
        taken[c] = [(int(o), int(t)) for o, t in zip(offset[mine], tokens[mine], strict=True)]
        assert taken[c], "at least one position in every chain"
    return taken


def decode(rule, world, chains):
    """Reveal everything, pass by pass; a chain joins after its delay and leaves when it is full."""
    memory = MemoryTable(len(world.sizes), BLOCK)
    state = {c: set(range(world.sizes[c])) for c in chains}
    history = {c: [] for c in chains}
    chain_pass, clock = dict.fromkeys(chains, 0), 0
    while any(state.values()):
        members = [c for c in chains if state[c] and clock >= world.delays[c]]
        clock += 1
        if not members:
            continue
        for c, taken in select(rule, world, members, memory, state, chain_pass).items():
            history[c].append(taken)
            state[c] -= {offset for offset, _ in taken}
            chain_pass[c] += 1
    return history


@pytest.mark.parametrize("name", COMMIT_SPECS)
def test_commit_rules(name):
    rule = parse_policy(f"max-prob+{COMMIT_SPECS[name]}").commit
    world = World(sizes=[9, 1, 6, 4], delays=[0, 2, 1, 0])
    together = decode(rule, world, [0, 1, 2, 3])
    for chain in range(4):
        alone = decode(rule, World(world.sizes, [0] * 4), [chain])
        assert together[chain] == alone[chain], chain
        shown = [offset for taken in together[chain] for offset, _ in taken]
        assert sorted(shown) == list(range(world.sizes[chain])), "every position once"


def test_every_commit_rule_is_among_them():
    assert set(COMMIT_SPECS) == set(COMMITS.names())


def block_pass(rule, world, members, memory, held, chain_pass):
    """One pass of a planner over the whole blocks of the given chains."""
    rows = [(p, c, o) for p, c in enumerate(members) for o in range(world.sizes[c])]
    place, chain, offset = (np.array([row[i] for row in rows]) for i in range(3))
    passes = np.array([chain_pass[c] for c in chain])
    stats = world.stats(chain, offset, passes)
    token = np.array([held[c].get(int(o), (-1, np.nan))[0] for c, o in zip(chain, offset, strict=True)])
    logq = np.array([held[c].get(int(o), (-1, np.nan))[1] for c, o in zip(chain, offset, strict=True)])
    keys = list(zip(chain, passes, offset, strict=True))
    masked = token < 0

    def apart(judged):
        return np.where(judged, np.log([0.3 + 0.69 * number(*key, 7) for key in keys]), np.nan)

    view = BlockView(
        place, offset + 40, offset, masked, token,
        np.where(masked, np.nan, np.log([0.01 + 0.98 * number(*key, 8) for key in keys])),
        logq, stats.top_token, stats.top_logprob, stats, np.array([chain_pass[c] for c in members]),
        np.array([world.sizes[c] for c in members]), memory.at(np.array(members), place, offset),
        lambda: np.array([number(*key, 4) for key in keys]), apart,
    )  # fmt: skip
    plan = rule.revise(view)
    view.memory.commit()
    assert not (plan.commit_R & ~masked).any()
    assert not (plan.remask_R & masked).any()
    for row, (_, c, o) in enumerate(rows):
        if plan.commit_R[row]:
            held[c][o] = (int(stats.top_token[row]), float(stats.top_logprob[row]))
        elif plan.remask_R[row]:
            del held[c][o]
        elif plan.edit_R is not None and plan.edit_R[row]:
            held[c][o] = (int(stats.top_token[row]), held[c][o][1])
    return {c: dict(held[c]) for c in members}


def plan_all(rule, world, chains, n_passes):
    memory = MemoryTable(len(world.sizes), BLOCK)
    held, history = {c: {} for c in chains}, {c: [] for c in chains}
    chain_pass = dict.fromkeys(chains, 0)
    for clock in range(n_passes + max(world.delays)):
        members = [c for c in chains if clock >= world.delays[c] and chain_pass[c] < n_passes]
        if not members:
            continue
        for c, now in block_pass(rule, world, members, memory, held, chain_pass).items():
            history[c].append(now)
            chain_pass[c] += 1
    return history


@pytest.mark.parametrize("spec", PLANNERS)
def test_planners(spec):
    rule = parse_policy(spec).revise
    assert rule.order_id == spec.partition("+")[0].partition(":")[0]
    world = World(sizes=[9, 1, 6, 4], delays=[0, 2, 1, 0])
    together = plan_all(rule, world, [0, 1, 2, 3], 4)
    for chain in range(4):
        alone = plan_all(rule, World(world.sizes, [0] * 4), [chain], 4)
        assert together[chain] == alone[chain], chain


@pytest.mark.parametrize(("spec", "steps"), [("mask-predict=4", 4), ("p2=4", 4), ("rcr=4", 4)])
def test_how_many_stay_masked_after_each_pass(spec, steps):
    """n − floor(…) in whole numbers, for every size up to a block."""
    rule = parse_policy(f"max-prob+{spec}").revise
    for n in range(1, BLOCK + 1):
        (history,) = plan_all(rule, World([n], [0]), [0], steps).values()
        left = [n - len(held) for held in history]
        if spec.startswith("mask-predict"):
            assert left == [max(1, n * (steps - t) // steps) if t < steps else 0 for t in range(1, steps + 1)]
        else:
            assert left == [n * (steps - t) // steps for t in range(1, steps + 1)]
