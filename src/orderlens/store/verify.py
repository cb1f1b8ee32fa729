"""Checking a run against its records, and putting damaged units back into the queue.

``verify_run`` reads everything and changes nothing. ``repair_run`` moves what is damaged or foreign into
``quarantine/`` and removes the records of the units concerned; running the original command again computes
exactly those.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from orderlens.errors import CorruptRunError, RunError, one_line
from orderlens.store.checks import CHECKED_COLUMNS, table_problems
from orderlens.store.codec import open_part, part_note, read_groups, stored_schema, trace_starts
from orderlens.store.compact import leftovers, remove_leftovers
from orderlens.store.folder import TEMPORARY
from orderlens.store.leases import leased_stem, live_leases, maintenance
from orderlens.store.parts import opened
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

QUARANTINE = "quarantine"
_FOREIGN = "the file does not belong to the run; readers ignore it"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        kind: missing, damaged, values, duplicate, record, completion, environment, spec, extension, foreign.
        path: the file concerned.
        message: what is wrong with it.
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
        """Whether nothing is wrong (leftovers of killed workers are harmless)."""
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
        quick: compare only presence and size of the parts.

    Raises:
        RunError: the folder is not a run, or has another schema.
    """
    spec = read_spec(folder)
    names = folder.sizes()  # listed first: what appears later belongs to workers that are active now
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
        text = "the spec was edited or damaged after the run was started; undo the edit or restore a copy"
        yield Problem("spec", SPEC, text)
    elif not spec.whole:
        yield Problem("spec", SPEC, "the file is damaged outside the spec: its digest does not match")


def _extensions(folder: Folder) -> tuple[set[str], list[Problem]]:
    """Return the units that extensions bring, and what is wrong with their records."""
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
                yield Problem("environment", name, "its content does not fit its name: it is damaged")


def _record_problems(folder: Folder, snapshot: Snapshot, names: Iterable[str]) -> Iterator[Problem]:
    for name in snapshot.damaged:
        yield Problem("record", name, "the record is damaged; its unit counts as not computed")
    repeated = [bundle for bundle in snapshot.bundles if bundle.record in names]
    for bundle in repeated if snapshot.generation else ():
        if read_bundle(folder, bundle.record) is None:
            yield Problem("record", bundle.record, "the record is damaged, but the catalog repeats it")


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
    """Compare what units say they committed with what their parts hold."""
    for table in {name for rows in bundle.units.values() for name in rows}:
        said, held = sum(rows.get(table, 0) for rows in bundle.units.values()), bundle.rows(table)
        if said != held:
            text = f"the units committed {said} rows of '{table}', the parts hold {held}"
            yield Problem("record", bundle.record, text, tuple(bundle.units))


def _check_part(folder: Folder, part: Part, seen: dict[tuple[object, ...], str]) -> Iterator[tuple[str, str]]:
    """Yield (kind, message) of everything wrong with one part."""
    try:
        with opened(folder, part, afresh=True) as file:
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
        yield "damaged", one_line(error)


def _duplicates(
    table: pa.Table, part: Part, seen: dict[tuple[object, ...], str]
) -> Iterator[tuple[str, str]]:
    """Notice a trace that another part or row group already holds."""
    keys = table.select(list(TRACE_KEY)).take(trace_starts(table)).to_pylist()
    for key in keys:
        name = tuple(key.values())
        if name in seen:
            yield (
                "duplicate",
                f"the trace of sample {key['sample_id']}, order {key['order']} is also in {seen[name]}",
            )
        seen[name] = part.path


def _unlisted(names: Iterable[str], snapshot: Snapshot, useless: list[str]) -> list[str]:
    """Return the files that no record and no rule of the layout accounts for."""
    ours = {SPEC, COMPLETE, catalog_file(snapshot.generation), *useless, *snapshot.damaged}
    ours |= {part.path for part in snapshot.parts()} | {bundle.record for bundle in snapshot.bundles}
    return sorted(name for name in set(names) - ours if not _is_ours(name))


def _is_ours(name: str) -> bool:
    """Recognise what is not listed but may be there: claims, failures, workers, quarantine and writes."""
    folder, _, base = name.rpartition("/")
    known = leased_stem(name) is not None or failed_stem(name) is not None or base.startswith(TEMPORARY)
    known = known or (folder, base.rpartition(".")[2]) in ((WORKERS, "json"), (LOGS, "jsonl"))
    kept = folder in ("environments", EXTENSIONS) and base.endswith(".json")
    return known or kept or name.startswith(f"{QUARANTINE}/")


def _is_uncommitted(folder: Folder, name: str, run: str) -> bool:
    """Say whether a part of this run was written but never committed (a killed or a working worker's)."""
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
    """Move damaged and foreign files to ``quarantine/`` and re-queue the units concerned.

    Args:
        folder: the run.
        force: go ahead although workers of another machine may still be active.

    Returns:
        The report of the verification before the repair.

    Raises:
        RunError: workers are active.
        CorruptRunError: the spec itself was edited or damaged (only a copy of it can undo that).
    """
    spec = refuse_edited(folder, read_spec(folder))
    read_extensions(folder)  # like the spec: only a copy can undo its damage
    active = live_leases(folder)
    if active and not force:
        raise RunError(
            f"{folder.label} has {len(active)} claims of workers that may be alive ({active[0]}); "
            "stop them first, or add --force if they are gone"
        )
    with maintenance(folder):
        report = verify_run(folder)
        if not spec.whole:
            folder.put(f"{QUARANTINE}/{SPEC}", folder.read(SPEC))
            repair_spec(folder, spec)
        _requeue(folder, report)
        remove_leftovers(folder, merged=True)
    return report


def _requeue(folder: Folder, report: Report) -> None:
    """Remove the completion first and the records last: a crash leaves a run to repair, not a wrong one."""
    redo, snapshot = set(report.redo), load_snapshot(folder)
    if any(problem.kind not in ("foreign", "environment", "spec") for problem in report.findings):
        folder.remove(COMPLETE)
    broken = [bundle for bundle in snapshot.bundles if not redo.isdisjoint(bundle.units)]
    for name in [part.path for bundle in broken for part in bundle.parts]:
        _set_aside(folder, name)
    for problem in report.findings:
        if problem.kind in ("foreign", "record", "environment") and problem.path not in {
            bundle.record for bundle in broken
        }:
            _set_aside(folder, problem.path)
    for bundle in broken:
        folder.remove(bundle.record)
    _renew_catalog(folder, broken)


def _renew_catalog(folder: Folder, broken: list[Bundle]) -> None:
    """Write a catalog without the broken bundles, and any record of a sound one that was lost."""
    snapshot = load_snapshot(folder)
    gone = {key for bundle in broken for key in bundle.units}
    sound = [bundle for bundle in snapshot.bundles if gone.isdisjoint(bundle.units)]
    for bundle in sound:
        if not folder.exists(bundle.record):
            folder.put(bundle.record, seal(bundle.to_json()))
    if snapshot.generation and not save_catalog(folder, snapshot, sound):
        raise RunError(f"{folder.label} was changed by another process meanwhile; run the command again")


def _set_aside(folder: Folder, name: str) -> None:
    if folder.exists(name):
        folder.move(name, f"{QUARANTINE}/{name}")
