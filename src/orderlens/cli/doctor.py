"""``orderlens doctor``: what is installed, which device, what will work."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
from typing import Any

import typer
from rich.table import Table

from orderlens._version import __version__
from orderlens.cli.console import JsonFlag, print_json, stdout

_PACKAGES = {
    "numpy": ("everything", "pip install orderlens"),
    "pyarrow": ("run folders", "pip install orderlens"),
    "duckdb": ("SQL over runs", "pip install orderlens"),
    "torch": ("every model but hmm", "pip install 'orderlens[torch]'"),
    "safetensors": ("checkpoints", "pip install 'orderlens[torch]'"),
    "tokenizers": ("checkpoints", "pip install 'orderlens[torch]'"),
    "huggingface-hub": ("hf: models and hub data", "pip install 'orderlens[torch]'"),
    "transformers": ("GPT-2 as external evaluator", "pip install 'orderlens[hf]'"),
    "lm-eval": ("IFEval grading, lm-eval bridge", "pip install 'orderlens[eval]'"),
    "polars": ("to_polars()", "pip install 'orderlens[polars]'"),
}


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("doctor")(doctor)


def doctor(json: JsonFlag = False) -> None:
    """Say what is installed, which device will be used, and what will work."""
    report = examine()
    if json:
        print_json(report)
        return
    machine = report["machine"]
    stdout.print(
        f"orderlens {report['orderlens']}, Python {machine['python']}, {machine['system']}", markup=False
    )
    stdout.print(f"{machine['cores']} cores, {machine['memory_gib']:.1f} GiB memory, "
                 f"{machine['disk_free_gib']:.0f} GiB free here", markup=False)  # fmt: skip
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("package", "version", "needed for", "remedy"):
        table.add_column(head)
    for row in report["packages"]:
        remedy = "" if row["version"] else row["install"]
        table.add_row(row["name"], row["version"] or "missing", row["for"], remedy.replace("[", "\\["))
    stdout.print(table)
    for line in report["expect"]:
        stdout.print(f"- {line}", markup=False)


def examine() -> dict[str, Any]:
    """Return the report as plain data."""
    packages = [
        {"name": name, "version": _version(name), "for": purpose, "install": install}
        for name, (purpose, install) in _PACKAGES.items()
    ]
    devices = _devices()
    return {
        "orderlens": __version__,
        "machine": {
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}",
            "cores": os.cpu_count() or 1,
            "memory_gib": _memory_bytes() / 2**30,
            "disk_free_gib": shutil.disk_usage(".").free / 2**30,
        },
        "packages": packages,
        "devices": devices,
        "expect": _expectations(devices),
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0


def _devices() -> list[dict[str, Any]]:
    try:
        import torch
    except ImportError:
        return []
    found: list[dict[str, Any]] = [{"name": "cpu", "memory_gib": _memory_bytes() / 2**30}]
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            found.append(
                {"name": f"cuda:{index} ({properties.name})", "memory_gib": properties.total_memory / 2**30}
            )
    if torch.backends.mps.is_available():
        found.append({"name": "mps", "memory_gib": _memory_bytes() / 2**30})
    return found


def _expectations(devices: list[dict[str, Any]]) -> list[str]:
    """What a user can run here: LLaDA-2.x-mini takes 32.5 GB in bf16, tiny a few hundred MB."""
    if not devices:
        return ["without torch: hmm, theory, analyze, figures and runs work; the rest needs orderlens[torch]"]
    lines = ["tiny and hmm run here on the CPU"]
    gpus = [device for device in devices if device["name"].startswith("cuda")]
    if not gpus:
        enough = devices[0]["memory_gib"] > 40
        fit = "fits in memory but decodes at seconds per token" if enough else "does not fit in this memory"
        lines.append(f"no CUDA GPU: LLaDA-2.x-mini (32.5 GB in bf16) {fit}")
    for device in gpus:
        fits = "fits" if device["memory_gib"] > 38 else "does not fit (32.5 GB of weights plus cache)"
        lines.append(f"{device['name']}, {device['memory_gib']:.0f} GiB: LLaDA-2.x-mini in bf16 {fits}")
    return lines
