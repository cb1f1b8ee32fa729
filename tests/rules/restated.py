"""The published rules once more, in plain Python: one text, one block at a time, lists and loops.

Nothing of OrderLens's rules is used. A rule is a function of one pass that returns the places it reveals:

    rule(p, masked, block) -> places

``p[i]`` is the distribution at place i (a list), ``masked`` the masked places from left to right, and
``block`` a namespace that lives as long as the block: ``n`` places to fill, ``t`` passes so far, ``numbers``
of this pass, ``look({i: token})`` (the distributions of what is masked once i holds token), and what a rule
keeps.
"""

from __future__ import annotations

import math
from itertools import combinations
from types import SimpleNamespace


def top(p, i):
    """Return the largest probability at a place."""
    return max(p[i])


def entropy(p, i):
    """Return the Shannon entropy at a place in nats."""
    return -sum(x * math.log(x) for x in p[i] if x > 0)


def by(score, masked):
    """Return the places with the largest score first, the leftmost among equals."""
    return sorted(masked, key=lambda i: (-score(i), i))


def low_confidence(steps):
    """LLaDA: an even split, the remainder in the first steps."""

    def rule(p, masked, block):
        base, more = divmod(block.n, min(steps, block.n))
        return by(lambda i: top(p, i), masked)[: base + (block.t < more)]

    return rule


def random_order(p, masked, block):
    """One place at random: the numbers are the path's own and are given by the caller."""
    return [min(masked, key=lambda i: block.random_path.index(i))]


def margin(p, masked, block):
    """Kim et al.: the gap between the two most probable tokens, in probabilities."""
    return by(lambda i: sorted(p[i])[-1] - sorted(p[i])[-2], masked)[:1]


def fast_dllm(tau):
    """Everything with c ≥ tau, and the best."""

    def rule(p, masked, block):
        best = by(lambda i: top(p, i), masked)[0]
        return [i for i in masked if top(p, i) >= tau or i == best]

    return rule


def dinfer(tau, delta=1e-5):
    """Everything with c ≥ min(tau, max c − delta)."""

    def rule(p, masked, block):
        bound = min(tau, max(top(p, i) for i in masked) - delta)
        return [i for i in masked if top(p, i) >= bound]

    return rule


def credit(tau, alpha=0.7, gamma=0.2, beta=0.8):
    """dInfer's credit: a matrix per block, decayed, raised at the best guesses, added to the logits."""

    def rule(p, masked, block):
        for i in masked:
            mat = block.credit.setdefault(i, [0.0] * len(p[i]))
            best = p[i].index(top(p, i))
            mat[:] = [beta * c for c in mat]
            mat[best] += top(p, i) ** gamma
        fused = {
            i: [x * (1 + c) ** alpha for x, c in zip(p[i], block.credit[i], strict=True)] for i in masked
        }
        fused = {i: [x / sum(row) for x in row] for i, row in fused.items()}
        block.tokens = {i: row.index(max(row)) for i, row in fused.items()}
        return dinfer(tau)(fused, masked, block)

    return rule


def factor(f):
    """Rank r is accepted when c ≥ 1 − f/(r+1), rank 1 always; the first refusal ends it."""

    def rule(p, masked, block):
        taken = []
        for r, i in enumerate(by(lambda i: top(p, i), masked), start=1):
            if r > 1 and top(p, i) < 1 - f / (r + 1):
                break
            taken.append(i)
        return taken

    return rule


def entropy_bounded(gamma, unit=1.0):
    """The largest k with Σ H − max H ≤ gamma over the k lowest entropies, at least 1."""

    def rule(p, masked, block):
        ranked = sorted(masked, key=lambda i: (entropy(p, i), i))
        best = 1
        for k in range(1, len(ranked) + 1):
            spent = [entropy(p, i) / unit for i in ranked[:k]]
            if sum(spent) - max(spent) <= gamma:
                best = k
        return ranked[:best]

    return rule


def klass(theta, eps, history=2, steps=None):
    """c > theta and KL < eps in each of the last steps; else the even split's number of confident places."""

    def rule(p, masked, block):
        steady = []
        for i in masked:
            before = block.before.get(i)
            kl = math.inf
            if before is not None:
                kl = sum(x * math.log(x / y) for x, y in zip(p[i], before, strict=True) if x > 0)
            block.kls.setdefault(i, []).append(kl)
            block.before[i] = p[i]
            last = block.kls[i][-history:]
            if top(p, i) > theta and len(last) == history and all(value < eps for value in last):
                steady.append(i)
        base, more = divmod(block.n, min(steps or block.n, block.n))
        k = base + (block.t < more) if block.t < (steps or block.n) else 1
        return steady or by(lambda i: top(p, i), masked)[:k]

    return rule


