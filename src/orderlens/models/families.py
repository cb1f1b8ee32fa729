"""Which family a checkpoint folder belongs to, from its ``config.json``, and who loads it.

To add a family: write its loader ``(folder, name, options) -> Model`` in a file or package of its own and add
one line below, under what its ``config.json`` calls it. Third parties use the entry-point group
``orderlens.families``. numpy only: a family's code is imported when a folder of it is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from orderlens.errors import UnknownNameError
from orderlens.models.configfile import CONFIG, read_json
from orderlens.models.options import LoadOptions
from orderlens.models.protocol import Model
from orderlens.registry import Registry, suggest

FolderLoader: TypeAlias = Callable[[Path, str, LoadOptions], Model]

FAMILIES: Registry[FolderLoader] = Registry(
    "model family",
    {
        "orderlens": "orderlens.models.small.folder:load_folder",
        "llada2_moe": "orderlens.models.llada2.model:load_folder",
    },
    entry_point_group="orderlens.families",
    check=lambda found: None if callable(found) else "is no function (folder, name, options) -> Model",
)
"""``model_type`` (or, where there is none, an entry of ``architectures``) → loader of such folders."""


def find_family(folder: Path) -> str:
    """Return the name of the family that the folder's ``config.json`` names.

    Raises:
        ModelLoadError: there is no readable ``config.json``.
        UnknownNameError: no family has that name; the message lists those that are supported.
    """
    path = folder / CONFIG
    stated = _stated(read_json(path))
    known = FAMILIES.names()
    for name in stated:
        found = next((item for item in known if item.casefold() == name.casefold()), None)
        if found is not None:
            return found
    what = (
        f"model_type '{stated[0]}' is of no known family{suggest(stated[0], known)}"
        if stated
        else ("neither model_type nor architectures say what the model is")
    )
    raise UnknownNameError(f"{path}: {what} (supported: {', '.join(known)})")


def _stated(config: Mapping[str, Any]) -> list[str]:
    """Return what the configuration calls the model, most specific first."""
    architectures = config.get("architectures")
    names = [config.get("model_type"), *(architectures if isinstance(architectures, list) else [])]
    return [name for name in names if isinstance(name, str)]
