from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from orderlens.store.codec import (
    DERIVED,
    METADATA_KEY,
    ROW_GROUP_ROWS,
    encode,
    full_schema,
    open_part,
    part_note,
    read_groups,
    sort_rows,
    sort_traces,
    trace_starts,
)
from orderlens.store.schema import conform


def stored(name: str, table: pa.Table) -> pq.ParquetFile:
    data, _ = encode(name, sort_rows(conform(name, table), name), {"run": "r"})
    return open_part(pa.BufferReader(data))


def restored(name: str, table: pa.Table, columns: list[str] | None = None) -> pa.Table:
    return pa.concat_tables(read_groups(name, stored(name, table), columns)).combine_chunks()


def bits(table: pa.Table) -> list[bytes]:
    """Return each column's raw values, so that −0.0, NaN and nulls are distinguished."""
    return [
        repr(
            [
                None if v is None else (np.float64(v).tobytes() if isinstance(v, float) else v)
                for v in c.to_pylist()
            ]
        ).encode()
        for c in table.columns
    ]


@st.composite
def reveal_tables(draw) -> pa.Table:
    """Reveals whose columns repeat each other in all kinds of ways, with nulls, −inf, −0.0 and float64."""
    n = draw(st.integers(1, 12))
    real = draw(st.sampled_from([pa.float32(), pa.float64()]))
    number = st.floats(-20, 0, width=32) | st.sampled_from([-0.0, float("-inf")])
    logq = draw(st.lists(number, min_size=n, max_size=n))

    def other(base: list[float]) -> st.SearchStrategy[list[float | None] | None]:
        mixed = st.tuples(*[st.sampled_from([value, -1.5]) | number for value in base]).map(list)
        holes = st.lists(st.none() | number, min_size=n, max_size=n)
        return st.one_of(st.just(list(base)), mixed, holes, st.none())

    columns: dict[str, object] = {
        "sample_id": ["s"] * n,
        "order": ["random"] * n,
        "block": [0] * n,
        "step": list(range(n)),
        "position": list(range(n)),
        "token_id": [7] * n,
        "logq": pa.array(logq, real),
    }
    for name in ("max_logprob", "second_logprob", "target_logprob", "competitor_logprob", "tempered_logq"):
        values = draw(other(logq))
        if values is not None:
            columns[name] = pa.array(values, real)
    if draw(st.booleans()):
        columns["is_argmax"] = pa.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    return pa.table(columns)


@given(reveal_tables())
@settings(max_examples=60, deadline=None)
def test_every_bit_comes_back(table: pa.Table) -> None:
    assert bits(restored("reveals", table)) == bits(conform("reveals", table))


@given(
    reveal_tables(), st.lists(st.sampled_from([*DERIVED, "logq", "task", "step"]), min_size=1, unique=True)
)
@settings(max_examples=25, deadline=None)
def test_a_selection_of_columns_equals_the_same_columns_of_all(table: pa.Table, columns: list[str]) -> None:
    assert bits(restored("reveals", table, columns)) == bits(conform("reveals", table).select(columns))


def test_a_column_equal_to_another_is_not_stored(worker) -> None:
    names = stored("reveals", worker.reveals(0)).schema_arrow.names
    assert "target_logprob" not in names  # equals logq
    assert "competitor_logprob" not in names  # runner-up where the target is the argmax, else the maximum
    assert "is_argmax" not in names  # logq equals the maximum
    assert "tempered_logq" not in names  # null throughout
    assert "max_logprob" in names  # differs from logq in places


def test_only_the_rows_that_differ_are_stored(worker) -> None:
    table = worker.reveals(0)
    file = stored("reveals", table)
    differs = int(np.sum(~table["is_argmax"].to_numpy()))
    assert file.read(columns=["max_logprob"])["max_logprob"].null_count == table.num_rows - differs


def test_float64_stays_float64_and_float32_stays_float32(worker) -> None:
    table = worker.reveals(0)
    wide = table.set_column(table.column_names.index("logq"), "logq", table["logq"].cast(pa.float64()))
    assert restored("reveals", wide)["logq"].type == pa.float64()
    assert restored("reveals", wide)["entropy"].type == pa.float64()
    assert restored("reveals", table)["logq"].type == pa.float32()


