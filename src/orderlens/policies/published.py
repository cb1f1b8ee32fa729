"""Presets of published samplers that only reveal: nothing is ever taken back.

Block length, number of blocks and temperature are the run's business, not the policy's; what a source says
about them stands in the reading.
"""

from __future__ import annotations

from orderlens.policies.presets import Preset

LLADA = Preset(
    "max-prob",
    "LLaDA, arXiv 2502.09992; ML-GSAI/LLaDA generate.py, low_confidence",
    "The most probable proposal first, one per pass (steps = length = 128); fewer steps are steps=N, "
    "the even split with the remainder in the first passes.",
    "Log-probabilities are float32 or better; the public code takes the softmax in the model's dtype, in "
    "which near-certain positions tie and the leftmost wins.",
)
FAST_DLLM = Preset(
    "max-prob+threshold=0.9",
    "Fast-dLLM, arXiv 2505.22618; NVlabs/Fast-dLLM llada/generate.py, get_transfer_index",
    "Every position with p ≥ 0.9 and at least the best one; blocks of 32.",
    "Without its approximate caches, which run an extra pass per block and change the marginals; its Dream "
    "variant without cache first takes a quota per step and is one by one at steps = length.",
)
BD3_LM = Preset(
    "random",
    "BD3-LM first hitting, arXiv 2503.09573; kuleshov-group/bd3lms diffusion.py",
    "One uniformly random masked position of the block per pass.",
    "Any batch size: the public code reads the flattened list of masks and is right for one text only.",
)
TOP_K_MARGIN = Preset(
    "top-margin",
    "Train for the worst, plan for the best, arXiv 2502.06768",
    "The largest p(v1) − p(v2) first, in probability space.",
    "DUEL's prototype subtracts log-probabilities, which is another order.",
)
GT_MARGIN = Preset(
    "oracle-margin",
    "Where-to-Unmask, arXiv 2602.09501",
    "Gt-Margin: the largest p(x*) − max over other tokens first. It sees the target: a diagnostic that "
    "cannot generate and has no likelihood.",
)
