"""What ``score``, ``generate``, ``evaluate`` and ``replicate`` ask for alike, under one name each."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, ParamSpec, Protocol, TypeAlias, TypedDict, TypeVar, runtime_checkable

from orderlens.common.arguments import whole_number
from orderlens.decode.chains import LiveCanvas
from orderlens.errors import UserInputError
from orderlens.models.abilities import device_type
from orderlens.models.loading import load_model
from orderlens.models.protocol import Anchor, Model
from orderlens.runs.engine import Engine, EngineLike, as_engine

PathLike: TypeAlias = str | os.PathLike[str]
ModelLike: TypeAlias = Model | str | os.PathLike[str]
"""A loaded model, a spec such as ``"tiny"``, or the path of a checkpoint folder."""
Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")


class ProgressSink(Protocol):
    """Something that shows progress, such as ``orderlens.cli.console.Bar``."""

    def __call__(self, steps: int = 1) -> None:
        """Advance by so many tokens."""
        ...

    def set_total(self, total: int) -> None:
        """Say how many tokens there are (an upper bound when decoding may stop early)."""
        ...


@runtime_checkable
class ShowsWorkers(Protocol):
    """Progress that can also show what each of several workers does."""

    def show_workers(self, states: Sequence[Any]) -> None:
        """Show the workers' states (``store.workers.State``)."""
        ...


@runtime_checkable
class ShowsCanvas(Protocol):
    """Progress that can also show texts while they are decoded, in this process."""

    def show_canvas(self, canvases: Sequence[LiveCanvas]) -> None:
        """Show the texts of one sample, one per policy."""
        ...


@dataclass(frozen=True, slots=True)
class Computing:
    """How to load the model, lay out and cut the work, and where to keep it.

    Attributes:
        device: where to put a model given as a spec; the best one by default.
        dtype: its precision; decided by model and device by default.
        block_size: tokens per block; the model's own by default.
        anchor: ``"zero"`` or ``"prompt"``: where the block grid starts; the model's own choice by default.
        batch_size: samples per work unit; chosen for the model by default.
        out: run folder; None keeps the run in memory.
        data_record: where the samples came from, for the run's spec.
        progress: is told the number of tokens ahead and each advance.
        engine: who computes the units.
    """

    device: str | None = None
    dtype: str | None = None
    block_size: int | None = None
    anchor: Anchor | None = None
    batch_size: int | None = None
    out: PathLike | None = None
    data_record: Mapping[str, Any] | None = None
    progress: ProgressSink | None = None
    engine: Engine = field(default_factory=Engine)

    def __post_init__(self) -> None:
        for name in ("block_size", "batch_size"):
            if (value := getattr(self, name)) is not None:
                whole_number(name, value, least=1)
        if self.out is not None and not isinstance(self.out, str | os.PathLike):
            raise UserInputError(f"out={self.out!r} must be a folder, as text or Path")
        if self.anchor is not None:
            check_anchor(self.anchor)

    @classmethod
    def asked(cls, keywords: Keywords, data_record: Mapping[str, Any] | None = None) -> Computing:
        """Return what keywords of ``score``, ``generate`` or ``evaluate`` ask for."""
        given = {name: value for name, value in keywords.items() if name not in ("engine", "workers")}
        engine = as_engine(keywords.get("engine"), keywords.get("workers"))
        return cls(**given, data_record=data_record, engine=engine)  # type: ignore[arg-type]

    def load(self, model: ModelLike) -> Model:
        """Return the model, loaded if it is a spec or a folder, with the wanted block size."""
        return with_block_size(load_model(model, device=self.device, dtype=self.dtype), self.block_size)

    def stays_on_cpu(self, model: Model) -> bool:
        """Whether the units are surely computed on a CPU: as asked, or here, where the model is on one.

        Ray may find GPUs where this machine has none.
        """
        wanted = (self.device or "").partition(":")[0]
        return device_type(model) == "cpu" and (self.engine.kind == "local" or wanted == "cpu")

    def anchor_of(self, model: Model) -> Anchor:
        """Return where the grid starts: as asked, or as the model wants it."""
        return self.anchor or check_anchor(model.anchor)


class Keywords(TypedDict, total=False):
    """Keyword arguments that ``score``, ``generate`` and ``evaluate`` share; each may be left out.

    Attributes:
        block_size: tokens per block; the model's own by default.
        anchor: ``"zero"`` or ``"prompt"``: where the block grid starts; the model's own choice by default.
        batch_size: samples per work unit; chosen for the model by default. As many of them are decoded
            together as fit in memory.
        device: where to put a model given as a spec.
        dtype: its precision.
        engine: who computes: ``"local"``, ``"ray"`` or an ``orderlens.Engine``.
        workers: processes or Ray actors that share the work; one per GPU by default. More than one needs
            ``out``.
        out: run folder; without it the run lives in memory.
        progress: is told the number of tokens ahead and each advance.
    """

    block_size: int | None
    anchor: Anchor | None
    batch_size: int | None
    device: str | None
    dtype: str | None
    engine: EngineLike
    workers: int | None
    out: PathLike | None
    progress: ProgressSink | None


def spelled_out(function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
    """Write the shared keywords out in a function's signature, for ``help`` and notebooks; refuse others."""
    own = [item for item in signature(function).parameters.values() if item.kind is not Parameter.VAR_KEYWORD]
    hints = {name: getattr(hint, "__forward_arg__", hint) for name, hint in Keywords.__annotations__.items()}
    shared = [Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=hints[name]) for name in hints]
    whole = Signature([*own, *shared], return_annotation=signature(function).return_annotation)

    @wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned:
        try:
            whole.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{function.__name__}() {error}") from None
        return function(*args, **kwargs)

    call.__signature__ = whole  # type: ignore[attr-defined]
    return call


def with_block_size(model: Model, block_size: int | None) -> Model:
    """Return the model with the wanted block size; None keeps its own."""
    return model if block_size in (None, model.block_size) else model.with_block_size(int(block_size or 0))


def check_anchor(anchor: str) -> Anchor:
    """Return ``anchor`` if it is one of the two choices."""
    if anchor not in ("zero", "prompt"):
        raise UserInputError(f"anchor '{anchor}' is unknown; allowed are zero and prompt")
    return "zero" if anchor == "zero" else "prompt"
