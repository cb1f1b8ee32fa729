"""Samples of the caller (``Sample``, text or row) and their encoded form (``EncodedSample``)."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Integral
from typing import Any, TypeAlias

import numpy as np

from orderlens.errors import UserInputError, counted
from orderlens.models.abilities import as_question, chat_template, count_unknown, unrevealed_ids
from orderlens.models.protocol import IntArray, Model

TextOrTokens = str | Sequence[int]
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, repr=False)
class Sample:
    """One text to score or prompt to continue; ``prompt`` and ``target`` are text or token ids.

    The prompt may be empty. ``target`` is needed for scoring and ignored when generating. ``suffix`` is given
    text after the target (infilling): full-attention models see all of it, block-causal models only the part
    in the target's last block. ``template`` is text with holes, ``"Once [[8]] and [[4]]."``; the number is
    the tokens that ``generate`` fills in. It replaces prompt and suffix.
    """

    id: str
    prompt: TextOrTokens
    target: TextOrTokens | None = None
    suffix: TextOrTokens | None = None
    task: str | None = None
    template: str | None = None

    def __post_init__(self) -> None:
        for name in ("prompt", "target", "suffix"):
            value = getattr(self, name)
            if isinstance(value, bytes | bytearray) or not isinstance(value, Iterable | None):
                raise UserInputError(
                    f"Sample({self.id!r:.40}): {name} must be text or a list of token ids, "
                    f"not {type(value).__name__} {value!r:.40}"
                )
        if not isinstance(self.id, str | Integral) or isinstance(self.id, bool):
            raise UserInputError(f"Sample: the id must be text or a whole number, not {self.id!r:.40}")

    def __repr__(self) -> str:
        """Return the fields with a value; long texts and token lists are shortened."""
        given = {item.name: getattr(self, item.name) for item in fields(self)}
        shown = (f"{name}={reprlib.repr(value)}" for name, value in given.items() if value is not None)
        return f"Sample({', '.join(shown)})"


SampleLike: TypeAlias = Sample | str | Mapping[str, Any]
"""A sample, a prompt, or a row with the fields of a sample (``id`` is optional)."""
Samples: TypeAlias = SampleLike | Iterable[SampleLike]
_FIELDS = tuple(item.name for item in fields(Sample))


def as_samples(given: Samples, what: str = "samples") -> list[Sample]:
    """Return a list of samples; samples without id are numbered.

    Args:
        given: one or several ``SampleLike``.
        what: the argument's name, for messages.
    """
    if isinstance(given, Sample | str | Mapping):
        return [_sample(given, 0, what)]
    if isinstance(given, os.PathLike):
        raise UserInputError(
            f"{what}: '{os.fspath(given)}' is a path; read the file with orderlens.load_samples(path)"
        )
    if hasattr(given, "column_names") or hasattr(
        given, "columns"
    ):  # iterating over a table yields its columns
        raise UserInputError(
            f"{what}: a {type(given).__name__} is not a list of samples; give its rows, e.g. "
            "frame.to_dict('records') or table.to_pylist()"
        )
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise UserInputError(f"{what}: expected {_EXPECTED}, not {type(given).__name__}")
    return [_sample(item, place, what) for place, item in enumerate(given)]


_EXPECTED = "a Sample, a text, a dict with id, prompt and target, or a list of these"


def _sample(item: object, place: int, what: str) -> Sample:
    if isinstance(item, Sample):
        return _named(item, what)
    if isinstance(item, str):
        return Sample(str(place), item)
    if not isinstance(item, Mapping):
        hint = "; token ids go into Sample(id, prompt=[…])" if isinstance(item, int | Sequence) else ""
        raise UserInputError(f"{what}: item {place} is {type(item).__name__}, not {_EXPECTED}{hint}")
    unknown = [str(name) for name in item if name not in _FIELDS]
    if unknown or (item.get("prompt") is None and item.get("template") is None):
        found = f"it has '{unknown[0]}'" if unknown else "it has no 'prompt'"
        hint = "; split texts with orderlens.load_samples" if "text" in unknown else ""
        raise UserInputError(
            f"{what}: row {place} may have the fields {', '.join(_FIELDS)}, but {found}{hint}"
        )
    given = {name: value for name, value in item.items() if value is not None}
    return _named(Sample(**{"prompt": "", "id": str(place), **given}), what)


def _named(sample: Sample, what: str) -> Sample:
    """Return the sample with its id as text; numbers are converted."""
    name = str(sample.id) if isinstance(sample.id, Integral) else sample.id
    for part, value in (("id", name), ("task", sample.task)):
        if value is None and part == "task":
            continue
        if not isinstance(value, str) or any("\ud800" <= letter <= "\udfff" for letter in value):
            raise UserInputError(f"{what}: a sample has the {part} {value!r}, which is not text")
    return sample if name is sample.id else replace(sample, id=name)


def _no_tokens() -> IntArray:
    return np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class EncodedSample:
    """A sample as token ids, checked against a model's vocabulary.

    Attributes:
        id: its id.
        prompt: tokens before the first position to fill.
        target: tokens to score.
        task: its benchmark.
        suffix: given tokens after the last position to fill.
        template: for generation with several holes: the tokens from the first hole to the last, with the mask
            id in the holes. Without it, one hole of the requested length follows the prompt.
    """

    id: str
    prompt: IntArray
    target: IntArray = field(default_factory=_no_tokens)
    task: str | None = None
    suffix: IntArray = field(default_factory=_no_tokens)
    template: IntArray = field(default_factory=_no_tokens)

    def content_key(self) -> str:
        """Return a digest of the sample's id, task and tokens."""
        state = hashlib.blake2b(digest_size=16)
        state.update(f"{self.task}\x00{self.id}\x00{len(self.prompt)}\x00".encode())
        state.update(self.prompt.astype("<i8").tobytes() + self.target.astype("<i8").tobytes())
        for name, part in (("", self.suffix), ("template", self.template)):
            if len(part):
                sizes = f"{name}\x00{len(self.target)}\x00{len(part)}\x00"
                state.update(sizes.encode() + part.astype("<i8").tobytes())
        return state.hexdigest()