def dilated_sure(tau, base=2):
    """DUS with put-back: a place with c < tau stays masked and joins the next level; the last takes all."""

    def rule(p, masked, block):
        levels = dilated_levels(block.n, base)
        due = [i for i in masked if any(i in level for level in levels[: block.t + 1])] or masked
        if block.t >= len(levels) - 1:
            return due
        kept = [i for i in due if top(p, i) >= tau]
        return kept or by(lambda i: top(p, i), due)[:1]

    return rule


def dilated(base=2):
    """DUS: strides n/base, n/base², …; leftovers last; a last level smaller than the one before is merged."""

    def rule(p, masked, block):
        return dilated_levels(block.n, base)[block.t]

    return rule


def dilated_levels(n, base):
    """Return the places of every level."""
    levels, seen, stride = [], set(), n // base
    while stride >= 1:
        level = [i for i in range(0, n, stride) if i not in seen]
        seen.update(level)
        levels += [level] if level else []
        stride //= base
    rest = [i for i in range(n) if i not in seen]
    levels += [rest] if rest else []
    if len(levels) > 1 and len(levels[-1]) < len(levels[-2]):
        last = levels.pop()
        levels[-1] = levels[-1] + last
    return levels


def threshold_with_floor(tau, steps, split=None):
    """LLaDA-2.0: all c > tau if at least k_t of them, else the k_t most confident."""

    def rule(p, masked, block):
        base, more = divmod(split or block.n, min(steps, split or block.n))
        k = min(max(1, base + (block.t < more)), len(masked))
        sure = [i for i in masked if top(p, i) > tau]
        return sure if len(sure) >= k else by(lambda i: top(p, i), masked)[:k]

    return rule


def hierarchy(low, tau):
    """dInfer: the best of every run of masks above low, all above tau, and the best of the block."""

    def rule(p, masked, block):
        runs = []
        for i in masked:
            if runs and runs[-1][-1] == i - 1:
                runs[-1].append(i)
            else:
                runs.append([i])
        taken = {i for i in masked if top(p, i) > tau} | {by(lambda i: top(p, i), masked)[0]}
        for run in runs:
            best = max(top(p, i) for i in run)
            taken |= {i for i in run if top(p, i) == best and best > low}
        return sorted(taken)

    return rule


def dream(steps=None, eps=1e-3):
    """Dream: floor(|M| (1 − s/t)) by entropy; a step that reveals nothing is skipped, the last takes all."""

    def rule(p, masked, block):
        n = steps or block.n
        while True:
            t = 1 + block.i * (eps - 1) / n
            s = 1 + (block.i + 1) * (eps - 1) / n
            k = int(len(masked) * (1 - s / t) + 1e-9) if block.i < n - 1 else len(masked)
            block.i += 1
            if k:
                return sorted(masked, key=lambda i: (entropy(p, i), i))[:k]

    return rule


def maskgit(steps, scale=1.0, gamma=lambda ratio: math.cos(math.pi / 2 * ratio)):
    """MaskGIT: log p + scale (1 − t/T) Gumbel; max(1, min(|M| − 1, floor(n γ(t/T)))) stay masked."""

    def rule(p, masked, block):
        ratio = (block.t + 1) / steps
        left = math.floor(block.n * gamma(ratio) + 1e-9)
        left = max(1, min(len(masked) - 1, left)) if ratio < 1 and len(masked) > 1 else 0
        noise = {i: -math.log(-math.log(block.numbers[i])) for i in masked}
        score = {i: math.log(top(p, i)) + scale * (1 - ratio) * noise[i] for i in masked}
        return by(lambda i: score[i], masked)[: len(masked) - left]

    return rule


def ancestral(steps):
    """MDLM: at step k of N every masked place is revealed with probability 1/(N − k); no empty steps.

    Told by one number per place: it is revealed at the step in which that number falls.
    """

    def rule(p, masked, block):
        block.drawn = getattr(block, "drawn", None) or list(block.numbers)
        while True:
            due = [i for i in masked if block.i / steps <= block.drawn[i] < (block.i + 1) / steps]
            block.i += 1
            if due:
                return due

    return rule


def position_content(decay, alpha, rarity=lambda token: 1.0):
    """PC-Sampler: e^(−λ i) min(−c log f, α), one per step."""

    def rule(p, masked, block):
        token = {i: p[i].index(top(p, i)) for i in masked}
        score = {i: math.exp(-decay * i) * min(top(p, i) * rarity(token[i]), alpha) for i in masked}
        return by(lambda i: score[i], masked)[:1]

    return rule


