"""Loads samples from data files or built-in data.

A ``text`` is tokenised once and then split into prefix and target. Rows that are left out are counted by
reason, and ``describe`` puts the counts into words. The fields of a row are checked in sources.py; rows.py
reads files.
"""

from __future__ import annotations

import hashlib
import heapq
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, overload

import numpy as np

from orderlens.errors import DataFileError, UserInputError, counted
from orderlens.models.abilities import count_unknown
from orderlens.models.protocol import Model, Tokenizer
from orderlens.texts.rows import Row, TextSplit, check_split, expand_home, kind_of, text_shape
from orderlens.texts.samples import Sample, describe_unknown
from orderlens.texts.sources import BUILT_IN, C4, sample_rows

TOO_SHORT, EMPTY = "too short", "empty"
PREFIX_TOKENS, TARGET_TOKENS = 32, 128
"""Default lengths of prompt and target in tokens."""


@dataclass(frozen=True, slots=True)
class SplitRule:
    """How a text is split into prompt and target.

    Attributes:
        prefix_tokens: length of the prompt.
        target_tokens: length of the target; 0 for prompts only.
        allow_short: keep shorter texts, with a shorter target (at least one token) or, without targets, a
            shorter prompt.
        split: how a ``.txt`` file is split into texts.
        fits: the lengths are defaults, so that they are fitted if every text is too short for them.
    """

    prefix_tokens: int = PREFIX_TOKENS
    target_tokens: int = TARGET_TOKENS
    allow_short: bool = False
    split: TextSplit = "none"
    fits: bool = False

    @classmethod
    def of(
        cls, prefix_tokens: int | None, target_tokens: int | None, allow_short: bool, split: TextSplit
    ) -> SplitRule:
        """Return the rule with these lengths; None for the default length."""
        return cls(
            PREFIX_TOKENS if prefix_tokens is None else prefix_tokens,
            TARGET_TOKENS if target_tokens is None else target_tokens,
            allow_short,
            split,
            fits=prefix_tokens is None and not target_tokens,
        )

    def fitted(self, lengths: Sequence[int]) -> SplitRule:
        """Return a rule that fits texts of these lengths: a quarter of the median text is the prompt.

        Without targets the prompt is the whole text, up to ``prefix_tokens``.
        """
        quarter = int(np.median(lengths)) // 4
        prefix = min(self.prefix_tokens, quarter) if self.target_tokens else self.prefix_tokens
        return replace(self, prefix_tokens=prefix, allow_short=True, fits=False)

    @property
    def needed(self) -> int:
        """Minimum number of tokens of a text."""
        if not self.allow_short:
            return max(1, self.prefix_tokens + self.target_tokens)
        return self.prefix_tokens + 1 if self.target_tokens else 1

    def words(self) -> str:
        """Return the minimum length of a text in words, for messages."""
        if self.allow_short or not self.target_tokens:
            return f"{self.needed} tokens"
        return f"{self.prefix_tokens} + {self.target_tokens} tokens"


