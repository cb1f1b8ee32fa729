"""``load_model``: from a model spec, as on the command line, to a Model.

A spec is one of: ``tiny`` (bundled), ``smol`` (its base file is fetched once), ``hmm[:options]`` (exact
control), ``hf:ORG/NAME[@REV]``, a local folder in the Hugging Face layout, or a name that a plugin registered
under the entry-point group ``orderlens.models``. A name takes precedence over a folder of the same name;
write ``./NAME`` for the folder. A plugin is a callable ``(argument: str, options: LoadOptions) -> Model``.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from orderlens.errors import MissingPackageError, ModelLoadError, UnknownNameError, UserInputError
from orderlens.models.abilities import weight_format
from orderlens.models.family_index import FAMILIES, find_family
from orderlens.models.protocol import LoadOptions, Model, check_device, check_dtype, check_weights
from orderlens.registry import Registry, suggest

_log = logging.getLogger(__name__)
ModelFactory: TypeAlias = Callable[[str, LoadOptions], Model]

MODELS: Registry[ModelFactory] = Registry(
    "model",
    {
        "tiny": "orderlens.models.loading:load_tiny",
        "smol": "orderlens.models.loading:load_smol",
        "hmm": "orderlens.models.loading:load_hmm",
    },
    entry_point_group="orderlens.models",
    check=lambda found: None if callable(found) else "is not a function (argument, options) -> Model",
)


def load_model(
    spec: str | os.PathLike[str] | Model,
    *,
    device: str | None = None,
    dtype: str | None = None,
    weights: str | None = None,
) -> Model:
    """Return the model that ``spec`` names; a path means a folder, and a model is returned unchanged.

    ``weights="fp8"`` loads experts in 8 bits; a model that cannot do so is refused.
    """
    check_weights(weights)
    model = _load(spec, LoadOptions(device, dtype, weights))
    if weights not in (None, weight_format(model)):
        raise UserInputError(
            f"weights '{weights}': model '{model.name}' does not support them; only models with experts do "
            "(orderlens models lists them)"
        )
    return model


def _load(spec: str | os.PathLike[str] | Model, options: LoadOptions) -> Model:
    if isinstance(spec, os.PathLike):
        return load_local_folder(Path(spec).expanduser(), os.fspath(spec), options)
    if not isinstance(spec, str):
        if not callable(getattr(spec, "open_session", None)):
            raise UserInputError(f"{spec!r:.60} is not a model, a model name or a model folder")
        return spec
    if not spec.strip():
        raise UserInputError(
            f"the model's name is empty; give {', '.join(MODELS.names())}, hf:ORG/NAME or a folder"
        )
    if spec.startswith("hf:"):
        return _load_from_hub(spec, options)
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", spec):
        raise UserInputError(f"model '{spec}' is an address; give hf:ORG/NAME or the path of a folder")
    if is_folder(spec):
        return load_local_folder(Path(spec), spec, options)
    name, _, argument = spec.partition(":")
    refuse_unknown_model(name)
    return MODELS.get(name)(argument, options)


def refuse_unknown_model(name: str) -> None:
    """Refuse a name that no built-in model has.

    Raises:
        UserInputError: no model has the name, or only an autoregressive evaluator.
    """
    if name in MODELS.names():
        return
    _refuse_evaluator(name)
    raise UnknownNameError(
        f"unknown model '{name}'{suggest(name, MODELS.names()) or ';'} "
        f"--model takes {', '.join(MODELS.names())}, hf:ORG/NAME or the path of a folder"
    )


def is_loadable(name: str) -> bool:
    """Return whether other processes can load the model of this name; a wrapped network is in one only."""
    own = name.partition(":")[0]
    return (
        name.startswith("hf:") or is_folder(name) or (own in MODELS.names() and own not in MODELS.only_here())
    )


def _refuse_evaluator(name: str) -> None:
    """Refuse an autoregressive evaluator as a model to decode."""
    from orderlens.metrics.external import EVALUATORS

    if name in EVALUATORS.names() and name != "hf":
        raise ModelLoadError(
            f"'{name}' is an autoregressive evaluator, so it has no orders; give it to --evaluator. "
            f"--model takes {', '.join(MODELS.names())}, hf:ORG/NAME or a folder"
        )


def load_local_folder(folder: Path, name: str, options: LoadOptions) -> Model:
    """Load a checkpoint folder; ``config.json`` names the family."""
    family = find_family(folder)
    require_torch()
    return FAMILIES.get(family)(folder, name, options)


def load_hmm(argument: str, options: LoadOptions) -> Model:
    """Load the exact control model. It runs on numpy; device and dtype are only checked."""
    from orderlens.models.hmm import HiddenMarkovModel

    check_device(options.device)
    if options.device not in (None, "auto") and not str(options.device).startswith("cpu"):
        require_torch()
        from orderlens.models.engine.device import pick_device

        pick_device(options.device)
    check_dtype(options.dtype)
    return HiddenMarkovModel.parse(argument)


def load_tiny(argument: str, options: LoadOptions) -> Model:
    """Load the bundled order-agnostic model."""
    if argument:
        raise UserInputError(f"model 'tiny:{argument}': tiny takes no options")
    require_torch()
    from orderlens.models.small.folder import bundled_folder

    return FAMILIES.get("orderlens")(bundled_folder("tiny"), "tiny", options)


def load_smol(argument: str, options: LoadOptions) -> Model:
    """Load the pretrained English model; ``orderlens models get smol`` fetches its base file once."""
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
    from orderlens.common.hub import resolve_snapshot

    return load_local_folder(resolve_snapshot(spec), spec, options)


def is_folder(spec: str) -> bool:
    """Return whether a spec means a folder: it is a path, or a folder has that name and no model does."""
    if spec.startswith((".", "/", "~")) or "/" in spec:
        return True
    is_dir, is_model = Path(spec).is_dir(), spec.partition(":")[0] in MODELS.names()
    if is_dir and is_model:
        _log.warning(
            "'%s' is both a model and a folder; using the model. For the folder write ./%s", spec, spec
        )
    return is_dir and not is_model
