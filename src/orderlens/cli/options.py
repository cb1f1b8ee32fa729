"""Options that several verbs share, declared once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from orderlens.errors import UserInputError

Number = TypeVar("Number", int, float)


def entries(text: str) -> list[str]:
    """Return the entries of a comma-separated option."""
    return [part.strip() for part in text.split(",") if part.strip()]


def numbers(option: str, text: str, kind: Callable[[str], Number], like: str) -> list[Number]:
    """Return the numbers of a comma-separated option.

    Raises:
        UserInputError: one of them is none; ``like`` is an example of what is meant.
    """
    try:
        return [kind(part) for part in entries(text)]
    except ValueError:
        word = "whole numbers" if kind is int else "numbers"
        raise UserInputError(f"{option} '{text}' must be {word} separated by commas, e.g. {like}") from None


def temperatures(text: str) -> list[float]:
    """Return the numbers of ``--temperatures``."""
    return numbers("--temperatures", text, float, "0,0.5,1")


def parse_batch_size(value: str | int) -> int | None:
    """Return the number, or None for ``auto``."""
    if value == "auto":
        return None
    try:
        return int(value)
    except ValueError:
        raise typer.BadParameter(f"'{value}' is neither a whole number nor 'auto'") from None


ModelOption = Annotated[
    str, typer.Option("--model", "-m", help="tiny, smol, hmm, hf:ORG/NAME[@REV], or a checkpoint folder.")
]
DataOption = Annotated[
    str, typer.Option("--data", "-d", help="JSON lines, CSV, Parquet or text file, or passages, or c4.")
]


def run_place(value: str | Path) -> str:
    """Return where a run is written: a local folder or the address of one on an object store."""
    text = str(value)
    return text if "://" in text else str(local_place(text))


def local_place(value: str | Path) -> Path:
    """Return where something is written on this machine; places that cannot be meant are refused."""
    text = str(value)
    if not text.strip():
        raise typer.BadParameter("it is empty; name a file or folder")
    if text.startswith("-"):
        raise typer.BadParameter(f"'{text}' looks like an option; a path of this name is written './{text}'")
    if "://" in text:
        raise typer.BadParameter(f"'{text}' is an address; only runs can be written there, name a local path")
    if "\0" in text:
        raise typer.BadParameter(f"{text!r}: no file can have this name")
    try:
        path = Path(text).expanduser()  # a shell leaves the ~ of --out=~/runs alone
        resolved = path.resolve()
    except (OSError, RuntimeError) as error:
        raise typer.BadParameter(f"'{text}' cannot be reached ({error})") from None
    if resolved == resolved.parent:
        raise typer.BadParameter(f"'{text}' is the root of the file system; name a folder in it")
    return path


ChatOption = Annotated[
    bool, typer.Option("--chat", help="Put each prompt as a question in the model's chat template.")
]
OutOption = Annotated[
    str,
    typer.Option(
        "--out", "-o", parser=run_place, metavar="RUN", help="Run folder; an unfinished run there is resumed."
    ),
]
ExtendOption = Annotated[
    bool, typer.Option("--extend", help="Add new orders and samples to the complete run in --out.")
]


def out_option(help_text: str, metavar: str = "FOLDER") -> Any:
    """Return the option ``--out`` of a verb that writes local files."""
    return typer.Option("--out", "-o", parser=local_place, metavar=metavar, help=help_text)


OverwriteFlag = Annotated[bool, typer.Option("--overwrite", help="Replace files that exist.")]
FolderOption = Annotated[Path, out_option("Folder; unfinished work there is resumed.")]
OrdersOption = Annotated[
    str, typer.Option("--orders", help="Comma-separated orders or policies; see 'orderlens orders'.")
]
DeviceOption = Annotated[
    str | None, typer.Option("--device", help="cpu, cuda, cuda:1, mps; default: the best one.")
]
DtypeOption = Annotated[
    str | None, typer.Option("--dtype", help="float32 or bfloat16; default by model and device.")
]
BatchOption = Annotated[
    int | None,
    typer.Option(
        "--batch-size",
        parser=parse_batch_size,
        metavar="N|auto",
        show_default="auto",
        help="Samples per work unit; as many at once as fit in memory.",
    ),
]
BlockOption = Annotated[
    int | None, typer.Option("--block-size", help="Tokens per block; default: the model's own.")
]
AnchorOption = Annotated[
    str | None, typer.Option("--anchor", help="Block grid starts at 'zero' or at the end of the 'prompt'.")
]
LimitOption = Annotated[int | None, typer.Option("--limit", help="Use at most so many samples.")]
PrefixOption = Annotated[int, typer.Option("--prefix-tokens", help="Prompt length when rows hold 'text'.")]
TargetOption = Annotated[int, typer.Option("--target-tokens", help="Target length when rows hold 'text'.")]
ShortOption = Annotated[bool, typer.Option("--allow-short", help="Keep texts that are shorter than that.")]
SplitOption = Annotated[
    str, typer.Option("--split", help="One text of a .txt file is: none (the file), lines, paragraphs.")
]
LengthOption = Annotated[int, typer.Option("--max-new-tokens", help="Tokens to generate, at most 16384.")]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of the token draws at temperature > 0.")]
EngineOption = Annotated[
    str, typer.Option("--engine", help="local (this machine) or ray (actors on a Ray cluster).")
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        "--workers", show_default="one per GPU", help="Processes or Ray actors that share the work."
    ),
]
AddressOption = Annotated[
    str | None,
    typer.Option("--address", help="Ray cluster to join, e.g. auto; without it one is started."),
]
