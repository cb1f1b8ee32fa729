"""Computing that several verbs take together, as one typed parameter of each.

A verb declares ``texts: Texts`` and is registered through ``spread``; typer and ``--help`` see the single
options. Option groups hold what was asked for and do not look at it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, get_type_hints

from orderlens.cli import options as opt

if TYPE_CHECKING:
    from orderlens.runs.engine import Engine
    from orderlens.runs.options import Computing, Keywords


@dataclass(frozen=True, slots=True)
class Texts:
    """Which texts, and how rows with one ``text`` are split."""

    data: opt.DataOption = "passages"
    limit: opt.LimitOption = None
    prefix_tokens: opt.PrefixOption = 32
    allow_short: opt.ShortOption = False
    split: opt.SplitOption = "none"


@dataclass(frozen=True, slots=True)
class Machine:
    """Who computes, where, and how much at once."""

    batch_size: opt.BatchOption = None
    device: opt.DeviceOption = None
    dtype: opt.DtypeOption = None
    engine: opt.EngineOption = "local"
    workers: opt.WorkersOption = None
    address: opt.AddressOption = None

    def options(self) -> Computing:
        """Return the same for those who decide block size and folder themselves."""
        from orderlens.runs.options import Computing

        return Computing(self.device, self.dtype, batch_size=self.batch_size, engine=self.chosen_engine())

    def chosen_engine(self) -> Engine:
        """Return what the last three options ask for."""
        from orderlens.runs.engine import Engine

        return Engine(self.engine, self.workers, self.address)


@dataclass(frozen=True, slots=True)
class Grid:
    """The blocks inside which positions are revealed."""

    block_size: opt.BlockOption = None
    anchor: opt.AnchorOption = None


def computing(out: str, grid: Grid, machine: Machine) -> Keywords:
    """Return what the options ask for, checked, as ``score``, ``generate`` and ``evaluate`` want it."""
    from orderlens.runs.options import check_anchor

    return {
        "out": out,
        "block_size": grid.block_size,
        "anchor": None if grid.anchor is None else check_anchor(grid.anchor),
        "batch_size": machine.batch_size,
        "device": machine.device,
        "dtype": machine.dtype,
        "engine": machine.chosen_engine(),
    }


def spread(verb: Callable[..., None]) -> Callable[..., None]:
    """Return the verb with each option group replaced by its options, for ``app.command``."""
    hints = get_type_hints(verb, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters = []
    for parameter in inspect.signature(verb).parameters.values():
        if parameter.name in groups:
            parameters += _options(groups[parameter.name])
        else:
            parameters.append(parameter.replace(annotation=hints[parameter.name]))

    def run(**given: Any) -> None:
        for name, kind in groups.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        verb(**given)

    run.__name__, run.__doc__, run.__module__ = verb.__name__, verb.__doc__, verb.__module__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def _options(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in fields(group)
    ]
