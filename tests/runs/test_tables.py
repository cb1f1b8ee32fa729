"""The trace tables, from columns written by hand."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import orderlens as ol
from orderlens.rules import parse_policies
from orderlens.runs.tables import TraceLabels, reveal_table, revision_table
from orderlens.store.schema import table_schema
from orderlens.testing import StubModel
from orderlens.texts.samples import EncodedSample

MODEL = StubModel(np.zeros((1, 7)), eos_ids={5, 6}, special_ids={4})
SAMPLES = [EncodedSample("a", np.arange(2)), EncodedSample("b", np.arange(3), task="t")]
ORDERS = parse_policies(["max-prob", "random:3", "random:4+top=2"])


def labels(temperature=0.7, sample_seed=9):
    return TraceLabels(SAMPLES, ORDERS, temperature, sample_seed)


def columns(**more):
    whole = {
        "sample": [0, 0, 1, 1],
        "order": [0, 0, 2, 1],
        "block": [0, 0, 0, 1],
        "step": [0, 1, 0, 0],
        "position": [2, 3, 4, 5],
        "forward": [0, 1, 0, 0],
        "token_id": [5, 1, 4, 6],
        "top_token": [5, 2, 4, 0],
        "logq": [-0.1, -0.2, -0.3, -0.4],
        "n_tied": [1, 0, 2, 3],
        "n_committed": [1, 1, 2, 2],
    } | more
    found = {name: np.array(values) for name, values in whole.items()}
    return found | {"is_overflow": np.array([False, True, False, False])}


def test_rows_carry_the_names_of_their_sample_and_order():
    table = reveal_table(columns(), labels(), MODEL, pa.float64())
    assert table["sample_id"].to_pylist() == ["a", "a", "b", "b"]
    assert table["task"].to_pylist() == [None, None, "t", "t"]
    assert table["order"].to_pylist() == ["max-prob", "max-prob", "random+top=2", "random"]
    assert table["seed"].to_pylist() == [None, None, 4, 3]
    assert table["temperature"].to_pylist() == [0.7] * 4
    assert table["sample_seed"].to_pylist() == [9] * 4
    scored = reveal_table(columns(), labels(None, None), MODEL, pa.float32())
    assert scored["temperature"].null_count == scored["sample_seed"].null_count == 4
    assert scored.schema.field("logq").type == pa.float32()


def test_tokens_are_told_apart_and_unknown_numbers_are_null():
    table = reveal_table(columns(), labels(), MODEL, pa.float64())
    assert table["is_eos"].to_pylist() == [True, False, False, True]
    assert table["is_special"].to_pylist() == [False, False, True, False]
    assert table["is_argmax"].to_pylist() == [True, False, True, False]
    assert table["is_overflow"].to_pylist() == [False, True, False, False]
    assert table["n_tied"].to_pylist() == [1, None, 2, 3]
    assert table["logq"].to_pylist() == [-0.1, -0.2, -0.3, -0.4]
    for name in ("entropy", "target_logprob", "tempered_logq", "n_lookahead"):
        assert table[name].null_count == 4
    tried = reveal_table(columns(n_lookahead=[0, 3, 1, 2]), labels(), MODEL, pa.float64())
    assert tried["n_lookahead"].to_pylist() == [0, 3, 1, 2]
    alone = reveal_table(columns(n_lookahead=[1, 2, 0, 0]), labels(), MODEL, pa.float64())
    assert alone["n_lookahead"].to_pylist() == [1, 2, None, None]  # the second trace tried nothing ahead
    assert set(table.column_names) == set(table_schema("reveals").names)


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_a_token_taken_back_has_no_new_one_and_a_reveal_no_old_one(kind):
    events = {
        "sample": [0, 0, 1],
        "order": [0, 0, 1],
        "event": ["edit", "remask", "reveal"],
        "forward": [1, 2, 3],
        "position": [2, 3, 4],
        "old_token": [1, 2, 7],
        "new_token": [3, 7, 4],
        "logq": [-0.5, np.nan, -0.25],
        "old_logq": [-1.5, -2.5, np.nan],
    }
    table = revision_table({name: np.array(value) for name, value in events.items()}, labels(), kind)
    schema = table_schema("revisions", real=kind)
    assert (table.schema.names, table.schema.types) == (schema.names, schema.types)
    assert table["old_token"].to_pylist() == [1, 2, None]
    assert table["new_token"].to_pylist() == [3, None, 4]
    assert table["logq"].to_pylist() == [-0.5, None, -0.25]
    assert table["old_logq"].to_pylist() == [-1.5, -2.5, None]
    assert table["seed"].to_pylist() == [None, None, 3]
    assert revision_table({}, labels(), kind).num_rows == 0


def test_the_text_of_a_generated_trace_ends_at_its_first_eos():
    model = ol.load_model("hmm")
    rows = ol.generate(model, ["a", "b", "c"], "forced-ar", max_new_tokens=96, temperature=1).outputs()
    ends = set()
    for row in rows.to_arrow().to_pylist():
        tokens = row["token_ids"]
        first = next((i for i, token in enumerate(tokens) if token in model.eos_ids), len(tokens))
        ends.add(first < len(tokens))
        assert row["text"] == model.tokenizer.decode(tokens[:first])
    assert True in ends
