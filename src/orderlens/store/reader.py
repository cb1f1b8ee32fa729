"""Reading runs: tables, statistics per sample, single traces, SQL.

``open_run`` trusts only what committed records list. Nothing here needs a model, and only ``sql`` and
``to_polars`` need packages beyond numpy and pyarrow.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from orderlens.errors import RunError
from orderlens.store.codec import trace_starts
from orderlens.store.folder import open_folder
from orderlens.store.frame import Frame, import_duckdb
from orderlens.store.samples import SAMPLES_SCHEMA, sample_table
from orderlens.store.schema import SCHEMAS
from orderlens.store.sources import FolderSource, MemorySource, Source
from orderlens.store.specfile import plain_spec

Place = str | os.PathLike[str]


def open_run(path: Place | Sequence[Place], filesystem: Any = None) -> Run:
    """Open one run, several runs, or a folder of runs for reading."""
    places = [path] if isinstance(path, str | os.PathLike) else list(path)
    sources: list[Source] = []
    for place in places:
        sources += [FolderSource(open_folder(item, filesystem)) for item in _runs_at(place, filesystem)]
    if not sources:
        raise RunError(f"no run at {', '.join(str(place) for place in places)}: there is no spec.json")
    return Run(sources)


def _runs_at(place: Place, filesystem: Any) -> list[Place]:
    folder = open_folder(place, filesystem)
    if folder.exists("spec.json"):
        return [place]
    inner = sorted(name for name in folder.sizes() if name.endswith("/spec.json"))
    return [f"{str(place).rstrip('/')}/{name.removesuffix('/spec.json')}" for name in inner]


def memory_run(tables: Mapping[str, pa.Table], spec: Mapping[str, Any]) -> Run:
    """Return a run that lives in memory."""
    return Run([MemorySource(tables, plain_spec(spec))])


class Run:
    """One or several runs, read as one."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = dict(zip(_names(sources), sources, strict=True))

    @property
    def names(self) -> list[str]:
        """Names of the runs (folder names)."""
        return list(self._sources)

    @property
    def specs(self) -> dict[str, dict[str, Any]]:
        """Spec of each run by its name."""
        return {name: source.spec for name, source in self._sources.items()}

    @property
    def spec(self) -> dict[str, Any]:
        """The run's spec; for several runs ``{"runs": {name: spec}}``."""
        return next(iter(self.specs.values())) if len(self._sources) == 1 else {"runs": self.specs}

    def reveals(self) -> Frame:
        """One row per revealed token."""
        return self.table("reveals")

    def outputs(self) -> Frame:
        """One row per scored or generated text."""
        return self.table("outputs")

    def table(self, name: str) -> Frame:
        """Return a table by name (``samples`` included)."""
        if name == "samples":
            return self.samples()
        schema = pa.unify_schemas(
            [self._labelled(s.schema(name)) for s in self._sources.values()], promote_options="permissive"
        )
        return Frame(schema, lambda columns: self._load(name, schema, columns))

    def _labelled(self, schema: pa.Schema) -> pa.Schema:
        return schema.insert(0, pa.field("run", pa.string())) if len(self._sources) > 1 else schema

    def _load(self, name: str, schema: pa.Schema, columns: Sequence[str] | None) -> pa.Table:
        wanted = schema if columns is None else pa.schema([schema.field(item) for item in columns])
        chunks = []
        for run, source in self._sources.items():
            present = [item for item in wanted.names if item in source.schema(name).names]
            chunks += [_fit(chunk, wanted, run) for chunk in source.scan(name, present)]
        return pa.concat_tables(chunks) if chunks else wanted.empty_table()

    def samples(self) -> Frame:
        """One row per trace: the path statistics, overflow rows not counted."""
        tables = []
        for run, source in self._sources.items():
            table = sample_table(source.traces(None))
            tables.append(
                table
                if len(self._sources) == 1
                else table.add_column(0, "run", pa.array([run] * table.num_rows))
            )
        return Frame.of(pa.concat_tables(tables) if tables else SAMPLES_SCHEMA.empty_table())

    def iter_traces(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yield chunks of ``reveals`` in which every trace is whole, contiguous and sorted by step."""
        schema = self.table("reveals").schema
        wanted = schema if columns is None else pa.schema([schema.field(item) for item in columns])
        for run, source in self._sources.items():
            for chunk in source.traces([item for item in wanted.names if item != "run"]):
                yield _fit(chunk, wanted, run)

    def trace(self, sample_id: str, order: str, **key: Any) -> Frame:
        """Return one trace, sorted by step; ``key`` gives seed, temperature, sample_seed, task or run."""
        found = []
        for run, source in self._sources.items():
            if key.get("run", run) == run:
                found += [_fit(t, self.table("reveals").schema, run) for t in source.find(sample_id, order)]
        table = pa.concat_tables(found) if found else self.table("reveals").schema.empty_table()
        for name, value in key.items():
            mask = pc.is_null(table[name]) if value is None else pc.equal(table[name], value)
            table = table.filter(mask)
        if table.num_rows == 0:
            raise RunError(
                f"no trace of sample '{sample_id}' under order '{order}' in {', '.join(self.names)}"
            )
        if len(trace_starts(table)) > 1:
            raise RunError(
                f"sample '{sample_id}' has several traces under '{order}'; "
                "also give seed, temperature, sample_seed, task or run"
            )
        return Frame.of(table)

    def sql(self, query: str) -> Frame:
        """Run a DuckDB query over the views reveals, outputs, samples, verdicts and so on."""
        connection = import_duckdb().connect()
        for name in SCHEMAS:
            connection.register(name, self.table(name).to_arrow())
        connection.register("samples", self.samples().to_arrow())
        table = connection.sql(query).to_arrow_table()
        return Frame.of(table)


def _fit(chunk: pa.Table, schema: pa.Schema, run: str) -> pa.Table:
    """Return the chunk with the columns and types of ``schema``."""
    columns = []
    for field in schema:
        if field.name == "run":
            columns.append(pa.repeat(run, chunk.num_rows))
        elif field.name in chunk.column_names:
            columns.append(chunk[field.name].cast(field.type))
        else:
            columns.append(pa.nulls(chunk.num_rows, field.type))
    return pa.table(columns, schema=schema)


def _names(sources: Sequence[Source]) -> list[str]:
    """Return one different name per run: the folder's, with a number where two are equal."""
    names: list[str] = []
    for source in sources:
        name, count = Path(source.label).name or source.label, 1
        while name in names:
            count += 1
            name = f"{Path(source.label).name}#{count}"
        names.append(name)
    return names