def information_gain(counts_cost):
    """Info-Gain and LookUM: mean entropy of what stays masked, with or without the entropy now."""

    def objective(p, i, after, block):
        left = sum(entropy(after, j) for j in range(len(after))) / len(after)
        return -left - (entropy(p, i) if counts_cost else 0.0)

    return objective


def whole_trace(value):
    """A number of all log-probabilities: so far (first), now, and left."""

    def objective(p, i, after, block):
        return value(block.trace, [math.log(top(p, i)), *(math.log(max(row)) for row in after)])

    return objective


def log_recovery(y, sigma):
    """g: log of the normal distribution function at logit(q) / (σ√2), by the error function."""
    q = math.exp(y)
    return math.log(0.5 * math.erfc(-math.log(q / (1 - q)) / (2 * sigma)))


def variance(values):
    """Return the population variance."""
    mean = sum(values) / len(values)
    return sum((x - mean) ** 2 for x in values) / len(values)


def kept_trace(inner):
    """Write log p of what a rule reveals into ``block.trace``."""

    def rule(p, masked, block):
        if not block.t:
            block.trace = []
        places = inner(p, masked, block)
        block.trace += [math.log(top(p, i)) for i in places]
        return places

    return rule


def leftmost_sure(tau):
    """The leftmost place with p ≥ tau, else the most probable."""

    def rule(p, masked, block):
        sure = [i for i in masked if top(p, i) >= tau]
        return sure[:1] or by(lambda i: top(p, i), masked)[:1]

    return rule


def nearest(level, at_least=2.0):
    """The place with log p nearest to a level (a function of the trace), and all with p ≥ at_least."""

    def rule(p, masked, block):
        best = by(lambda i: -abs(math.log(top(p, i)) - level(block.trace)), masked)[0]
        return [i for i in masked if i == best or top(p, i) >= at_least]

    return kept_trace(rule)


def fork_dllm(bound):
    """Everything above the bound, else the leftmost."""
    return lambda p, masked, block: [i for i in masked if top(p, i) > bound] or masked[:1]


def look_ahead(n, bypass, objective, all_at_once=True):
    """The best of the n most confident places by an objective; all or the best when all are sure."""

    def rule(p, masked, block):
        tried = by(lambda i: top(p, i), masked)[:n]
        if all(top(p, i) >= bypass for i in masked):
            return masked if all_at_once else tried[:1]
        if len(tried) == 1:
            return tried
        score = {i: objective(p, i, block.look({i: p[i].index(top(p, i))}), block) for i in tried}
        return by(lambda i: score[i], tried)[:1]

    return kept_trace(rule)


def lookum(m, k, pool, heat):
    """LookUM: m sets of k of the most certain places; one drawn by the mean entropy that it leaves."""

    def rule(p, masked, block):
        if len(masked) <= k:
            return masked
        numbers = [block.numbers[i] * 2.0**shift % 1 for shift in (0, 17, 34) for i in masked]
        sets = list(combinations(by(lambda i: -entropy(p, i), masked)[:pool], k))
        tried = []
        while sets and len(tried) < m:
            place = int(numbers[len(tried)] * len(sets))
            tried.append(sets[place])
            sets[place] = sets[0]
            sets.pop(0)
        after = [block.look({i: p[i].index(top(p, i)) for i in places}) for places in tried]
        left = [sum(entropy(rows, j) for j in range(len(rows))) / len(rows) for rows in after]
        weight = [math.exp((min(left) - h) / heat) for h in left]
        number = numbers[len(tried)] * sum(weight)
        return list(next(s for n, s in enumerate(tried) if sum(weight[: n + 1]) > number))

    return rule


def spaced(inner, g=8):
    """DUS's spacing filter: candidates best first, each at a distance from those already accepted."""

    def rule(p, masked, block):
        gap, accepted = max(2, len(masked) * g // block.n), []
        for i in by(lambda i: top(p, i), inner(p, masked, block)):
            if all(abs(i - j) >= gap for j in accepted):
                accepted.append(i)
        return sorted(accepted)

    return rule


def eos_damped(gamma, eos):
    """EOS proposals count p · γ, γ from gamma to 1 as the block fills."""

    def rule(p, masked, block):
        damping = gamma + (1 - gamma) * (block.n - len(masked)) / block.n
        score = {i: top(p, i) * (damping if p[i].index(top(p, i)) == eos else 1.0) for i in masked}
        return by(lambda i: score[i], masked)[:1]

    return rule


def new_block(n, **more):
    """Return what a rule may keep while a block lasts."""
    return SimpleNamespace(
        n=n, t=0, i=0, before={}, kls={}, credit={}, tokens={}, numbers=None, look=None, **more
    )
