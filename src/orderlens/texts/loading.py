"""Data files to samples: rows with ``text``, with ``prompt``, ``target``, ``suffix``, or a built-in name.

A ``text`` is tokenised once and then split into prefix and target. Nothing is dropped silently: rows that are
left out are counted with the reason, and ``describe`` says so in words. What a row may hold is in
sources.py, how files are read in rows.py.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

from orderlens.errors import DataFileError, UserInputError
from orderlens.models.protocol import Model, Tokenizer
from orderlens.texts.rows import Row, TextSplit, at_home, check_split, kind_of, text_shape
from orderlens.texts.samples import Sample
from orderlens.texts.sources import BUILT_IN, sample_rows

TOO_SHORT, EMPTY = "too short", "empty"


@dataclass(frozen=True, slots=True)
class SplitRule:
    """How a text becomes a sample.

    Attributes:
        prefix_tokens: tokens of the prompt.
        target_tokens: tokens of the target; 0 where only prompts are wanted.
        allow_short: keep texts that are shorter: a shorter target (at least one token), or without targets a
            shorter prompt.
        split: what is one text in a ``.txt`` file.
    """

    prefix_tokens: int = 32
    target_tokens: int = 128
    allow_short: bool = False
    split: TextSplit = "none"

    @property
    def needed(self) -> int:
        """Tokens below which a text is left out."""
        if not self.allow_short:
            return max(1, self.prefix_tokens + self.target_tokens)
        return self.prefix_tokens + 1 if self.target_tokens else 1

    def words(self) -> str:
        """Say the length that a text needs, for messages."""
        if self.allow_short or not self.target_tokens:
            return f"{self.needed} tokens"
        return f"{self.prefix_tokens} + {self.target_tokens} tokens"


@dataclass(frozen=True, slots=True, repr=False)
class LoadedData(Sequence[Sample]):
    """Samples, plus the record of where they came from and what was left out.

    Attributes:
        samples: the samples; the object itself is a sequence of them.
        source: the file or built-in name.
        n_rows: rows that were looked at (with a limit, not the whole file).
        left_out: rows that gave no sample, by reason.
        rule: how texts were split.
        details: what else determines the choice, and how a ``.txt`` file was read.
    """

    samples: list[Sample]
    source: str
    n_rows: int
    left_out: dict[str, int] = field(default_factory=dict)
    rule: SplitRule = field(default_factory=SplitRule)
    details: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"LoadedData({describe(self.record() | {'n_samples': len(self)})[0].removeprefix('data: ')})"

    def __len__(self) -> int:
        return len(self.samples)

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> list[Sample]: ...
    def __getitem__(self, index: int | slice) -> Sample | list[Sample]:
        return self.samples[index]

    @property
    def n_too_short(self) -> int:
        """Texts left out because they have too few tokens."""
        return self.left_out.get(TOO_SHORT, 0)

    def record(self, *, by_name: bool = False) -> dict[str, Any]:
        """Return what goes into a run's spec; ``by_name``: without the folder, another on another machine."""
        return {
            "source": Path(self.source).name if by_name else self.source,
            "n_rows": self.n_rows,
            "n_too_short": self.n_too_short,
            "left_out": dict(self.left_out),
            "prefix_tokens": self.rule.prefix_tokens,
            "target_tokens": self.rule.target_tokens,
            "allow_short": self.rule.allow_short,
            **self.details,
        }


def describe(record: Mapping[str, Any], *, remedies: bool = True) -> list[str]:
    """Say in words what a run's spec records about its data: rows used, rows left out, how a file was read.

    Args:
        record: ``spec["data"]`` of a scored or generated run; a record without rows gives no line.
        remedies: also name the options that keep short texts.
    """
    if "n_rows" not in record:
        return []
    used, rows = record.get("n_samples", 0), record["n_rows"]
    left_out: Mapping[str, int] = record.get("left_out") or {TOO_SHORT: record.get("n_too_short", 0)}
    lines = [f"data: {record['source']}, {used} of {rows} rows used"]
    if reasons := [_reason(why, n, record, remedies) for why, n in left_out.items() if n]:
        lines[0] += f"; left out: {', '.join(reasons)}"
    if (split := record.get("split")) is not None:
        lines.append(_text_line(split, record))
    return lines


def describe_documents(record: Mapping[str, Any]) -> str:
    """Say the same of training documents: lines that end in a line end, none for an empty record."""
    if not record:
        return ""
    used, empty = record["n_documents"], record["n_empty"]
    lines = [f"data: {used} documents" + (f"; left out: {empty} empty" if empty else "")]
    if "split" in record:
        lines.append(_text_line(record["split"], record))
    return "".join(f"{line}\n" for line in lines)


def _reason(why: str, n: int, record: Mapping[str, Any], remedies: bool) -> str:
    if why != TOO_SHORT:
        return f"{n} {why}"
    rule = SplitRule(
        record.get("prefix_tokens", 0), record.get("target_tokens", 0), record.get("allow_short", False)
    )
    options = ["--prefix-tokens"] + ["--target-tokens"] * bool(rule.target_tokens)
    options += [] if rule.allow_short else ["--allow-short"]
    remedy = f": {', '.join(options)}" if remedies else ""
    return f"{n} too short (fewer than {rule.words()}{remedy})"


def _text_line(split: str, record: Mapping[str, Any]) -> str:
    lines, paragraphs = record.get("lines", 1), record.get("paragraphs", 1)
    if split != "none":
        return f"the file was read as one text per {split.removesuffix('s')} (--split)"
    shape = f"it has {paragraphs} paragraphs and {lines} lines; --split paragraphs or --split lines cuts it"
    return "the whole file was read as one text" + (f" ({shape})" if lines > 1 else "")


