"""Verify a run against its records, and repair it by queueing damaged units again.

``verify_run`` reads all files and changes none. ``repair_run`` moves damaged and foreign files to
``quarantine/`` and removes the records of the affected units. Running the original command again computes
exactly these units.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from orderlens.errors import CorruptRunError, RunError, one_line
from orderlens.store.codec import open_part, part_note, read_groups, stored_schema, trace_starts
from orderlens.store.folder import TEMPORARY
from orderlens.store.leases import leased_stem, live_leases, maintenance
from orderlens.store.parts import CHECKED_COLUMNS, opened, table_problems
from orderlens.store.protocol import Folder
from orderlens.store.records import (
    COMPLETE,
    EXTENSIONS,
    LOGS,
    SPEC,
    WORKERS,
    Bundle,
    Part,
    Snapshot,
    catalog_file,
    failed_stem,
    load_snapshot,
    read_bundle,
    read_completion,
    read_environment,
    save_catalog,
    seal,
)
from orderlens.store.schema import TRACE_KEY
from orderlens.store.specfile import SpecFile, read_extensions, read_spec, refuse_edited, repair_spec
from orderlens.store.writer import leftovers, remove_leftovers

QUARANTINE = "quarantine"
_FOREIGN = "the file does not belong to the run; readers ignore it"


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of a run.

    Attributes:
        kind: missing, damaged, values, duplicate, record, completion, environment, spec, extension, foreign.
        path: the affected file.
        message: a description of the problem.
        units: the units to compute again.
    """

    kind: str
    path: str
    message: str
    units: tuple[str, ...] = ()


