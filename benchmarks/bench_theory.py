"""Vectorised g'' against scipy's log_ndtr on the same array: prints the ratio, which must stay below 5.

    python benchmarks/bench_theory.py [--points 10000000] [--json]

Both run on one thread; each time is the best of several alternating rounds, so that other load on the machine
slows both.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import numpy as np
from scipy.special import log_ndtr

from orderlens import theory


def best_of(rounds: int, *functions: Callable[[], object]) -> list[float]:
    times = [float("inf")] * len(functions)
    for _ in range(rounds):
        for i, function in enumerate(functions):
            start = time.perf_counter()
            function()
            times[i] = min(times[i], time.perf_counter() - start)
    return times


def measure(points: int, sigma: float, rounds: int) -> dict[str, float]:
    q = np.random.default_rng(0).uniform(1e-6, 1.0 - 1e-9, points)
    y = np.log(q)
    second, reference = best_of(rounds, lambda: theory.d2(y, sigma), lambda: log_ndtr(y))
    return {
        "sigma": sigma,
        "points": points,
        "d2_ns_per_point": 1e9 * second / points,
        "log_ndtr_ns_per_point": 1e9 * reference / points,
        "ratio": second / reference,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [measure(options.points, sigma, options.rounds) for sigma in (0.1, 0.5, 1.0, 2.0)]
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        print(
            f"sigma {row['sigma']:<4g} g'' {row['d2_ns_per_point']:6.1f} ns/point   "
            f"log_ndtr {row['log_ndtr_ns_per_point']:6.1f} ns/point   ratio {row['ratio']:.2f} (limit 5)"
        )


if __name__ == "__main__":
    main()
