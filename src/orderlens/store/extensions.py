"""Extensions: what was added to a run after it was complete, one sealed record each, never changed.

``spec.json`` stays what it was. A record states the spec of the run with the addition, what is new, and the
units that bring it; the run is complete again when they are committed. Knows no samples and no orders.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orderlens.errors import CorruptRunError
from orderlens.store.protocol import Folder
from orderlens.store.records import read_completion, seal, unseal

EXTENSIONS = "extensions"
"""The folder of the records."""


@dataclass(frozen=True, slots=True)
class Extension:
    """One addition to a run.

    Attributes:
        spec: of the whole run, with this addition and all earlier ones.
        added: what is new, in the words of whoever wrote it.
        units: keys of the units that compute it.
    """

    spec: dict[str, Any]
    added: dict[str, Any]
    units: tuple[str, ...]


def extension_file(number: int) -> str:
    """Return the name of the record of the ``number``-th extension (from 1)."""
    return f"{EXTENSIONS}/{number:06d}.json"


def read_extensions(folder: Folder) -> list[Extension]:
    """Return the extensions of a run, oldest first.

    Raises:
        CorruptRunError: a record is damaged.
    """
    found: list[Extension] = []
    while folder.exists(name := extension_file(len(found) + 1)):
        value = unseal(folder.read(name))
        if value is None:
            raise CorruptRunError(f"{folder.label}/{name} is damaged; restore it from a copy")
        found.append(Extension(value["spec"], value["added"], tuple(value["units"])))
    return found


def add_extension(folder: Folder, number: int, extension: Extension) -> bool:
    """Write the record of the next extension; False when another process wrote one meanwhile."""
    body = {"spec": extension.spec, "added": extension.added, "units": list(extension.units)}
    return folder.create(extension_file(number), seal(body))


def current_spec(folder: Folder, started_with: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec of a run with all that was added to it."""
    extensions = read_extensions(folder)
    return extensions[-1].spec if extensions else dict(started_with)


def expected_units(folder: Folder) -> set[str] | None:
    """Return the units that a complete run has, extensions included; None before it was first complete."""
    completed = read_completion(folder)
    if completed is None:
        return None
    return set(completed) | {key for extension in read_extensions(folder) for key in extension.units}
