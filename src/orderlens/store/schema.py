"""The schema of a run: every stored table with its columns, types and meanings, and the version.

``docs/schema.md`` documents it; a test compares the two. Does not depend on files, models or orders.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from orderlens.errors import UserInputError

SCHEMA_VERSION = "1.0"
"""Runs of any other version are rejected."""

TRACE_KEY = ("task", "order", "seed", "temperature", "sample_seed", "sample_id")
"""The columns that identify one trace, in the sort order of parts."""
SORT_KEYS: dict[str, tuple[str, ...]] = {
    "reveals": ("step",),
    "revisions": ("forward", "position"),
    "states": ("forward",),
}
"""Table → sort columns of the rows of one trace."""
TOP_UNITS, ENTROPY_UNITS = 65535, 4096
"""Codes in ``states``: top probability × 65,535 (error ≤ 8 × 10⁻⁶), nats × 4,096 (error ≤ 1.3 × 10⁻⁴)."""
EVENTS = ("remask", "edit", "reveal")
"""Events in ``revisions``: a token masked again, a token replaced, a reveal that was masked again later."""

_LOG_PROBS = (
    ("logq", "log-probability of the revealed token at temperature 1, from the pass that chose the position"),
    ("max_logprob", "log-probability of the most probable token at this position"),
    ("second_logprob", "log-probability of the runner-up at this position"),
    ("entropy", "Shannon entropy of the position's distribution (nats)"),
    ("target_logprob", "log-probability of the target token (scoring)"),
    ("competitor_logprob", "log-probability of the most probable token other than the target (scoring)"),
    (
        "tempered_logq",
        "log-probability of the revealed token at the temperature of its draw (temperature > 0)",
    ),
    (
        "self_certainty",
        "KL(uniform ‖ distribution) over the tokens that may be revealed (nats); null if undefined",
    ),
)
LOG_PROB_COLUMNS = tuple(name for name, _ in _LOG_PROBS)
"""Log-probabilities of ``reveals``, and other numbers in nats."""
REAL_COLUMNS = frozenset((*LOG_PROB_COLUMNS, "old_logq", "log_p"))
"""Columns of ``reveals``, ``revisions`` and ``census`` that are float64 for float64 models, else float32."""


def _field(name: str, kind: pa.DataType, meaning: str, *, required: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=not required, metadata={"meaning": meaning})


def _key_fields() -> list[pa.Field]:
    return [
        _field("sample_id", pa.string(), "id of the sample (the data row)", required=True),
        _field("task", pa.string(), "benchmark the sample belongs to; null outside evaluations"),
        _field("order", pa.string(), "id of the order without its seed", required=True),
        _field("seed", pa.int64(), "the order's seed; null for an order without one"),
        _field(
            "temperature", pa.float64(), "sampling temperature, the mean of a schedule; null when scoring"
        ),
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
        _field("is_overflow", pa.bool_(), "the position is past the requested length"),
        _field("is_argmax", pa.bool_(), "the revealed token is the most probable one"),
        _field(
            "is_seed",
            pa.bool_(),
            "predicted by the token before its masked block; null for models without such tokens",
        ),
        _field("n_tied", pa.int32(), "positions tied for the best score, including the chosen one"),
        _field("n_committed", pa.int32(), "tokens committed by the same forward pass"),
        _field(
            "n_lookahead",
            pa.int32(),
            "look-ahead states of the pass, on the first token of its set (0 on the others); null if none",
        ),
    ]
    return [*place, *numbers, *flags]


_REVISIONS = [
    _field(
        "event",
        pa.string(),
        "remask (masked again), edit (replaced by another token) or reveal (filled, and masked again later)",
        required=True,
    ),
    _field("forward", pa.int32(), "forward pass of the event in its trace (0-based)", required=True),
    _field("position", pa.int32(), "absolute position in the sequence (0-based)", required=True),
    _field("old_token", pa.int32(), "the token before the event; null for a reveal"),
    _field("new_token", pa.int32(), "the token after the event; null for a remask"),
    _field(
        "logq",
        pa.float32(),
        "log-probability of the new token in the pass that chose it; null for a remask",
    ),
    _field("old_logq", pa.float32(), "log-probability of the old token in the same pass; null for a reveal"),
]
_STATES = [
    _field("block", pa.int32(), "block of the pass", required=True),
    _field("forward", pa.int32(), "forward pass of its trace (0-based)", required=True),
    _field("start", pa.int32(), "position of the block's first token in the sequence", required=True),
    _field(
        "visible",
        pa.string(),
        "one digit per position of the block before the pass: 1 holds a token, 0 is masked; the codes belong "
        "to the first masked ones, positions that are never filled follow them",
        required=True,
    ),
    _field("top", pa.list_(pa.uint16()), "largest probability at each masked position, times 65,535"),
    _field("entropy", pa.list_(pa.uint16()), "Shannon entropy there (nats), times 4,096, at most 65,535"),
]
_OUTPUTS = [
    _field("prompt_ids", pa.list_(pa.int32()), "the prompt's tokens"),
    _field("token_ids", pa.list_(pa.int32()), "target or generated tokens in text order"),
    _field("n_requested", pa.int32(), "number of requested positions"),
    _field("text", pa.string(), "decoded text, cut at the first EOS; null for a model without a tokenizer"),
    _field("finish_reason", pa.string(), "eos or length; null when scoring"),
    _field("prompt_text", pa.string(), "the prompt as text"),
    _field("suffix_text", pa.string(), "given text after the target; null without a suffix"),
    _field(
        "n_passes",
        pa.int32(),
        "forward passes of a policy that revises, including those without a change; null for others",
    ),
]
_VERDICTS = [
    _field("correct", pa.bool_(), "the grader's verdict; null if it could not grade"),
    _field("extracted", pa.string(), "the answer found in the response"),
    _field("reason", pa.string(), "the grader's reason"),
    _field("grader", pa.string(), "name and version of the grader"),
    _field("per_instruction", pa.string(), "JSON object: strict and loose verdicts by instruction (IFEval)"),
    _field(
        "generation",
        pa.int32(),
        "0 for the first grading, then 1, 2, … for each regrading; the newest counts",
    ),
]
_CIRCULATION = [
    _field("block", pa.int32(), "block of the measured pair"),
    _field("step", pa.int32(), "step at which i is revealed; j is revealed at the next step"),
    _field("position_i", pa.int32(), "position that the order reveals first"),
    _field("position_j", pa.int32(), "position that the order reveals next"),
    _field("distance", pa.int32(), "|position_j − position_i|"),
    _field("mask_ratio", pa.float64(), "masked share of the block before both reveals"),
    _field("logp_i", pa.float64(), "log p of i's token with neither revealed"),
    _field("logp_j_given_i", pa.float64(), "log p of j's token after i is revealed"),
    _field("logp_j", pa.float64(), "log p of j's token with neither revealed"),
    _field("logp_i_given_j", pa.float64(), "log p of i's token after j is revealed"),
    _field("gamma", pa.float64(), "(logp_i + logp_j_given_i) − (logp_j + logp_i_given_j)"),
]
_COUPLINGS = [
    _field("block", pa.int32(), "block of the set"),
    _field("forward", pa.int32(), "forward pass of its trace that committed the set (0-based)"),
    _field("size", pa.int32(), "number of tokens in the set"),
    _field(
        "n_sets",
        pa.int32(),
        "number of sets of two or more tokens in the trace, from which this set was drawn",
    ),
    _field(
        "path",
        pa.int32(),
        "order in which its tokens are revealed: 0 as in the trace, 1 reversed, then random",
    ),
    _field("positions", pa.list_(pa.int32()), "the set's positions in the order of this path"),
    _field("logq", pa.list_(pa.float64()), "log q of each of them in the pass that committed the set"),
    _field(
        "sequential",
        pa.list_(pa.float64()),
        "log p of each of them after the previous ones are revealed",
    ),
    _field("coupling", pa.float64(), "Σ sequential − Σ logq"),
    _field(
        "joint_coupling",
        pa.float64(),
        "the same from the model's joint distribution; null for a model without one",
    ),
    _field("entropy_bound", pa.float64(), "Σ entropy − max entropy of the set in that pass"),
]
_NOISE = [
    _field(
        "perturbation",
        pa.string(),
        "the second scoring's change: batch-size, cache, stored-weights or a dtype",
    ),
    _field("log_prob", pa.float64(), "sum of log q over the fixed path"),
    _field("log_prob_perturbed", pa.float64(), "the same sum, scored with the perturbation"),
    _field("n", pa.int32(), "reveals in the sums"),
]
_ENDINGS = [
    _field("ending", pa.int32(), "index of the candidate ending (0-based)"),
    _field("n_bytes", pa.int32(), "UTF-8 bytes of the ending"),
    _field("token_logprobs", pa.list_(pa.float64()), "log-probability of each of its tokens"),
]
_CENSUS = [
    _field(
        "sample_id",
        pa.string(),
        "id of the span's traces: that of the text, with @start where it has several",
    ),
    _field("task", pa.string(), "benchmark the text belongs to; null outside evaluations"),
    _field("text_id", pa.string(), "id of the text (the data row)"),
    _field("start", pa.int32(), "offset of the span's first position in the target (0-based)"),
    _field("positions", pa.list_(pa.int32()), "the B positions of the span in the sequence (0-based)"),
    _field(
        "log_p",
        pa.list_(pa.float32()),
        "log p of token i given the revealed set R, at R × B + i, for all 2^B sets (bit i of R: token i is "
        "revealed); NaN where i is in R",
    ),
]
_CENSUS_TEXTS = [
    _field("sample_id", pa.string(), "id of the prompt (the data row)"),
    _field("task", pa.string(), "benchmark the prompt belongs to; null outside tasks"),
    _field("size", pa.int32(), "free positions after the prompt"),
    _field("n_states", pa.int32(), "distinct states that were evaluated for the prompt"),
    _field("finished", pa.bool_(), "whether all orders were followed to their end; if not, there is no text"),
    _field(
        "token_ids", pa.list_(pa.int32()), "tokens of a text that some orders produce, up to its first EOS"
    ),
    _field("text", pa.string(), "the same as text"),
    _field("share", pa.float64(), "share of all orders that produce this text"),
    _field("log_q_best", pa.float64(), "largest sum of log q over these orders"),
    _field("log_q_mean", pa.float64(), "mean sum of log q over these orders"),
    _field("var_least", pa.float64(), "least Var of log q among these orders"),
    _field("min_best", pa.float64(), "largest minimum of log q among these orders"),
    _field(
        "response", pa.string(), "the text continued left to right, as it was graded; null without a task"
    ),
    _field("correct", pa.bool_(), "the grader's verdict; null without a task"),
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
    _field("token_id", pa.int32(), "a token of the unit (ids repeat between units)"),
    _field("piece", pa.string(), "its text, decoded alone"),
]

TRACE_TABLES: dict[str, list[pa.Field]] = {
    "reveals": _reveals(),
    "revisions": _REVISIONS,
    "states": _STATES,
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
    "census": pa.schema(_CENSUS),
    "census_texts": pa.schema(_CENSUS_TEXTS),
    "documents": pa.schema(_DOCUMENTS),
    "external": pa.schema(_EXTERNAL),
    "tokens": pa.schema(_TOKENS),
}
"""All stored tables by name. A table may have additional columns."""


def table_schema(name: str, *, real: pa.DataType | None = None) -> pa.Schema:
    """Return the schema of table ``name``; ``real`` is the float type of log-probabilities (float32)."""
    if name not in SCHEMAS:
        raise UserInputError(f"unknown table '{name}' (known: {', '.join(SCHEMAS)})")
    schema = SCHEMAS[name]
    if real is None or name not in ("reveals", "revisions", "census"):
        return schema
    kind = pa.list_(real) if name == "census" else real
    return pa.schema([field.with_type(kind) if field.name in REAL_COLUMNS else field for field in schema])


def empty_table(name: str) -> pa.Table:
    """Return table ``name`` with all its columns and no rows."""
    return table_schema(name).empty_table()


def conform(name: str, table: pa.Table) -> pa.Table:
    """Return ``table`` with the columns and types of table ``name``.

    Missing optional columns become null, unknown columns are kept at the end, and log-probabilities are
    float64 if ``logq`` is float64, else float32. Reveals without ``forward`` count as one token per pass.
    """
    if name not in SCHEMAS:
        return _free_table(name, table)
    if name == "reveals" and "forward" not in table.column_names:
        table = _one_token_per_pass(table)
    schema = table_schema(name, real=_real_type(name, table))
    _check_required(name, table, schema)
    columns = [_column(table, field) for field in schema]
    extra = [item for item in table.column_names if item not in schema.names]
    fields = [*schema, *(table.schema.field(item) for item in extra)]
    # Without metadata the bytes of a part do not depend on how its table was created.
    plain = pa.schema([pa.field(item.name, item.type, item.nullable) for item in fields])
    return pa.table([*columns, *(table[item] for item in extra)], schema=plain)


def _free_table(name: str, table: pa.Table) -> pa.Table:
    """Return a table without a declared schema unchanged, if its name can be a folder and a view."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,40}", name) or name == "samples":
        raise UserInputError(f"'{name}' cannot be a table name; use lower-case letters, digits and _")
    return table.replace_schema_metadata(None)


