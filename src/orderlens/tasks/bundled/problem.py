"""What a generator hands over: one problem, before it is given to a split.

Knows nothing about prompts, ids or splits (see generator.py) nor about how an answer is graded (graders.py).
"""

from __future__ import annotations

from dataclasses import dataclass

Atom = str | int


@dataclass(frozen=True)
class Problem:
    """One generated problem.

    Attributes:
        level: Difficulty, 1 to 3.
        key: What makes the problem this problem, free of wording: decides the split.
        question: The text shown to the model, without options.
        solution: Worked solution in words, without the closing answer line.
        answer: The golden number, or the text of the right option.
        options: The four option texts in their shown sequence; empty where there are none.
        facts: The structured facts behind the question, for checking.
        query: What is asked of the facts.
    """

    level: int
    key: tuple[object, ...]
    question: str
    solution: str
    answer: str
    options: tuple[str, ...] = ()
    facts: tuple[tuple[Atom, ...], ...] = ()
    query: tuple[Atom, ...] = ()
