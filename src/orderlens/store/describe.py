"""What a run is, told from its spec and records: a line of facts and its orders."""

from __future__ import annotations

from collections.abc import Mapping

from orderlens.errors import counted
from orderlens.store.sources import Source


def described(source: Source) -> str:
    """Return where a run is and what it holds, in one line."""
    return f"{source.label}: {facts(source)}"


def facts(source: Source) -> str:
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
