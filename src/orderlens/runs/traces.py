"""The trace tables ``reveals`` and ``revisions``, from the columns that a decoder hands on.

Built with numpy from the decoder's arrays; Arrow comes last. Does not know files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from orderlens.decode.events import Columns
from orderlens.models.protocol import Model
from orderlens.rules.policy import Policy
from orderlens.store.schema import LOG_PROB_COLUMNS, table_schema
from orderlens.texts.samples import EncodedSample


@dataclass(frozen=True, slots=True)
class TraceLabels:
    """What is the same for every row of a decoding call."""

    samples: Sequence[EncodedSample]
    orders: Sequence[Policy]
    temperature: float | None
    sample_seed: int | None


def reveal_table(columns: Columns, labels: TraceLabels, model: Model, float_type: pa.DataType) -> pa.Table:
    """Return the ``reveals`` table of ``columns``.

    Args:
        columns: equal-length arrays; ``sample`` and ``order`` index into ``labels``, the rest are named as
            in the schema. Rows must be sorted so that each trace is contiguous and in step order.
        labels: ids, seeds and temperature.
        model: tells EOS and special tokens apart from content.
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
        "n_tied": pa.array(columns["n_tied"], pa.int32(), mask=columns["n_tied"] < 1),
        "n_committed": pa.array(columns["n_committed"], pa.int32()),
        "n_lookahead": pa.array(columns["n_lookahead"], pa.int32())
        if "n_lookahead" in columns
        else pa.nulls(n_rows, pa.int32()),
    }
    return pa.table(data)


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
    return pa.nulls(n_rows, kind) if values is None else pa.array(values).cast(kind)
