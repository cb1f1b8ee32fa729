"""The options that several verbs share, and their conversion into a model and an engine.

No postponed annotations here: the types of fields are read when the command line is built.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeAlias, cast, runtime_checkable

from orderlens.common.files import lost_slash
from orderlens.common.temperature import as_temperatures, plain_temperature
from orderlens.errors import UserInputError
from orderlens.runs.request import NEEDED, BadValueError, Opt, Request, check

if TYPE_CHECKING:
    from orderlens.decode.chains import LiveCanvas
    from orderlens.models.protocol import Anchor, Model

PathLike: TypeAlias = str | os.PathLike[str]
ModelLike: TypeAlias = "Model | str | os.PathLike[str]"
"""A loaded model, a spec such as ``"tiny"``, or the path of a checkpoint folder."""
MACHINE = "Machine"
"""Heading in ``--help`` of the options that are rarely needed."""


class ProgressSink(Protocol):
    """A progress display, such as ``orderlens.cli.console.Bar``."""

    def __call__(self, steps: int = 1) -> None:
        """Advance by a number of tokens."""

    def set_total(self, total: int) -> None:
        """Set the total number of tokens (an upper bound if decoding may stop early)."""


@runtime_checkable
class ShowsWorkers(Protocol):
    """A progress display that can also show the state of each worker."""

    def show_workers(self, states: Sequence[Any]) -> None:
        """Show the workers' states (``runs.worker_log.State``)."""


@runtime_checkable
class ShowsCanvas(Protocol):
    """A progress display that can also show texts while this process decodes them."""

    def show_canvas(self, canvases: "Sequence[LiveCanvas]") -> None:
        """Show the texts of one sample, one per policy."""


@dataclass(frozen=True, slots=True)
class Engine:
    """Where and by how many workers units are computed. Creating an ``Engine`` starts nothing.

    Attributes:
        kind: ``local`` (this process, or processes of this machine) or ``ray`` (actors on a Ray cluster).
        workers: number of processes or actors; None means one per GPU, or one on a CPU.
        address: address of the Ray cluster; None starts Ray on this machine.
        attempts: number of attempts after which a failing unit is set aside.
        stall_s: seconds without progress after which a worker is killed and replaced.
        threads: CPU threads per worker; None divides the machine's cores among the workers.
    """

    kind: str = "local"
    workers: int | None = None
    address: str | None = None
    attempts: int = 2
    stall_s: float = 1800.0
    threads: int | None = None

    def __post_init__(self) -> None:
        check("engine", Literal["local", "ray"], Opt(""), self.kind)
        for name in ("workers", "threads", "attempts"):
            check(name, int | None, Opt("", least=1), getattr(self, name))
        if self.address is not None and self.kind != "ray":
            raise BadValueError("address", self.address, "is for Ray clusters only; add --engine ray")
        if self.address is not None and not re.fullmatch(r"auto|local|[^/]+:\d+", self.address):
            why = "must be auto or HOST:PORT of the cluster's head (10.0.0.1:6379)"
            raise BadValueError("address", self.address, why)
        if not self.stall_s > 0:
            raise UserInputError(f"stall_s={self.stall_s} must be a number of seconds above 0")


EngineLike: TypeAlias = Engine | str | None


def as_engine(engine: EngineLike = None, workers: int | None = None, address: str | None = None) -> Engine:
    """Return the requested ``Engine``; ``workers`` and ``address`` may only accompany a name."""
    if isinstance(engine, Engine):
        if workers is not None or address is not None:
            raise UserInputError(
                "engine is an Engine object; set its workers and address there, not as arguments"
            )
        return engine
    return Engine(engine or "local", workers, address)


def run_place(value: str | Path) -> str:
    """Return the path of a run: a local folder, or an address on an object store."""
    text = str(value)
    return text if "://" in text else str(local_place(text))


def local_place(value: str | Path) -> Path:
    """Return a local path to write to; impossible or suspicious paths are refused."""
    text = str(value)
    if not text.strip():
        raise BadValueError("out", text, "is empty; name a file or folder")
    if text.startswith("-"):
        raise BadValueError("out", text, f"looks like an option; to use it as a path, write './{text}'")
    if "://" in text:
        raise BadValueError("out", text, "is an address; only runs can be written to one, name a local path")
    if (meant := lost_slash(text)) is not None:
        raise BadValueError("out", text, f"is an address without its second slash; did you mean {meant}?")
    if "\0" in text:
        raise BadValueError("out", text, "contains a NUL character; choose another name")
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


def temperature(text: str) -> float | str:
    """Return a temperature as a number; a schedule stays text."""
    found = as_temperatures(text)
    if len(found) != 1:
        raise BadValueError("temperature", text, "must be one temperature")
    return plain_temperature(found[0])


