"""How rules are written as text, and what a commit rule is.

The values of a commit or revise rule are fields that ``Rule`` turns into text and back; ``Arguments`` reads
what may follow an order's name: ``name=value`` options and a seed, cut at the colons (``scale=2:3``).

A ``Commit`` takes an order's scores and says which masked positions this pass reveals. A ``Schedule`` is a
commit rule whose counts are known beforehand, so that a static order under it needs no model to plan its
path. (Revise rules are in ``revise.protocol``.) A rule sees no target, model or file.

Shape letters: C chains, R rows.
"""

from __future__ import annotations

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
"""A seed is stored as a 64-bit number."""
CommitView: TypeAlias = StepView[PositionStats | DrawStats]
"""What a commit rule sees: no target."""


class Rule(ABC):
    """What commit and revise rules share: a name, a line for the catalogue, and how they are written.

    The values behind a rule's ``=`` are the dataclass fields that it declares with ``whole`` or ``real``:
    text and rule are made of each other here, and a rule says only what it does.
    """

    id: ClassVar[str]
    summary: ClassVar[str]

    @classmethod
    def parse(cls, values: list[str]) -> Self:
        """Build from the values behind the ``=``, cut at the colons (``["0.9"]`` of ``threshold=0.9``)."""
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
        """The canonical text, e.g. ``threshold=0.9``; defaults at its end are left out."""
        known = [(item, getattr(self, item.name)) for item in self._values()]
        while known and known[-1][1] == known[-1][0].default and not known[-1][0].metadata["always"]:
            known.pop()
        texts = (str(value) if isinstance(value, int) else plain(value) for _, value in known)
        return f"{self.id}={':'.join(texts)}" if known else self.id

    @classmethod
    def _values(cls) -> list[Field[Any]]:
        found: tuple[Field[Any], ...] = fields(cls) if is_dataclass(cls) else ()
        return [item for item in found if "read" in item.metadata]


def whole(least: int, name: str, like: int, *, default: Any = MISSING, always: bool = False) -> Any:
    """Declare a value: a whole number of at least ``least``; ``always`` writes it where it is the default."""
    return _value(partial(parse_whole, least=least), name, like, default, always)


def real(low: float, high: float, name: str, like: float, *, default: Any = MISSING) -> Any:
    """Declare a value: a finite number between ``low`` and ``high``, both allowed."""
    return _value(partial(parse_real, low=low, high=high), name, like, default, False)


def _value(read: Callable[..., float], name: str, like: float, default: Any, always: bool) -> Any:
    metadata = {"read": read, "name": name, "like": like, "always": always}
    return field(metadata=metadata) if default is MISSING else field(default=default, metadata=metadata)


def _counted(least: int, most: int) -> str:
    words = {(0, 0): "no value", (1, 1): "one value", (0, 1): "one value or none", (0, 2): "up to two values"}
    return words.get((least, most)) or (f"{least} values" if least == most else f"{least} to {most} values")


@dataclass(frozen=True, slots=True)
class Pick:
    """What a commit rule takes.

    Attributes:
        chosen_R: rows that are committed now, at least one in every chain.
        token_R: the token of each row at temperature 0; None where that is the most probable one.
    """

    chosen_R: BoolArray
    token_R: IntArray | None = None


class Commit(Rule):
    """How many positions one forward pass reveals."""

    randomised: bool = False
    """Whether the choice depends on random numbers beyond the order's."""
    needs: frozenset[str] = frozenset()
    """Names of what the view must hold in ``extras`` besides the statistics (see ``StepView``)."""

    def planned_passes(self, n_positions: int) -> int:
        """Return how many passes a block of so many positions is planned to take; n where nobody knows."""
        return n_positions

    @abstractmethod
    def select(self, view: CommitView, scores_R: FloatArray) -> BoolArray:
        """Return which rows are committed now [R]: at least one in every chain."""

    def pick(self, view: CommitView, scores_R: FloatArray) -> Pick:
        """Return the same with the tokens; only for a rule that may not take the most probable one."""
        return Pick(self.select(view, scores_R))


