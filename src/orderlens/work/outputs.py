"""The table ``outputs``: one row per scored or generated text, from what the decoder hands back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from orderlens.decode.columns import TraceLabels
from orderlens.decode.generate import Chain
from orderlens.models.protocol import Model
from orderlens.orders import Order
from orderlens.samples import EncodedSample
from orderlens.store.schema import table_schema


def scored_outputs(model: Model, labels: TraceLabels) -> pa.Table:
    """Return the rows of a scored batch: the targets."""
    rows = [
        _key(model, sample, order, labels)
        | {"token_ids": sample.target.tolist(), "text": model.tokenizer.decode(sample.target.tolist())}
        | {"n_requested": len(sample.target), "finish_reason": None}
        for sample in labels.samples
        for order in labels.orders
    ]
    return pa.Table.from_pylist(rows, schema=table_schema("outputs"))


def generated_outputs(model: Model, labels: TraceLabels, chains: Sequence[Chain]) -> pa.Table:
    """Return the rows of a generated batch; texts end at the first EOS, tokens at the requested length."""
    rows = []
    for chain in chains:
        sample, order, canvas = labels.samples[chain.sample], labels.orders[chain.order], chain.canvas
        decoded = chain.tokens[
            canvas.prompt_length : min(canvas.requested_end, canvas.prompt_length + chain.steps)
        ]
        tokens = decoded.tolist()
        text_end = next((i for i, token in enumerate(tokens) if token in model.eos_ids), len(tokens))
        row = _key(model, sample, order, labels)
        row |= {"token_ids": tokens, "text": model.tokenizer.decode(tokens[:text_end])}
        rows.append(row | {"n_requested": canvas.n_requested, "finish_reason": chain.finish_reason})
    return pa.Table.from_pylist(rows, schema=table_schema("outputs"))


def float_type(model: Model) -> pa.DataType:
    """Return the Arrow type of the model's log-probabilities."""
    return pa.float64() if model.precision == "float64" else pa.float32()


def _key(model: Model, sample: EncodedSample, order: Order, labels: TraceLabels) -> dict[str, Any]:
    return {
        "sample_id": sample.id,
        "task": sample.task,
        "order": order.label,
        "seed": order.seed,
        "temperature": labels.temperature,
        "sample_seed": labels.sample_seed,
        "prompt_ids": sample.prompt.tolist(),
        "prompt_text": model.tokenizer.decode(sample.prompt.tolist()),
    }
