"""``likelihood``: log-likelihoods of fixed targets by three methods, as one table. Stores nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, get_args

import pyarrow as pa

from orderlens.decode.likelihood import LogLikelihood, Method, log_likelihoods
from orderlens.errors import UserInputError
from orderlens.models.loading import load_model
from orderlens.models.protocol import Anchor, Model
from orderlens.registry import refuse_unknown
from orderlens.rules import parse_policy
from orderlens.runs.options import ModelLike, check_anchor
from orderlens.runs.request import Opt, check
from orderlens.runs.tables import text_of
from orderlens.store.frame import Frame
from orderlens.texts.samples import EncodedSample, as_samples, encode_samples

if TYPE_CHECKING:
    from orderlens.rules.catalogue import PolicyLike
    from orderlens.rules.policy import Policy
    from orderlens.texts.samples import Samples

DRAWS = 128
SCHEMA = pa.schema(
    [
        pa.field("sample_id", pa.string()),
        pa.field("method", pa.string()),
        pa.field("log_prob", pa.float64()),
        pa.field("std_error", pa.float64()),
        pa.field("n_draws", pa.int64()),
        pa.field("nats_per_token", pa.float64()),
        pa.field("n_bytes", pa.int64()),
        pa.field("bits_per_byte", pa.float64()),
    ]
)


def likelihood(
    model: ModelLike,
    samples: Samples,
    *,
    method: Literal["policy", "elbo", "mixture"] = "policy",
    policy: PolicyLike = "forced-ar",
    draws: int = DRAWS,
    seed: int = 0,
    anchor: Anchor | None = None,
) -> Frame:
    """Return the log-likelihood of each sample's target, one row per sample.

    Args:
        model: a model, or its name.
        samples: ``Sample``s with targets, or dicts with ``id``, ``prompt`` and ``target``.
        method: ``policy`` (exact, for a policy that draws nothing), ``elbo`` (the any-order bound by Monte
            Carlo over masks, as LLaDA computes it) or ``mixture`` (log of the mean of P over sampled orders).
        policy: of method ``policy``; of ``mixture`` a form of ``random``. Others refuse all but the default.
        draws: masks of ``elbo``, orders of ``mixture``.
        seed: of masks and orders.
        anchor: where the block grid starts, ``zero`` or ``prompt``; the model's own choice by default.

    Returns:
        Columns ``sample_id, method, log_prob, std_error`` (nats), ``n_draws, nats_per_token``
        (−log_prob over tokens), ``n_bytes`` of the target and ``bits_per_byte`` (NaN without bytes).
    """
    refuse_unknown("method", method, get_args(Method))
    check("draws", int, Opt("", least=1), draws)
    check("seed", int, Opt("", least=0), seed)
    chosen, loaded = _policy_of(method, policy), load_model(model)
    encoded = encode_samples(loaded, as_samples(samples), need_target=True)
    found = log_likelihoods(loaded, encoded, method, chosen, draws, seed, anchor and check_anchor(anchor))
    rows = [_row(loaded, sample, method, value) for sample, value in zip(encoded, found, strict=True)]
    return Frame.of(pa.Table.from_pylist(rows, schema=SCHEMA))


def _policy_of(method: Method, policy: PolicyLike) -> Policy:
    """Return the policy of a method; refuse one that the method would not use."""
    chosen = parse_policy(policy)
    if method == "policy":
        return chosen
    if chosen.spec == "forced-ar":  # the default
        return parse_policy("random")
    if method == "elbo" or chosen.order.id != "random":
        allowed = "takes no policy" if method == "elbo" else "takes 'random', also with a commit rule"
        raise UserInputError(f"method '{method}' {allowed}, not '{chosen.spec}'; leave out the policy")
    return chosen


def _row(model: Model, sample: EncodedSample, method: str, found: LogLikelihood) -> dict[str, object]:
    n_bytes = len((text_of(model, sample.target.tolist()) or "").encode())
    return {
        "sample_id": sample.id,
        "method": method,
        "log_prob": found.log_prob,
        "std_error": found.std_error,
        "n_draws": found.n_draws,
        "nats_per_token": -found.log_prob / len(sample.target),
        "n_bytes": n_bytes,
        "bits_per_byte": _bits(found.log_prob, n_bytes),
    }


def _bits(log_prob: float, n_bytes: int) -> float:
    return -log_prob / math.log(2) / n_bytes if n_bytes else math.nan


def averages(tables: Sequence[Frame]) -> list[dict[str, object]]:
    """Return per method: texts, mean log P with its standard error (of the draws alone), nats, bits/byte.

    Bits per byte are all bits over all bytes, as in the table ``policies``.
    """
    out: list[dict[str, object]] = []
    for table in tables:
        rows = table.to_arrow().to_pylist()
        n = len(rows)
        error = math.sqrt(sum(row["std_error"] ** 2 for row in rows)) / n
        means = {name: sum(row[name] for row in rows) / n for name in ("log_prob", "nats_per_token")}
        written = [row for row in rows if row["n_bytes"]]
        bits = _bits(sum(row["log_prob"] for row in written), sum(row["n_bytes"] for row in written))
        first = {"method": rows[0]["method"], "n": n, "n_draws": rows[0]["n_draws"]}
        out.append({**first, **means, "bits_per_byte": bits, "std_error": error})
    return out
