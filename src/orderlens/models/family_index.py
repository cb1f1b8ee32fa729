"""Which family a checkpoint folder belongs to, from its ``config.json``, and who loads it.

To add a family: write its loader ``(folder, name, options) -> Model`` in a file or package of its own and add
one entry below, under what its ``config.json`` calls it. A family whose published files do not name it gives
a ``sign`` instead. Third parties use the entry-point group ``orderlens.families``. numpy only: the code of a
family is imported when a folder of it is loaded.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from orderlens.errors import UnknownNameError
from orderlens.models.files.configfile import CONFIG, read_json
from orderlens.models.options import LoadOptions
from orderlens.models.protocol import Model
from orderlens.registry import Registry, suggest

FolderLoader: TypeAlias = Callable[[Path, str, LoadOptions], Model]
Config: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Family:
    """One entry of the list.

    Attributes:
        loader: ``"module:function"`` that loads such a folder.
        summary: what it is, for ``orderlens models``.
        reader: ``"module:READER"``, a ``CheckpointReader`` with which ``doctor`` describes a checkpoint
            that is not loaded; without one it reports the headers of the weight files alone.
        sign: ``"module:function"`` that says whether a ``config.json`` is of this family although it does not
            name it.
        also: other names of the family in ``model_type`` or ``architectures``.
    """

    loader: str
    summary: str
    reader: str | None = None
    sign: str | None = None
    also: tuple[str, ...] = ()


BUILTIN: dict[str, Family] = {
    "orderlens": Family("orderlens.models.small.folder:load_folder", "folders that 'orderlens train' writes"),
    "llada2_moe": Family(
        "orderlens.models.families.llada2:load_folder",
        "LLaDA-2.0 and 2.1, mini and flash: block-causal, blocks of 32",
        reader="orderlens.models.families.llada2:READER",
    ),
    "mdlm": Family(
        "orderlens.models.dit.model:load_mdlm",
        "MDLM: full attention, GPT-2's vocabulary",
        reader="orderlens.models.dit.model:MDLM_READER",
    ),
    "bd3lm": Family(
        "orderlens.models.dit.model:load_bd3lm",
        "BD3-LM: block-causal, blocks of 4, 8 or 16, GPT-2's vocabulary",
        reader="orderlens.models.dit.model:BD3LM_READER",
    ),
    "sedd": Family(
        "orderlens.models.dit.model:load_sedd",
        "SEDD with absorbing noise: full attention, GPT-2's vocabulary",
        reader="orderlens.models.dit.model:SEDD_READER",
        sign="orderlens.models.dit.config:is_sedd",
    ),
    "llada": Family(
        "orderlens.models.families.llada:load_folder",
        "LLaDA-8B, LLaDA-1.5: full attention",
        reader="orderlens.models.families.llada:READER",
        also=("LLaDAModelLM",),
    ),
    "Dream": Family(
        "orderlens.models.families.dream:load_folder",
        "Dream-7B: full attention, logits shifted by one",
        reader="orderlens.models.families.dream:READER",
        also=("DreamModel",),
    ),
    "sdar": Family(
        "orderlens.models.families.sdar:load_folder",
        "SDAR: block-causal, blocks of 4",
        reader="orderlens.models.families.sdar:READER",
        also=("SDARForCausalLM",),
    ),
    "Fast_dLLM_Qwen": Family(
        "orderlens.models.families.fast_dllm:load_folder",
        "Fast-dLLM v2: block-causal, blocks of 32, logits shifted by one",
        reader="orderlens.models.families.fast_dllm:READER",
        also=("Fast_dLLM_QwenForCausalLM",),
    ),
    "xlnet": Family(
        "orderlens.models.families.encoder:load_xlnet",
        "XLNet: full attention through permutation masks (transformers)",
    ),
    "bert": Family("orderlens.models.families.encoder:load_bert", "BERT masked LMs (transformers)"),
    "roberta": Family("orderlens.models.families.encoder:load_roberta", "RoBERTa masked LMs (transformers)"),
    "modernbert": Family(
        "orderlens.models.families.encoder:load_modernbert", "ModernBERT masked LMs (transformers)"
    ),
}
"""``model_type`` (or, where there is none, an entry of ``architectures``) → the family."""

FAMILIES: Registry[FolderLoader] = Registry(
    "model family",
    {name: family.loader for name, family in BUILTIN.items()},
    entry_point_group="orderlens.families",
    check=lambda found: None if callable(found) else "is no function (folder, name, options) -> Model",
)


def find_family(folder: Path) -> str:
    """Return the name of the family that the folder's ``config.json`` names, or bears the sign of.

    Raises:
        ModelLoadError: there is no readable ``config.json``.
        UnknownNameError: no family has that name; the message lists those that are supported.
    """
    path = folder / CONFIG
    config = read_json(path)
    stated, known = _stated(config), FAMILIES.names()
    spellings = {name.casefold(): name for name in known}
    spellings |= {other.casefold(): name for name, family in BUILTIN.items() for other in family.also}
    named = (spellings[name.casefold()] for name in stated if name.casefold() in spellings)
    signed = (name for name, family in BUILTIN.items() if family.sign and _bears(family.sign, config))
    found = next(named, None) or next(signed, None)
    if found is not None:
        return found
    what = (
        f"model_type '{stated[0]}' is of no known family{suggest(stated[0], known)}"
        if stated
        else "neither model_type nor architectures say what the model is"
    )
    raise UnknownNameError(f"{path}: {what} (supported: {', '.join(known)})")


def summary(name: str) -> str:
    """Return what the family is, in a few words."""
    return BUILTIN[name].summary if name in BUILTIN else "plugin: model_type in config.json"


def _bears(sign: str, config: Config) -> bool:
    module, _, function = sign.partition(":")
    return bool(getattr(importlib.import_module(module), function)(config))


def _stated(config: Config) -> list[str]:
    """Return what the configuration calls the model, most specific first."""
    architectures = config.get("architectures")
    names = [config.get("model_type"), *(architectures if isinstance(architectures, list) else [])]
    return [name for name in names if isinstance(name, str)]
