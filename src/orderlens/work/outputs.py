"""The tables besides the traces: ``outputs`` (one row per text) and ``tokens`` (the text of token ids)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from orderlens.decode.chains import Chain
from orderlens.models.protocol import Model
from orderlens.policies import Policy
from orderlens.samples import EncodedSample
from orderlens.store.schema import table_schema
from orderlens.work.traces import TraceLabels


def scored_outputs(model: Model, labels: TraceLabels) -> pa.Table:
    """Return the rows of a scored batch: the targets."""
    rows = []
    for sample in labels.samples:
        tokens = sample.target.tolist()
        said = {"token_ids": tokens, "text": storable(model.tokenizer.decode(tokens))}
        said |= {"n_requested": len(tokens), "finish_reason": None}
        rows += [_key(model, sample, order, labels) | said for order in labels.orders]
    return pa.Table.from_pylist(rows, schema=table_schema("outputs"))


def generated_outputs(model: Model, labels: TraceLabels, chains: Sequence[Chain]) -> pa.Table:
    """Return the rows of a generated batch; texts end at the first EOS, tokens at the requested length."""
    rows = []
    for chain in chains:
        sample, order, canvas = labels.samples[chain.sample], labels.orders[chain.order], chain.canvas
        tokens = chain.tokens[canvas.prompt_length : min(canvas.requested_end, chain.stop)].tolist()
        text_end = next((i for i, token in enumerate(tokens) if token in model.eos_ids), len(tokens))
        row = _key(model, sample, order, labels)
        row |= {"token_ids": tokens, "text": storable(model.tokenizer.decode(tokens[:text_end]))}
        row |= {"n_requested": canvas.n_requested, "finish_reason": chain.finish_reason}
        rows.append(row | {"n_forwards": chain.n_forwards})
    return pa.Table.from_pylist(rows, schema=table_schema("outputs"))


def token_table(model: Model, tables: Mapping[str, pa.Table]) -> pa.Table:
    """Return the text of every token id that a unit's rows hold, so that reading them needs no tokenizer."""
    ids: set[Any] = set()
    for name, columns in _TOKEN_COLUMNS.items():
        if name in tables:
            for column in columns:
                ids |= set(_flat(tables[name][column]).unique().to_pylist())
    known = sorted(ids - {None})
    rows = {"token_id": known, "piece": [storable(model.tokenizer.decode([token])) for token in known]}
    return pa.table(rows, schema=table_schema("tokens"))


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


def _key(model: Model, sample: EncodedSample, order: Policy, labels: TraceLabels) -> dict[str, Any]:
    return {
        "sample_id": sample.id,
        "task": sample.task,
        "order": order.label,
        "seed": order.seed,
        "temperature": labels.temperature,
        "sample_seed": labels.sample_seed,
        "prompt_ids": sample.prompt.tolist(),
        "prompt_text": storable(model.tokenizer.decode(sample.prompt.tolist())),
        "suffix_text": storable(model.tokenizer.decode(sample.suffix.tolist()))
        if len(sample.suffix)
        else None,
    }
