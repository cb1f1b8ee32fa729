"""The written schema of a run: every stored table with its columns, types and meanings, and the version.

``docs/schema.md`` is this module in prose; a test keeps the two in step. The module knows nothing about
files, models or orders.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from orderlens.errors import UserInputError

SCHEMA_VERSION = "1.0"
"""Runs of any other version are refused."""

TRACE_KEY = ("task", "order", "seed", "temperature", "sample_seed", "sample_id")
"""The columns that name one trace, in the order in which parts are sorted."""
SORT_KEYS: dict[str, tuple[str, ...]] = {"reveals": ("step",), "revisions": ("forward", "position")}
"""By what the rows of one trace are sorted, where a trace has many."""
EVENTS = ("remask", "edit", "reveal")
"""What ``revisions`` tells: a token taken back, one replaced, and a reveal that was taken back later."""

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
"""Log-probabilities of ``reveals``."""
REAL_COLUMNS = frozenset((*LOG_PROB_COLUMNS, "old_logq"))
"""Columns of ``reveals`` and ``revisions`` that are float64 for float64 models and float32 for others."""


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


def _reveals() -> list[pa.Field]:
    place = [
        _field(
            "block", pa.int32(), "0 is the first block with a target or generated position", required=True
        ),
        _field("step", pa.int32(), "0…n−1 over the whole trace", required=True),
        _field(
            "forward",
            pa.int32(),
            "forward pass of its trace that committed the token (0-based)",
            required=True,
        ),
        _field("position", pa.int32(), "absolute position in the sequence (0-based)", required=True),
        _field("token_id", pa.int32(), "the revealed token", required=True),
    ]
    numbers = [_field(name, pa.float32(), text, required=name == "logq") for name, text in _LOG_PROBS]
    flags = [
        _field("is_eos", pa.bool_(), "the revealed token ends the text"),
        _field("is_special", pa.bool_(), "the revealed token is a special token"),
        _field("is_overflow", pa.bool_(), "the position lies past the requested length"),
        _field("is_argmax", pa.bool_(), "the revealed token is the most probable one"),
        _field("n_tied", pa.int32(), "positions that tied for the best score, the chosen one included"),
        _field("n_committed", pa.int32(), "tokens committed by the same forward pass"),
        _field(
            "n_lookahead",
            pa.int32(),
            "states that this pass evaluated ahead, told by the first token of its set and 0 for the others; "
            "null where nothing looks ahead",
        ),
    ]
    return [*place, *numbers, *flags]


_REVISIONS = [
    _field(
        "event",
        pa.string(),
        "remask (taken back), edit (replaced by another token) or reveal (filled, and taken back later)",
        required=True,
    ),
    _field("forward", pa.int32(), "forward pass of its trace in which it happened (0-based)", required=True),
    _field("position", pa.int32(), "absolute position in the sequence (0-based)", required=True),
    _field("old_token", pa.int32(), "the token that stood there; null for a reveal"),
    _field("new_token", pa.int32(), "the token that stands there now; null for a remask"),
    _field(
        "logq",
        pa.float32(),
        "log-probability of the new token in the pass that chose it; null for a remask",
    ),
    _field("old_logq", pa.float32(), "log-probability of the old token in that same pass; null for a reveal"),
]
_OUTPUTS = [
    _field("prompt_ids", pa.list_(pa.int32()), "the prompt's tokens"),
    _field("token_ids", pa.list_(pa.int32()), "target or generated tokens in text order"),
    _field("n_requested", pa.int32(), "positions that were asked for"),
    _field("text", pa.string(), "decoded text, cut at the first EOS"),
    _field("finish_reason", pa.string(), "eos or length; null when scoring"),
    _field("prompt_text", pa.string(), "the prompt as text"),
    _field("suffix_text", pa.string(), "given text after the target; null where there is none"),
    _field(
        "n_passes",
        pa.int32(),
        "forward passes of a policy that revises, those that changed nothing included; null for others",
    ),
]
_VERDICTS = [
    _field("correct", pa.bool_(), "the grader's verdict; null when it could not grade"),
    _field("extracted", pa.string(), "the answer found in the response"),
    _field("reason", pa.string(), "why the grader decided so"),
    _field("grader", pa.string(), "name and version of the grader"),
    _field("per_instruction", pa.string(), "JSON object: strict and loose verdicts by instruction (IFEval)"),
    _field("generation", pa.int32(), "0 for the first grading; a regrade counts up, and the newest counts"),
]
_CIRCULATION = [
    _field("block", pa.int32(), "block of the measured pair"),
    _field("step", pa.int32(), "step at which i is revealed; j follows at the next one"),
    _field("position_i", pa.int32(), "position that the order reveals first"),
    _field("position_j", pa.int32(), "position that the order reveals next"),
    _field("distance", pa.int32(), "|position_j − position_i|"),
    _field("mask_ratio", pa.float64(), "masked share of the block before both"),
    _field("logp_i", pa.float64(), "log p of i's token with neither revealed"),
    _field("logp_j_given_i", pa.float64(), "log p of j's token once i is revealed"),
    _field("logp_j", pa.float64(), "log p of j's token with neither revealed"),
    _field("logp_i_given_j", pa.float64(), "log p of i's token once j is revealed"),
    _field("gamma", pa.float64(), "(logp_i + logp_j_given_i) − (logp_j + logp_i_given_j)"),
]
_COUPLINGS = [
    _field("block", pa.int32(), "block of the set"),
    _field("forward", pa.int32(), "forward pass of its trace that committed the set (0-based)"),
    _field("size", pa.int32(), "tokens of the set"),
    _field("n_sets", pa.int32(), "sets of two or more tokens in the trace, of which this one was drawn"),
    _field("path", pa.int32(), "how it is revealed one by one: 0 as in the trace, 1 backwards, then drawn"),
    _field("positions", pa.list_(pa.int32()), "the set's positions as this path reveals them"),
    _field("logq", pa.list_(pa.float64()), "log q of each of them in the pass that committed the set"),
    _field(
        "sequential",
        pa.list_(pa.float64()),
        "log p of each of them once those before it are revealed",
    ),
    _field("coupling", pa.float64(), "Σ sequential − Σ logq"),
    _field("joint_coupling", pa.float64(), "the same from the model's joint; null for a model that has none"),
    _field("entropy_bound", pa.float64(), "Σ entropy − max entropy of the set in that pass"),
]
_NOISE = [
    _field(
        "perturbation", pa.string(), "what was changed in the second scoring: batch-size, cache or a dtype"
    ),
    _field("log_prob", pa.float64(), "sum of log q over the held path"),
    _field("log_prob_perturbed", pa.float64(), "the same sum, scored with the perturbation"),
    _field("n", pa.int32(), "reveals in the sums"),
]
_ENDINGS = [
    _field("ending", pa.int32(), "index of the candidate ending (0-based)"),
    _field("n_bytes", pa.int32(), "UTF-8 bytes of the ending"),
    _field("token_logprobs", pa.list_(pa.float64()), "log-probability of each of its tokens"),
]
_DOCUMENTS = [
    _field("task", pa.string(), "benchmark the document belongs to"),
    _field("sample_id", pa.string(), "id of the sample (the data row)"),
    _field("document", pa.string(), "the graded document as JSON"),
]
_EXTERNAL = [
    _field("evaluator", pa.string(), "name of the evaluator"),
    _field("text_key", pa.string(), "digest of a prompt and its continuation"),
    _field("logprobs", pa.list_(pa.float64()), "log-probability of each token of the continuation"),
]

_TOKENS = [
    _field("token_id", pa.int32(), "a token that occurs in the unit (ids repeat between units)"),
    _field("piece", pa.string(), "its text, decoded alone"),
]

TRACE_TABLES: dict[str, list[pa.Field]] = {
    "reveals": _reveals(),
    "revisions": _REVISIONS,
    "outputs": _OUTPUTS,
    "verdicts": _VERDICTS,
    "circulation": _CIRCULATION,
    "couplings": _COUPLINGS,
    "noise": _NOISE,
    "endings": _ENDINGS,
}
"""Tables whose rows belong to a trace, with their columns besides the key."""

SCHEMAS: dict[str, pa.Schema] = {
    **{name: pa.schema([*_key_fields(), *fields]) for name, fields in TRACE_TABLES.items()},
    "documents": pa.schema(_DOCUMENTS),
    "external": pa.schema(_EXTERNAL),
    "tokens": pa.schema(_TOKENS),
}
"""All stored tables by name. A table may carry further columns of its own."""


def table_schema(name: str, *, real: pa.DataType | None = None) -> pa.Schema:
    """Return the schema of table ``name``; ``real`` is the float type of log-probabilities (float32)."""
    if name not in SCHEMAS:
        raise UserInputError(f"unknown table '{name}' (known: {', '.join(SCHEMAS)})")
    schema = SCHEMAS[name]
    if real is None or name not in ("reveals", "revisions"):
        return schema
    return pa.schema([field.with_type(real) if field.name in REAL_COLUMNS else field for field in schema])


def empty_table(name: str) -> pa.Table:
    """Return a table of ``name`` with all its columns and no rows."""
    return table_schema(name).empty_table()


def conform(name: str, table: pa.Table) -> pa.Table:
    """Return ``table`` with the columns and types of table ``name``.

    Missing optional columns become null, unknown columns are kept at the end, and the log-probabilities stay
    float64 when ``logq`` is float64, else float32. Reveals without ``forward`` were committed one by one.
    """
    if name not in SCHEMAS:
        return _free_table(name, table)
    if name == "reveals" and "forward" not in table.column_names:
        table = _one_by_one(table)
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


def _one_by_one(table: pa.Table) -> pa.Table:
    """Add ``forward`` and ``n_committed`` of one token per forward pass."""
    if "step" not in table.column_names:
        return table
    if "n_committed" not in table.column_names:
        table = table.append_column("n_committed", pa.repeat(pa.scalar(1, pa.int32()), table.num_rows))
    elif pc.any(pc.not_equal(table["n_committed"], 1)).as_py():
        raise UserInputError("table 'reveals' has n_committed other than 1 and lacks the column forward")
    return table.append_column("forward", table["step"])


def _real_type(name: str, table: pa.Table) -> pa.DataType | None:
    if name not in ("reveals", "revisions") or "logq" not in table.column_names:
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
