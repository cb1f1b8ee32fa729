"""The tables of a unit: ``reveals`` and ``revisions``, ``outputs`` (one row per text), ``tokens``.

Built from the decoder's arrays with numpy, then converted to Arrow. Does not depend on files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orderlens.decode.chains import Chain
from orderlens.decode.passes import Columns
from orderlens.models.protocol import Model
from orderlens.rules.policy import Policy
from orderlens.store.schema import LOG_PROB_COLUMNS, table_schema
from orderlens.texts.samples import EncodedSample


@dataclass(frozen=True, slots=True)
class TraceLabels:
    """Samples, policies, temperature and seed of one decoding call."""

    samples: Sequence[EncodedSample]
    orders: Sequence[Policy]
    temperature: float | None
    sample_seed: int | None


def reveal_table(columns: Columns, labels: TraceLabels, model: Model, float_type: pa.DataType) -> pa.Table:
    """Return the ``reveals`` table of ``columns``.

    Args:
        columns: arrays of equal length; ``sample`` and ``order`` are indices into ``labels``, the other names
            are those of the schema. The rows of a trace must be contiguous and in step order.
        labels: ids, seeds and temperature.
        model: its EOS and special tokens are marked.
        float_type: precision of the log-probability columns.
    """
    n_rows = len(columns["position"])
    token = columns["token_id"]
    data: dict[str, Any] = {
        **_key_columns(columns, labels, n_rows),
        **{name: pa.array(columns[name], pa.int32()) for name in ("block", "step", "position", "token_id")},
        "forward": pa.array(columns["forward"], pa.int32()),
        **{name: _floats(columns.get(name), n_rows, float_type) for name in LOG_PROB_COLUMNS},
        "is_eos": pa.array(np.isin(token, sorted(model.eos_ids))),
        "is_special": pa.array(np.isin(token, sorted(model.special_ids))),
        "is_overflow": pa.array(columns["is_overflow"]),
        "is_argmax": pa.array(token == columns["top_token"]),
        "is_seed": pa.array(columns["is_seed"]) if "is_seed" in columns else pa.nulls(n_rows, pa.bool_()),
        "n_tied": pa.array(columns["n_tied"], pa.int32(), mask=columns["n_tied"] < 1),
        "n_committed": pa.array(columns["n_committed"], pa.int32()),
        "n_lookahead": _lookahead(columns, n_rows),
    }
    return pa.table(data)


def _lookahead(columns: Columns, n_rows: int) -> pa.Array:
    """Return the number of look-ahead states; null in traces without look-ahead."""
    if "n_lookahead" not in columns:
        return pa.nulls(n_rows, pa.int32())
    pairs = np.stack((columns["sample"], columns["order"]), axis=1)
    trace = np.unique(pairs, axis=0, return_inverse=True)[1].ravel()
    tried = np.bincount(trace, columns["n_lookahead"])
    return pa.array(columns["n_lookahead"], pa.int32(), mask=tried[trace] == 0)


def revision_table(columns: Columns, labels: TraceLabels, float_type: pa.DataType) -> pa.Table:
    """Return the ``revisions`` table of ``columns``, which may be empty."""
    schema = table_schema("revisions", real=float_type)
    if not columns:
        return schema.empty_table()
    n_rows = len(columns["position"])
    remask, reveal = columns["event"] == "remask", columns["event"] == "reveal"
    data = {
        **_key_columns(columns, labels, n_rows),
        "event": pa.array(columns["event"].tolist(), pa.string()),
        **{name: pa.array(columns[name], pa.int32()) for name in ("forward", "position")},
        "old_token": pa.array(columns["old_token"], pa.int32(), mask=reveal),
        "new_token": pa.array(columns["new_token"], pa.int32(), mask=remask),
        "logq": pa.array(columns["logq"], mask=remask).cast(float_type),
        "old_logq": pa.array(columns["old_logq"], mask=reveal).cast(float_type),
    }
    return pa.table({name: data[name] for name in schema.names})


def state_table(columns: Columns, labels: TraceLabels) -> pa.Table:
    """Return the ``states`` table of the columns of a ``StateRecorder``."""
    visible_NB, n_rows = columns["visible"], len(columns["count"])
    digits = np.where(visible_NB, b"1", b"0").view(f"S{visible_NB.shape[1]}")[:, 0]
    offsets = pa.array(np.concatenate(([0], np.cumsum(columns["count"]))), pa.int32())
    data = {
        **_key_columns(columns, labels, n_rows),
        **{name: pa.array(columns[name], pa.int32()) for name in ("block", "forward", "start")},
        "visible": pa.array(digits).cast(pa.string()),
        **{name: pa.ListArray.from_arrays(offsets, columns[name]) for name in ("top", "entropy")},
    }
    return pa.table(data)


def _key_columns(columns: Columns, labels: TraceLabels, n_rows: int) -> dict[str, Any]:
    return {
        "sample_id": _dictionary(columns["sample"], [sample.id for sample in labels.samples]),
        "task": _dictionary(columns["sample"], [sample.task for sample in labels.samples]),
        "order": _dictionary(columns["order"], [order.label for order in labels.orders]),
        "seed": _optional_ints(columns["order"], [order.seed for order in labels.orders]),
        "temperature": _constant(labels.temperature, n_rows, pa.float64()),
        "sample_seed": _constant(labels.sample_seed, n_rows, pa.int64()),
    }


def _dictionary(codes: np.ndarray[Any, Any], values: Sequence[str | None]) -> pa.Array:
    return pa.array(values, pa.string()).take(pa.array(codes, pa.int32()))


def _optional_ints(codes: np.ndarray[Any, Any], values: Sequence[int | None]) -> pa.Array:
    return pa.array(values, pa.int64()).take(pa.array(codes, pa.int32()))


def _constant(value: float | None, n_rows: int, kind: pa.DataType) -> pa.Array:
    return pa.nulls(n_rows, kind) if value is None else pa.repeat(pa.scalar(value, kind), n_rows)


def _floats(values: np.ndarray[Any, Any] | None, n_rows: int, kind: pa.DataType) -> pa.Array:
    return pa.nulls(n_rows, kind) if values is None else pa.array(values, from_pandas=True).cast(kind)


def scored_outputs(model: Model, labels: TraceLabels) -> pa.Table:
    """Return the rows of ``outputs`` of a scored batch: the targets."""
    rows = []
    for sample, shared in zip(labels.samples, _sample_columns(model, labels), strict=True):
        tokens = sample.target.tolist()
        text = {"token_ids": tokens, "text": text_of(model, tokens)}
        text |= {"n_requested": len(tokens), "finish_reason": None}
        rows += [shared | _policy_key(order) | text for order in labels.orders]
    return pa.Table.from_pylist(rows, schema=table_schema("outputs"))


def generated_outputs(model: Model, labels: TraceLabels, chains: Sequence[Chain]) -> pa.Table:
    """Return the rows of ``outputs`` of a generated batch.

    ``text`` ends at the first EOS token, ``token_ids`` at the requested length.
    """
    rows, shared = [], _sample_columns(model, labels)
    for chain in chains:
        canvas = chain.canvas
        tokens = chain.tokens[canvas.prompt_length : min(canvas.requested_end, chain.stop)].tolist()
        text_end = next((i for i, token in enumerate(tokens) if token in model.eos_ids), len(tokens))
        row = shared[chain.sample] | _policy_key(labels.orders[chain.order])
        row |= {"token_ids": tokens, "text": text_of(model, tokens[:text_end])}
        row |= {"n_requested": canvas.n_requested, "finish_reason": chain.finish_reason}
        rows.append(row | {"n_passes": chain.n_passes})
    return pa.Table.from_pylist(rows, schema=table_schema("outputs"))


def token_table(model: Model, tables: Mapping[str, pa.Table], pieces: dict[int, str | None]) -> pa.Table:
    """Return the text of every token id in a unit's tables, so that readers need no tokenizer.

    ``pieces`` is a cache that units share, because decoding many single ids is slow.
    """
    columns = [
        _flat(tables[name][item])
        for name in _TOKEN_COLUMNS
        if name in tables
        for item in _TOKEN_COLUMNS[name]
    ]
    ids = np.unique(np.concatenate([pc.drop_null(column).to_numpy() for column in columns])).tolist()
    pieces |= {token: storable(model.tokenizer.decode([token])) for token in ids if token not in pieces}
    return pa.table(
        {"token_id": ids, "piece": [pieces[token] for token in ids]}, schema=table_schema("tokens")
    )


_TOKEN_COLUMNS = {
    "reveals": ("token_id",),
    "outputs": ("prompt_ids", "token_ids"),
    "revisions": ("old_token", "new_token"),
}


def _flat(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.list_flatten(column) if pa.types.is_list(column.type) else column


def storable(text: str | None) -> str | None:
    """Return ``text`` without lone surrogates, which UTF-8 cannot encode."""
    return None if text is None else text.encode("utf-8", "replace").decode()


def text_of(model: Model, ids: Sequence[int]) -> str | None:
    """Return the text of ``ids``; None for a model without a tokenizer, whose ids have no bytes to count."""
    known = getattr(model.tokenizer, "has_text", True)
    return storable(model.tokenizer.decode(ids)) if known else None


def float_type(model: Model) -> pa.DataType:
    """Return the Arrow type of the model's log-probabilities."""
    return pa.float64() if model.precision == "float64" else pa.float32()


def _sample_columns(model: Model, labels: TraceLabels) -> list[dict[str, Any]]:
    """Return the columns that depend only on the sample, one dict per sample."""
    return [
        {
            "sample_id": sample.id,
            "task": sample.task,
            "temperature": labels.temperature,
            "sample_seed": labels.sample_seed,
            "prompt_ids": sample.prompt.tolist(),
            "prompt_text": storable(model.tokenizer.decode(sample.prompt.tolist())),
            "suffix_text": storable(model.tokenizer.decode(sample.suffix.tolist()))
            if len(sample.suffix)
            else None,
        }
        for sample in labels.samples
    ]


def _policy_key(policy: Policy) -> dict[str, Any]:
    return {"order": policy.label, "seed": policy.seed}
