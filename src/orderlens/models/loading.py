"""``load_model``: from a spec on the command line to a Model.

Specs: ``tiny`` (bundled), ``smol`` (base fetched once), ``hmm[:options]`` (exact control),
``hf:ORG/NAME[@REV]``, a local folder in the Hugging Face layout, or a name that a plugin registered under
the entry-point group ``orderlens.models``.
A plugin is a callable ``(argument: str, options: LoadOptions) -> Model``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from orderlens.errors import MissingPackageError, ModelLoadError, UserInputError
from orderlens.models.protocol import Model
from orderlens.registry import Registry


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Where and in which precision to put the weights; None lets the family decide."""

    device: str | None = None
    dtype: str | None = None


ModelFactory: TypeAlias = Callable[[str, LoadOptions], Model]
FolderLoader: TypeAlias = Callable[[Path, str, LoadOptions], Model]

MODELS: Registry[ModelFactory] = Registry(
    "model",
    {
        "tiny": "orderlens.models.loading:load_tiny",
        "smol": "orderlens.models.loading:load_smol",
        "hmm": "orderlens.models.loading:load_hmm",
    },
    entry_point_group="orderlens.models",
)
FAMILIES: Registry[FolderLoader] = Registry(
    "model family (config.json's model_type)",
    {
        "orderlens": "orderlens.models.small:load_folder",
        "llada2_moe": "orderlens.models.llada2.model:load_folder",
    },
    entry_point_group="orderlens.families",
)


def load_model(spec: str | Model, *, device: str | None = None, dtype: str | None = None) -> Model:
    """Return the model that ``spec`` names; a model object is returned as it is."""
    if not isinstance(spec, str):
        return spec
    options = LoadOptions(device, dtype)
    if spec.startswith("hf:"):
        return _load_from_hub(spec, options)
    if _looks_like_path(spec):
        return load_local_folder(Path(spec), spec, options)
    name, _, argument = spec.partition(":")
    return MODELS.get(name)(argument, options)


def load_local_folder(folder: Path, name: str, options: LoadOptions) -> Model:
    """Load a checkpoint folder; ``config.json`` names the family."""
    config_file = folder / "config.json"
    if not config_file.is_file():
        raise ModelLoadError(
            f"model folder '{folder}' has no config.json; give a folder in the Hugging Face layout"
        )
    try:
        family = json.loads(config_file.read_text(encoding="utf-8"))["model_type"]
    except (ValueError, KeyError, TypeError) as error:
        raise ModelLoadError(f"{config_file}: cannot read 'model_type' ({type(error).__name__})") from None
    require_torch()
    return FAMILIES.get(str(family))(folder, name, options)


def load_hmm(argument: str, options: LoadOptions) -> Model:
    """Load the exact control model; it runs on numpy and ignores the device."""
    from orderlens.models.hmm import HiddenMarkovModel

    del options
    return HiddenMarkovModel.parse(argument)


def load_tiny(argument: str, options: LoadOptions) -> Model:
    """Load the bundled order-agnostic model."""
    if argument:
        raise UserInputError(f"model 'tiny:{argument}': tiny takes no options")
    require_torch()
    from orderlens.models.small import load_bundled

    return load_bundled("tiny", options)


def load_smol(argument: str, options: LoadOptions) -> Model:
    """Load the pretrained English model; its base file is fetched once by ``orderlens models get smol``."""
    require_torch()
    from orderlens.models.smol.model import load_smol as load

    return load(argument, options)


def require_torch() -> None:
    """Raise a one-line error when torch is missing."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise MissingPackageError(
            "this model needs torch; install it with: pip install 'orderlens[torch]'"
        ) from None


def _load_from_hub(spec: str, options: LoadOptions) -> Model:
    require_torch()
    from orderlens.models.hub import resolve_snapshot

    return load_local_folder(resolve_snapshot(spec), spec, options)


def _looks_like_path(spec: str) -> bool:
    return spec.startswith((".", "/", "~")) or "/" in spec or Path(spec).is_dir()
