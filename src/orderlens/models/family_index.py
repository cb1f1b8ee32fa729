"""Finds the family of a checkpoint folder from its ``config.json``, and the function that loads it.

To add a family, write its loader ``(folder, name, options) -> Model`` in a new file or package. Then add one
entry below under the name that its ``config.json`` states. If the published files state no name, give the
entry a ``detector``. Third parties use the entry-point group ``orderlens.families``. numpy only: the code of
a family is imported when one of its folders is loaded.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from orderlens.errors import ModelLoadError, UnknownNameError
from orderlens.models.family_facts import UNSUPPORTED
from orderlens.models.files.configfile import CONFIG, read_json
from orderlens.models.protocol import LoadOptions, Model
from orderlens.registry import Registry, suggest

FolderLoader: TypeAlias = Callable[[Path, str, LoadOptions], Model]
Config: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Family:
    """One model family.

    Attributes:
        loader: ``"module:function"`` that loads a folder of this family.
        summary: a short description, for ``orderlens models``.
        reader: ``"module:READER"``, a ``CheckpointReader`` with which ``doctor`` describes a checkpoint
            without loading it. Without a reader, ``doctor`` uses only the headers of the weight files.
        detector: ``"module:function"`` that recognises a ``config.json`` of this family that does not name
            it.
        aliases: other names of the family in ``model_type`` or ``architectures``.
    """

    loader: str
    summary: str
    reader: str | None = None
    detector: str | None = None
    aliases: tuple[str, ...] = ()


BUILTIN: dict[str, Family] = {
    "orderlens": Family(
        "orderlens.models.families.small:load_folder", "folders that 'orderlens train' writes"
    ),
    "llada2_moe": Family(
        "orderlens.models.families.llada2:load_folder",
        "LLaDA-2.0, 2.1 and 2.2, mini and flash: block-causal, blocks of 32, experts",
        reader="orderlens.models.families.llada2:READER",
        aliases=("LLaDA2MoeModelLM",),
    ),
    "mdlm": Family(
        "orderlens.models.dit.model:load_mdlm",
        "MDLM: full attention, GPT-2's vocabulary",
        reader="orderlens.models.dit.model:MDLM_READER",
        aliases=("MDLM",),
    ),
    "bd3lm": Family(
        "orderlens.models.dit.model:load_bd3lm",
        "BD3-LM: block-causal, blocks of 4, 8 or 16, GPT-2's vocabulary",
        reader="orderlens.models.dit.model:BD3LM_READER",
        aliases=("BD3LM",),
    ),
    "sedd": Family(
        "orderlens.models.dit.model:load_sedd",
        "SEDD with absorbing noise: full attention, GPT-2's vocabulary",
        reader="orderlens.models.dit.model:SEDD_READER",
        detector="orderlens.models.dit.config:is_sedd",
    ),
    "llada": Family(
        "orderlens.models.families.llada:load_folder",
        "LLaDA-8B, LLaDA-1.5: full attention",
        reader="orderlens.models.families.llada:READER",
        aliases=("LLaDAModelLM",),
    ),
    "lladamoe": Family(
        "orderlens.models.families.llada_moe:load_folder",
        "LLaDA-MoE-7B-A1B: full attention, experts",
        reader="orderlens.models.families.llada_moe:READER",
        aliases=("LLaDAMoEModelLM", "LLaDAMoEModel"),
    ),
    "Dream": Family(
        "orderlens.models.families.dream:load_folder",
        "Dream-7B: full attention, logits shifted by one",
        reader="orderlens.models.families.dream:READER",
        aliases=("DreamModel",),
    ),
    "sdar": Family(
        "orderlens.models.families.sdar:load_folder",
        "SDAR: block-causal, blocks of 4",
        reader="orderlens.models.families.sdar:READER",
        aliases=("SDARForCausalLM",),
    ),
    "sdar_moe": Family(
        "orderlens.models.families.sdar:load_moe_folder",
        "SDAR-30B-A3B: block-causal, blocks of 4, experts",
        reader="orderlens.models.families.sdar:MOE_READER",
        aliases=("SDARMoeForCausalLM",),
    ),
    "Fast_dLLM_Qwen": Family(
        "orderlens.models.families.fast_dllm:load_folder",
        "Fast-dLLM v2: block-causal, blocks of 32, logits shifted by one",
        reader="orderlens.models.families.fast_dllm:READER",
        aliases=("Fast_dLLM_QwenForCausalLM",),
    ),
    "nemotron_labs_diffusion": Family(
        "orderlens.models.families.nemotron:load_folder",
        "Nemotron-Labs-Diffusion: causal past, blocks of 32 in full, each begun autoregressively",
        reader="orderlens.models.families.nemotron:READER",
        aliases=("NemotronLabsDiffusionModel",),
    ),
    "xlnet": Family(
        "orderlens.models.families.encoder:load_xlnet",
        "XLNet: full attention through permutation masks (transformers)",
        aliases=("XLNetLMHeadModel",),
    ),
    "bert": Family(
        "orderlens.models.families.encoder:load_bert",
        "BERT masked LMs (transformers)",
        aliases=("BertForMaskedLM", "BertForPreTraining"),
    ),
    "roberta": Family(
        "orderlens.models.families.encoder:load_roberta",
        "RoBERTa masked LMs (transformers)",
        aliases=("RobertaForMaskedLM",),
    ),
    "modernbert": Family(
        "orderlens.models.families.encoder:load_modernbert",
        "ModernBERT masked LMs (transformers)",
        aliases=("ModernBertForMaskedLM",),
    ),
}
"""``model_type`` → the family; ``architectures`` (in ``aliases``) is looked at first."""

FAMILIES: Registry[FolderLoader] = Registry(
    "model family",
    {name: family.loader for name, family in BUILTIN.items()},
    entry_point_group="orderlens.families",
    check=lambda found: None if callable(found) else "is not a function (folder, name, options) -> Model",
)


def find_family(folder: Path) -> str:
    """Return the name of the family that the folder's ``config.json`` names or that a detector recognises.

    ``architectures`` names the network, so it counts before ``model_type``, which different networks share.

    Raises:
        ModelLoadError: there is no folder or no readable ``config.json``, or its network is known and not
            supported.
        UnknownNameError: no family has that name; the message lists the supported families.
    """
    path = folder / CONFIG
    if not path.is_file():
        wrong = "is a file" if folder.exists() else "does not exist"
        wrong = f"has no {CONFIG}" if folder.is_dir() else wrong
        raise ModelLoadError(f"model folder '{folder}' {wrong}; give a folder in the Hugging Face layout")
    config = read_json(path)
    architectures, model_type = _stated(config)
    for name in (*architectures, *model_type):
        if found := _named(name):
            return found
        if reason := UNSUPPORTED.get(name.casefold()):
            raise ModelLoadError(f"{path}: {name} is not supported: {reason}")
        if architectures and name == architectures[-1]:
            _refuse_foreign_network(path, architectures, model_type)
    detected = (
        name for name, family in BUILTIN.items() if family.detector and _detects(family.detector, config)
    )
    if found := next(detected, None):
        return found
    raise UnknownNameError(_unknown(path, (*model_type, *architectures)))


def _named(name: str) -> str | None:
    """Return the family that has this name, in any capitalisation."""
    spellings = {known.casefold(): known for known in FAMILIES.names()}
    spellings |= {other.casefold(): known for known, family in BUILTIN.items() for other in family.aliases}
    return spellings.get(name.casefold())


def _refuse_foreign_network(path: Path, architectures: list[str], model_type: list[str]) -> None:
    """Refuse unknown architectures under the ``model_type`` of a built-in family: it is another network."""
    family = BUILTIN.get(_named(model_type[0]) or "") if model_type else None
    if family is not None and family.aliases:
        raise UnknownNameError(
            f"{path}: architectures names {', '.join(architectures)}, but model_type '{model_type[0]}' means "
            f"{' or '.join(family.aliases)}; networks may share a model_type, so this one is not loaded. If "
            "it is the same network, write its name into architectures"
        )


def _unknown(path: Path, stated: tuple[str, ...]) -> str:
    known = FAMILIES.names()
    what = (
        f"model_type '{stated[0]}' belongs to no known family{suggest(stated[0], known)}"
        if stated
        else "neither model_type nor architectures names the model's family"
    )
    return f"{path}: {what} (supported: {', '.join(known)})"


def summary(name: str) -> str:
    """Return a short description of the family."""
    return BUILTIN[name].summary if name in BUILTIN else "plugin: model_type in config.json"


def _detects(detector: str, config: Config) -> bool:
    module, _, function = detector.partition(":")
    return bool(getattr(importlib.import_module(module), function)(config))


def _stated(config: Config) -> tuple[list[str], list[str]]:
    """Return the architectures and the model type (at most one) that the configuration names."""
    architectures, kind = config.get("architectures"), config.get("model_type")
    names = architectures if isinstance(architectures, list) else [architectures]
    return [name for name in names if isinstance(name, str)], [kind] if isinstance(kind, str) else []
