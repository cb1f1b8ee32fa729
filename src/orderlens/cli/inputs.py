"""From options to a loaded model and samples, with the checks every verb wants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orderlens.cli.option_groups import Machine, Texts
from orderlens.errors import UserInputError
from orderlens.models.loading import load_model
from orderlens.models.protocol import Model
from orderlens.texts.loading import LoadedData, SplitRule, load_data
from orderlens.texts.rows import check_split
from orderlens.texts.samples import Sample


@dataclass(frozen=True, slots=True)
class Inputs:
    """A model and the samples to run it on."""

    model: Model
    data: LoadedData


def load_inputs(
    model: str, texts: Texts, machine: Machine, target_tokens: int = 0, least_target: int = 0
) -> Inputs:
    """Load the model and the data; numbers out of range are refused by name."""
    for name, value, least in (
        ("--prefix-tokens", texts.prefix_tokens, 0),
        ("--target-tokens", target_tokens, least_target),
        ("--limit", 1 if texts.limit is None else texts.limit, 1),
    ):
        if value < least:
            raise UserInputError(f"{name} {value} must be at least {least}")
    rule = SplitRule(texts.prefix_tokens, target_tokens, texts.allow_short, check_split(texts.split))
    loaded = load_model(model, device=machine.device, dtype=machine.dtype)
    return Inputs(loaded, load_data(texts.data, loaded.tokenizer, rule, limit=texts.limit))


def given_inputs(model: str, samples: Sequence[Sample], machine: Machine) -> Inputs:
    """Load the model; the samples are the prompts and templates given on the command line."""
    kind = "command line" if any(sample.template is None for sample in samples) else "template"
    loaded = load_model(model, device=machine.device, dtype=machine.dtype)
    return Inputs(loaded, LoadedData(list(samples), kind, len(samples)))