def pairs(option: str, form: str) -> Any:
    """Return the function that checks a repeatable option NAME=VALUE."""

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
            raise BadValueError(option, value, f"gives a second value for {name}; give each name one value")
        found[name] = rest
    return found


# Options of several verbs, one definition each. Where the type or default differs by verb, the verb adds it.
RUN_OUT = Opt("Run folder to write; an unfinished run in it is resumed.", "-o", metavar="RUN", read=run_place)
FOLDER_OUT = Opt("Folder to write.", "-o", metavar="FOLDER", read=local_place)
RESUMED_OUT = replace(FOLDER_OUT, help="Folder to write; unfinished work in it is resumed.")
FILE_OUT = Opt("File to write.", "-o", metavar="FILE", read=local_place)
MODEL = "Model: tiny, smol, hmm, hf:ORG/NAME[@REV], or a checkpoint folder."
POLICIES = "Orders or policies, separated by commas; 'orderlens orders' lists them."
TASKS = Opt("Tasks, separated by commas; 'orderlens tasks' lists them.", metavar="LIST")
SOURCES = Opt(
    "Read a task from a local file instead of the hub.",
    name="source",
    repeat=True,
    read=pairs("sources", "TASK=FILE"),
    metavar="TASK=FILE",
)
COLUMNS = Opt(
    "Column that holds a field, e.g. logq=lp; repeatable.",
    name="column",
    repeat=True,
    metavar="FIELD=COLUMN",
    read=pairs("columns", "FIELD=COLUMN"),
)
DATA = Opt(
    "Texts: a JSON Lines, CSV, Parquet or text file, or the built-in passages or c4.", "-d", metavar="TEXT"
)
BLOCK_SIZE = Opt("Tokens per block.", least=1)
MAX_NEW_TOKENS = Opt("Maximum number of new tokens per text, up to 16384.", least=1, most=16384, stored=True)
STOP_AT_EOS = Opt("Stop a text after the block that contains an EOS token.", negative=True, stored=True)
OVERFLOW = Opt(
    "Positions past the requested length: fill them to complete the last block, or keep them masked.",
    stored=True,
)
TEMPERATURES = Opt(
    "Sampling temperatures, separated by commas; 0 is greedy. 0.8:0.4 falls as each block fills, "
    "position:0.8:0.4 over its positions.",
    metavar="LIST",
)
COUPLINGS = Opt(
    "Number of passes per trace whose tokens are scored again one at a time; table couplings shows the loss.",
    least=0,
    stored=True,
)
RunOut = Annotated["PathLike | None", replace(RUN_OUT, given=NEEDED)]
ModelName = Annotated["ModelLike", Opt(MODEL, "-m", given="tiny", metavar="TEXT")]
Split = Annotated[
    Literal["none", "lines", "paragraphs"],
    Opt("How to split a .txt file into texts; none keeps the file as one text."),
]
Seed = Annotated[int, Opt("Seed for drawing tokens at temperatures above 0.", stored=True)]
Temperature = Annotated[
    "float | str",
    Opt(
        "Sampling temperature; 0 is greedy. 0.8:0.4 or position:0.8:0.4 changes it within each block.",
        read=temperature,
    ),
]
AllowShort = Annotated[bool, Opt("Keep texts that are shorter than prompt and target (or span) require.")]
PREFIX_TOKENS = Opt("Prompt length in tokens, for rows with one 'text'.", least=0)
TARGET_TOKENS = Opt("Target length in tokens, for rows with one 'text'.", least=1)
Bootstrap = Annotated[int, Opt("Number of bootstrap resamples for intervals; 0 for no intervals.", least=0)]
GraderName = Annotated[str | None, Opt("Grader whose verdicts count.", shown="each task's own")]
OneTemperature = Annotated[
    float | None, Opt("Temperature of the results that show a single one.", shown="the lowest in the runs")
]
Device = Annotated[str | None, Opt("Device: cpu, cuda, cuda:1 or mps.", shown="the fastest one")]
BlockSize = Annotated[int | None, replace(BLOCK_SIZE, shown="the model's own", stored=True)]
BatchSize = Annotated[
    int | None,
    Opt(
        "Samples per work unit; auto chooses a number that fits in memory.",
        shown="auto",
        metavar="N|auto",
        least=1,
        read=batch_size,
        panel=MACHINE,
    ),
]
Dtype = Annotated[
    str | None, Opt("Number format: float32 or bfloat16.", shown="by model and device", panel=MACHINE)
]
Weights = Annotated[
    'Literal["fp8"] | None',
    Opt(
        "Format of the weights: fp8 converts experts to 8 bits while loading.",
        shown="as stored",
        choices=("fp8",),
        panel=MACHINE,
    ),
]