def recorded(samples: object) -> dict[str, Any] | None:
    """Return where samples came from, when they were read by ``load_samples``."""
    return samples.record() if isinstance(samples, LoadedData) else None


def load_samples(
    source: str | os.PathLike[str],
    model: Model | Tokenizer | str | None = None,
    *,
    prefix_tokens: int = 32,
    target_tokens: int = 128,
    allow_short: bool = False,
    split: str = "none",
    limit: int | None = None,
) -> LoadedData:
    """Read samples from a data file, for ``score`` and ``generate``.

    Args:
        source: a file (JSON lines, CSV, TSV, text, each also .gz or .xz, or Parquet), ``passages`` or ``c4``.
        model: whose tokenizer splits texts: a model, a spec such as ``"tiny"``, or a tokenizer. Needed only
            where rows hold ``text``.
        prefix_tokens: tokens of a text that become the prompt.
        target_tokens: tokens after them that become the target; 0 for prompts only.
        allow_short: keep texts that are shorter than that.
        split: what is one text in a ``.txt`` file: ``none`` (the file), ``lines`` or ``paragraphs``.
        limit: at most so many samples.

    Returns:
        The samples as a sequence; ``left_out`` counts the rows that gave none.
    """
    for name, value in (("prefix_tokens", prefix_tokens), ("target_tokens", target_tokens)):
        if value < 0:
            raise UserInputError(f"{name}={value} must be at least 0")
    if limit is not None and limit < 1:
        raise UserInputError(f"limit={limit} must be at least 1")
    rule = SplitRule(prefix_tokens, target_tokens, allow_short, check_split(split))
    return load_data(os.fspath(source), _tokenizer(model), rule, limit=limit)


def _tokenizer(model: Model | Tokenizer | str | None) -> Tokenizer | None:
    if isinstance(model, str):
        from orderlens.models.loading import load_model

        return load_model(model).tokenizer
    return model if model is None or isinstance(model, Tokenizer) else model.tokenizer


def load_data(
    source: str,
    tokenizer: Tokenizer | None,
    rule: SplitRule,
    *,
    limit: int | None = None,
    choose_by_hash: bool = False,
) -> LoadedData:
    """Read ``source`` and split its texts.

    Args:
        source: a file, ``passages`` or ``c4``.
        tokenizer: the model's; only rows that hold ``text`` need it.
        rule: how texts are split.
        limit: at most so many samples.
        choose_by_hash: take the ``limit`` samples with the smallest id hash instead of the first ones, so
            that the choice does not depend on the file's order.
    """
    rows: Iterable[Row] = sample_rows(source, rule.split)
    if choose_by_hash:
        rows = sorted(rows, key=lambda row: hashlib.sha256(row["id"].encode()).hexdigest())
    encode = _encoder(source, tokenizer)
    samples: list[Sample] = []
    left_out: dict[str, int] = {}
    n_seen = longest = 0
    for row in rows:
        if limit is not None and len(samples) >= limit:
            break
        n_seen += 1
        if _holds_prompt(row):
            samples.append(_given_sample(row))
            continue
        ids = encode(row["text"]) if row["text"].strip() else []
        longest = max(longest, len(ids))
        if len(ids) >= rule.needed:
            samples.append(_split_text(row["id"], ids, rule))
        else:
            reason = TOO_SHORT if ids else EMPTY
            left_out[reason] = left_out.get(reason, 0) + 1
    if not samples:
        raise DataFileError(_nothing_left(source, n_seen, longest, rule))
    details = {"by_hash": choose_by_hash} | _how_read(source, rule.split)
    return LoadedData(samples, source, n_seen, left_out, rule, details)


def _encoder(source: str, tokenizer: Tokenizer | None) -> Callable[[str], list[int]]:
    if tokenizer is not None:
        return tokenizer.encode

    def refuse(_text: str) -> list[int]:
        raise UserInputError(f"{source} holds texts, and a tokenizer splits them: give the model as well")

    return refuse


def _given_sample(row: Row) -> Sample:
    if "template" in row:
        return Sample(row["id"], "", template=row["template"])
    return Sample(row["id"], row["prompt"], row.get("target"), row.get("suffix"))


def _split_text(row_id: str, ids: list[int], rule: SplitRule) -> Sample:
    cut = rule.prefix_tokens
    if not rule.target_tokens:
        return Sample(row_id, ids[:cut])
    return Sample(row_id, ids[:cut], ids[cut : cut + rule.target_tokens])


def _nothing_left(source: str, n_rows: int, longest: int, rule: SplitRule) -> str:
    message = f"{source}: none of {n_rows} rows has {rule.words()} (the longest has {longest}); lower "
    message += "--prefix-tokens" + (" or --target-tokens" if rule.target_tokens else "")
    return message if rule.allow_short else f"{message}, or allow short texts with --allow-short"


def _how_read(source: str, split: TextSplit) -> dict[str, Any]:
    """Return how a ``.txt`` file was cut, with what else it could have been; nothing for other sources."""
    if source in BUILT_IN or kind_of(Path(source)) != "txt":
        return {}
    return {"split": split, **text_shape(at_home(Path(source)))}


def _holds_prompt(row: Row) -> bool:
    """A row with both has its text split only when the prompt is an empty cell and nothing follows it."""
    if "template" in row:
        return True
    return "prompt" in row and not (row["prompt"] == "" and "target" not in row and "text" in row)