class Schedule(Commit):
    """A commit rule whose counts depend only on the number of positions to fill and on the pass."""

    @abstractmethod
    def passes(self, n_positions: int) -> IntArray:
        """Return [n]: the pass at which the position that comes t-th is revealed (0, …, never falling)."""

    def plan(self, path: IntArray) -> tuple[IntArray, IntArray]:
        """Return the path [n] that a static order's ``path`` becomes, and the pass of each of its steps."""
        return path, self.passes(len(path))

    def planned_passes(self, n_positions: int) -> int:
        """Return the passes that the counts add up to."""
        return int(self.passes(n_positions)[-1]) + 1

    def select(self, view: CommitView, scores_R: FloatArray) -> BoolArray:
        """Return the next positions by score, as many as the schedule gives this pass."""
        last_C = self._due(view)
        if (last_C == view.step_in_block_C).all():
            return view.best(scores_R)
        chosen: BoolArray = view.ranks(scores_R) <= (last_C - view.step_in_block_C)[view.chain_R]
        return chosen

    def _due(self, view: StepView[Any]) -> IntArray:
        """Return the last place of the path that is due by now, at least the next one."""
        due_C = np.empty(len(view.filling_C), np.int64)
        for n in np.unique(view.filling_C):
            mine = view.filling_C == n
            due_C[mine] = np.searchsorted(self.passes(int(n)), view.forward_C[mine], side="right") - 1
        return np.maximum(due_C, view.step_in_block_C)


def parse_whole(rule: str, text: str, least: int, name: str = "") -> int:
    """Return a whole number of at least ``least``; ``name`` tells the value apart where there are several."""
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) < least:
        raise _refusal(rule, text, name, f"a whole number of at least {least}")
    return int(text)


def parse_real(rule: str, text: str, low: float, high: float = np.inf, name: str = "") -> float:
    """Return a finite number between ``low`` and ``high``, both allowed."""
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


def _refusal(rule: str, text: str, name: str, wanted: str) -> UserInputError:
    if not name:
        return UserInputError(f"'{rule}={text}': the value must be {wanted}")
    return UserInputError(f"'{rule}': {name} is '{text}' and must be {wanted}")


class Arguments:
    """The options and the seed behind an order's name.

    Args:
        order: the order's id, for messages.
        text: what stands behind the first colon.
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
            wanted = f"of at least {low:g}" if np.isinf(high) else f"between {low:g} and {high:g}"
            raise self.refusal(f"{name} must be a number {wanted}")
        return value

    def whole(self, name: str, default: int, least: int) -> int:
        """Return an option as a whole number of at least ``least``."""
        value = self.number(name, default, least, 10**6)
        if value != int(value):
            raise self.refusal(f"{name} must be a whole number")
        return int(value)

    def word(self, name: str, default: str, allowed: Sequence[str] = ()) -> str:
        """Return an option as it stands, one of ``allowed`` where that is not empty."""
        value = self._found.get(name, default)
        if allowed and value not in allowed:
            raise self.refusal(f"{name} must be {' or '.join(allowed)}")
        return value

    def refusal(self, why: str) -> UserInputError:
        """Return the error that names the order as it was written."""
        return UserInputError(f"order '{self._order}:{self._text}': {why}")

    def _checked(self, digits: str) -> int:
        if len(digits) > MAX_SEED_DIGITS:
            raise self.refusal(f"the seed must have at most {MAX_SEED_DIGITS} digits")
        return int(digits)


def label_of(order: str, options: Mapping[str, tuple[float | str, float | str]]) -> str:
    """Return the order's label: its id and every option (value, default) that is not the default."""
    parts = [
        f"{name}={value if isinstance(value, str) else plain(value)}"
        for name, (value, default) in options.items()
        if value != default
    ]
    return ":".join([order, *parts])


def plain(value: float) -> str:
    """Return the shortest decimal text of a number, the same for every way of writing it."""
    return np.format_float_positional(value, trim="-")
