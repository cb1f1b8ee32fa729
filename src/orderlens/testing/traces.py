"""Synthetic traces and runs, for tests of tables, figures, findings and metrics.

The tables have the stored schema and pass the checks of a commit, so a synthetic run can be read, analysed
and saved. Needs numpy and pyarrow only, and no model: log-probabilities are given or drawn at random.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from orderlens.store.codec import sort_rows
from orderlens.store.reader import Run, memory_run
from orderlens.store.schema import conform, table_schema

if TYPE_CHECKING:
    from orderlens.store.reader import Run

EOS_ID, SPECIAL_ID = 0, 1
"""Token ids of the end of a text and of a special token in synthetic traces."""


def make_trace(
    sample_id: str,
    order: str,
    logq: ArrayLike,
    *,
    path: ArrayLike | None = None,
    tokens: ArrayLike | None = None,
    forward: ArrayLike | None = None,
    is_argmax: ArrayLike | None = None,
    task: str | None = None,
    seed: int | None = None,
    temperature: float | None = None,
    sample_seed: int | None = None,
    n_prompt: int = 0,
    n_requested: int | None = None,
    block_size: int = 32,
    eos_ids: Collection[int] = (EOS_ID,),
    special_ids: Collection[int] = (SPECIAL_ID,),
) -> pa.Table:
    """Return the ``reveals`` of one trace of n tokens, float64.

    Columns that are not given follow from ``logq`` as if there were two tokens, with probabilities q and 1 −
    q. The revealed token is then the argmax where q > 1/2.

    Args:
        sample_id: id of the sample.
        order: label of the order or policy, without its seed.
        logq: log-probabilities [n] in the order of the reveals.
        path: places [n] in the order of the reveals, counted from the first target position; left to right
            by default.
        tokens: token ids [n] in text order; content tokens by default.
        forward: the pass [n] that committed each reveal; one token per pass by default.
        is_argmax: whether each revealed token is the most probable one [n].
        task: benchmark of the sample.
        seed: the order's seed.
        temperature: None for a scored text.
        sample_seed: seed of the token draws; 0 by default where the temperature is above 0.
        n_prompt: tokens before the first target position.
        n_requested: places from here on are overflow.
        block_size: places per block, counted from the first target position.
        eos_ids: token ids that end a text.
        special_ids: token ids that are neither content nor EOS.

    Raises:
        ValueError: lengths differ, or ``path`` does not visit every place once.
    """
    values = np.asarray(logq, np.float64)
    n = len(values)
    places = _places(path, n)
    shown = _ints("tokens", np.arange(n) % 7 + 2 if tokens is None else tokens, n)[places]
    likeliest = np.exp(values) > 0.5 if is_argmax is None else np.asarray(is_argmax, bool)
    if sample_seed is None and temperature:
        sample_seed = 0
    key: dict[str, Any] = {"sample_id": sample_id, "task": task, "order": order}
    key |= {"seed": seed, "temperature": temperature, "sample_seed": sample_seed}
    columns = {
        **_repeated(key, n),
        "block": places // block_size,
        "step": np.arange(n),
        **_passes(forward, n),
        "position": places + n_prompt,
        "token_id": shown,
        **_numbers(values, likeliest),
        "target_logprob": values if temperature is None else pa.nulls(n, pa.float64()),
        "is_eos": np.isin(shown, list(eos_ids)),
        "is_special": np.isin(shown, list(special_ids)),
        "is_overflow": places >= (n if n_requested is None else n_requested),
        "n_tied": np.ones(n, np.int32),
    }
    return conform("reveals", pa.table(columns))


def random_trace(
    rng: np.random.Generator, sample_id: str, order: str, n: int = 64, *, scale: float = 0.5, **more: Any
) -> pa.Table:
    """Return a trace of ``n`` tokens, block by block, with gamma-distributed −log q.

    Args:
        rng: draws the log-probabilities first, then the path.
        sample_id: id of the sample.
        order: label; ``forced-ar`` and ``reverse-ar`` have their own paths, all others a random path.
        n: tokens.
        scale: mean of −log q (nats).
        more: as for ``make_trace``.
    """
    logq = -rng.gamma(0.5, 2 * scale, n)
    path = random_path(rng, n, order, more.get("block_size", 32))
    return make_trace(sample_id, order, logq, path=path, **more)


def random_path(
    rng: np.random.Generator, n: int, order: str = "random", block_size: int = 32
) -> NDArray[np.int64]:
    """Return a path [n] block by block; inside a block left to right, reversed or random, by the order."""
    blocks = [np.arange(start, min(start + block_size, n)) for start in range(0, n, block_size)]
    if order == "reverse-ar":
        blocks = [block[::-1] for block in blocks]
    elif order != "forced-ar":
        blocks = [rng.permutation(block) for block in blocks]
    return np.concatenate([np.arange(0), *blocks])


def make_table(name: str, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return table ``name`` (``outputs``, ``verdicts``, ``external``, …) from rows; missing values are null.

    Columns that the schema does not have are kept.
    """
    schema = table_schema(name)
    names = dict.fromkeys(key for row in rows for key in row)
    known = {field.name: field.type for field in schema}
    columns = {key: pa.array([row.get(key) for row in rows], known.get(key)) for key in names}
    return conform(name, pa.table(columns)) if rows else schema.empty_table()