def limit_option(what: str = "samples") -> Opt:
    """Return the option ``--limit`` of a verb that limits the number of ``what``."""
    return Opt(f"Maximum number of {what}.", least=1)


Limit = Annotated[int | None, limit_option()]


def orders_option(default: str) -> Opt:
    """Return the option ``--orders`` with the orders that a verb takes by default."""
    return Opt(POLICIES, given=default, metavar="LIST")


def evaluator_option(more: str = "") -> Opt:
    """Return the option ``--evaluator``; ``more`` names what a verb accepts besides models."""
    return Opt(f"Autoregressive model that scores generated texts: tiny-ar, smol-ar, hf:ORG/NAME{more}.")


@dataclass(frozen=True, kw_only=True)
class Machine(Request):
    """The machine that computes, and the size of its work units."""

    device: Device = None
    dtype: Dtype = None
    weights: Weights = None
    batch_size: BatchSize = None
    engine: Annotated[
        "EngineLike",
        Opt(
            "Where to compute: on this machine, or on a Ray cluster.",
            given="local",
            choices=("local", "ray"),
            panel=MACHINE,
        ),
    ] = None
    workers: Annotated[
        int | None,
        Opt("Number of worker processes or Ray actors.", shown="one per GPU", least=1, panel=MACHINE),
    ] = None
    address: Annotated[
        str | None,
        Opt(
            "Address of the Ray cluster, HOST:PORT or auto.", shown="start Ray on this machine", panel=MACHINE
        ),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.chosen_engine  # noqa: B018  refuses bad combinations

    @cached_property
    def chosen_engine(self) -> Engine:
        """The engine that computes the units."""
        return as_engine(self.engine, self.workers, self.address)


@dataclass(frozen=True, kw_only=True)
class Computing(Machine):
    """Options for loading the model, the block grid, the work units and the run folder."""

    out: RunOut = None
    block_size: BlockSize = None
    anchor: Annotated[
        'Literal["zero", "prompt"] | None',
        Opt(
            "Where the grid of blocks starts: at position 0 or after the prompt.",
            shown="the model's own",
            choices=("zero", "prompt"),
            panel=MACHINE,
            stored=True,
        ),
    ] = None
    progress: Annotated["ProgressSink | None", "progress display."] = None
    data_record: Annotated[
        Mapping[str, Any] | None,
        "origin of the samples, for the run's spec; known for samples of ``load_samples``.",
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.out is not None and not isinstance(self.out, str | os.PathLike):
            raise BadValueError("out", self.out, "must be a folder, as text or Path")

    def load(self, model: ModelLike) -> "Model":
        """Return the model with the requested block size; a name or a folder is loaded."""
        from orderlens.models.loading import load_model

        loaded = load_model(model, device=self.device, dtype=self.dtype, weights=self.weights)
        return with_block_size(loaded, self.block_size)

    def stays_on_cpu(self, model: "Model") -> bool:
        """Whether the units are certainly computed on a CPU.

        With Ray that is only known if the CPU was requested: the cluster may have GPUs.
        """
        from orderlens.models.abilities import device_type

        wanted = (self.device or "").partition(":")[0]
        return device_type(model) == "cpu" and (self.chosen_engine.kind == "local" or wanted == "cpu")

    def anchor_of(self, model: "Model") -> "Anchor":
        """Return where the block grid starts: as requested, else the model's own choice."""
        return self.anchor or check_anchor(model.anchor)


@dataclass(frozen=True, kw_only=True)
class Decoding(Computing):
    """Options of the verbs that decode: which states of the masked positions are kept."""

    states: Annotated[
        bool,
        Opt("Keep top probability and entropy of every masked position per pass, and self-certainty."),
    ] = False
    limit_states: Annotated[
        int,
        Opt(
            "With --states: maximum number of masked positions per text and order, over all passes.",
            least=1,
            stored=True,
        ),
    ] = 65_536

    @property
    def stored_states(self) -> int | None:
        """The limit of masked positions per trace; None if no states are kept."""
        return self.limit_states if self.states else None


def with_block_size(model: "Model", block_size: int | None) -> "Model":
    """Return the model with another block size; None keeps its own."""
    return model if block_size in (None, model.block_size) else model.with_block_size(int(block_size or 0))


def check_anchor(anchor: str) -> "Anchor":
    """Return ``anchor`` if it is ``zero`` or ``prompt``."""
    return cast("Anchor", check("anchor", Literal["zero", "prompt"], Opt(""), anchor))
