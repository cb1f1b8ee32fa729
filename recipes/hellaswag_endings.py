"""Write HellaSwag as texts to score: one row per ending, with the context as the prompt.

    python recipes/hellaswag_endings.py write validation.jsonl.gz endings.jsonl --limit 1000
    python recipes/hellaswag_endings.py read RUN validation.jsonl.gz

``read`` takes a scored run and prints, by order, how often the correct ending has the highest log-probability
per byte (the usual normalisation) and per token, and how often two orders choose the same ending.
"""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from orderlens.tasks.multiple_choice import context, endings
from orderlens.texts.rows import read_rows

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def write(source: Path, target: Path, limit: Annotated[int, typer.Option()] = 1000) -> None:
    """Write the rows; ids are ITEM/ENDING."""
    with target.open("w", encoding="utf-8") as stream:
        for number, (_, doc) in enumerate(itertools.islice(read_rows(source), limit)):
            for place, ending in enumerate(endings(doc)):
                row = {"id": f"{number}/{place}", "prompt": context(doc), "target": f" {ending}"}
                stream.write(json.dumps(row, ensure_ascii=False) + "\n")


@app.command()
def read(run: Path, source: Path) -> None:
    """Print accuracy by order, with the standard error."""
    import orderlens as ol

    labels, sizes = {}, {}
    for number, (_, doc) in enumerate(read_rows(source)):
        labels[number] = int(doc["label"])
        sizes[number] = [len(f" {ending}".encode()) for ending in endings(doc)]
    table = ol.open_run(run).samples().to_pandas()
    item = table["sample_id"].str.split("/", expand=True).astype(int)
    table = table.assign(item=item[0], place=item[1])
    chosen: dict[str, dict[int, int]] = {}
    for order, rows in table.groupby("order"):
        hits: dict[str, list[bool]] = {"per byte": [], "per token": []}
        for number, found in rows.groupby("item"):
            if len(found) < len(sizes[number]):
                continue
            four = found.sort_values("place")
            best = int((four["log_prob"].to_numpy() / np.array(sizes[number])).argmax())
            chosen.setdefault(order, {})[number] = best
            hits["per byte"].append(best == labels[number])
            hits["per token"].append(int(four["mean"].to_numpy().argmax()) == labels[number])
        for rule, values in hits.items():
            share = float(np.mean(values))
            error = math.sqrt(share * (1 - share) / len(values))
            print(f"{order:12} {rule:10} {100 * share:5.1f} % ± {100 * error:.1f} (n = {len(values)})")
    for first, second in itertools.combinations(chosen, 2):
        both = chosen[first].keys() & chosen[second].keys()
        same = sum(chosen[first][item] == chosen[second][item] for item in both)
        print(f"{first} and {second} choose the same ending (per byte): {100 * same / len(both):.1f} %")


if __name__ == "__main__":
    app()
