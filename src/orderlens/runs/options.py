"""Options that several verbs share, each defined once, and how they are turned into a model and an engine.

No postponed annotations here: the types of fields are read when the command line is built.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeAlias, runtime_checkable

from orderlens.errors import UserInputError
from orderlens.runs.request import NEEDED, BadValueError, Opt, Request, check

if TYPE_CHECKING:
    from orderlens.decode.chains import LiveCanvas
    from orderlens.models.protocol import Anchor, Model

PathLike: TypeAlias = str | os.PathLike[str]
ModelLike: TypeAlias = "Model | str | os.PathLike[str]"
"""A loaded model, a spec such as ``"tiny"``, or the path of a checkpoint folder."""
STALL_S = 1800.0
"""Seconds without progress after which a worker counts as hanging."""
MACHINE = "Machine"
"""Panel of the options that few commands need."""


class ProgressSink(Protocol):
    """Something that shows progress, such as ``orderlens.cli.console.Bar``."""

    def __call__(self, steps: int = 1) -> None:
        """Advance by a number of tokens."""
        ...

    def set_total(self, total: int) -> None:
        """Receive the number of tokens (an upper bound when decoding may stop early)."""
        ...


@runtime_checkable
class ShowsWorkers(Protocol):
    """Progress that can also show what each of several workers does."""

    def show_workers(self, states: Sequence[Any]) -> None:
        """Show the workers' states (``runs.worker_log.State``)."""
        ...


@runtime_checkable
class ShowsCanvas(Protocol):
    """Progress that can also show texts while they are decoded, in this process."""

    def show_canvas(self, canvases: "Sequence[LiveCanvas]") -> None:
        """Show the texts of one sample, one per policy."""
        ...


@dataclass(frozen=True, slots=True)
class Engine:
    """Who computes the units. Starts nothing.

    Attributes:
        kind: ``local`` (this process, or processes of this machine) or ``ray`` (actors on a Ray cluster).
        workers: processes or actors; None is one per GPU where the model is on one, else one.
        address: of the Ray cluster; None starts Ray on this machine.
        attempts: how often a unit is tried by workers before it is set aside.
        stall_s: seconds without progress after which a worker is killed and its unit given to another.
        threads: CPU threads per worker; None shares the machine's cores among them.
    """

    kind: str = "local"
    workers: int | None = None
    address: str | None = None
    attempts: int = 2
    stall_s: float = STALL_S
    threads: int | None = None

    def __post_init__(self) -> None:
        check("engine", Literal["local", "ray"], Opt(""), self.kind)
        for name in ("workers", "threads", "attempts"):
            check(name, int | None, Opt("", least=1), getattr(self, name))
        if self.address is not None and self.kind != "ray":
            raise BadValueError("address", self.address, "is that of a Ray cluster; add engine ray")
        if self.address is not None and not re.fullmatch(r"auto|local|[^/]+:\d+", self.address):
            why = "must be auto or HOST:PORT of the cluster's head (10.0.0.1:6379)"
            raise BadValueError("address", self.address, why)
        if not self.stall_s > 0:
            raise UserInputError(f"stall_s={self.stall_s} must be a number of seconds above 0")


EngineLike: TypeAlias = Engine | str | None


def as_engine(engine: EngineLike = None, workers: int | None = None, address: str | None = None) -> Engine:
    """Return what was asked for as an ``Engine``; ``workers`` and ``address`` go with a name only."""
    if isinstance(engine, Engine):
        if workers is not None or address is not None:
            raise UserInputError("give workers inside the Engine or beside its name, not both")
        return engine
    return Engine(engine or "local", workers, address)


def run_place(value: str | Path) -> str:
    """Return where a run is written: a local folder or the address of one on an object store."""
    text = str(value)
    return text if "://" in text else str(local_place(text))


def local_place(value: str | Path) -> Path:
    """Return where something is written on this machine; places that cannot be meant are refused."""
    text = str(value)
    if not text.strip():
        raise BadValueError("out", text, "is empty; name a file or folder")
    if text.startswith("-"):
        raise BadValueError("out", text, f"looks like an option; a path of this name is written './{text}'")
    if "://" in text:
        raise BadValueError("out", text, "is an address; only runs can be written there, name a local path")
    if "\0" in text:
        raise BadValueError("out", text, "is not possible: no file can have this name")
    try:
        path = Path(text).expanduser()  # a shell leaves the ~ of --out=~/runs alone
        resolved = path.resolve()
    except (OSError, RuntimeError) as error:
        raise BadValueError("out", text, f"cannot be reached ({error}); choose another place") from None
    if resolved == resolved.parent:
        raise BadValueError("out", text, "is the root of the file system; name a folder in it")
    return path


def batch_size(text: str) -> int | None:
    """Return the number of samples per work unit, or None for ``auto``."""
    if text == "auto":
        return None
    try:
        return int(text)
    except ValueError:
        raise BadValueError("batch_size", text, "must be a whole number or auto") from None


def pairs(option: str, form: str) -> Any:
    """Return the reader of a repeatable option NAME=VALUE."""

    def read(text: str) -> str:
        name, sign, rest = text.partition("=")
        if not (name and sign and rest):
            raise BadValueError(option, text, f"must have the form {form}")
        return text

    return read


