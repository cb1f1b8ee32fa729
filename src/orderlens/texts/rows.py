"""Reads rows from JSON Lines, CSV, TSV, Parquet and plain text files.

All formats but Parquet may be compressed with gzip or xz. Every error is one line that names the file, the
line and the remedy. Does not depend on the meaning of fields (see sources.py).
"""

from __future__ import annotations

import csv
import gzip
import json
import lzma
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, TypeAlias, get_args

from orderlens.common.files import lost_slash
from orderlens.errors import DataFileError, UserInputError, one_line

Row: TypeAlias = dict[str, Any]
TextSplit: TypeAlias = Literal["none", "lines", "paragraphs"]
"""How a ``.txt`` file is split: not at all, at line ends, or at blank lines."""
SPLITS: tuple[TextSplit, ...] = get_args(TextSplit)

FORMATS = ".jsonl, .json, .csv, .tsv, .txt (each also .gz or .xz) or .parquet"
LONGEST_LINE = 1 << 26
"""Maximum bytes of a line (or of a ``.json`` list): 64 MiB."""
_COMPRESSED = (".gz", ".xz")


class NumberedRow(NamedTuple):
    """A row with its number, from 1: the line of a text file, or the row of a Parquet file."""

    number: int
    row: Row


def kind_of(path: Path) -> str:
    """Return the format from the file's name, without compression: for example ``jsonl``."""
    name = path.name.lower()
    packed = name.endswith(_COMPRESSED)
    kind = (name.rpartition(".")[0] if packed else name).rpartition(".")[2]
    if (kind != "txt" and kind not in _READERS) or (kind == "parquet" and packed):
        raise DataFileError(f"{path}: unknown file format; allowed are {FORMATS}")
    return kind


def read_rows(path: Path, *, split: TextSplit = "none") -> Iterator[NumberedRow]:
    """Yield the rows of a file in file order; a text of a ``.txt`` file is a row with ``id`` and ``text``.

    Args:
        path: the file; its suffix determines the format.
        split: how a ``.txt`` file is split into texts; other formats ignore it.

    Raises:
        DataFileError: the file is missing, damaged or empty, or a row is not an object.
    """
    path = expand_home(path)
    check_split(split)
    _check_there(path)
    kind = kind_of(path)
    found = False
    for numbered in _texts(path, split) if kind == "txt" else _READERS[kind](path):
        found = True
        yield numbered
    if not found:
        raise DataFileError(f"{path} has no rows; give a file with at least one")


def expand_home(path: Path) -> Path:
    """Expand ``~`` in a path; unchanged if that user does not exist."""
    try:
        return path.expanduser()
    except RuntimeError:
        return path


def path_exists(path: Path) -> bool:
    """Whether ``path`` exists; False for impossible names."""
    try:
        return expand_home(path).exists()
    except (OSError, ValueError):
        return False


def is_folder(path: Path) -> bool:
    """Whether ``path`` is a folder."""
    return path_exists(path) and expand_home(path).is_dir()


