"""Options that several verbs share, declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def parse_batch_size(value: str | int) -> int | None:
    """Return the number, or None for ``auto``."""
    if value == "auto":
        return None
    try:
        return int(value)
    except ValueError:
        raise typer.BadParameter(f"'{value}' is neither a whole number nor 'auto'") from None


ModelOption = Annotated[
    str, typer.Option("--model", "-m", help="tiny, hmm, hf:ORG/NAME[@REV], or a checkpoint folder.")
]
DataOption = Annotated[
    str, typer.Option("--data", "-d", help="JSON lines, CSV, Parquet or text file, or passages, or c4.")
]
OutOption = Annotated[
    Path, typer.Option("--out", "-o", help="Run folder; an unfinished run there is resumed.")
]
ExtendOption = Annotated[
    bool, typer.Option("--extend", help="Add new orders and samples to the complete run in --out.")
]
OrdersOption = Annotated[
    str, typer.Option("--orders", help="Comma-separated order ids; see 'orderlens orders'.")
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
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of the token draws at temperature > 0.")]
