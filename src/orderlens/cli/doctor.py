"""``orderlens doctor``: checks installed packages, devices and models.

No postponed annotations here: the types of fields are read when the command line is built.
"""

import os
import platform
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, TypeAlias

from orderlens._version import __version__
from orderlens.cli.command import Output, takes
from orderlens.cli.terminal import print_json
from orderlens.common.machine import total_memory
from orderlens.errors import ModelLoadError
from orderlens.runs.request import Opt

_PACKAGES = {
    "numpy": ("everything", "pip install orderlens"),
    "pyarrow": ("run folders", "pip install orderlens"),
    "duckdb": ("SQL over runs", "pip install orderlens"),
    "torch": ("every model but hmm", "pip install 'orderlens[torch]'"),
    "safetensors": ("checkpoints", "pip install 'orderlens[torch]'"),
    "tokenizers": ("checkpoints", "pip install 'orderlens[torch]'"),
    "huggingface-hub": ("hf: models and hub data", "pip install 'orderlens[torch]'"),
    "transformers": ("XLNet, BERT kinds; GPT-2 as evaluator", "pip install 'orderlens[hf]'"),
    "lm-eval": ("IFEval grading, lm-eval bridge", "pip install 'orderlens[eval]'"),
    "polars": ("to_polars()", "pip install 'orderlens[polars]'"),
}


CheckedModel = Annotated[
    str | None, Opt("Model to check: does it fit, how fast is it? It is not loaded.", "-m")
]


@dataclass(frozen=True, kw_only=True)
class Doctor(Output):
    """Check which packages and devices this machine has, and which models will run on it."""

    model: CheckedModel = None


@takes(Doctor)
def doctor(request: Doctor) -> int:
    """Print the report; 2 when the model cannot work here."""
    report = examine(request.model)
    if request.json:
        print_json(report)
    else:
        _show(report)
    return 2 if report["model"] is not None and report["model"]["problem"] is not None else 0


def _show(report: dict[str, Any]) -> None:
    from rich.table import Table

    from orderlens.cli.console import stdout

    machine = report["machine"]
    stdout.print(f"orderlens {report['orderlens']}, Python {machine['python']}, {machine['system']}")
    stdout.print(f"{machine['cores']} cores, {machine['memory_gib']:.1f} GiB memory, "
                 f"{machine['disk_free_gib']:.0f} GiB free here")  # fmt: skip
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("package", "version", "needed for", "remedy"):
        table.add_column(head)
    for row in report["packages"]:
        remedy = "" if row["version"] else row["install"]
        table.add_row(row["name"], row["version"] or "missing", row["for"], remedy)
    stdout.print(table)
    batches = {item["line"]: item["batch"] for item in report["estimates"]}
    for line in report["expect"]:
        stdout.print(f"- {line}")
        if batch := batches.get(line):
            sizes = ", ".join(f"{count:,} of {tokens:,} tokens" for tokens, count in batch.items())
            stdout.print(f"  sequences per batch: {sizes}")
    if report["model"] is not None and report["model"].get("gpus"):
        _show_gpus(report["model"]["gpus"])


def _show_gpus(fits: list[dict[str, Any]]) -> None:
    """Print what to expect of the model on named GPUs."""
    from rich.table import Table

    from orderlens.cli.console import stdout

    table = Table(box=None, pad_edge=False, header_style="bold")
    heads = ("GPU", "weights", "fits", "batch of 160 / 2,048 tokens", "tokens/s, batch 1 / 32")
    for head in heads:
        table.add_column(head)
    for fit in fits:
        sizes = " / ".join(f"{count:,}" for count in list(fit["batch"].values())[:2])
        speeds = " / ".join(f"{speed:,.0f}" for speed in fit["tokens_per_s"].values())
        weights = f"{fit['weights_gb']:.1f} GB {fit['weights']}"
        answer, unknown = ("yes", "not estimated") if fit["fits"] else ("no", "")
        table.add_row(fit["gpu"], weights, answer, sizes, speeds or unknown)
    stdout.print(table)
    stdout.print("Memory is counted, speed is estimated at one token per pass (docs/running.md, Which GPU).")


