"""Log-likelihoods of fixed targets: of a policy, the any-order bound, and the mixture over sampled orders.

``policy``: the sum of log q along the policy's path, which is exact if the policy draws nothing.

``elbo``: the any-order bound by Monte Carlo, as LLaDA's evaluation computes it. A draw masks k of the n
target positions, k uniform on 1…n, and counts n/k times the sum of their log-probabilities. It estimates
the mean over all orders of log P. As in LLaDA, the k of a sample's draws are spread evenly from a random
start, so the standard error is conservative. Under full attention the n positions are the whole target. A
block-causal model cannot see later blocks: it draws in every block, given the true tokens before it.

``mixture``: log of the mean of P over sampled orders.

Shape letters: K draws, B block size. Does not depend on files, text or torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from orderlens.common.rng import keyed_generator
from orderlens.decode.score import score_batch
from orderlens.decode.target_states import TargetStates, check_fits, plan_canvases
from orderlens.errors import UserInputError
from orderlens.models.protocol import Anchor, FloatArray, Model
from orderlens.rules import parse_policy
from orderlens.rules.policy import Policy
from orderlens.texts.samples import EncodedSample

Method: TypeAlias = Literal["policy", "elbo", "mixture"]
STATES = 32
"""Masked states that are evaluated in one batch."""
ORDERS = 16
"""Sampled orders that are scored in one batch."""


@dataclass(frozen=True, slots=True)
class LogLikelihood:
    """An estimate of one target's log-likelihood (nats), its standard error and its number of draws."""

    log_prob: float
    std_error: float
    n_draws: int


def log_likelihoods(
    model: Model,
    samples: Sequence[EncodedSample],
    method: Method,
    policy: Policy,
    draws: int,
    seed: int,
    anchor: Anchor | None = None,
) -> list[LogLikelihood]:
    """Return the log-likelihood of each sample's target.

    Args:
        model: any model.
        samples: encoded samples with targets.
        method: see the module.
        policy: the policy of ``policy``; ``mixture`` also takes ``random`` with a commit rule.
        draws: masks of ``elbo``, orders of ``mixture``.
        seed: of masks and orders.
        anchor: where the block grid starts; the model's own choice by default.
    """
    if method == "elbo":
        return [_elbo(model, sample, draws, seed, anchor) for sample in samples]
    if method == "mixture":
        return _mixture(model, samples, _seeded(policy, draws, seed), anchor)
    if policy.likelihood() != "exact":
        raise UserInputError(
            f"policy '{policy.spec}' has no exact likelihood ({policy.likelihood()}); choose one that draws "
            "nothing and does not see the target, or method 'mixture' for a randomised one"
        )
    return [LogLikelihood(float(value), 0.0, 1) for value in _sums(model, samples, [policy], anchor)[:, 0]]


def _sums(
    model: Model, samples: Sequence[EncodedSample], policies: Sequence[Policy], anchor: Anchor | None
) -> FloatArray:
    """Return the sum of log q of each sample under each policy [N, P]."""
    columns = score_batch(model, samples, policies, anchor)
    place = np.asarray(columns["sample"]) * len(policies) + np.asarray(columns["order"])
    sums = np.bincount(place, np.asarray(columns["logq"], np.float64), len(samples) * len(policies))
    return np.asarray(sums, np.float64).reshape(len(samples), len(policies))


def _seeded(policy: Policy, draws: int, seed: int) -> list[Policy]:
    """Return one policy per draw: ``random`` with the policy's commit rule, and consecutive seeds."""
    is_random = policy.spec.partition("+")[0].partition(":")[0] == "random"
    commit = "".join(policy.spec.partition("+")[1:]) if is_random else ""
    return [parse_policy(f"random:{seed + k}{commit}") for k in range(draws)]


def _mixture(
    model: Model, samples: Sequence[EncodedSample], policies: Sequence[Policy], anchor: Anchor | None
) -> list[LogLikelihood]:
    parts = [
        _sums(model, samples, policies[low : low + ORDERS], anchor) for low in range(0, len(policies), ORDERS)
    ]
    return [_log_mean(row) for row in np.concatenate(parts, axis=1)]


def _log_mean(log_p_K: FloatArray) -> LogLikelihood:
    """Return the log of the mean of P, with its standard error by the delta method."""
    top = float(log_p_K.max())
    p_K = np.exp(log_p_K - top)
    mean, n = float(p_K.mean()), len(p_K)
    error = float(p_K.std(ddof=1)) / mean / math.sqrt(n) if n > 1 else math.nan
    return LogLikelihood(top + math.log(mean), error, n)


def _elbo(model: Model, sample: EncodedSample, draws: int, seed: int, anchor: Anchor | None) -> LogLikelihood:
    """Return the any-order bound of one sample."""
    if model.attention == "full":  # the whole target is one block
        model, anchor = model.with_block_size(len(sample.target)), "prompt"
    canvases = plan_canvases(model.block_size, [sample], anchor or model.anchor)
    check_fits(model, [sample], canvases)
    states = TargetStates(model, [sample], canvases)
    total_K = np.zeros(draws)
    for m in range(len(states.blocks.sample_M)):
        total_K += _block_draws(states, m, draws, seed, sample.id)
    error = float(total_K.std(ddof=1)) / math.sqrt(draws) if draws > 1 else math.nan
    return LogLikelihood(float(total_K.mean()), error, draws)


def _block_draws(states: TargetStates, m: int, draws: int, seed: int, sample_id: str) -> FloatArray:
    """Return the draws [K] of one block: n/k times the sum of log p of k masked positions."""
    open_B, given_B = states.blocks.open_MB[m], states.blocks.given_MB[m]
    places, rng = np.flatnonzero(open_B), keyed_generator(seed, sample_id, "elbo", m)
    n = len(places)
    # k of all draws spread evenly over 1…n from a random start, then shuffled between draws of other blocks
    count_K = (np.floor(rng.uniform(0, n) + np.arange(draws) * n / draws).astype(np.int64) % n) + 1
    count_K = rng.permutation(count_K)
    masked_KB = np.zeros((draws, len(open_B)), bool)
    for k, count in enumerate(count_K.tolist()):
        masked_KB[k, rng.choice(places, count, replace=False)] = True
    found = np.zeros(draws)
    for low in range(0, draws, STATES):
        masked_UB = masked_KB[low : low + STATES]
        visible_UB = given_B | (open_B & ~masked_UB)
        _, stats = states.evaluate(np.full(len(masked_UB), m), visible_UB, masked_UB)
        owner_R, offset_R = np.nonzero(masked_UB)
        states.refuse_impossible(np.full(len(owner_R), m), offset_R, stats)
        found[low : low + len(masked_UB)] = np.bincount(owner_R, stats.target_logprob, len(masked_UB))
    return found * n / count_K
