"""``orderlens orders|models|tasks``: what exists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import typer
from rich.table import Table

from orderlens.cli.console import JsonFlag, print_json, stdout

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

    rows = []
    for name in ORDERS.names():
        kind = ORDERS.get(name)
        word = (
            "static"
            if issubclass(kind, StaticOrder)
            else "oracle"
            if issubclass(kind, OracleOrder)
            else "confidence"
        )
        rows.append({"id": name, "kind": word, "needs_target": word == "oracle", "summary": kind.summary})
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
    _show(rows, ("id", "kind", "summary"), json)


def tasks(json: JsonFlag = False) -> None:
    """List the benchmarks."""
    from orderlens.tasks import get_task, task_names

    rows = [{"id": name, "summary": get_task(name).summary} for name in task_names()]
    _show(rows, ("id", "summary"), json)


def _show(rows: Sequence[Mapping[str, object]], columns: tuple[str, ...], as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, no_wrap=name == "id")
    for row in rows:
        table.add_row(*(str(row[name]).replace("[", "\\[") for name in columns))
    stdout.print(table)
