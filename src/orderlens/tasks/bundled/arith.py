"""`arith`: word problems with one to three steps; level = number of steps.

Knows nothing about splits, prompts or grading.
"""

from __future__ import annotations

from random import Random

from orderlens.tasks.bundled import arith_chain, arith_stories
from orderlens.tasks.bundled.problem import Problem

CHAIN_SHARE = 0.4  # the rest are written stories, which have more kinds of structure


def problem(rng: Random, level: int) -> Problem:
    """Draw one problem of ``level``."""
    if rng.random() < CHAIN_SHARE:
        return arith_chain.problem(rng, level)
    return rng.choice(arith_stories.BY_LEVEL[level]).problem(rng)
