"""The text form of rules, and the base classes of commit rules.

``Rule`` converts the values of a commit or revise rule to text and back. ``Arguments`` parses the text after
an order's name: ``name=value`` options and a seed, separated by colons (``scale=2:3``).

A ``Commit`` receives an order's scores and chooses the masked positions that the pass reveals. A ``Schedule``
is a commit rule whose counts are known in advance; a static order then needs no model to plan its path.
(Revise rules are in ``rules.revise``.) Rules do not depend on targets, models or files.

Shape letters: C chains, R rows.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import partial
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np

from orderlens.errors import UserInputError
from orderlens.rules.stats import BoolArray, DrawStats, FloatArray, IntArray, PositionStats
from orderlens.rules.view import StepView

MAX_SEED_DIGITS = 18
"""Maximum number of digits of a seed, which is stored as a 64-bit number."""
MAX_WHOLE = 999_999_999
"""Largest whole number in a rule, far beyond the length of any text."""
CommitView: TypeAlias = StepView[PositionStats | DrawStats]
"""The view of a commit rule, without targets."""


class Rule(ABC):
    """Base class of commit, revise and search rules: id, summary and text form.

    The values after a rule's ``=`` are its dataclass fields declared with ``whole``, ``real`` or ``word``.
    This class parses and formats them.
    """

    id: ClassVar[str]
    summary: ClassVar[str]

    @classmethod
    def parse(cls, values: list[str]) -> Self:
        """Build a rule from the values after ``=``, split at colons (``["0.9"]`` of ``threshold=0.9``)."""
        known = cls._values()
        least = sum(item.default is MISSING for item in known)
        if not least <= len(values) <= len(known) or not all(values):
            examples = [str(item.metadata["like"]) for item in known]
            shown = ":".join(examples[: max(least, 1)])
            example = f", e.g. {cls.id}={shown}" if known else ""
            raise UserInputError(f"'{cls.id}' takes {_counted(least, len(known))}{example}")
        names = [item.metadata["name"] if len(known) > 1 else "" for item in known]
        read = zip(known, values, names, strict=False)
        return cls(*(item.metadata["read"](cls.id, text, name=name) for item, text, name in read))

    @property
    def spec(self) -> str:
        """The canonical text, e.g. ``threshold=0.9``; trailing defaults are left out."""
        known = [(item, getattr(self, item.name)) for item in self._values()]
        while known and known[-1][1] == known[-1][0].default and not known[-1][0].metadata["always"]:
            known.pop()
        texts = (str(value) if isinstance(value, int | str) else plain(value) for _, value in known)
        return f"{self.id}={':'.join(texts)}" if known else self.id

    @classmethod
    def _values(cls) -> list[Field[Any]]:
        found: tuple[Field[Any], ...] = fields(cls) if is_dataclass(cls) else ()
        return [item for item in found if "read" in item.metadata]


def whole(least: int, name: str, like: int, *, default: Any = MISSING, always: bool = False) -> Any:
    """Declare a whole number of at least ``least``; ``always`` keeps it in the text if it is the default."""
    return _value(partial(parse_whole, least=least), name, like, default, always)


def real(low: float, high: float, name: str, like: float, *, default: Any = MISSING) -> Any:
    """Declare a finite number from ``low`` to ``high``, both included."""
    return _value(partial(parse_real, low=low, high=high), name, like, default, False)


def word(allowed: Sequence[str], name: str, like: str, *, default: Any = MISSING) -> Any:
    """Declare one of the words ``allowed``."""
    return _value(partial(parse_word, allowed=allowed), name, like, default, False)


def _value(read: Callable[..., Any], name: str, like: float | str, default: Any, always: bool) -> Any:
    metadata = {"read": read, "name": name, "like": like, "always": always}
    return field(metadata=metadata) if default is MISSING else field(default=default, metadata=metadata)


def _counted(least: int, most: int) -> str:
    words = {(0, 0): "no value", (1, 1): "one value", (0, 1): "one value or none", (0, 2): "up to two values"}
    return words.get((least, most)) or (f"{least} values" if least == most else f"{least} to {most} values")


def numbers_digest(values: Sequence[float] | FloatArray) -> str:
    """Return a digest of numbers that a rule reads from a file."""
    return hashlib.blake2b(np.asarray(values, np.float64).tobytes(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class Pick:
    """The choice of a commit rule.

    Attributes:
        chosen_R: rows to commit in this pass, at least one per chain.
        token_R: the token of each row at temperature 0; None for the most probable tokens.
    """

    chosen_R: BoolArray
    token_R: IntArray | None = None


AFTER_SETS = "entropy_after_sets"
"""What a commit rule needs to call ``view.entropy_after``."""


class Commit(Rule):
    """A rule that decides which positions one forward pass reveals."""

    randomised: bool = False
    """Whether the choice depends on random numbers beyond the order's."""
    needs: frozenset[str] = frozenset()
    """Names of what the view must hold in ``extras`` besides the statistics (see ``StepView``)."""

    @property
    def files(self) -> Mapping[str, str]:
        """Digest of what the rule reads from each file."""
        return {}

    def planned_passes(self, n_positions: int) -> int:
        """Return the planned number of passes of a block; its number of positions if unknown."""
        return n_positions

    @abstractmethod
    def select(self, view: CommitView, scores_R: FloatArray) -> BoolArray:
        """Return which rows to commit in this pass [R], at least one per chain."""

    def pick(self, view: CommitView, scores_R: FloatArray) -> Pick:
        """Return the rows and their tokens; override it for rules that may choose another token."""
        return Pick(self.select(view, scores_R))