def examine(model: str | None = None) -> dict[str, Any]:
    """Return the report as plain data; ``model`` is a spec to say more about."""
    packages = [
        {"name": name, "version": _version(name), "for": purpose, "install": install}
        for name, (purpose, install) in _PACKAGES.items()
    ]
    devices = _devices()
    about, lines, estimates = _expectations(devices) if model is None else _about(model, devices)
    return {
        "orderlens": __version__,
        "machine": {
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}",
            "cores": os.cpu_count() or 1,
            "memory_gib": (total_memory() or 0) / 2**30,
            "disk_free_gib": shutil.disk_usage(".").free / 2**30,
        },
        "packages": packages,
        "devices": devices,
        "model": about,
        "expect": lines,
        "estimates": [asdict(item) for item in estimates],
    }


def _version(name: str) -> str | None:
    from importlib import metadata  # slow to import, and every verb's --help imports this module

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _devices() -> list[dict[str, Any]]:
    try:
        from orderlens.models.engine.device import visible_devices
    except ImportError:
        return []
    return visible_devices()


Known: TypeAlias = tuple[dict[str, Any] | None, list[str], Sequence[Any]]
"""What is known about the requested model, lines to print, and memory estimates."""


def _expectations(devices: list[dict[str, Any]]) -> Known:
    """What a user can run here, the paper's model included."""
    if not devices:
        line = (
            "torch is missing: only hmm, theory, analyze, figures and runs work; install 'orderlens[torch]'"
        )
        return None, [line], ()
    from orderlens.models.checkpoint_info import published
    from orderlens.models.engine.device import estimate_memory

    found = published("LLaDA2-mini")
    assert found is not None
    paper = [
        estimate_memory(place, found.config, found.dtype, "LLaDA-2.x mini", mapped=True)
        for place in _places(devices)
    ]
    return None, ["tiny and hmm run here on the CPU", *(item.line for item in paper)], paper


def _about(model: str, devices: list[dict[str, Any]]) -> Known:
    """Expectations for one model on each device, from its configuration: as data and as lines."""
    from orderlens.models.loading import MODELS, is_folder, refuse_unknown_model, require_torch

    small: dict[str, Any] = {"spec": model, "problem": None, "devices": []}
    if not model.startswith("hf:") and not is_folder(model):
        refuse_unknown_model(name := model.partition(":")[0])
        MODELS.get(name)  # refuses a broken plug-in
        problem = _missing_base() if model == "smol" else None
        return small | {"problem": problem}, [problem or f"{model} runs here on the CPU"], ()
    require_torch()
    from orderlens.models.checkpoint_info import describe_checkpoint
    from orderlens.models.engine.device import estimate_memory
    from orderlens.models.fit import GPUS, Network, estimate, has_experts, own_gpus

    found = describe_checkpoint(model)
    if found is None:
        return small, [f"{model}: small models run here on the CPU"], ()
    kind, name = str(found.dtype).removeprefix("torch."), model.rstrip("/").rpartition("/")[2]
    shape = (found.config, found.dtype, found.block_size)
    formats = ((True,) if found.float8 else (False, True)) if has_experts(found.config) else (False,)
    expected = [
        estimate_memory(
            place,
            *shape[:2],
            f"{name}, --weights fp8" if float8 and not found.float8 else name,
            mapped=found.mapped,
            needed=Network(*shape, float8, found.scales).weight_bytes,
        )
        for place in _places(devices)
        for float8 in (formats[:1] if place == "cpu" else formats)
    ]
    size = f"{found.config.n_parameters / 1e9:.2f} B weights in {kind} ({found.source})"
    known = f"{model}: family {found.family}, {size}"
    trouble = [] if found.problem is None else [f"problem: {found.problem}"]
    gpus = (*own_gpus(devices), *GPUS)
    about = {
        "spec": model,
        "family": found.family,
        "parameters": found.config.n_parameters,
        "dtype": kind,
        "source": found.source,
        "problem": found.problem,
        "devices": [asdict(item) for item in expected],
        "gpus": [
            asdict(item)
            for float8 in formats
            for item in estimate(*shape, float8=float8, scales=found.scales, gpus=gpus)
        ],
    }
    return about, [known, *trouble, *(item.line for item in expected)], expected


def _missing_base() -> str | None:
    """The step that is missing before smol can run, or None."""
    from orderlens.models.smol.base import require_base

    try:
        require_base()
    except ModelLoadError as error:
        return str(error)
    return None


def _places(devices: list[dict[str, Any]]) -> list[str]:
    """The devices as torch names them."""
    return [device["name"].split()[0] for device in devices]
