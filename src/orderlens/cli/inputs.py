"""From options to a loaded model and samples, with the checks every verb wants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orderlens.datafiles import LoadedData, SplitRule, load_data
from orderlens.errors import UserInputError
from orderlens.models.loading import load_model
from orderlens.models.protocol import Anchor, Model
from orderlens.samples import Sample
from orderlens.work.options import check_anchor


@dataclass(frozen=True, slots=True)
class Inputs:
    """A model and the samples to run it on."""

    model: Model
    data: LoadedData


def load_inputs(
    model: str,
    data: str,
    rule: SplitRule,
    limit: int | None,
    device: str | None,
    dtype: str | None,
    least_target: int = 1,
) -> Inputs:
    """Load the model and the data; numbers out of range are refused by name."""
    for name, value, least in (
        ("--prefix-tokens", rule.prefix_tokens, 0),
        ("--target-tokens", rule.target_tokens, least_target),
        ("--limit", 1 if limit is None else limit, 1),
    ):
        if value < least:
            raise UserInputError(f"{name} {value} must be at least {least}")
    loaded = load_model(model, device=device, dtype=dtype)
    return Inputs(loaded, load_data(data, loaded.tokenizer, rule, limit=limit))


def template_inputs(model: str, templates: Sequence[str], device: str | None, dtype: str | None) -> Inputs:
    """Load the model; the samples are the templates given on the command line."""
    samples = [Sample(str(index), "", template=text) for index, text in enumerate(templates)]
    return Inputs(
        load_model(model, device=device, dtype=dtype), LoadedData(samples, "template", len(samples))
    )


def parse_anchor(anchor: str | None) -> Anchor | None:
    """Return the anchor option, checked."""
    return None if anchor is None else check_anchor(anchor)


def parse_temperatures(text: str) -> list[float]:
    """Return the numbers of a comma-separated list."""
    try:
        return [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise UserInputError(
            f"--temperatures '{text}' must be comma-separated numbers, e.g. 0,0.5,1"
        ) from None
