"""Data files to samples: JSONL, gzipped JSONL, Parquet, plain text, or a built-in name.

Rows hold ``text`` (tokenised once, then split into prefix and target) or ``prompt`` and ``target``;
``id`` is optional. Nothing is dropped silently: rows too short to split are counted.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orderlens.errors import DataFileError, MissingPackageError
from orderlens.models.protocol import Tokenizer
from orderlens.registry import suggest
from orderlens.samples import Sample

BUILT_IN = ("passages", "c4")
SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet", ".txt")
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SplitRule:
    """How a text becomes a sample: prefix length, target length (tokens), and what to do with short texts."""

    prefix_tokens: int = 32
    target_tokens: int = 128
    allow_short: bool = False


@dataclass(frozen=True, slots=True)
class LoadedData:
    """Samples plus the record of where they came from."""

    samples: list[Sample]
    source: str
    n_rows: int
    n_too_short: int
    details: dict[str, Any] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """Return what goes into a run's spec."""
        return {"source": self.source, "n_rows": self.n_rows, "n_too_short": self.n_too_short, **self.details}


def load_samples(
    source: str,
    tokenizer: Tokenizer,
    rule: SplitRule,
    *,
    limit: int | None = None,
    choose_by_hash: bool = False,
) -> LoadedData:
    """Read ``source`` and split its texts.

    Args:
        source: a file, ``passages`` or ``c4``.
        tokenizer: the model's.
        rule: how texts are split; only rows that hold ``text`` are.
        limit: at most so many samples.
        choose_by_hash: take the ``limit`` samples with the smallest id hash instead of the first ones, so
            that the choice does not depend on the file's order.
    """
    rows = read_rows(source)
    if choose_by_hash:
        rows = sorted(rows, key=lambda row: hashlib.sha256(str(row["id"]).encode()).hexdigest())
    allow_short = rule.allow_short or source.endswith(".txt")
    samples: list[Sample] = []
    n_short = n_seen = 0
    for row in rows:
        if limit is not None and len(samples) >= limit:
            break
        n_seen += 1
        sample = _to_sample(row, tokenizer, rule, allow_short)
        if sample is None:
            n_short += 1
        else:
            samples.append(sample)
    if not samples:
        raise DataFileError(
            f"{source}: none of {len(rows)} rows has {rule.prefix_tokens} + {rule.target_tokens} tokens; "
            "lower --prefix-tokens or --target-tokens, or allow short texts with --allow-short"
        )
    details = {
        "prefix_tokens": rule.prefix_tokens,
        "target_tokens": rule.target_tokens,
        "by_hash": choose_by_hash,
    }
    return LoadedData(samples, source, n_seen, n_short, details)


def _to_sample(row: Row, tokenizer: Tokenizer, rule: SplitRule, allow_short: bool) -> Sample | None:
    if "prompt" in row:
        return Sample(row["id"], row["prompt"], row.get("target"))
    ids = tokenizer.encode(row["text"])
    needed = rule.prefix_tokens + (1 if allow_short else rule.target_tokens)
    if len(ids) < needed:
        return None
    cut = rule.prefix_tokens
    return Sample(row["id"], ids[:cut], ids[cut : cut + rule.target_tokens])


def read_rows(source: str) -> list[Row]:
    """Return checked rows with string ids; every error names the file and, where it has lines, the line."""
    if source == "passages":
        return _passages()
    if source == "c4":
        return _checked(_jsonl_rows(_download_c4()), "c4")
    path = Path(source).expanduser()
    if not path.is_file():
        hint = suggest(source, BUILT_IN)
        raise DataFileError(f"data file '{source}' does not exist{hint} (built-in: {', '.join(BUILT_IN)})")
    if source.endswith((".jsonl", ".jsonl.gz")):
        return _checked(_jsonl_rows(path), source)
    if source.endswith(".parquet"):
        return _checked(_parquet_rows(path), source)
    if source.endswith(".txt"):
        return _checked(iter([(1, {"id": path.stem, "text": _read_text(path)})]), source)
    raise DataFileError(f"data file '{source}' has an unknown ending; allowed are {', '.join(SUFFIXES)}")


def _checked(rows: Iterator[tuple[int, Any]], source: str) -> list[Row]:
    checked: list[Row] = []
    for number, row in rows:
        where = f"{source}, row {number}"
        if not isinstance(row, dict):
            raise DataFileError(
                f"{where}: expected an object with 'text' or 'prompt', got {type(row).__name__}"
            )
        has_text = isinstance(row.get("text"), str)
        if not has_text and not _is_text_or_ids(row.get("prompt")):
            raise DataFileError(f"{where}: needs 'text', or 'prompt' (and 'target'), as text or token ids")
        if row.get("target") is not None and not _is_text_or_ids(row["target"]):
            raise DataFileError(f"{where}: 'target' must be text or a list of token ids")
        row_id = row.get("id")
        checked.append({**row, "id": str(number - 1) if row_id is None else str(row_id)})
    if not checked:
        raise DataFileError(f"{source}: the file holds no rows")
    return checked


def _is_text_or_ids(value: object) -> bool:
    if isinstance(value, str):
        return True
    return isinstance(value, Sequence) and all(
        isinstance(item, int) and not isinstance(item, bool) for item in value
    )


def _jsonl_rows(path: Path) -> Iterator[tuple[int, Any]]:
    opener = gzip.open if path.name.endswith(".gz") else open
    number = 0
    try:
        with opener(path, "rb") as handle:
            for number, line in enumerate(handle, 1):
                if line.strip():
                    yield number, json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
    except UnicodeDecodeError as error:
        raise DataFileError(
            f"{path}, line {number}: not UTF-8 ({error.reason}); save the file as UTF-8"
        ) from None
    except json.JSONDecodeError as error:
        raise DataFileError(f"{path}, line {number}: not valid JSON ({error.msg})") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataFileError(f"{path}, after line {number}: cannot read on ({error})") from None


def _parquet_rows(path: Path) -> Iterator[tuple[int, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise DataFileError(f"{path}: not a readable Parquet file ({str(error).splitlines()[0]})") from None
    for number, row in enumerate(table.to_pylist(), 1):
        yield number, {key: value for key, value in row.items() if value is not None}


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise DataFileError(
            f"{path}, line {line}: not UTF-8 ({error.reason}); save the file as UTF-8"
        ) from None
    except OSError as error:
        raise DataFileError(f"{path}: cannot read ({error.strerror})") from None


def _passages() -> list[Row]:
    from orderlens.passages import load_passages

    return [{"id": passage.id, "text": passage.text} for passage in load_passages() if passage.text]


def _download_c4() -> Path:
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError:
        raise MissingPackageError("data 'c4' needs huggingface-hub: pip install 'orderlens[torch]'") from None
    try:
        return Path(
            hf_hub_download("allenai/c4", "en/c4-validation.00000-of-00008.json.gz", repo_type="dataset")
        )
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataFileError(
            f"cannot get C4 from the hub ({reason}); give a local JSONL file with --data"
        ) from None