def test_row_groups_never_cut_a_trace(worker) -> None:
    length, traces = 1000, 2 * ROW_GROUP_ROWS // 1000 + 5
    table = pa.table(
        {
            "sample_id": np.repeat([f"s{i:04d}" for i in range(traces)], length),
            "order": ["random"] * (length * traces),
            "block": np.zeros(length * traces, int),
            "step": np.tile(np.arange(length), traces),
            "position": np.tile(np.arange(length), traces),
            "token_id": np.zeros(length * traces, int),
            "logq": np.zeros(length * traces, np.float32),
        }
    )
    file = stored("reveals", table)
    assert file.num_row_groups > 2
    one_by_one = [
        read_groups("reveals", file, ["sample_id"], [group]) for group in range(file.num_row_groups)
    ]
    groups = [table for tables in one_by_one for table in tables]
    seen = [set(group["sample_id"].to_pylist()) for group in groups]
    assert all(left.isdisjoint(right) for left, right in pairwise(seen))
    assert all(group.num_rows <= ROW_GROUP_ROWS + length for group in groups)
    together = pa.concat_tables(read_groups("reveals", file, ["sample_id"]))
    assert together.equals(pa.concat_tables(groups))


def test_no_flipped_bit_changes_values_silently(worker) -> None:
    table = sort_rows(conform("reveals", worker.reveals(0)), "reveals")
    data, _ = encode("reveals", table, {})
    file = open_part(pa.BufferReader(data))
    column = file.metadata.row_group(0).column(file.schema_arrow.names.index("logq"))
    refused = 0
    for place in range(column.data_page_offset, column.data_page_offset + column.total_compressed_size, 7):
        broken = bytearray(data)
        broken[place] ^= 4
        try:
            (read,) = read_groups("reveals", open_part(pa.BufferReader(bytes(broken))), ["logq"])
        except (OSError, pa.ArrowException):
            refused += 1
        else:  # an unused bit of a page header
            assert read["logq"].equals(table["logq"])
    assert refused > 10


def test_the_same_rows_give_the_same_bytes_however_they_arrive(worker) -> None:
    table = worker.reveals(3)
    shuffled = table.take(np.random.default_rng(0).permutation(table.num_rows))
    chunked = pa.concat_tables([shuffled.slice(0, 10), shuffled.slice(10)])
    one = encode("reveals", sort_rows(conform("reveals", table), "reveals"), {})
    other = encode("reveals", sort_rows(conform("reveals", chunked), "reveals"), {})
    assert one == other


def test_trace_starts_agree_with_a_plain_loop(worker) -> None:
    table = sort_rows(conform("reveals", worker.reveals(1, traces=5)), "reveals")
    keys = [(row["task"], row["order"], row["seed"], row["sample_id"]) for row in table.to_pylist()]
    slow = [row for row, key in enumerate(keys) if row == 0 or key != keys[row - 1]]
    assert trace_starts(table).tolist() == slow
    coded = table.set_column(0, "sample_id", table["sample_id"].dictionary_encode())
    assert trace_starts(coded).tolist() == slow
    assert trace_starts(table.slice(0, 0)).tolist() == []


def test_sorting_whole_traces_equals_sorting_rows(worker) -> None:
    units = [sort_rows(conform("reveals", worker.reveals(unit)), "reveals") for unit in (4, 1, 3, 0)]
    table = pa.concat_tables(units)
    assert sort_traces(table).equals(sort_rows(table, "reveals"))
    assert sort_traces(units[0]).equals(units[0])
    assert sort_traces(table.slice(0, 0)).num_rows == 0


def test_a_foreign_file_has_no_note() -> None:
    assert part_note(pa.schema([pa.field("x", pa.int32())])) == {}
    assert part_note(pa.schema([pa.field("x", pa.int32())], metadata={METADATA_KEY: b"{broken"})) == {}


def test_columns_of_a_newer_minor_version_are_kept(worker) -> None:
    table = worker.reveals(0).append_column("novel", pa.array(range(worker.reveals(0).num_rows)))
    back = restored("reveals", table)
    assert (
        back["novel"].to_pylist()[:3]
        == sort_rows(conform("reveals", table), "reveals")["novel"].to_pylist()[:3]
    )
    assert full_schema("reveals", back.schema).names[-1] == "novel"