def in_chat(model: Model, samples: Iterable[Sample]) -> list[Sample]:
    """Return the samples with each prompt as a user message in the model's chat template."""
    template = chat_template(model)
    if template is None:
        raise UserInputError(f"{model.name} has no chat template; leave out --chat (chat=True)")
    questions = []
    for sample in samples:
        if not isinstance(sample.prompt, str) or sample.template is not None:
            raise UserInputError(
                f"sample '{sample.id}': only a text prompt can use the chat template; give rows with "
                "'prompt', or leave out --chat (chat=True)"
            )
        questions.append(replace(sample, prompt=as_question(template, sample.prompt)))
    return questions


def encode_samples(
    model: Model, samples: Iterable[Sample | str], *, need_target: bool
) -> list[EncodedSample]:
    """Tokenise and check samples; strings become prompts with ids from ``"0"`` on."""
    encoded: list[EncodedSample] = []
    seen: set[tuple[str | None, str]] = set()
    unknown = 0
    for index, item in enumerate(samples):
        sample = Sample(str(index), item) if isinstance(item, str) else item
        if (sample.task, sample.id) in seen:
            raise UserInputError(f"sample id '{sample.id}' occurs twice; ids must be unique")
        seen.add((sample.task, sample.id))
        encoded.append(_encode(model, sample, need_target))
        unknown += _count_unknown(model, sample, encoded[-1])
    if not encoded:
        raise UserInputError("no samples given; give at least one")
    if unknown:
        _log.warning("%s", describe_unknown(unknown))
    return encoded


def describe_unknown(count: int) -> str:
    """Say how many pieces of the texts a tokenizer could not represent."""
    return (
        f"the tokenizer cannot represent {counted(count, 'piece')} of the texts (characters or words); each "
        "became the unknown token"
    )


def _count_unknown(model: Model, sample: Sample, encoded: EncodedSample) -> int:
    """Return the number of pieces of a sample's texts that its tokens do not represent."""
    if sample.template is not None:
        ids = np.concatenate([encoded.prompt, encoded.template, encoded.suffix])
        return count_unknown(model.tokenizer, HOLE.sub("", sample.template), ids.tolist())
    parts = (sample.prompt, encoded.prompt), (sample.target, encoded.target), (sample.suffix, encoded.suffix)
    found = [(text, ids.tolist()) for text, ids in parts if isinstance(text, str) and len(ids)]
    return sum(count_unknown(model.tokenizer, text, ids) for text, ids in found)


