"""Reading runs: tables, statistics per sample, single traces, SQL.

``open_run`` reads only files that committed records list. Nothing here needs a model. Only ``sql``,
``to_polars`` and ``to_pandas`` need packages other than numpy and pyarrow.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa

from orderlens.common.templating import facts_html
from orderlens.errors import RunError, UserInputError
from orderlens.metrics.trace_table import ContentDrops
from orderlens.registry import Registry, refuse_unknown
from orderlens.store.codec import sort_rows
from orderlens.store.folder import open_folder
from orderlens.store.frame import Frame, chosen_columns, with_schema
from orderlens.store.overview import describe_run, facts, incomplete_note
from orderlens.store.protocol import Folder, StoredSample
from orderlens.store.query import compare_tables, connect, named_tables, run_query, view_of
from orderlens.store.records import SPEC
from orderlens.store.samples import first_samples, order_labels, sample_chunks, samples_schema
from orderlens.store.schema import SCHEMAS
from orderlens.store.sources import (
    FolderSource,
    MemorySource,
    RunSource,
    TokenTexts,
    add_text,
    find_trace,
    folder_source,
    with_text,
)
from orderlens.store.specfile import plain_spec
from orderlens.store.verdicts import COLUMNS, Rules, task_rules

Place = str | os.PathLike[str]
SAMPLE_VIEWS: Registry[Callable[..., StoredSample]] = Registry(
    "view", {"sample": "orderlens.show.views:fetch_sample"}
)
"""Creates the display of a sample; looked up by name, so that the store does not import the display code."""


def open_run(path: Place | Sequence[Place], filesystem: Any = None) -> Run:
    """Open one run, several runs, or a folder of runs for reading.

    Args:
        path: a run, a folder with runs at any depth, or several of these.
        filesystem: fsspec or pyarrow file system of the paths; None derives it from each path.

    Raises:
        RunError: there is no run, it has another schema, or its spec was edited.
        CorruptRunError: its records are damaged.
    """
    if isinstance(path, bytes) or not isinstance(path, str | os.PathLike | Iterable):
        raise UserInputError(f"{path!r} is not a run folder; give one path or a list of paths")
    places = [path] if isinstance(path, str | os.PathLike) else list(path)
    if not places:
        raise RunError("no run given; give at least one folder")
    folders = [folder for place in places for folder in find_runs(place, filesystem)]
    return Run([folder_source(folder) for folder in folders])


def find_runs(place: Place, filesystem: Any = None) -> list[Folder]:
    """Return the run at ``place``, or the runs below it.

    Raises:
        RunError: there is none.
    """
    folder = open_folder(place, filesystem)
    if folder.exists(SPEC):
        return [folder]
    if filesystem is None and "://" not in str(place) and not Path(place).is_dir():
        raise RunError(f"no run at {place}: it does not exist; 'orderlens runs list FOLDER' lists runs")
    inner = sorted(name.removesuffix(f"/{SPEC}") for name in folder.names() if name.endswith(f"/{SPEC}"))
    if not inner:
        raise RunError(f"no run at {folder.label}: neither the folder nor a folder below it contains {SPEC}")
    return [open_folder(f"{str(place).rstrip('/')}/{name}", filesystem) for name in inner]


def memory_run(
    tables: Mapping[str, pa.Table],
    spec: Mapping[str, Any],
    units: Mapping[str, Mapping[str, pa.Table]] | None = None,
) -> Run:
    """Return a run in memory, from its tables by name (and by work unit, if it is to be saved)."""
    return Run([MemorySource(tables, plain_spec(spec), units=units)])


_SHOWN = (
    "run",
    "sample_id",
    "order",
    "seed",
    "temperature",
    "n",
    "n_passes",
    "mean",
    "var",
    "log_prob",
    "likelihood",
)
"""Columns of a run's first traces in a notebook."""


def join_runs(runs: Iterable[Run]) -> Run:
    """Return several opened runs as one run."""
    return Run([source for run in runs for source in run._sources.values()])


