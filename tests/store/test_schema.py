from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from orderlens.errors import UserInputError
from orderlens.store.rules import RULES
from orderlens.store.samples import SAMPLES_SCHEMA
from orderlens.store.schema import SCHEMA_VERSION, SCHEMAS, TRACE_KEY, conform, empty_table, parse_version

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
    "is_eos",
    "is_special",
    "is_overflow",
    "is_argmax",
    "n_tied",
    "n_committed",
    "sample_seed",
    "task",
]


def test_the_promised_columns_exist() -> None:
    assert set(REQUIRED) == set(SCHEMAS["reveals"].names)
    promised = "sample_id order seed temperature n mean var n_content content_mean content_var log_prob"
    assert set(promised.split()) <= set(SAMPLES_SCHEMA.names)


def test_every_table_has_the_trace_key() -> None:
    for schema in SCHEMAS.values():
        assert set(TRACE_KEY) <= set(schema.names)


def test_the_document_describes_every_table_and_column() -> None:
    assert f"version {SCHEMA_VERSION}" in DOCUMENT
    for name, schema in SCHEMAS.items():
        assert f"`{name}`" in DOCUMENT
        for field in schema:
            assert re.search(
                rf"^\| `{field.name}` \|.*{re.escape(field.metadata[b'meaning'].decode())}", DOCUMENT, re.M
            )
    for name in [*SAMPLES_SCHEMA.names, *RULES]:
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


def test_values_that_do_not_fit_are_refused() -> None:
    table = empty_table("outputs")
    assert conform("outputs", table).equals(table.replace_schema_metadata(None))
    row = {"sample_id": ["a"], "order": ["random"], "seed": ["x"]}
    with pytest.raises(UserInputError, match="column 'seed' does not fit int64"):
        conform("outputs", pa.table(row))
    with pytest.raises(UserInputError, match="unknown table 'nothing'"):
        empty_table("nothing")


def test_versions() -> None:
    assert parse_version("1.12") == (1, 12)
    for wrong in ("1", "a.b", None, "1.2.3"):
        with pytest.raises(UserInputError, match="is not a schema version"):
            parse_version(wrong)
