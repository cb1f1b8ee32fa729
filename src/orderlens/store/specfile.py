"""``spec.json``: what a run computes (must match on resume) and where it was started (need not match).

Written first and only once. A folder with another spec is rejected, with a list of the differing fields. A
file that was edited by hand or damaged does not match its digests and is rejected too. An addition to a
complete run is an *extension*: a sealed record, never changed, with the new spec of the run and the keys of
the additional units. The run is complete again when these are committed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orderlens.common.files import RUN_FORMAT as FORMAT
from orderlens.common.files import run_around
from orderlens.errors import CorruptRunError, RunError, UserInputError, one_line
from orderlens.store.folder import open_folder
from orderlens.store.protocol import Folder
from orderlens.store.records import EXTENSIONS, SPEC, canonical, digest_of, read_completion, seal, unseal
from orderlens.store.schema import SCHEMA_VERSION

_SHOWN = 8
_CUT = ("batch_size:", "unit_orders:")
"""Beginnings of differences in how the work is cut; a run keeps its cut."""
_UNSET = ("the run has no value, requested False", "the run has False, requested no value")
"""Ends of differences in an option that only one of two specs names, with its default."""


@dataclass(frozen=True, slots=True)
class SpecFile:
    """The content of ``spec.json``.

    Attributes:
        spec: what the run computes.
        digest: sha256 of the canonical JSON of ``spec`` when it was written.
        provenance: where the run was started.
        intact: whether the file matches its digest.
    """

    spec: dict[str, Any]
    digest: str
    provenance: dict[str, Any]
    intact: bool

    @property
    def edited(self) -> bool:
        """Whether the spec does not match its digest."""
        return not _matches(self.spec, self.digest)


@dataclass(frozen=True, slots=True)
class Extension:
    """One addition to a complete run.

    Attributes:
        spec: of the run with this addition and all earlier ones.
        orders: specs of the new orders.
        samples: (task, id) of the new samples.
        units: keys of the additional units.
    """

    spec: dict[str, Any]
    orders: tuple[str, ...]
    samples: tuple[tuple[str | None, str], ...]
    units: tuple[str, ...]


def plain_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``spec`` as plain JSON values (tuples become lists, numpy scalars numbers, keys strings)."""
    try:
        value: dict[str, Any] = json.loads(json.dumps(dict(spec), default=_plain_value, allow_nan=False))
        canonical(value)
    except UnicodeEncodeError as error:
        shown = ascii(error.object[error.start : error.end])
        raise UserInputError(
            f"the run's spec contains {shown}, an incomplete character; use valid Unicode text"
        ) from error
    except (TypeError, ValueError, RecursionError) as error:
        raise UserInputError(f"the run's spec cannot be written as JSON: {one_line(error)}") from error
    return value