def _encode(model: Model, sample: Sample, need_target: bool) -> EncodedSample:
    if sample.template is not None:
        return _encode_template(model, sample, sample.template, need_target)
    prompt = _token_ids(model, sample.id, "prompt", sample.prompt)
    suffix = _token_ids(model, sample.id, "suffix", sample.suffix if sample.suffix is not None else ())
    if not need_target:
        return EncodedSample(sample.id, prompt, task=sample.task, suffix=suffix)
    target = _token_ids(model, sample.id, "target", sample.target if sample.target is not None else ())
    if not len(target):
        raise UserInputError(
            f"sample '{sample.id}' has an empty target; to score it, add at least one token; else generate"
        )
    if wrong := unrevealed_ids(model) & set(target.tolist()):
        raise UserInputError(
            f"sample '{sample.id}': target token id {min(wrong)} is one that no order may reveal (padding of "
            "the vocabulary, or excluded, as DELETE is); this text cannot be scored"
        )
    return EncodedSample(sample.id, prompt, target, sample.task, suffix)


HOLE = re.compile(r"\[\[([0-9]+)\]\]")
"""A hole of a template: ``[[8]]`` is a gap of eight tokens."""
MAX_HOLE = 999_999
"""Largest hole in tokens."""


def _encode_template(model: Model, sample: Sample, text: str, need_target: bool) -> EncodedSample:
    """Split a template at its holes into prompt, holes with the text between them, and suffix."""
    if need_target:
        raise UserInputError(
            f"sample '{sample.id}' has a template, which only generate can fill; to score, give prompt, "
            "target and suffix"
        )
    if len(sample.prompt) or sample.suffix is not None:
        raise UserInputError(f"sample '{sample.id}': a template replaces prompt and suffix; leave them empty")
    parts = HOLE.split(text)
    for size in parts[1::2]:
        if len(size.lstrip("0")) > len(str(MAX_HOLE)):
            raise UserInputError(
                f"sample '{sample.id}': the hole [[{size:.20}]] is too large; "
                f"a hole has at most {MAX_HOLE:,} tokens"
            )
    sizes = [int(size) for size in parts[1::2]]
    if not sizes or 0 in sizes:
        raise UserInputError(
            f"sample '{sample.id}': the template needs holes such as [[8]], each of at least one token"
        )
    given = [_token_ids(model, sample.id, "template", part) for part in parts[::2]]
    holes = [np.full(size, model.mask_id) for size in sizes]
    between = [piece for pair in zip(holes[1:], given[1:-1], strict=True) for piece in reversed(pair)]
    template = np.concatenate([holes[0], *between])
    return EncodedSample(sample.id, given[0], task=sample.task, suffix=given[-1], template=template)


def _token_ids(model: Model, sample_id: str, part: str, value: TextOrTokens) -> IntArray:
    ids = _whole_numbers(model.tokenizer.encode(value) if isinstance(value, str) else value, sample_id, part)
    wrong = ids[(ids < 0) | (ids >= model.vocab_size) | (ids == model.mask_id)]
    if len(wrong):
        what = (
            "the mask id"
            if wrong[0] == model.mask_id
            else f"outside the vocabulary (0…{model.vocab_size - 1})"
        )
        raise UserInputError(f"sample '{sample_id}': {part} token id {wrong[0]} is {what}")
    return ids


def _whole_numbers(value: Sequence[int], sample_id: str, part: str) -> IntArray:
    """Return token ids as an array; fractions are refused."""
    try:
        found = np.asarray(list(value) if not isinstance(value, np.ndarray) else value)
    except (TypeError, ValueError):
        found = np.empty((0, 0))
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        wrong = next((item for item in found.ravel().tolist() if type(item) is not int), value)
        raise UserInputError(
            f"sample '{sample_id}': {part} must be text or a list of whole token ids, not {wrong!r:.60}"
        )
    return found.astype(np.int64)
