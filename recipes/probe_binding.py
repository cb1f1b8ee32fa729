"""Ask a model which letter belonged to a name, with more or less text between the two.

    PYTHONPATH=src python recipes/probe_binding.py [--model FOLDER] [--trials 60]

Four people are listed with a letter each, one of them is named again, and the model completes the letter,
left to right and zero-shot. Letters are K, M, R and T, which label options in no training document; chance
level is 25 %. The result is why the options of `choice` read "crate D" and not "D. crate" or "crate (D)".
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from random import Random
from typing import Annotated

import torch
import typer
from bundled_tasks.words import NAMES

from orderlens.errors import OrderLensError
from orderlens.models.small.folder import LoadedModel, bundled_folder, read_folder
from orderlens.training.objective import AnyOrderLoss

LETTERS = "KMRT"
LISTED = "They met four people at the station: {}. One of them won the prize for the best cake. "
FORMATS = {  # format of the list, and the sentence whose last token the model predicts
    "Anna K": ("{name} {letter}", "The winner is {name} {letter}"),
    "Anna (K)": ("{name} ({letter})", "The winner is {name} ({letter}"),
    "Anna = K": ("{name} = {letter}", "The winner is {name} = {letter}"),
    "Anna is K": ("{name} is {letter}", "We know that {name} is {letter}"),
    "K. Anna": ("{letter}. {name}", "The winner is {name}, letter {letter}"),
}


def trial(model: LoadedModel, shape: tuple[str, str], rng: Random) -> tuple[list[int], list[int], int]:
    """Return the tokens with the letter to predict, the ids of the four letters, and the correct index."""
    names, letters = rng.sample(NAMES, 4), rng.sample(LETTERS, 4)
    pairs = [{"name": name, "letter": letter} for name, letter in zip(names, letters, strict=True)]
    opening = LISTED.format(", ".join(shape[0].format_map(pair) for pair in pairs))
    right = rng.randrange(4)
    texts = [opening + shape[1].format_map(pairs[right] | {"letter": letter}) for letter in letters]
    tokens = [model.tokenizer.encode(text) for text in texts]
    return tokens[right], [ids[-1] for ids in tokens], right


@torch.no_grad()
def share_right(model: LoadedModel, shape: tuple[str, str], trials: int) -> float:
    """Return the share of trials in which the correct letter is the most probable of the four."""
    rng = Random(3)
    drawn = [trial(model, shape, rng) for _ in range(trials)]
    block = model.config.block_size
    length = math.ceil(max(len(tokens) for tokens, _, _ in drawn) / block) * block
    loss = AnyOrderLoss(model.network, length, torch.device("cpu"), "dense")
    tokens_BT = torch.tensor(
        [tokens + [model.config.eos_id] * (length - len(tokens)) for tokens, _, _ in drawn]
    )
    queried = torch.tensor([len(tokens) - 1 for tokens, _, _ in drawn])
    hidden_BTC = loss.hidden(tokens_BT, torch.arange(length) >= queried[:, None])
    rows_BC = hidden_BTC[torch.arange(trials), queried]
    logits_BV = rows_BC @ model.network.embedding.weight.T
    hits = [int(logits_BV[i, ids].argmax()) == right for i, (_, ids, right) in enumerate(drawn)]
    return sum(hits) / trials


def main(
    model: Annotated[Path | None, typer.Option(help="Model folder; default: the bundled tiny.")] = None,
    trials: Annotated[int, typer.Option(help="Trials per format.", min=1)] = 60,
) -> None:
    """Print one JSON row per format."""
    try:
        loaded = read_folder(model or bundled_folder("tiny"))
    except OrderLensError as error:
        raise SystemExit(str(error)) from None
    if loaded.config.attention == "causal":
        raise SystemExit(f"{model}: an autoregressive model; the probe needs an order-agnostic one")
    for name, shape in FORMATS.items():
        right = share_right(loaded, shape, trials)
        print(json.dumps({"format": name, "trials": trials, "share_right": round(right, 3)}), flush=True)


if __name__ == "__main__":
    typer.run(main)
