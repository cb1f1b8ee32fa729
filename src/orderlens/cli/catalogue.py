"""``orderlens orders|models|tasks``: what exists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table

from orderlens.cli.console import JsonFlag, print_json, print_line, stdout
from orderlens.errors import PluginError, one_line

if TYPE_CHECKING:
    from orderlens.registry import Registry

_MODEL_NOTES = {
    "tiny": "bundled order-agnostic language model (the default)",
    "hmm": "exact coherent control; hmm:incoherence=0.2 breaks the chain rule on purpose",
}


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("orders")(orders)
    app.command("models")(models)
    app.command("tasks")(tasks)


def orders(json: JsonFlag = False) -> None:
    """List the reveal orders."""
    from orderlens.orders.catalogue import ORDERS
    from orderlens.orders.protocol import OracleOrder, StaticOrder

    rows: list[dict[str, object]] = []
    for name, kind in ORDERS.entries():
        if isinstance(kind, PluginError):
            rows.append({"id": name, "kind": "broken", "needs_target": None, "summary": one_line(kind)})
            continue
        word = (
            "static"
            if issubclass(kind, StaticOrder)
            else "oracle"
            if issubclass(kind, OracleOrder)
            else "confidence"
        )
        rows.append({"id": name, "kind": word, "needs_target": word == "oracle", "summary": kind.summary})
    _warn(ORDERS)
    _show(rows, ("id", "kind", "summary"), json)


def models(json: JsonFlag = False) -> None:
    """List the models that can be loaded by name, and the families that can be loaded from files."""
    from orderlens.models.loading import FAMILIES, MODELS

    rows = [
        {"id": name, "kind": "built-in", "summary": _MODEL_NOTES.get(name, "plugin")}
        for name in MODELS.names()
    ]
    rows.append({"id": "hf:ORG/NAME[@REV]", "kind": "hub", "summary": "a checkpoint on the Hugging Face hub"})
    rows.append(
        {"id": "FOLDER", "kind": "local", "summary": "a local checkpoint folder in the Hugging Face layout"}
    )
    rows += [
        {"id": name, "kind": "family", "summary": "model_type in config.json"} for name in FAMILIES.names()
    ]
    _warn(MODELS)
    _warn(FAMILIES)
    _show(rows, ("id", "kind", "summary"), json)


def tasks(json: JsonFlag = False) -> None:
    """List the benchmarks."""
    from orderlens.tasks.registry import TASKS

    rows = []
    for name, task in TASKS.entries():
        summary = f"broken: {one_line(task)}" if isinstance(task, PluginError) else task.summary
        rows.append({"id": name, "summary": summary})
    _warn(TASKS)
    _show(rows, ("id", "summary"), json)


def _warn(registry: Registry[Any]) -> None:
    """Name the packages whose entries are refused because they have a built-in name."""
    for line in registry.refused():
        print_line(f"warning: {line}")


def _show(rows: Sequence[Mapping[str, object]], columns: tuple[str, ...], as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, no_wrap=name == "id")
    for row in rows:
        table.add_row(*(str(row[name]) for name in columns))
    stdout.print(table)