def _plain_value(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def create_spec(folder: Folder, spec: Mapping[str, Any], provenance: Mapping[str, Any]) -> SpecFile:
    """Write ``spec.json``, or check that an existing one is the same.

    Raises:
        RunError: the folder contains another spec, or files that are not a run.
        CorruptRunError: its spec was edited or damaged.
    """
    requested = plain_spec(spec)
    try:
        found = _spec_of(folder, folder.read(SPEC))
    except FileNotFoundError:
        _refuse_foreign_folder(folder)
        folder.create(SPEC, _sealed(requested, digest_of(requested), provenance))
        found = read_spec(folder)
    if requested != found.spec and requested not in [item.spec for item in read_extensions(folder)]:
        _check_same(folder, found, requested)
    return writable(folder, found)


def _refuse_foreign_folder(folder: Folder) -> None:
    """Reject a folder with other files, and a folder inside another run."""
    if (outer := _run_around(folder)) is not None:
        raise RunError(f"{folder.label} is inside the run {outer}; choose a folder outside it")
    found = folder.some_file()
    if found is not None and not folder.exists(SPEC):  # else another process has just written the spec
        raise RunError(
            f"{folder.label} is not empty and not a run (it contains {found}); choose an empty or new folder"
        )


def _run_around(folder: Folder) -> str | None:
    """Return the run that contains a folder."""
    place, files = folder.location("").rstrip("/"), folder.filesystem()
    if files is None:
        found = run_around(Path(place).parent)
        return None if found is None else str(found)
    bottom = place.find("://") + len("://")
    outer = [place[:end] for end in range(bottom + 1, len(place)) if place[end] == "/"]
    return next((name for name in reversed(outer) if open_folder(name, files).exists(SPEC)), None)


def read_spec(folder: Folder) -> SpecFile:
    """Read ``spec.json``; rejects a folder that is not a run, is damaged, or has another schema."""
    try:
        data = folder.read(SPEC)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RunError(
            f"{folder.label} is not a run: it has no {SPEC}; 'orderlens runs list FOLDER' lists runs"
        ) from error
    return _spec_of(folder, data)


def _spec_of(folder: Folder, data: bytes) -> SpecFile:
    value = _parsed(folder, data)
    body = {name: item for name, item in value.items() if name != "digest"}
    intact = "digest" in value and _matches(body, value["digest"])
    if value.get("format") != FORMAT and (intact or "spec_digest" not in value):
        raise RunError(f"{folder.label} is not a run: its {SPEC} was not written by orderlens")
    wrong = [name for name, kind in _FIELDS.items() if not isinstance(value.get(name), kind)]
    other = value.get("schema_version") != SCHEMA_VERSION if intact else set(value) == _UNSEALED
    if other and not wrong:
        raise RunError(
            f"{folder.label} was written by another version of orderlens (schema {value['schema_version']}); "
            f"this version reads only {SCHEMA_VERSION}; use that version, or decode again into a new folder"
        )
    if wrong or value["schema_version"] != SCHEMA_VERSION:
        raise CorruptRunError(_damage(folder, f"'{wrong[0] if wrong else 'schema_version'}' has changed"))
    return SpecFile(value["spec"], value["spec_digest"], value.get("provenance", {}), intact)


def repair_spec(folder: Folder, found: SpecFile) -> None:
    """Rewrite the file after damage outside the spec: in the provenance or the names of the fields."""
    folder.put(SPEC, _sealed(found.spec, found.digest, found.provenance))


def _sealed(spec: Mapping[str, Any], digest: str, provenance: Mapping[str, Any]) -> bytes:
    body = {
        "format": FORMAT,
        "schema_version": SCHEMA_VERSION,
        "spec_digest": digest,
        "spec": spec,
        "provenance": dict(provenance),
    }
    sealed = {**body, "digest": digest_of(body)}
    return json.dumps(sealed, indent=2, ensure_ascii=False, allow_nan=False).encode()


_FIELDS = {"schema_version": str, "spec": dict, "spec_digest": str}
_UNSEALED = {*_FIELDS, "format", "provenance"}
"""Fields of a file without its own digest, as written before the first release."""


def _parsed(folder: Folder, data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptRunError(_damage(folder, one_line(error))) from error
    if not isinstance(value, dict):
        raise RunError(f"{folder.label} is not a run: its {SPEC} was not written by orderlens")
    return value


def _damage(folder: Folder, what: str) -> str:
    return f"{folder.label}/{SPEC} is damaged ({what}); restore it from a copy"


def _matches(value: Any, digest: object) -> bool:
    try:
        return digest_of(value) == digest
    except (ValueError, RecursionError):  # NaN, a lone surrogate
        return False


def refuse_edited(folder: Folder, found: SpecFile) -> SpecFile:
    """Return ``found`` unless it was changed after it was written."""
    if found.edited:
        raise CorruptRunError(
            f"{folder.label}/{SPEC} was edited or damaged after the start of the run (its digest does not "
            "match); undo the edit, restore it from a copy, or start a new run in another folder"
        )
    return found


def writable(folder: Folder, found: SpecFile) -> SpecFile:
    """Return ``found`` unless it was edited or damaged."""
    refuse_edited(folder, found)
    if not found.intact:
        raise CorruptRunError(
            f"{folder.label}/{SPEC} is damaged (its digest does not match); "
            f"run: orderlens runs verify {folder.label} --repair"
        )
    return found


def _check_same(folder: Folder, found: SpecFile, requested: Mapping[str, Any]) -> None:
    differences = told_differences(found.spec, requested)
    listed = "; ".join(differences[:_SHOWN]) + (" …" if len(differences) > _SHOWN else "")
    if found.edited:
        shown = f" (differs from this command in: {listed})" if differences else ""
        raise CorruptRunError(
            f"{folder.label}/{SPEC} was edited or damaged after the start of the run: its digest does not "
            f"match{shown}; undo the edit, restore it from a copy, or use another folder"
        )
    if differences and all(line.startswith(_CUT) for line in differences):
        raise RunError(
            f"{folder.label} contains a run with another {differences[0]}; leave out --batch-size to "
            "continue that run, or use another folder"
        )
    if differences:
        raise RunError(f"{folder.label} contains a run with another spec: {listed}; use another folder")


def read_extensions(folder: Folder) -> list[Extension]:
    """Return the extensions of a run, oldest first.

    Raises:
        CorruptRunError: a record is damaged.
    """
    found: list[Extension] = []
    while folder.exists(name := _extension_file(len(found) + 1)):
        value = unseal(folder.read(name))
        if value is None:
            raise CorruptRunError(f"{folder.label}/{name} is damaged; restore it from a copy")
        samples = tuple((task, sample) for task, sample in value["samples"])
        found.append(Extension(value["spec"], tuple(value["orders"]), samples, tuple(value["units"])))
    return found


def add_extension(folder: Folder, number: int, extension: Extension) -> bool:
    """Write the ``number``-th extension (from 1); return False if another process has written it."""
    return folder.create(_extension_file(number), seal(asdict(extension)))


def _extension_file(number: int) -> str:
    return f"{EXTENSIONS}/{number:06d}.json"


def current_spec(folder: Folder, initial: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec of a run with all its extensions."""
    extensions = read_extensions(folder)
    return extensions[-1].spec if extensions else dict(initial)


def expected_units(folder: Folder) -> set[str] | None:
    """Return the units of a complete run, including extensions; None before its first completion."""
    completed = read_completion(folder)
    if completed is None:
        return None
    return set(completed) | {key for extension in read_extensions(folder) for key in extension.units}


def spec_diff(old: Any, new: Any, path: str = "") -> list[str]:
    """Return one line per field that differs between two specs, the most informative first.

    Of two parts with different kinds (score, import) or names (two models) only these are listed.
    """
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        lines = []
        for name in sorted({*old, *new}, key=_by_importance):
            inner = f"{path}.{name}" if path else str(name)
            lines += spec_diff(old.get(name, _ABSENT), new.get(name, _ABSENT), inner)
            if name in ("kind", "name") and lines:
                break
        return lines
    same = _ABSENT not in (old, new) and canonical(old) == canonical(new)
    return [] if same else [f"{path or 'spec'}: the run has {_shown(old)}, requested {_shown(new)}"]


def told_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return ``spec_diff`` without kinds of likelihood, which follow from the orders, and unset options."""
    lines = spec_diff(old, new)
    return [line for line in lines if not (line.startswith("likelihood") or line.endswith(_UNSET))] or lines


def _by_importance(name: str) -> tuple[int, str]:
    """Return a sort key: kinds and names first, digests last."""
    places = {"kind": 0, "model": 0, "name": 0, "orders": 1, "digest": 3}
    return places.get(name, 2), name


class _Absent:
    def __repr__(self) -> str:
        return "no value"


_ABSENT = _Absent()


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
