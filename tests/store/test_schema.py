from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

import orderlens
from orderlens.errors import UserInputError
from orderlens.store.codec import DERIVED, full_schema
from orderlens.store.query import _TYPES
from orderlens.store.samples import SAMPLES_SCHEMA
from orderlens.store.schema import (
    SCHEMA_VERSION,
    SCHEMAS,
    TRACE_KEY,
    TRACE_TABLES,
    conform,
    empty_table,
)

DOCUMENT = (Path(__file__).parents[2] / "docs" / "schema.md").read_text()
REQUIRED = [
    "sample_id",
    "order",
    "seed",
    "temperature",
    "block",
    "step",
    "position",
    "token_id",
    "logq",
    "max_logprob",
    "second_logprob",
    "entropy",
    "target_logprob",
    "competitor_logprob",
    "tempered_logq",
    "self_certainty",
    "is_eos",
    "is_special",
    "is_overflow",
    "is_argmax",
    "is_seed",
    "n_tied",
    "n_committed",
    "n_lookahead",
    "forward",
    "sample_seed",
    "task",
]


def test_the_promised_columns_exist() -> None:
    assert set(REQUIRED) == set(SCHEMAS["reveals"].names)
    promised = "sample_id order seed temperature n mean var n_content content_mean content_var log_prob"
    assert set(promised.split()) <= set(SAMPLES_SCHEMA.names)


def test_every_table_of_traces_has_the_trace_key() -> None:
    for name in TRACE_TABLES:
        assert set(TRACE_KEY) <= set(SCHEMAS[name].names)
    assert set(SCHEMAS) - set(TRACE_TABLES) == {
        "census",
        "census_texts",
        "documents",
        "external",
        "tokens",
    }  # of no trace


def test_no_other_module_writes_a_schema_of_a_stored_table() -> None:
    """Schemas are in one place; elsewhere only computed, exported or derived ones are built."""
    source = Path(orderlens.__file__).parent
    found = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if "pa.schema(" in path.read_text()
    }
    derived = {f"store/{name}.py" for name in ("codec", "export", "frame", "samples", "sources")}
    derived |= {"show/viewer/cascades.py", "runs/likelihood.py"}
    assert found <= {"store/schema.py", *derived}


def test_sql_has_a_type_for_every_column() -> None:
    for name, schema in SCHEMAS.items():
        assert {field.type for field in full_schema(name, schema)} <= set(_TYPES)


def test_the_document_describes_every_table_and_column() -> None:
    assert f"version {SCHEMA_VERSION}" in DOCUMENT
    for name, schema in SCHEMAS.items():
        assert f"`{name}`" in DOCUMENT
        for field in schema:
            assert re.search(
                rf"^\| `{field.name}` \|.*{re.escape(field.metadata[b'meaning'].decode())}", DOCUMENT, re.M
            )
    for name in [*SAMPLES_SCHEMA.names, *DERIVED]:
        assert f"`{name}`" in DOCUMENT


def test_conform_adds_casts_and_keeps() -> None:
    table = pa.table(
        {
            "extra": [1],
            "sample_id": ["a"],
            "order": ["random"],
            "block": [0],
            "step": [0],
            "position": [0],
            "token_id": pa.array([3], pa.int64()),
            "logq": pa.array([-1.0], pa.float64()),
        }
    )
    full = conform("reveals", table)
    assert full.column_names == [*SCHEMAS["reveals"].names, "extra"]
    assert full.schema.field("token_id").type == pa.int32()
    assert full.schema.field("entropy").type == pa.float64()
    assert full["task"].null_count == 1
    assert full["forward"].to_pylist() == [0]
    assert full["n_committed"].to_pylist() == [1]


def test_sets_without_their_passes_are_refused() -> None:
    table = pa.table({"step": [0, 1], "n_committed": [2, 2]})
    with pytest.raises(UserInputError, match="n_committed other than 1 but no column forward"):
        conform("reveals", table)


def test_revisions_have_the_precision_of_their_log_probabilities() -> None:
    row = {"sample_id": ["a"], "order": ["x"], "event": ["edit"], "forward": [3], "position": [2]}
    tokens = {"old_token": [1], "new_token": [4], "logq": pa.array([-0.5], pa.float64()), "old_logq": [-3.0]}
    full = conform("revisions", pa.table(row | tokens))
    assert full.schema.field("old_logq").type == full.schema.field("logq").type == pa.float64()


def test_values_that_do_not_fit_are_refused() -> None:
    table = empty_table("outputs")
    assert conform("outputs", table).equals(table.replace_schema_metadata(None))
    row = {"sample_id": ["a"], "order": ["random"], "seed": ["x"]}
    with pytest.raises(UserInputError, match="column 'seed' does not fit int64"):
        conform("outputs", pa.table(row))
    with pytest.raises(UserInputError, match="unknown table 'nothing'"):
        empty_table("nothing")