def make_run(
    traces: Sequence[pa.Table],
    *,
    spec: Mapping[str, Any] | None = None,
    **tables: pa.Table | Sequence[Mapping[str, Any]],
) -> Run:
    """Return a run in memory; ``run.save(folder)`` writes it.

    Args:
        traces: ``reveals`` of whole traces.
        spec: the run's spec; by default it only names the model "made up".
        tables: other tables by name, as tables or as rows for ``make_table``.
    """
    ready = {
        name: table if isinstance(table, pa.Table) else make_table(name, table)
        for name, table in tables.items()
    }
    ready = {"reveals": pa.concat_tables(traces, promote_options="permissive"), **ready}
    return memory_run(ready, {"model": "made up"} if spec is None else spec, units={"all": ready})


def _ints(name: str, values: ArrayLike, n: int) -> NDArray[np.int64]:
    found = np.asarray(values, np.int64)
    if found.shape != (n,):
        raise ValueError(f"{name} has {found.size} entries for {n} log-probabilities")
    return found


def _places(path: ArrayLike | None, n: int) -> NDArray[np.int64]:
    places = _ints("path", np.arange(n) if path is None else path, n)
    if not np.array_equal(np.sort(places), np.arange(n)):
        raise ValueError(f"path must visit each of 0…{n - 1} once, not {places.tolist()}")
    return places


def _repeated(key: Mapping[str, Any], n: int) -> dict[str, pa.Array]:
    schema = table_schema("reveals")
    return {name: pa.array([value] * n, schema.field(name).type) for name, value in key.items()}


def _passes(forward: ArrayLike | None, n: int) -> dict[str, NDArray[Any]]:
    """Return the pass of each reveal, and the number of reveals that the pass committed."""
    passes = _ints("forward", np.arange(n) if forward is None else forward, n)
    _, inverse, counts = np.unique(passes, return_inverse=True, return_counts=True)
    return {"forward": passes, "n_committed": counts[inverse]}


def _numbers(logq: NDArray[np.float64], is_argmax: NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
    """Return the log-probabilities of a position with two tokens, q and 1 − q."""
    with np.errstate(divide="ignore", invalid="ignore"):
        rest = np.log1p(-np.exp(logq))
        entropy = -np.where(logq > -np.inf, np.exp(logq) * logq, 0.0)
        entropy -= np.where(rest > -np.inf, np.exp(rest) * rest, 0.0)
    return {
        "logq": logq,
        "max_logprob": np.where(is_argmax, logq, np.maximum(logq, rest)),
        "second_logprob": np.minimum(logq, rest),
        "entropy": np.where(np.isnan(logq), np.nan, entropy),
        "competitor_logprob": rest,
        "is_argmax": is_argmax,
    }


def assert_same_rows(run: Run, other: Run, *, ordered: bool = True, atol: float = 0.0) -> None:
    """Assert that a run is complete and has the same rows as another run.

    Args:
        run: the run to check.
        other: the expected run.
        ordered: also compare the order of rows, which depends on the division into work units.
        atol: allowed absolute difference of numbers; 0 requires identical bits.
    """
    assert run.is_complete, "the run is not complete"
    for name in other.tables:
        mine, theirs = (found.table(name).to_arrow() for found in (run, other))
        if not ordered:
            mine, theirs = _sorted(mine, name), _sorted(theirs, name)
        if atol:
            from pandas.testing import assert_frame_equal

            assert_frame_equal(mine.to_pandas(), theirs.to_pandas(), check_exact=False, rtol=0, atol=atol)
        else:
            assert mine.equals(theirs), f"other rows in {name}"


def _sorted(table: pa.Table, name: str) -> pa.Table:
    """Return the rows sorted by trace; texts of tokens, stored once per unit, are listed once."""
    if name == "tokens":
        table = table.group_by(table.column_names).aggregate([])
        return table.sort_by([(column, "ascending") for column in table.column_names])
    return sort_rows(table, name)
