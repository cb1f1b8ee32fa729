"""What callers of the theory may catch.

All are ``ValueError``: the caller gave a number outside the domain, and the message names it. The class
attribute tells the command line that the mistake is the caller's, without this package knowing a command
line.
"""

from __future__ import annotations

from typing import ClassVar


class TheoryError(ValueError):
    """An argument lies outside the domain of the theory."""

    is_user_input_error: ClassVar[bool] = True


class ProbabilityError(TheoryError):
    """A probability is not strictly between 0 and 1 (or its logarithm is not finite and negative)."""


class NoiseError(TheoryError):
    """A noise scale σ is not a positive finite number."""


class CompetitorError(TheoryError):
    """A number of competitors below 1, or competitor masses that do not fit the target's probability."""


class ProfileError(TheoryError):
    """A confidence profile is empty, of the wrong shape, or not comparable with another."""
