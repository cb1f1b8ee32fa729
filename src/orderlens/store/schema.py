"""The written schema of a run: table names, columns, types, meanings and the version.

``docs/schema.md`` is this module in prose; a test keeps the two in step. The module knows nothing about
files, models or orders.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import pyarrow as pa

from orderlens.errors import UserInputError

SCHEMA_VERSION = "1.0"
"""``major.minor``: readers refuse a newer major, migrate an older one, and keep columns of a newer minor."""

TRACE_KEY = ("task", "order", "seed", "temperature", "sample_seed", "sample_id")
"""The columns that name one trace, in the order in which parts are sorted."""

_LOG_PROBS = (
    ("logq", "log-probability of the revealed token at temperature 1, from the pass that chose the position"),
    ("max_logprob", "log-probability of the most probable token at this position"),
    ("second_logprob", "log-probability of the runner-up at this position"),
    ("entropy", "Shannon entropy of the position's distribution (nats)"),
    ("target_logprob", "log-probability of the target token (scoring)"),
    ("competitor_logprob", "log-probability of the most probable token other than the target (scoring)"),
    ("tempered_logq", "log-probability of the revealed token at the run's temperature (temperature > 0)"),
)
LOG_PROB_COLUMNS = tuple(name for name, _ in _LOG_PROBS)


def _field(name: str, kind: pa.DataType, meaning: str, *, required: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=not required, metadata={"meaning": meaning})


def _key_fields() -> list[pa.Field]:
    return [
        _field("sample_id", pa.string(), "id of the sample (the data row)", required=True),
        _field("task", pa.string(), "benchmark the sample belongs to; null outside evaluations"),
        _field("order", pa.string(), "id of the order without its seed", required=True),
        _field("seed", pa.int64(), "the order's seed; null for an order that has none"),
        _field("temperature", pa.float64(), "sampling temperature; null when scoring"),
        _field("sample_seed", pa.int64(), "seed of the token draws; null when nothing is drawn"),
    ]


def _reveals(real: pa.DataType) -> pa.Schema:
    place = [
        _field(
            "block", pa.int32(), "0 is the first block with a target or generated position", required=True
        ),
        _field("step", pa.int32(), "0…n−1 over the whole trace", required=True),
        _field("position", pa.int32(), "absolute position in the sequence (0-based)", required=True),
        _field("token_id", pa.int32(), "the revealed token", required=True),
    ]
    numbers = [_field(name, real, text, required=name == "logq") for name, text in _LOG_PROBS]
    flags = [
        _field("is_eos", pa.bool_(), "the revealed token ends the text"),
        _field("is_special", pa.bool_(), "the revealed token is a special token"),
        _field("is_overflow", pa.bool_(), "the position lies past the requested length"),
        _field("is_argmax", pa.bool_(), "the revealed token is the most probable one"),
        _field("n_tied", pa.int32(), "positions that tied for the best score, the chosen one included"),
        _field("n_committed", pa.int32(), "tokens committed by the same forward pass"),
    ]
    return pa.schema([*_key_fields(), *place, *numbers, *flags])


_OUTPUTS = [
    _field("prompt_ids", pa.list_(pa.int32()), "the prompt's tokens"),
    _field("token_ids", pa.list_(pa.int32()), "target or generated tokens in text order"),
    _field("n_requested", pa.int32(), "positions that were asked for"),
    _field("text", pa.string(), "decoded text, cut at the first EOS"),
    _field("finish_reason", pa.string(), "eos or length; null when scoring"),
    _field("prompt_text", pa.string(), "the prompt as text"),
]
_VERDICTS = [
    _field("correct", pa.bool_(), "the grader's verdict; null when it could not grade"),
    _field("extracted", pa.string(), "the answer found in the response"),
    _field("reason", pa.string(), "why the grader decided so"),
    _field("grader", pa.string(), "name and version of the grader"),
    _field("per_instruction", pa.string(), "JSON object: strict and loose verdicts by instruction (IFEval)"),
    _field("generation", pa.int32(), "0 for the first grading; a regrade counts up, and the newest counts"),
]

SCHEMAS: dict[str, pa.Schema] = {
    "reveals": _reveals(pa.float32()),
    "outputs": pa.schema([*_key_fields(), *_OUTPUTS]),
    "verdicts": pa.schema([*_key_fields(), *_VERDICTS]),
    "circulation": pa.schema(_key_fields()),
    "noise": pa.schema(_key_fields()),
}
"""Tables by name. ``circulation`` and ``noise`` carry further columns of their own."""


def table_schema(name: str, *, real: pa.DataType | None = None) -> pa.Schema:
    """Return the schema of table ``name``; ``real`` is the float type of log-probabilities (float32)."""
    if name not in SCHEMAS:
        raise UserInputError(f"unknown table '{name}' (known: {', '.join(SCHEMAS)})")
    return _reveals(real) if name == "reveals" and real is not None else SCHEMAS[name]


def empty_table(name: str) -> pa.Table:
    """Return a table of ``name`` with all its columns and no rows."""
    return table_schema(name).empty_table()


def conform(name: str, table: pa.Table) -> pa.Table:
    """Return ``table`` with the columns and types of table ``name``.

    Missing optional columns become null, unknown columns are kept at the end, and the log-probabilities stay
    float64 when ``logq`` is float64, else float32.
    """
    if name not in SCHEMAS:
        return _free_table(name, table)
    schema = table_schema(name, real=_real_type(name, table))
    _check_required(name, table, schema)
    columns = [_column(table, field) for field in schema]
    extra = [item for item in table.column_names if item not in schema.names]
    fields = [*schema, *(table.schema.field(item) for item in extra)]
    # Dropping metadata keeps the bytes of a part independent of how its table was made.
    plain = pa.schema([pa.field(item.name, item.type, item.nullable) for item in fields])
    return pa.table([*columns, *(table[item] for item in extra)], schema=plain)


def _free_table(name: str, table: pa.Table) -> pa.Table:
    """Accept a table of another kind as it is, if its name can be a folder and a view."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,40}", name) or name == "samples":
        raise UserInputError(f"'{name}' cannot be a table name; use lower-case letters, digits and _")
    return table.replace_schema_metadata(None)


def _real_type(name: str, table: pa.Table) -> pa.DataType | None:
    if name != "reveals" or "logq" not in table.column_names:
        return None
    return pa.float64() if table.schema.field("logq").type == pa.float64() else pa.float32()


def _check_required(name: str, table: pa.Table, schema: pa.Schema) -> None:
    required = [field.name for field in schema if not field.nullable]
    absent = [item for item in required if item not in table.column_names]
    if absent:
        raise UserInputError(f"table '{name}' lacks the column(s) {_listed(absent)}")
    holes = [item for item in required if table[item].null_count]
    if holes:
        raise UserInputError(f"table '{name}' has nulls in the required column(s) {_listed(holes)}")


def _column(table: pa.Table, field: pa.Field) -> pa.ChunkedArray | pa.Array:
    if field.name not in table.column_names:
        return pa.nulls(table.num_rows, field.type)
    try:
        return table[field.name].cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UserInputError(f"column '{field.name}' does not fit {field.type}: {error}") from error


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)


def parse_version(text: object) -> tuple[int, int]:
    """Return (major, minor) of a schema version such as ``"1.0"``."""
    try:
        major, minor = str(text).split(".")
        return int(major), int(minor)
    except ValueError as error:
        raise UserInputError(f"'{text}' is not a schema version of the form 1.0") from error