@dataclass(slots=True)
class Report:
    """The result of a verification."""

    run: str
    complete: bool
    units: int
    parts: int
    rows: dict[str, int]
    findings: list[Problem] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether there is no problem (leftovers of killed workers are harmless)."""
        return not self.findings

    @property
    def redo(self) -> list[str]:
        """The units to compute again."""
        return sorted({unit for problem in self.findings for unit in problem.units})

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {**asdict(self), "ok": self.ok, "redo": self.redo}


def verify_run(folder: Folder, *, quick: bool = False) -> Report:
    """Check digests, row counts, value ranges, traces, records and foreign files of a run.

    Args:
        folder: the run.
        quick: check only existence and size of the parts.

    Raises:
        RunError: the folder is not a run, or has another schema.
    """
    spec = read_spec(folder)
    names = folder.sizes()  # listed first: files that appear later belong to active workers
    snapshot = load_snapshot(folder)
    completion = read_completion(folder)
    counts = len(snapshot.unit_keys()), len(snapshot.parts()), snapshot.rows()
    added, damage = _extensions(folder)
    report = Report(folder.label, completion is not None and added <= snapshot.unit_keys(), *counts)
    report.findings += _spec_problems(spec)
    report.findings += damage
    report.findings += _environment_problems(folder, names)
    report.findings += _record_problems(folder, snapshot, names)
    report.findings += _completion_problems(folder, snapshot, completion)
    report.findings += _size_problems(folder, snapshot) if quick else _part_problems(folder, snapshot)
    report.leftovers = leftovers(names, snapshot, merged=True)
    unlisted = _unlisted(names, snapshot, report.leftovers)
    uncommitted = [name for name in unlisted if _is_uncommitted(folder, name, spec.digest)]
    report.leftovers += uncommitted
    report.findings += [Problem("foreign", name, _FOREIGN) for name in unlisted if name not in uncommitted]
    return report


def _spec_problems(spec: SpecFile) -> Iterator[Problem]:
    if spec.edited:
        text = "the spec was edited or damaged after the start of the run; undo the edit or restore a copy"
        yield Problem("spec", SPEC, text)
    elif not spec.intact:
        yield Problem("spec", SPEC, "the file is damaged outside the spec: its digest does not match")


def _extensions(folder: Folder) -> tuple[set[str], list[Problem]]:
    """Return the units of extensions, and the problems of their records."""
    try:
        return {key for extension in read_extensions(folder) for key in extension.units}, []
    except CorruptRunError as error:
        return set(), [Problem("extension", EXTENSIONS, one_line(error))]


def _environment_problems(folder: Folder, names: Iterable[str]) -> Iterator[Problem]:
    for name in names:
        inside, _, base = name.rpartition("/")
        if inside == "environments" and base.endswith(".json") and not base.startswith(TEMPORARY):
            try:
                read_environment(folder, base.removesuffix(".json"))
            except CorruptRunError:
                yield Problem("environment", name, "the file is damaged: its content does not match its name")


def _record_problems(folder: Folder, snapshot: Snapshot, names: Iterable[str]) -> Iterator[Problem]:
    for name in snapshot.damaged:
        yield Problem("record", name, "the record is damaged; its unit counts as not committed")
    repeated = [bundle for bundle in snapshot.bundles if bundle.record in names]
    for bundle in repeated if snapshot.generation else ():
        if read_bundle(folder, bundle.record) is None:
            yield Problem("record", bundle.record, "the record is damaged, but the catalog has a copy")


def _completion_problems(
    folder: Folder, snapshot: Snapshot, completion: list[str] | None
) -> Iterator[Problem]:
    if completion is None and folder.exists(COMPLETE):
        yield Problem("completion", COMPLETE, "the completion record is damaged")
    missing = sorted(set(completion or ()) - snapshot.unit_keys())
    if missing:
        text = f"{len(missing)} expected units are not committed"
        yield Problem("completion", COMPLETE, text, tuple(missing))


def _size_problems(folder: Folder, snapshot: Snapshot) -> Iterator[Problem]:
    sizes = folder.sizes("parts")
    for bundle in snapshot.bundles:
        for part in bundle.parts:
            size = sizes.get(part.path)
            if size != part.size:
                kind, text = ("missing", "the file is missing") if size is None else ("damaged", "wrong size")
                yield Problem(kind, part.path, text, tuple(bundle.units))


def _part_problems(folder: Folder, snapshot: Snapshot) -> Iterator[Problem]:
    seen: dict[tuple[object, ...], str] = {}
    for bundle in snapshot.bundles:
        yield from _count_problems(bundle)
        for part in bundle.parts:
            for kind, message in _check_part(folder, part, seen):
                yield Problem(kind, part.path, message, tuple(bundle.units))


def _count_problems(bundle: Bundle) -> Iterator[Problem]:
    """Compare the row counts of the units with those of the parts."""
    for table in {name for rows in bundle.units.values() for name in rows}:
        committed, stored = sum(rows.get(table, 0) for rows in bundle.units.values()), bundle.rows(table)
        if committed != stored:
            text = f"the units committed {committed} rows of '{table}', the parts contain {stored}"
            yield Problem("record", bundle.record, text, tuple(bundle.units))


def _check_part(folder: Folder, part: Part, seen: dict[tuple[object, ...], str]) -> Iterator[tuple[str, str]]:
    """Yield (kind, message) of each problem of one part."""
    try:
        with opened(folder, part, recheck=True) as file:
            rows = file.metadata.num_rows
            if rows != part.rows:
                yield "damaged", f"it has {rows} rows instead of {part.rows}"
            columns = CHECKED_COLUMNS if part.table == "reveals" else None
            for table in read_groups(part.table, file, columns):
                yield from (("values", text) for text in table_problems(part.table, table))
                if part.table == "reveals":
                    yield from _duplicates(table, part, seen)
    except FileNotFoundError:
        yield "missing", "the file is missing"
    except CorruptRunError as error:
        yield "damaged", one_line(error).removeprefix(f"{part.path} is damaged ").strip("()")


def _duplicates(
    table: pa.Table, part: Part, seen: dict[tuple[object, ...], str]
) -> Iterator[tuple[str, str]]:
    """Yield the traces that another part or row group also contains."""
    keys = table.select(list(TRACE_KEY)).take(trace_starts(table)).to_pylist()
    for key in keys:
        name = tuple(key.values())
        if name in seen:
            yield (
                "duplicate",
                f"the trace of sample {key['sample_id']}, order {key['order']} is also in {seen[name]}",
            )
        seen[name] = part.path


def _unlisted(names: Iterable[str], snapshot: Snapshot, unneeded: list[str]) -> list[str]:
    """Return the files that are neither in a record nor part of the layout of a run."""
    ours = {SPEC, COMPLETE, catalog_file(snapshot.generation), *unneeded, *snapshot.damaged}
    ours |= {part.path for part in snapshot.parts()} | {bundle.record for bundle in snapshot.bundles}
    return sorted(name for name in set(names) - ours if not _is_ours(name))


def _is_ours(name: str) -> bool:
    """Return whether a file belongs to a run without being in a record: claims, failures, logs, …."""
    folder, _, base = name.rpartition("/")
    of_worker = leased_stem(name) is not None or failed_stem(name) is not None or base.startswith(TEMPORARY)
    of_worker = of_worker or (folder, base.rpartition(".")[2]) in ((WORKERS, "json"), (LOGS, "jsonl"))
    of_run = folder in ("environments", EXTENSIONS) and base.endswith(".json")
    return of_worker or of_run or name.startswith(f"{QUARANTINE}/")


def _is_uncommitted(folder: Folder, name: str, run: str) -> bool:
    """Return whether the file is a part of this run that was written but not (yet) committed."""
    if not name.startswith("parts/"):
        return False
    try:
        with folder.fetch(name) as handle:
            if not name.endswith(f"-{hashlib.sha256(handle.read_buffer()).hexdigest()[:16]}.parquet"):
                return False
            handle.seek(0)
            return part_note(stored_schema(open_part(handle))).get("run") == run
    except (pa.ArrowException, OSError):
        return False


def repair_run(folder: Folder, *, force: bool = False) -> Report:
    """Move damaged and foreign files to ``quarantine/`` and queue the affected units again.

    Args:
        folder: the run.
        force: repair even if workers on another machine may be active.

    Returns:
        The report of the verification before the repair.

    Raises:
        RunError: workers are active.
        CorruptRunError: the spec was edited or damaged (restore it from a copy).
    """
    spec = refuse_edited(folder, read_spec(folder))
    read_extensions(folder)  # raises if one is damaged: like the spec, it can only be restored from a copy
    active = live_leases(folder)
    if active and not force:
        raise RunError(
            f"{folder.label} has {len(active)} claims of workers that may be active ({active[0]}); "
            "stop the workers first, or add --force if they no longer exist"
        )
    with maintenance(folder):
        report = verify_run(folder)
        if not spec.intact:
            folder.put(f"{QUARANTINE}/{SPEC}", folder.read(SPEC))
            repair_spec(folder, spec)
        _requeue(folder, report)
        remove_leftovers(folder, merged=True)
    return report


def _requeue(folder: Folder, report: Report) -> None:
    """Remove damaged files, completion first and records last: after a crash the repair can be repeated."""
    redo, snapshot = set(report.redo), load_snapshot(folder)
    if any(problem.kind not in ("foreign", "environment", "spec") for problem in report.findings):
        folder.remove(COMPLETE)
    broken = [bundle for bundle in snapshot.bundles if not redo.isdisjoint(bundle.units)]
    for name in [part.path for bundle in broken for part in bundle.parts]:
        _quarantine(folder, name)
    for problem in report.findings:
        if problem.kind in ("foreign", "record", "environment") and problem.path not in {
            bundle.record for bundle in broken
        }:
            _quarantine(folder, problem.path)
    for bundle in broken:
        folder.remove(bundle.record)
    _renew_catalog(folder, broken)


def _renew_catalog(folder: Folder, broken: list[Bundle]) -> None:
    """Write a catalog without the broken bundles, and the missing records of valid ones."""
    snapshot = load_snapshot(folder)
    removed = {key for bundle in broken for key in bundle.units}
    valid = [bundle for bundle in snapshot.bundles if removed.isdisjoint(bundle.units)]
    for bundle in valid:
        if not folder.exists(bundle.record):
            folder.put(bundle.record, seal(bundle.to_json()))
    if snapshot.generation and not save_catalog(folder, snapshot, valid):
        raise RunError(f"{folder.label} was changed by another process during repair; run the command again")


def _quarantine(folder: Folder, name: str) -> None:
    if folder.exists(name):
        folder.move(name, f"{QUARANTINE}/{name}")
