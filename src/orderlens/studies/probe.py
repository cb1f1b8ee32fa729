"""``probe``: how a model depends on the order, within a stated number of forward passes, as a flat dict.

Meant for training loops: the texts are fixed, the cost is known in advance, and any logger takes the result.
It scores the texts under several orders, swaps adjacent reveals, and decodes the prompts once. Everything is
computed in this process and kept in memory. Does not depend on torch or on a trainer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from orderlens.analysis.frames import side_by_side
from orderlens.analysis.traces import sample_table
from orderlens.errors import UserInputError
from orderlens.metrics.coherence import order_range, summarise_circulation
from orderlens.metrics.estimate import Resampling
from orderlens.rules import Policy, parse_policies
from orderlens.rules.catalogue import PolicyLike
from orderlens.runs.job import generate_job, score_job
from orderlens.runs.options import Computing
from orderlens.runs.run import run_in_memory
from orderlens.store.reader import Run
from orderlens.texts.samples import Sample, Samples, as_samples, encode_samples

if TYPE_CHECKING:
    from orderlens.runs.options import ModelLike

ORDERS = ("forced-ar", "random", "max-prob")
STATES_PER_SWAP = 3
"""Forward passes that measure one swap of adjacent reveals."""


def probe(
    model: ModelLike,
    samples: Samples,
    orders: PolicyLike | Iterable[PolicyLike] = ORDERS,
    *,
    budget: int = 2000,
    swaps: int = 4,
    decode: str | None = "max-prob",
    seed: int = 0,
) -> dict[str, float]:
    """Measure how a model depends on the order, with at most ``budget`` forward passes.

    The first texts that fit into the budget are used, so that every call with the same arguments uses the
    same texts. A forward pass is one sequence through the network.

    Args:
        model: a model or its name; ``ol.wrap(network, …)`` during training.
        samples: texts with a target.
        orders: orders that reveal one token per pass; ``random`` is added where it is absent.
        budget: maximum number of forward passes.
        swaps: adjacent reveals to swap per text and order, for circulation; 0 for none.
        decode: order that decodes the prompts, for AR-ness and the EOS cascade; None for none.
        seed: of the intervals and of the chosen swaps.

    Returns:
        Numbers by name, NaN where undefined. ``order_gap`` with ``order_gap_low``, ``order_gap_high`` and
        ``order_gap_p``, ``any_order_bound`` (mean of log P/n over random orders) and ``log_prob/ORDER`` in
        nats per token. ``var/ORDER`` is Var of log q, ``circulation`` the median of |Γ| in nats. ``arness``
        and ``eos_cascade`` (tokens) belong to decoded texts, ``texts`` and ``passes`` state what was used.

    Raises:
        UserInputError: the budget does not suffice for one text, or an order does not fit.
    """
    policies = _one_token_per_pass(orders)
    options = Computing()
    loaded = options.load(model)
    texts = as_samples(samples)
    lengths = [len(item.target) for item in encode_samples(loaded, texts, need_target=True)]
    used = _affordable(lengths, len(policies), swaps, decode is not None, budget)
    scored = run_in_memory(score_job(loaded, texts[:used], policies, options, circulation=swaps))
    found = _of_scored(scored, policies, seed)
    if decode is not None:
        found |= _of_decoded(loaded, texts[:used], decode, max(lengths[:used]), options)
    passes = found.pop("passes_scored") + found.pop("passes_swapped") + found.pop("passes_decoded", 0.0)
    return found | {"texts": float(used), "passes": passes}


def _one_token_per_pass(orders: PolicyLike | Iterable[PolicyLike]) -> list[Policy]:
    """Return the parsed orders with ``random``; others than one token per pass are refused."""
    chosen = parse_policies(orders)
    for policy in chosen:
        policy.refuse_to_score()
        if "+" in policy.label or policy.looks_ahead:
            raise UserInputError(
                f"order '{policy.spec}' does not use one pass per token; probe takes orders such as "
                f"{', '.join(ORDERS)}"
            )
    if any(policy.label == "random" for policy in chosen):
        return chosen
    return [*chosen, *parse_policies("random")]


def _affordable(lengths: Sequence[int], n_orders: int, swaps: int, decodes: bool, budget: int) -> int:
    """Return how many of the first texts fit into the budget.

    Raises:
        UserInputError: not even one does.
    """
    used = 0
    for count in range(1, len(lengths) + 1):
        per_order = sum(n + STATES_PER_SWAP * min(swaps, max(n - 1, 0)) for n in lengths[:count])
        cost = n_orders * per_order + (count * max(lengths[:count]) if decodes else 0)
        if cost > budget:
            break
        used = count
    if not used:
        first = "no text" if not lengths else f"one text of {lengths[0]} tokens under {n_orders} orders"
        raise UserInputError(
            f"a budget of {budget} passes is too small for {first}; raise it or shorten the text"
        )
    return used


def _of_scored(run: Run, policies: Sequence[Policy], seed: int) -> dict[str, float]:
    """Return what the scored texts say; the gap compares orders that do not see the target."""
    frame = sample_table(run, ())
    frame["prompt"] = frame["sample_id"]
    seen = {policy.label for policy in policies if policy.needs_target}
    wide = side_by_side(frame[~frame["order"].isin(seen)], "mean")
    gap = order_range(wide.to_numpy(np.float64), Resampling(seed=seed))
    gamma = run.table("circulation").to_pandas(["gamma"])["gamma"].to_numpy(np.float64)
    rings = summarise_circulation(gamma)
    return {
        "order_gap": gap.estimate.value,
        "order_gap_low": gap.estimate.low,
        "order_gap_high": gap.estimate.high,
        "order_gap_p": gap.p,
        "any_order_bound": _mean(frame[frame["order"] == "random"], "mean"),
        "circulation": rings.median_abs,
        "passes_scored": float(frame["n_passes"].sum()),
        "passes_swapped": float(STATES_PER_SWAP * len(gamma)),
        **_per_order(frame),
    }


def _per_order(frame: pd.DataFrame) -> dict[str, float]:
    out: dict[str, float] = {}
    for order in dict.fromkeys(frame["order"]):
        part = frame[frame["order"] == order]
        out |= {f"log_prob/{order}": _mean(part, "mean"), f"var/{order}": _mean(part, "var")}
    return out


def _mean(frame: pd.DataFrame, column: str) -> float:
    values = frame[column].to_numpy(np.float64)
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else math.nan


def _of_decoded(
    model: Any, texts: Sequence[Sample], order: str, length: int, options: Computing
) -> Mapping[str, float]:
    """Decode the prompts and return AR-ness and the mean length of the EOS cascade."""
    prompts = [Sample(text.id, text.prompt, suffix=text.suffix, task=text.task) for text in texts]
    job = generate_job(
        model,
        prompts,
        order,
        options,
        max_new_tokens=length,
        temperatures=[0.0],
        seed=0,
        stop_at_eos=False,
        overflow="mask",
    )
    frame = sample_table(run_in_memory(job), ("shape", "cascade"))
    return {
        "arness": _mean(frame, "local_arness_mean"),
        "eos_cascade": _mean(frame, "eos_cascade"),
        "passes_decoded": float(frame["n_passes"].sum()),
    }