@dataclass(frozen=True, slots=True, repr=False)
class LoadedData(Sequence[Sample]):
    """Samples, with a record of their origin and of the rows that were left out.

    Attributes:
        samples: the samples; the object itself is a sequence of them.
        source: the file or built-in name.
        n_rows: number of rows read (with a limit, not the whole file).
        left_out: number of rows without a sample, by reason.
        rule: how texts were split.
        details: how samples were selected and how a ``.txt`` file was split.
    """

    samples: list[Sample]
    source: str
    n_rows: int
    left_out: dict[str, int] = field(default_factory=dict)
    rule: SplitRule = field(default_factory=SplitRule)
    details: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        lines = describe(self.record() | {"n_samples": len(self)})
        return f"LoadedData({'; '.join(lines).removeprefix('data: ')})"

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
        """Return the entry for a run's spec; ``by_name`` leaves out the folder of the file."""
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
    """Describe the data of a run in words: rows used, rows left out, how a file was split.

    Args:
        record: ``spec["data"]`` of a scored or generated run; without rows there are no lines.
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
    if record.get("fitted"):
        lines.append(_fitted_line(record["prefix_tokens"], record["target_tokens"]))
    if record.get("n_unknown"):
        lines.append(describe_unknown(record["n_unknown"]))
    return lines


def _fitted_line(prefix: int, target: int) -> str:
    first = f"every text is shorter than {PREFIX_TOKENS}{f' + {TARGET_TOKENS}' if target else ''} tokens, so"
    if not target:
        return f"{first} whole texts are the prompts (--prefix-tokens)"
    options = "--prefix-tokens, --target-tokens"
    verb = "is" if prefix == 1 else "are"
    return f"{first} {counted(prefix, 'token')} {verb} the prompt and the rest is the target ({options})"


def describe_documents(record: Mapping[str, Any]) -> str:
    """Describe training documents in words, as lines; empty for an empty record."""
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
    shape = f"it has {paragraphs} paragraphs and {lines} lines; --split paragraphs or --split lines splits it"
    return "the whole file was read as one text" + (f" ({shape})" if lines > 1 else "")


def recorded(samples: object) -> dict[str, Any] | None:
    """Return the origin of samples that ``load_samples`` read; None for others."""
    return samples.record() if isinstance(samples, LoadedData) else None


def load_samples(
    source: str | os.PathLike[str],
    model: Model | Tokenizer | str | None = None,
    *,
    prefix_tokens: int | None = None,
    target_tokens: int | None = None,
    allow_short: bool = False,
    split: str = "none",
    limit: int | None = None,
) -> LoadedData:
    """Read samples from a data file, for ``score`` and ``generate``.

    Args:
        source: a file (JSON lines, CSV, TSV, text, each also .gz or .xz, or Parquet), ``passages`` or ``c4``.
        model: a model, a spec such as ``"tiny"``, or a tokenizer; needed only if rows have a ``text`` to
            split.
        prefix_tokens: number of tokens that become the prompt; 32 by default.
        target_tokens: number of following tokens that become the target; 128 by default, 0 for prompts only.
            If neither is given and every text is shorter, both fit the texts.
        allow_short: keep texts that are too short for prompt and target.
        split: how a ``.txt`` file is split into texts: ``none`` (one text), ``lines`` or ``paragraphs``.
        limit: maximum number of samples.

    Returns:
        The samples as a sequence; ``left_out`` counts rows without a sample.
    """
    for name, value in (("prefix_tokens", prefix_tokens), ("target_tokens", target_tokens)):
        if value is not None and value < 0:
            raise UserInputError(f"{name}={value} must be at least 0")
    if limit is not None and limit < 1:
        raise UserInputError(f"limit={limit} must be at least 1")
    rule = SplitRule.of(prefix_tokens, target_tokens, allow_short, check_split(split))
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
        tokenizer: the model's tokenizer; needed only for rows with ``text``.
        rule: how texts are split.
        limit: maximum number of samples.
        choose_by_hash: select the ``limit`` samples with the smallest hash of their id instead of the first
            ones, so that the selection does not depend on the order of the file. ``c4`` is always read so.
    """
    choose_by_hash = choose_by_hash or source == "c4"
    rows: Iterable[Row] = sample_rows(source, rule.split)
    if choose_by_hash:
        rows = _by_hash(source, rule.split, limit)
    encode = _encoder(source, tokenizer)
    samples: list[Sample] = []
    left_out: dict[str, int] = {}
    lengths: list[int] = []
    n_seen = unknown = 0
    for row in rows:
        if limit is not None and len(samples) >= limit:
            break
        n_seen += 1
        if _has_prompt(row):
            samples.append(_given_sample(row))
            continue
        ids = encode(row["text"]) if row["text"].strip() else []
        unknown += count_unknown(tokenizer, row["text"], ids) if tokenizer and ids else 0
        lengths += [len(ids)] if ids else []
        if len(ids) >= rule.needed:
            samples.append(_split_text(row["id"], ids, rule))
        else:
            reason = TOO_SHORT if ids else EMPTY
            left_out[reason] = left_out.get(reason, 0) + 1
    if not samples and rule.fits and lengths:
        fitted = load_data(
            source, tokenizer, rule.fitted(lengths), limit=limit, choose_by_hash=choose_by_hash
        )
        return replace(fitted, details=fitted.details | {"fitted": True})
    if not samples:
        raise DataFileError(_nothing_left(source, n_seen, max(lengths, default=0), rule))
    details = {"by_hash": choose_by_hash} | _how_read(source, rule.split)
    details |= _how_chosen(source, samples) if choose_by_hash else {}
    details |= {"n_unknown": unknown} if unknown else {}
    return LoadedData(samples, source, n_seen, left_out, rule, details)


SPARE = 8
"""Rows kept per requested sample when choosing by hash; more are read again only if these are too short."""


def _by_hash(source: str, split: TextSplit, limit: int | None) -> Iterator[Row]:
    """Yield the rows by the SHA-256 of their id; with a limit, without keeping the whole file in memory."""

    def key(row: Row) -> str:
        return hashlib.sha256(row["id"].encode()).hexdigest()

    first = 0
    if limit is not None:
        kept = heapq.nsmallest(SPARE * limit, sample_rows(source, split), key)
        yield from kept
        first = len(kept)
        if first < SPARE * limit:
            return
    yield from sorted(sample_rows(source, split), key=key)[first:]


def _how_chosen(source: str, samples: Sequence[Sample]) -> dict[str, Any]:
    """Return the rule by which rows were chosen, a digest of the ids, and the revision of C4."""
    ids = "\n".join(sample.id for sample in samples)
    digest = hashlib.blake2b(ids.encode(), digest_size=16).hexdigest()
    found = {"rule": "smallest SHA-256 of the id", "ids_digest": digest}
    return found | ({"revision": str(C4)} if source == "c4" else {})


def _encoder(source: str, tokenizer: Tokenizer | None) -> Callable[[str], list[int]]:
    if tokenizer is not None:
        return tokenizer.encode

    def refuse(_text: str) -> list[int]:
        raise UserInputError(f"{source} has texts to split into tokens; also give the model")

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
    message = f"{source}: none of {n_rows} rows has {rule.words()} (the longest has {longest})"
    if longest < 2:
        return f"{message}; give longer texts"
    prefix = longest // 4 if rule.target_tokens else longest
    target = f" --target-tokens {longest - prefix}" if rule.target_tokens else ""
    short = "" if rule.allow_short else " --allow-short"
    return f"{message}; try --prefix-tokens {prefix}{target}{short}"


def _how_read(source: str, split: TextSplit) -> dict[str, Any]:
    """Return how a ``.txt`` file was split, with its lines and paragraphs; empty for other sources."""
    if source in BUILT_IN or kind_of(Path(source)) != "txt":
        return {}
    return {"split": split, **text_shape(expand_home(Path(source)))}


def _has_prompt(row: Row) -> bool:
    """Whether a row is used as prompt (and target); else its text is split, also if the prompt is empty."""
    if "template" in row:
        return True
    return "prompt" in row and not (row["prompt"] == "" and "target" not in row and "text" in row)