class Run:
    """One or several runs, read as one.

    With several runs every table starts with a ``run`` column; the SQL views always do.
    """

    def __init__(self, sources: Sequence[RunSource]) -> None:
        self._sources = dict(zip(_names(sources), sources, strict=True))
        self._local = threading.local()

    def __repr__(self) -> str:
        return f"Run({'; '.join(map(describe_run, self._sources.values()))})"

    def _repr_html_(self) -> str:
        """Return the HTML for a notebook: a line about each run, and the first traces."""
        first = self.first_samples().slice(0, 5).to_pydict()
        return facts_html(self.facts(), {name: first[name] for name in _SHOWN})

    def only(self, names: Sequence[str]) -> Run:
        """Return some of the runs, by name."""
        part = Run([self._sources[name] for name in names])
        part._sources = {name: self._sources[name] for name in names}  # keep the distinct names
        return part

    @property
    def names(self) -> list[str]:
        """Names of the runs: the names of their folders."""
        return list(self._sources)

    @property
    def sources(self) -> Mapping[str, RunSource]:
        """The source of each run by its name."""
        return self._sources

    @property
    def specs(self) -> dict[str, dict[str, Any]]:
        """Spec of each run by its name."""
        return {name: source.spec for name, source in self._sources.items()}

    @property
    def spec(self) -> dict[str, Any]:
        """The run's spec; for several runs ``{"runs": {name: spec}}``."""
        return next(iter(self.specs.values())) if len(self._sources) == 1 else {"runs": self.specs}

    @property
    def is_complete(self) -> bool:
        """Whether all requested units of all runs are committed."""
        return all(source.is_complete() for source in self._sources.values())

    @property
    def incomplete(self) -> list[str]:
        """One line per run that is not complete: what is stored and how to finish it."""
        notes = (incomplete_note(source) for source in self._sources.values())
        return [note for note in notes if note is not None]

    def no_traces(self) -> str:
        """Say that it has no traces, and how to read what it has."""
        export = "'orderlens runs export RUN --table {} --out FILE'"
        tables = " and ".join(map(export.format, self.tables))
        return f"{self} has no traces" + (f"; {tables} writes what it has" if tables else "")

    def facts(self) -> dict[str, str]:
        """Return one line per run name: kind, model, orders and counts."""
        return {name: facts(source) for name, source in self._sources.items()}

    def order_labels(self) -> list[str]:
        """Return the labels of the orders in the specs, sorted; empty if a spec has no orders."""
        named = [source.spec.get("orders") or () for source in self._sources.values()]
        return order_labels(spec for orders in named for spec in orders) if all(named) else []

    def first_samples(self) -> pa.Table:
        """Return the ``samples`` rows of the first chunk of traces, with their run; fast for any run size."""
        return first_samples(self._sources)

    def details(self) -> dict[str, dict[str, Any]]:
        """Return per run the output of ``orderlens runs show``: spec, provenance, environments, sizes.

        A run in memory has only its spec.
        """
        from orderlens.store.overview import details

        return {
            name: details(source.folder) if isinstance(source, FolderSource) else {"spec": source.spec}
            for name, source in self._sources.items()
        }

    @property
    def tables(self) -> list[str]:
        """Names of the tables that have rows."""
        return sorted({name for source in self._sources.values() for name in source.tables()})

    def reveals(self, *, text: bool = False) -> Frame:
        """One row per revealed token, including positions past the requested length.

        Args:
            text: add the text of each token as column ``text``.

        Raises:
            RunError: ``text`` is set, but the run does not store token texts.
        """
        if not text:
            return self.table("reveals")
        schema = with_text(self._schema("reveals"))
        return Frame(schema, lambda columns: self._load_text(schema, columns))

    def _load_text(self, schema: pa.Schema, columns: Sequence[str] | None) -> pa.Table:
        chunks = list(self.iter_traces(text=True))
        return (pa.concat_tables(chunks) if chunks else schema.empty_table()).select(columns or schema.names)

    def outputs(self) -> Frame:
        """One row per scored or generated text."""
        return self.table("outputs")

    def table(self, name: str) -> Frame:
        """Return a table by name (``samples`` included)."""
        if name == "samples":
            return self.samples()
        refuse_unknown("table", name, dict.fromkeys(["samples", *SCHEMAS, *self.tables]))
        schema = self._schema(name)
        return Frame(
            schema,
            lambda columns: self._load(name, chosen_columns(schema, columns)),
            lambda: view_of(self._checked(name), name, schema.names),
            self._peek if name == "reveals" else None,
        )

    def _peek(self, n: int) -> tuple[pa.Table, int]:
        """Return the first reveals and the total number of reveals."""
        chunks: list[pa.Table] = []
        for chunk in self.iter_traces():
            chunks.append(chunk)
            if sum(map(len, chunks)) >= n:
                break
        table = pa.concat_tables(chunks) if chunks else self._schema("reveals").empty_table()
        return table.slice(0, n), sum(source.rows().get("reveals", 0) for source in self._sources.values())

    def _schema(self, name: str) -> pa.Schema:
        found = [source.schema(name) for source in self._sources.values()]
        schema = pa.unify_schemas(found, promote_options="permissive")
        return schema.insert(0, pa.field("run", pa.string())) if len(found) > 1 else schema

    def _load(self, name: str, wanted: pa.Schema) -> pa.Table:
        chunks = []
        for run, source in self._sources.items():
            present = [item for item in wanted.names if item in source.schema(name).names]
            # A chunk without any column would lose its number of rows, so read at least one column.
            read = present or source.schema(name).names[:1]
            chunks += [with_schema(chunk, wanted, run) for chunk in source.scan(name, read)]
        table = pa.concat_tables(chunks) if chunks else wanted.empty_table()
        return table if name == "reveals" else sort_rows(table, name)

    def samples(self) -> Frame:
        """One row per trace: the path statistics, without overflow rows."""
        schema = samples_schema(run=len(self._sources) > 1)
        return Frame(
            schema,
            lambda columns: self._load_samples(schema).select(columns or schema.names),
            lambda: view_of(self._checked("reveals", "outputs"), "samples", schema.names),
        )

    def _load_samples(self, schema: pa.Schema) -> pa.Table:
        chunks = (chunk.select(schema.names) for chunk in self.iter_samples())
        return sort_rows(pa.concat_tables([schema.empty_table(), *chunks]), "samples")

    def iter_samples(
        self, groups: Collection[str] = (), drops: ContentDrops = "special"
    ) -> Iterator[pa.Table]:
        """Yield chunks of ``samples`` with their run, in storage order.

        Args:
            groups: names of additional statistics, from ``orderlens.metrics.trace_table.GROUPS``.
            drops: the tokens that content statistics leave out, ``eos`` or ``special`` (which includes EOS).
        """
        return sample_chunks(self._sources, groups, drops)

    def iter_traces(self, columns: Sequence[str] | None = None, *, text: bool = False) -> Iterator[pa.Table]:
        """Yield chunks of ``reveals`` in which every trace is complete, contiguous and sorted by step.

        Chunks have about 100,000 rows, for runs of any size. ``orderlens.store.codec.trace_starts`` finds the
        traces in a chunk with the key columns. ``text`` adds the text of the tokens, after ``token_id``.
        """
        wanted = chosen_columns(self._schema("reveals"), columns)
        for run, source in self._sources.items():
            present = [item for item in wanted.names if item in source.schema("reveals").names]
            token_texts = TokenTexts(source) if text else None
            for chunk in source.traces(present or ["step"]):
                conformed = with_schema(chunk, wanted, run)
                yield add_text(conformed, token_texts) if token_texts is not None else conformed

    def trace(self, sample_id: str, order: str, **key: Any) -> Frame:
        """Return one trace, sorted by step.

        Args:
            sample_id: the sample.
            order: the order's id; ``random:3`` also gives the seed.
            **key: any of seed, temperature, sample_seed, task and run, if the first two are not unique.

        Raises:
            RunError: no trace matches, or more than one does.
        """
        return Frame.of(find_trace(self._sources, self._schema("reveals"), sample_id, order, key))

    def sample(
        self, sample_id: str, *, orders: Sequence[str] | None = None, run: str | None = None
    ) -> StoredSample:
        """Return one sample for display: its traces, texts, revisions and verdicts.

        Args:
            sample_id: the sample.
            orders: only these orders (``random:3`` also gives the seed); all by default.
            run: one of several runs; runs with the same id and prompt are included.

        Raises:
            RunError: there is no such sample, or no trace under one of the orders.
        """
        return SAMPLE_VIEWS.get("sample")(self, sample_id, orders=orders, name=run)

    @cached_property
    def task_rules(self) -> Rules:
        """The grading rule of each task, over all runs."""
        verdicts = self.table("verdicts")
        return task_rules(verdicts.to_arrow([name for name in COLUMNS if name in verdicts.columns]))

    def save(self, path: Place, filesystem: Any = None) -> Run:
        """Write a run in memory to a folder, and return the stored run.

        The result is the same as computing into the folder: a call with ``out=path`` finds its units.

        Raises:
            RunError: the run is already stored, or was not computed by this process, or the folder contains
                another run.
        """
        from orderlens.store.writer import open_writer

        source = next(iter(self._sources.values()))
        if len(self._sources) > 1 or not isinstance(source, MemorySource) or source.units is None:
            raise RunError(
                f"cannot save {self!r}: only a run computed in memory can be saved; copy its folder"
            )
        with open_writer(path, source.spec, filesystem) as writer:
            for key in writer.pending(source.units):
                writer.commit(key, source.units[key])
            writer.finish(source.units)
        return open_run(path, filesystem)

    def sql(self, query: str) -> Frame:
        """Run a DuckDB query over the views reveals, outputs, samples, verdicts and the other tables.

        The result is lazy: it is computed by ``to_arrow``, ``to_pandas``, ``to_polars`` or ``to_duckdb``.
        """
        named = named_tables(query, self._sources.values())
        return run_query(self._connection(), query, lambda: compare_tables(self._sources.values(), named))

    def connection(self) -> Any:
        """Return this thread's DuckDB connection with a view per table, after comparing all parts."""
        return self._checked(*self.tables)

    def _checked(self, *names: str) -> Any:
        compare_tables(self._sources.values(), names)
        return self._connection()

    def _connection(self) -> Any:
        if not hasattr(self._local, "connection"):
            self._local.connection = connect(self._sources)
        return self._local.connection


def _names(sources: Sequence[RunSource]) -> list[str]:
    """Return a distinct name per run: the folder's name, with a number if it repeats."""
    names: list[str] = []
    for source in sources:
        base = PurePosixPath(source.label.replace(os.sep, "/")).name or source.label
        count = sum(name == base or name.startswith(f"{base}#") for name in names)
        names.append(base if count == 0 else f"{base}#{count + 1}")
    return names