def as_pairs(option: str, values: Sequence[str]) -> dict[str, str]:
    """Return the pairs of a repeatable option NAME=VALUE; a name may be given once."""
    found: dict[str, str] = {}
    for value in values:
        name, _, rest = value.partition("=")
        if name in found:
            raise BadValueError(option, value, f"gives {name} a second time; give each name one value")
        found[name] = rest
    return found


# Options whose default or place differs by verb: an alias each.
RunOut = Annotated[
    "PathLike | None",
    Opt("Run folder; an unfinished run there is resumed.", "-o", metavar="RUN", given=NEEDED, read=run_place),
]
FolderOut = Annotated[
    Path, Opt("Folder; unfinished work there is resumed.", "-o", metavar="FOLDER", read=local_place)
]
ModelName = Annotated[
    "ModelLike",
    Opt("tiny, smol, hmm, hf:ORG/NAME[@REV], or a checkpoint folder.", "-m", given="tiny", metavar="TEXT"),
]
POLICIES = "Orders or policies, separated by commas; see 'orderlens orders'."
Split = Annotated[
    Literal["none", "lines", "paragraphs"], Opt("What one text of a .txt file is: none is the whole file.")
]
Seed = Annotated[int, Opt("Seed of the token draws at temperature > 0.", stored=True)]
Temperature = Annotated[float, Opt("0 is greedy.")]
Limit = Annotated[int | None, Opt("Maximum number of samples.", least=1)]
DataName = Annotated[str, Opt("JSON lines, CSV, Parquet or text file, or passages, or c4.", "-d")]
PrefixTokens = Annotated[int, Opt("Prompt length when rows hold 'text'.", least=0)]
TargetTokens = Annotated[int, Opt("Target length when rows hold 'text'.", least=1)]
Bootstrap = Annotated[int, Opt("Number of resamples for intervals; 0 for none.", least=0)]
Device = Annotated[str | None, Opt("cpu, cuda, cuda:1 or mps.", shown="the best one")]
BlockSize = Annotated[int | None, Opt("Tokens per block.", shown="the model's own", least=1, stored=True)]
BatchSize = Annotated[
    int | None,
    Opt(
        "Samples per work unit; as many at once as fit in memory.",
        shown="auto",
        metavar="N|auto",
        least=1,
        read=batch_size,
        panel=MACHINE,
    ),
]
Dtype = Annotated[str | None, Opt("float32 or bfloat16.", shown="by model and device", panel=MACHINE)]


@dataclass(frozen=True, kw_only=True)
class Machine(Request):
    """Which machine computes, and how much at once."""

    device: Device = None
    dtype: Dtype = None
    batch_size: BatchSize = None
    engine: Annotated[
        "EngineLike",
        Opt(
            "This machine, or actors on a Ray cluster.",
            given="local",
            choices=("local", "ray"),
            panel=MACHINE,
        ),
    ] = None
    workers: Annotated[
        int | None,
        Opt("Processes or Ray actors that share the work.", shown="one per GPU", least=1, panel=MACHINE),
    ] = None
    address: Annotated[
        str | None, Opt("Ray cluster to join, e.g. auto; without it one is started.", panel=MACHINE)
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.chosen_engine  # noqa: B018  refuses what does not go together

    @cached_property
    def chosen_engine(self) -> Engine:
        """Who computes the units."""
        return as_engine(self.engine, self.workers, self.address)


@dataclass(frozen=True, kw_only=True)
class Computing(Machine):
    """How to load the model, lay out and cut the work, and where to keep it."""

    out: RunOut = None
    block_size: BlockSize = None
    anchor: Annotated[
        'Literal["zero", "prompt"] | None',
        Opt(
            "Where the block grid starts.",
            shown="the model's own",
            choices=("zero", "prompt"),
            panel=MACHINE,
            stored=True,
        ),
    ] = None
    progress: Annotated["ProgressSink | None", "receives the number of tokens and each advance."] = None
    data_record: Annotated[
        Mapping[str, Any] | None,
        "where the samples came from, for the run's spec; known for what ``load_samples`` gives.",
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.out is not None and not isinstance(self.out, str | os.PathLike):
            raise BadValueError("out", self.out, "must be a folder, as text or Path")

    def load(self, model: ModelLike) -> "Model":
        """Return the model, loaded if it is a spec or a folder, with the wanted block size."""
        from orderlens.models.loading import load_model

        return with_block_size(load_model(model, device=self.device, dtype=self.dtype), self.block_size)

    def stays_on_cpu(self, model: "Model") -> bool:
        """Whether the units are surely computed on a CPU: as asked, or here, where the model is on one.

        Ray may find GPUs where this machine has none.
        """
        from orderlens.models.abilities import device_type

        wanted = (self.device or "").partition(":")[0]
        return device_type(model) == "cpu" and (self.chosen_engine.kind == "local" or wanted == "cpu")

    def anchor_of(self, model: "Model") -> "Anchor":
        """Return where the grid starts: as asked, or as the model wants it."""
        return self.anchor or check_anchor(model.anchor)


def with_block_size(model: "Model", block_size: int | None) -> "Model":
    """Return the model with the wanted block size; None keeps its own."""
    return model if block_size in (None, model.block_size) else model.with_block_size(int(block_size or 0))


def check_anchor(anchor: str) -> "Anchor":
    """Return ``anchor`` if it is one of the two choices."""
    check("anchor", Literal["zero", "prompt"], Opt(""), anchor)
    return "zero" if anchor == "zero" else "prompt"
