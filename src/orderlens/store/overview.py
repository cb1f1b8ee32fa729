"""What a run folder holds, from its records alone (no part is opened)."""

from __future__ import annotations

from collections import Counter
from typing import Any

from orderlens.errors import OrderLensError, one_line
from orderlens.store.extensions import current_spec, expected_units
from orderlens.store.leases import live_leases
from orderlens.store.protocol import Folder
from orderlens.store.records import (
    Snapshot,
    completion_damaged,
    load_snapshot,
    read_environment,
)
from orderlens.store.specfile import SpecFile, read_spec


def overview(folder: Folder) -> dict[str, Any]:
    """Return state, size and content of a run: one flat mapping for lists.

    A run that cannot be read has ``state`` "unreadable" and says why in ``problem``.
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
        "schema": spec.version,
        "units": len(snapshot.unit_keys()),
        "parts": len(snapshot.parts()),
        "bytes": sum(part.size for part in snapshot.parts()),
        "rows": rows,
        "tasks": sorted({task for bundle in snapshot.bundles for task in bundle.tasks if task is not None}),
        "orders": sorted({order for bundle in snapshot.bundles for order in bundle.orders}),
    }


def _state(folder: Folder, spec: SpecFile, snapshot: Snapshot) -> str:
    if spec.edited or not spec.whole or snapshot.damaged or completion_damaged(folder):
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
