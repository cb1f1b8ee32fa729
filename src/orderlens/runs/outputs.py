"""The tables besides the traces: ``outputs`` (one row per text) and ``tokens`` (the text of token ids)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orderlens.decode.chains import Chain
from orderlens.models.protocol import Model
from orderlens.rules import Policy
from orderlens.runs.traces import TraceLabels
from orderlens.store.schema import table_schema


def scored_outputs(model: Model, labels: TraceLabels) -> pa.Table:
    """Return the rows of a scored batch: the targets."""
    rows = []
    for sample, given in zip(labels.samples, _given(model, labels), strict=True):
        tokens = sample.target.tolist()
        said = {"token_ids": tokens, "text": storable(model.tokenizer.decode(tokens))}
        said |= {"n_requested": len(tokens), "finish_reason": None}
        rows += [given | _policy_key(order) | said for order in labels.orders]
    return pa.Table.from_pylist(rows, schema=table_schema("outputs"))


def generated_outputs(model: Model, labels: TraceLabels, chains: Sequence[Chain]) -> pa.Table:
    """Return the rows of a generated batch; texts end at the first EOS, tokens at the requested length."""
    rows, given = [], _given(model, labels)
    for chain in chains:
        canvas = chain.canvas
        tokens = chain.tokens[canvas.prompt_length : min(canvas.requested_end, chain.stop)].tolist()
        text_end = next((i for i, token in enumerate(tokens) if token in model.eos_ids), len(tokens))
        row = given[chain.sample] | _policy_key(labels.orders[chain.order])
        row |= {"token_ids": tokens, "text": storable(model.tokenizer.decode(tokens[:text_end]))}
        row |= {"n_requested": canvas.n_requested, "finish_reason": chain.finish_reason}
        rows.append(row | {"n_passes": chain.n_passes})
    return pa.Table.from_pylist(rows, schema=table_schema("outputs"))


def token_table(model: Model, tables: Mapping[str, pa.Table], pieces: dict[int, str | None]) -> pa.Table:
    """Return the text of every token id that a unit's rows hold, so that reading them needs no tokenizer.

    ``pieces`` remembers texts from unit to unit: decoding a hundred thousand ids one by one takes a while.
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
    """Return ``text`` without lone surrogates, which no UTF-8 file can hold."""
    return None if text is None else text.encode("utf-8", "replace").decode()


def float_type(model: Model) -> pa.DataType:
    """Return the Arrow type of the model's log-probabilities."""
    return pa.float64() if model.precision == "float64" else pa.float32()


def _given(model: Model, labels: TraceLabels) -> list[dict[str, Any]]:
    """Return, for each sample, what all its rows say, whatever the policy."""
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
