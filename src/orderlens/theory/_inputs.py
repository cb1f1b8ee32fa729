"""Domain checks and shapes of the arguments of all public functions of the theory.

Scalars are returned as ``numpy.float64``, arrays with the broadcast shape of the arguments. Long arrays are
processed in pieces that fit in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray


class TheoryError(ValueError):
    """An argument is outside the domain of the theory."""

    is_user_input_error: ClassVar[bool] = True


class ProbabilityError(TheoryError):
    """A probability is not strictly between 0 and 1 (or its logarithm is not finite and negative)."""


class NoiseError(TheoryError):
    """A noise scale σ is not a positive finite number."""


class CompetitorError(TheoryError):
    """A number of competitors below 1, or competitor masses that do not fit the target's probability."""


class ProfileError(TheoryError):
    """A confidence profile is empty, of the wrong shape, or not comparable with another."""


Array: TypeAlias = NDArray[np.float64]
Values: TypeAlias = Any
"""``numpy.float64`` for scalar arguments, otherwise a float64 array of the broadcast shape."""

Kernel: TypeAlias = Callable[[Array, Array | float], Array]

CHUNK = 16_384
"""Elements per piece (128 KiB): a kernel's dozen temporaries fit in the second-level cache."""


def real_array(value: ArrayLike, name: str, error: type[TheoryError]) -> Array:
    """Return ``value`` as float64; raise ``error`` unless it contains real numbers."""
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "fiub":
            raise TypeError(array.dtype)
        return array.astype(np.float64, copy=False)
    except (TypeError, ValueError):
        raise error(f"{name} must be real numbers; got {value!r:.80}") from None


def _refuse(array: Array, wrong: NDArray[np.bool_], rule: str, error: type[TheoryError]) -> None:
    if not wrong.any():
        return
    first = np.argwhere(wrong)[0]
    place = "" if array.ndim == 0 else f" at index {', '.join(map(str, first))}"
    more = f" ({int(wrong.sum())} of {array.size} values)" if array.size > 1 else ""
    raise error(f"{rule}; got {float(array[tuple(first)])!r}{place}{more}")


def finite(value: ArrayLike, name: str) -> Array:
    """Check that every value is a finite real number."""
    array = real_array(value, name, TheoryError)
    _refuse(array, ~np.isfinite(array), f"{name} must be finite", TheoryError)
    return array


def probabilities(q: ArrayLike) -> Array:
    """Check 0 < q < 1."""
    array = real_array(q, "q", ProbabilityError)
    _refuse(array, ~((array > 0) & (array < 1)), "q must lie strictly between 0 and 1", ProbabilityError)
    return array


def log_probabilities(y: ArrayLike) -> Array:
    """Check that y = log q is finite and negative."""
    array = real_array(y, "y = log q", ProbabilityError)
    wrong = ~((array < 0) & (array > -np.inf))
    _refuse(array, wrong, "y = log q must be finite and negative (0 < q < 1)", ProbabilityError)
    return array


def noise(sigma: ArrayLike) -> Array:
    """Check σ > 0, finite."""
    array = real_array(sigma, "sigma", NoiseError)
    _refuse(array, ~((array > 0) & (array < np.inf)), "sigma must be positive and finite", NoiseError)
    return array


def single_noise(sigma: float) -> float:
    """Check one σ > 0."""
    return _single(noise(sigma), "sigma", NoiseError)


def many_competitors(k: ArrayLike) -> Array:
    """Check that every k is finite and at least 1; fractions are allowed, because the estimator fits them."""
    array = real_array(k, "k", CompetitorError)
    _refuse(array, ~((array >= 1) & (array < np.inf)), "k must be finite and at least 1", CompetitorError)
    return array


def competitors(k: float) -> float:
    """Check one k."""
    return _single(many_competitors(k), "k", CompetitorError)


def _single(array: Array, name: str, error: type[TheoryError]) -> float:
    if array.ndim:
        raise error(f"{name} must be one number here; got shape {array.shape}")
    return float(array)


def common_shape(*arrays: Array) -> tuple[int, ...]:
    """Return the broadcast shape of the arguments."""
    try:
        return np.broadcast_shapes(*(array.shape for array in arrays))
    except ValueError:
        raise TheoryError(f"shapes {', '.join(str(a.shape) for a in arrays)} do not broadcast") from None


def profile(y: ArrayLike) -> Array:
    """Check a trace of log q, steps on the last axis: at least one step, finite, not positive.

    Exactly 0 is allowed here, unlike in the pointwise functions: float32 traces contain it where q rounds to
    1. Such a step contributes its limit.
    """
    array = real_array(y, "a profile", ProfileError)
    if array.ndim == 0 or array.shape[-1] == 0:
        raise ProfileError(f"a profile needs at least one step; got shape {array.shape}")
    wrong = ~((array <= 0) & (array > -np.inf))
    _refuse(array, wrong, "a profile must contain log q of every step, finite and at most 0", ProfileError)
    return array


def elementwise(kernel: Kernel, values: Array, sigma: Array) -> Values:
    """Apply ``kernel`` to the broadcast of ``values`` and ``sigma``, piece by piece.

    Args:
        kernel: takes one piece of the values and the noise (a float if it is the same for all values).
        values: checked values.
        sigma: checked noise scales, of any shape that broadcasts with ``values``.
    """
    shape = common_shape(values, sigma)
    flat = np.broadcast_to(values, shape).reshape(-1)
    noises = np.broadcast_to(sigma, shape).reshape(-1) if sigma.size > 1 else None
    common = float(sigma.flat[0]) if noises is None and sigma.size else 1.0
    out = np.empty(flat.shape)
    # Overflow and underflow are the correct limits, and each case is computed for all elements.
    with np.errstate(all="ignore"):
        for start in range(0, flat.size, CHUNK):
            piece = slice(start, start + CHUNK)
            out[piece] = kernel(flat[piece], common if noises is None else noises[piece])
    return out.reshape(shape)[()]
