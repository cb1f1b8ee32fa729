"""Summaries of a run from its spec and records: one line, a flat mapping for lists, or all details."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from orderlens.errors import OrderLensError, counted, one_line
from orderlens.store.leases import live_leases
from orderlens.store.protocol import Folder
from orderlens.store.records import (
    Snapshot,
    completion_damaged,
    load_snapshot,
    read_environment,
)
from orderlens.store.schema import SCHEMA_VERSION
from orderlens.store.sources import RunSource
from orderlens.store.specfile import SpecFile, current_spec, expected_units, read_spec


def overview(folder: Folder) -> dict[str, Any]:
    """Return state, size and content of a run as one flat mapping for lists.

    A run that cannot be read has ``state`` "unreadable" and the reason in ``problem``.
    """
    try:
        spec, snapshot = read_spec(folder), load_snapshot(folder)
        return {"run": folder.label, "problem": None, **_facts(folder, spec, snapshot)}
    except OrderLensError as error:
        return {"run": folder.label, "state": "unreadable", "problem": one_line(error)}


def _facts(folder: Folder, spec: SpecFile, snapshot: Snapshot) -> dict[str, Any]:
    rows = snapshot.rows()
    return {
        "state": _state(folder, spec, snapshot),
        "schema": SCHEMA_VERSION,
        "units": len(snapshot.unit_keys()),
        "parts": len(snapshot.parts()),
        "bytes": sum(part.size for part in snapshot.parts()),
        "rows": rows,
        "tasks": sorted({task for bundle in snapshot.bundles for task in bundle.tasks if task is not None}),
        "orders": sorted({order for bundle in snapshot.bundles for order in bundle.orders}),
    }


def _state(folder: Folder, spec: SpecFile, snapshot: Snapshot) -> str:
    if spec.edited or not spec.intact or snapshot.damaged or completion_damaged(folder):
        return "damaged"
    expected = expected_units(folder)
    if expected is not None and expected <= snapshot.unit_keys():
        return "complete"
    return "running" if live_leases(folder) else "incomplete"


def details(folder: Folder) -> dict[str, Any]:
    """Return the overview of a run plus its spec, provenance and the environments that computed it."""
    spec, snapshot = read_spec(folder), load_snapshot(folder)
    return {
        "run": folder.label,
        **_facts(folder, spec, snapshot),
        "spec_digest": spec.digest,
        "spec": current_spec(folder, spec.spec),
        "provenance": spec.provenance,
        "environments": _environments(folder, snapshot),
    }


def _environments(folder: Folder, snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return each environment with the number of units it contributed to."""
    counts = Counter(
        name for bundle in snapshot.bundles for _ in bundle.units for name in bundle.environments
    )
    found = []
    for name, count in sorted(counts.items()):
        found.append({"id": name, "units": count, "content": read_environment(folder, name)})
    return found


def incomplete_note(source: RunSource) -> str | None:
    """Return one line about a run that lacks units, or None if it is complete."""
    if source.is_complete():
        return None
    stored, expected = source.n_units()
    how = f"{counted(stored, 'unit')} stored" if expected is None else f"{stored} of {expected} units stored"
    return f"run {source.label} is not complete ({how}); run the command that started it again to finish it"


def describe_run(source: RunSource) -> str:
    """Return location and content of a run in one line."""
    return f"{source.label}: {facts(source)}"


def facts(source: RunSource) -> str:
    """Return kind, model, orders and counts of a run in one line."""
    spec, rows = source.spec, source.rows()
    model, orders = spec.get("model"), [str(order) for order in spec.get("orders") or ()]
    data = spec.get("data")
    shown = ", ".join(orders[:6]) + (", …" if len(orders) > 6 else "")
    found = [
        str(spec.get("kind", "run")) + (f" of {model.get('name')}" if isinstance(model, Mapping) else ""),
        f"{counted(len(orders), 'order')}: {shown}" if orders else "",
        counted(data["n_samples"], "sample") if isinstance(data, Mapping) and "n_samples" in data else "",
        counted(rows["reveals"], "reveal") if "reveals" in rows else "",
        "complete" if source.is_complete() else "not complete",
    ]
    return ", ".join(fact for fact in found if fact)