def _check_there(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if (address := lost_slash(str(path))) is not None:  # Path keeps one of the two slashes
            raise DataFileError(f"'{address}' is an address; download the file and give its path") from None
        raise DataFileError(f"data file '{path}' does not exist; check the path") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or one_line(error)
        raise DataFileError(f"{str(path)[:200]!r} cannot be opened ({reason})") from None
    if stat.S_ISDIR(mode):
        raise DataFileError(f"data file '{path}' is a folder; give a file: {FORMATS}")
    if not stat.S_ISREG(mode):  # the file is read more than once
        raise DataFileError(f"data file '{path}' is a pipe or device; save it as a file first")


def check_split(split: str) -> TextSplit:
    """Return ``split`` if it is valid."""
    if split not in SPLITS:
        raise UserInputError(f"split '{split}' is unknown; choose {', '.join(SPLITS)}")
    return split


def text_shape(path: Path) -> dict[str, int]:
    """Return the numbers of non-empty lines and of paragraphs of a ``.txt`` file."""
    text = _plain_text(path)
    lines = sum(1 for line in text.split("\n") if line.strip())
    return {"lines": lines, "paragraphs": len(_paragraphs(text))}


def parse_json(text: str, where: str) -> Any:
    """Parse one JSON value; ``where`` is its place, for error messages."""
    try:
        value = json.loads(text.strip(" \t\r\n"))  # so that an unclosed string does not include the line end
    except json.JSONDecodeError as error:
        raise DataFileError(f"{where}: not valid JSON ({error.msg}); one object per line") from None
    except RecursionError:
        raise DataFileError(f"{where}: JSON nested too deeply to be read") from None
    except ValueError as error:  # an integer of more than 4,300 digits
        raise DataFileError(f"{where}: not readable JSON ({one_line(error)[:80]})") from None
    if "\\ud" in text or "\\uD" in text:
        _refuse_surrogates(value, where)
    return value


def _refuse_surrogates(value: Any, where: str) -> None:
    """Refuse half of a surrogate pair, which JSON can express but text cannot."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise DataFileError(f"{where}: a string contains half of a surrogate pair (\\ud8… alone)") from None


def _object(value: Any, where: str) -> Row:
    if not isinstance(value, dict):
        raise DataFileError(f"{where}: expected an object with fields, got {_kind_name(value)}")
    return value


def _kind_name(value: Any) -> str:
    return {list: "a list", str: "a text", bool: "true or false", type(None): "null"}.get(
        type(value), "a number"
    )


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading decompressed bytes; errors become one line."""
    opener: Any = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix.lower(), open)
    try:
        with opener(path, "rb") as handle:
            yield handle
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise DataFileError(
            f"{path}: damaged or cut short ({one_line(error)[:80]}); copy or compress it again"
        ) from None
    except OSError as error:
        raise DataFileError(f"{path}: cannot be read ({error.strerror or one_line(error)})") from None


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield numbered lines with their line ends; they must be UTF-8 text."""
    with _opened(path) as handle:
        number = 0
        while raw := handle.readline(LONGEST_LINE + 1):
            number += 1
            yield number, _text(raw, path, number)


def _whole(path: Path) -> str:
    return "".join(line for _, line in read_lines(path))


def _text(raw: bytes, path: Path, number: int) -> str:
    if len(raw) > LONGEST_LINE:
        raise DataFileError(
            f"{path}, line {number}: longer than {LONGEST_LINE >> 20} MiB; write one row per line"
        )
    if b"\x00" in raw:
        raise DataFileError(f"{path}, line {number}: contains NUL bytes; save the file as UTF-8 text")
    try:
        return raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        byte = f"0x{error.object[error.start]:02x}"
        raise DataFileError(
            f"{path}, line {number}: not UTF-8 (byte {byte}); save the file as UTF-8"
        ) from None


def _json_lines(path: Path) -> Iterator[NumberedRow]:
    for number, line in read_lines(path):
        if line.strip():
            where = f"{path}, line {number}"
            yield NumberedRow(number, _object(parse_json(line, where), where))


def _json(path: Path) -> Iterator[NumberedRow]:
    """A ``.json`` file holds a list of objects, or JSON lines as data sets on the hub do."""
    first = next((line for _, line in read_lines(path) if line.strip()), "")
    if not first.lstrip().startswith("["):
        yield from _json_lines(path)
        return
    value = parse_json(_whole(path), str(path))
    for number, item in enumerate(value, 1):
        yield NumberedRow(number, _object(item, f"{path}, item {number}"))


def _cells(path: Path, delimiter: str) -> Iterator[NumberedRow]:
    """Yield CSV rows as texts by column name; quoting as in RFC 4180, a nameless column is left out."""
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE))
    reader = csv.reader((line for _, line in read_lines(path)), delimiter=delimiter, strict=True)
    names: list[str] | None = None
    start = 1
    try:
        for cells in reader:
            if cells and names is None:
                names = _header(cells, path)
            elif cells and names is not None:
                yield NumberedRow(start, _by_name(cells, names, f"{path}, line {start}"))
            start = reader.line_num + 1
    except csv.Error as error:
        why = "a quote is never closed" if "end of data" in str(error) else one_line(error)
        raise DataFileError(
            f"{path}, line {start}: not valid CSV ({why}); quote cells that hold commas, quotes or line ends"
        ) from None


def _header(cells: list[str], path: Path) -> list[str]:
    names = [cell.strip() for cell in cells]
    twice = sorted({name for name in names if name and names.count(name) > 1})
    if twice:
        raise DataFileError(f"{path}: two columns are called '{twice[0]}'; column names must differ")
    if not any(names):
        raise DataFileError(f"{path}: the first line has no column names")
    if len(names) == 1 and any(sign in names[0] for sign in ";\t|"):
        raise DataFileError(
            f"{path}: the header is one column, {names[0][:60]!r}; "
            "separate columns with commas, or with tabs in a .tsv file"
        )
    return names


def _by_name(cells: list[str], names: list[str], where: str) -> Row:
    if len(cells) != len(names):
        raise DataFileError(
            f"{where}: {len(cells)} cells where the header has {len(names)}; quote cells that hold commas"
        )
    return {name: cell for name, cell in zip(names, cells, strict=True) if name}


def _texts(path: Path, split: TextSplit) -> Iterator[NumberedRow]:
    stem = path.name.removesuffix(path.suffix) if path.suffix.lower() in _COMPRESSED else path.name
    stem = stem.rpartition(".")[0] or stem
    text = _plain_text(path)
    if split == "none":
        if text.strip():
            yield NumberedRow(1, {"id": stem, "text": text})
        return
    pieces = text.split("\n") if split == "lines" else _paragraphs(text)
    kept = [piece for piece in pieces if piece.strip()]
    for index, piece in enumerate(kept):
        yield NumberedRow(index + 1, {"id": f"{stem}-{index}", "text": piece})


def _plain_text(path: Path) -> str:
    """Return a text file with line ends as in Python."""
    return _whole(path).replace("\r\n", "\n").replace("\r", "\n")


def _paragraphs(text: str) -> list[str]:
    """Return the paragraphs, which blank lines separate."""
    found: list[str] = []
    lines: list[str] = []
    for line in [*text.split("\n"), ""]:
        if line.strip():
            lines.append(line)
        elif lines:
            found.append("\n".join(lines))
            lines = []
    return found


def _parquet(path: Path) -> Iterator[NumberedRow]:
    """Yield Parquet rows without their null cells."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise DataFileError(f"{path}: two columns are called '{twice[0]}'; column names must differ")
            for batch in file.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    number += 1
                    yield NumberedRow(number, {key: value for key, value in row.items() if value is not None})
    except (pa.ArrowException, OSError, UnicodeDecodeError, OverflowError) as error:
        why = one_line(error).partition(". ")[0][:80]
        raise DataFileError(f"{path}: not a readable Parquet file ({why}); copy or write it again") from None


_READERS: dict[str, Callable[[Path], Iterator[NumberedRow]]] = {
    "jsonl": _json_lines,
    "json": _json,
    "csv": partial(_cells, delimiter=","),
    "tsv": partial(_cells, delimiter="\t"),
    "parquet": _parquet,
}
