"""Our CUDA kernels, written in Triton. Imported only when a CUDA device is used.

Each kernel has a counterpart in plain torch that computes the same function; the tests and the benchmark's
``--check`` compare them.
"""

from __future__ import annotations

from orderlens.models.llada2.config import LLaDA2Config


def supports(config: LLaDA2Config) -> bool:
    """Return whether the kernels' tiles divide this shape (all published ones; small ones may not)."""
    powers = (config.n_experts, config.n_groups, config.head_width, config.rotary_width)
    return all(_power_of_two(value) for value in powers) and not (
        config.hidden_size % 32 or config.expert_width % 32
    )


def _power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0