def _one_token_per_pass(table: pa.Table) -> pa.Table:
    """Add ``forward`` and ``n_committed`` for one token per forward pass."""
    if "step" not in table.column_names:
        return table
    if "n_committed" not in table.column_names:
        table = table.append_column("n_committed", pa.repeat(pa.scalar(1, pa.int32()), table.num_rows))
    elif pc.any(pc.not_equal(table["n_committed"], 1)).as_py():
        raise UserInputError(
            "table 'reveals' has n_committed other than 1 but no column forward; add the pass of each token"
        )
    return table.append_column("forward", table["step"])


def _real_type(name: str, table: pa.Table) -> pa.DataType | None:
    column = "log_p" if name == "census" else "logq"
    if name not in ("reveals", "revisions", "census") or column not in table.column_names:
        return None
    kind = table.schema.field(column).type
    return pa.float64() if pa.float64() in (kind, getattr(kind, "value_type", None)) else pa.float32()


def _check_required(name: str, table: pa.Table, schema: pa.Schema) -> None:
    required = [field.name for field in schema if not field.nullable]
    absent = [item for item in required if item not in table.column_names]
    if absent:
        raise UserInputError(f"table '{name}' lacks the required columns {_listed(absent)}")
    with_nulls = [item for item in required if table[item].null_count]
    if with_nulls:
        raise UserInputError(f"table '{name}' has nulls in the required columns {_listed(with_nulls)}")


def _column(table: pa.Table, field: pa.Field) -> pa.ChunkedArray | pa.Array:
    if field.name not in table.column_names:
        return pa.nulls(table.num_rows, field.type)
    try:
        return table[field.name].cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UserInputError(f"column '{field.name}' does not fit {field.type}: {error}") from error


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