class Schedule(Commit):
    """A commit rule whose counts depend only on the number of positions and on the pass."""

    @abstractmethod
    def passes(self, n_positions: int) -> IntArray:
        """Return [n]: the pass that reveals the t-th position of the path (starts at 0, never decreases)."""

    def plan(self, path: IntArray) -> tuple[IntArray, IntArray]:
        """Return a static order's path [n] under this schedule, and the pass of each step."""
        return path, self.passes(len(path))

    def planned_passes(self, n_positions: int) -> int:
        """Return the number of passes of the schedule."""
        return int(self.passes(n_positions)[-1]) + 1

    def select(self, view: CommitView, scores_R: FloatArray) -> BoolArray:
        """Return the positions with the highest scores; the schedule sets their number for this pass."""
        last_C = self._due(view)
        if (last_C == view.step_in_block_C).all():
            return view.best(scores_R)
        chosen: BoolArray = view.ranks(scores_R) <= (last_C - view.step_in_block_C)[view.chain_R]
        return chosen

    def _due(self, view: StepView[Any]) -> IntArray:
        """Return the last index of the path that this pass reveals, at least the next one."""
        due_C = np.empty(len(view.filling_C), np.int64)
        for n in np.unique(view.filling_C):
            mine = view.filling_C == n
            due_C[mine] = np.searchsorted(self.passes(int(n)), view.forward_C[mine], side="right") - 1
        return np.maximum(due_C, view.step_in_block_C)


def parse_whole(rule: str, text: str, least: int, name: str = "") -> int:
    """Parse a whole number of at least ``least``; ``name`` identifies one of several values in messages."""
    if not text.isascii() or not text.isdigit():
        raise _refusal(rule, text, name, f"a whole number of at least {least}")
    if len(text.lstrip("0")) > len(str(MAX_WHOLE)):
        raise _refusal(rule, text, name, f"at most {MAX_WHOLE:,}")
    if int(text) < least:
        raise _refusal(rule, text, name, f"a whole number of at least {least}")
    return int(text)


def parse_real(rule: str, text: str, low: float, high: float = np.inf, name: str = "") -> float:
    """Parse a finite number from ``low`` to ``high``, both included."""
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if not low <= value <= high or np.isinf(value):
        wanted = (
            f"a finite number of at least {low:g}"
            if np.isinf(high)
            else f"a number between {low:g} and {high:g}"
        )
        raise _refusal(rule, text, name, wanted)
    return value


def parse_word(rule: str, text: str, allowed: Sequence[str], name: str = "") -> str:
    """Return ``text`` if it is one of the words ``allowed``."""
    if text not in allowed:
        raise _refusal(rule, text, name, f"one of {', '.join(allowed)}")
    return text


def _refusal(rule: str, text: str, name: str, wanted: str) -> UserInputError:
    if not name:
        return UserInputError(f"'{rule}={text}': the value must be {wanted}")
    return UserInputError(f"'{rule}': {name} is '{text}' and must be {wanted}")


class Arguments:
    """The options and the seed after an order's name.

    Args:
        order: the order's id, for messages.
        text: the text after the first colon.
        known: names of the options.
        seeded: whether a seed may be given.
    """

    def __init__(self, order: str, text: str, known: Sequence[str], *, seeded: bool = False) -> None:
        self._order, self._text = order, text
        self.seed: int | None = None
        self._found: dict[str, str] = {}
        for part in text.split(":"):
            name, equals, value = part.partition("=")
            if equals and value and name in known and name not in self._found:
                self._found[name] = value
            elif seeded and self.seed is None and part.isascii() and part.isdigit():
                self.seed = self._checked(part)
            else:
                wanted = [f"{name}=VALUE" for name in known] + (["a seed"] if seeded else [])
                raise self.refusal(f"'{part}' is not understood; allowed are {', '.join(wanted)}, once each")

    def number(self, name: str, default: float, low: float, high: float = np.inf) -> float:
        """Return an option as a finite number between ``low`` and ``high``."""
        if name not in self._found:
            return default
        try:
            value = float(self._found[name])
        except ValueError:
            value = np.nan
        if not low <= value <= high or np.isinf(value):
            if np.isinf(high):
                raise self.refusal(f"{name} must be a finite number of at least {low:g}")
            raise self.refusal(f"{name} must be a number between {low:,g} and {high:,.15g}")
        return value

    def whole(self, name: str, default: int, least: int) -> int:
        """Return an option as a whole number of at least ``least``."""
        value = self.number(name, default, least, 10**6)
        if value != int(value):
            raise self.refusal(f"{name} must be a whole number")
        return int(value)

    def word(self, name: str, default: str, allowed: Sequence[str] = ()) -> str:
        """Return an option as text; if ``allowed`` is not empty, one of its words."""
        value = self._found.get(name, default)
        if allowed and value not in allowed:
            raise self.refusal(f"{name} must be {' or '.join(allowed)}")
        return value

    def refusal(self, why: str) -> UserInputError:
        """Return an error that quotes the order."""
        return UserInputError(f"order '{self._order}:{self._text}': {why}")

    def _checked(self, digits: str) -> int:
        if len(digits) > MAX_SEED_DIGITS:
            raise self.refusal(f"the seed must have at most {MAX_SEED_DIGITS} digits")
        return int(digits)


def label_of(order: str, options: Mapping[str, tuple[float | str, float | str]]) -> str:
    """Return the order's label: its id and the options (value, default) that differ from their default."""
    parts = [
        f"{name}={value if isinstance(value, str) else plain(value)}"
        for name, (value, default) in options.items()
        if value != default
    ]
    return ":".join([order, *parts])


def plain(value: float) -> str:
    """Return the shortest decimal text of a number."""
    return np.format_float_positional(value, trim="-")
