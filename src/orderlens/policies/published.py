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
FAST_DLLM_FACTOR = Preset(
    "max-prob+factor=1",
    "Fast-dLLM, arXiv 2505.22618; ZHZisZZ/dllm pipelines/fastdllm/llada/sampler.py",
    "The most probable positions while the r-th has p ≥ 1 − 1/(r+1), the best one always.",
    "No extra position when the first failure is at the last rank, as in the copies of dInfer and "
    "PC-Sampler; no limit on the passes of a block, at which dllm's version fails.",
)
EB_SAMPLER = Preset(
    "entropy+bound=0.1",
    "EB-Sampler, arXiv 2505.24857; copies in NEUIR/PC-Sampler and yks23/Information-Gain-Sampler",
    "The lowest entropies first, as many as keep Σ H − max H within 0.1 nats, at least one.",
    "Inside the block; those copies work on the whole canvas. DUS's copy counts in bits and stops after a "
    "fixed number of passes with masks left.",
)
KLASS = Preset(
    "max-prob+klass=0.9:0.01",
    "KLASS, arXiv 2511.05664; shkim0116/KLASS",
    "Every position with p > 0.9 that moved by KL < 0.01 nats in each of the last two passes, else the best "
    "one; blocks of 64. Tasks have their own values, e.g. 0.6 and 0.015 for LLaDA on GSM8K.",
    "The history starts anew in every block and is that of masked positions; texts of a batch do not touch "
    "each other; nothing revealed is overwritten.",
)
DUS = Preset(
    "forced-ar+dilated",
    "DUS, arXiv 2506.19037; omerlux/DUS generate.py, scheduler dilated, base 2, skip 1",
    "Every 16th position of 32, then every 8th, 4th, …: sets that no model chooses.",
    "Nothing is put back: the public default takes positions below p = 0.3 back into no later level, so that "
    "masks stay in the text.",
)
LLADA2_0 = Preset(
    "max-prob+above=0.95",
    "LLaDA-2.0; ZHZisZZ/dllm pipelines/llada2/sampler.py, SGLang LowConfidence",
    "Every position with p > 0.95, at least the best one (32 steps for blocks of 32); above=T:N has the "
    "floor of N steps.",
    "A block is always finished: with eos_early_stop the public loop leaves it with masks. No extra pass per "
    "block, which SGLang needs for its cache. p is that of temperature 1; theirs is tempered.",
)
SDAR = Preset(
    "max-prob+above=0.85",
    "SDAR low_confidence_dynamic; SDAR generate.py",
    "Every position with p > 0.85, at least the best one (4 steps for blocks of 4).",
    "Counts are those of the positions to fill; the public top-k may overwrite given tokens. p is that of "
    "temperature 1; theirs is tempered and truncated (the same at its default, temperature 1).",
)
DINFER = Preset(
    "max-prob+near=0.9",
    "dInfer, arXiv 2510.08666; inclusionAI/dInfer decoding/parallel_strategy.py, threshold",
    "Every position with p ≥ min(0.9, best p − 0.00001): Fast-dLLM's rule, but all that tie with the best "
    "are taken, not one (0.9 at its command line, 0.8 to 0.95 in its presets).",
    "Its iteration smoothing, which changes the model's input, is no part of it.",
)
HIERARCHY = Preset(
    "max-prob+hierarchy=0.4:0.9",
    "dInfer, arXiv 2510.08666; inclusionAI/dInfer decoding/parallel_strategy.py, hierarchy",
    "The best of every run of masks if p > 0.4, all with p > 0.9, at least the block's best.",
    "Log-probabilities are float32 or better, and any batch size is allowed.",
)
DREAM = Preset(
    "entropy+dream",
    "Dream, arXiv 2508.15487; DreamLM/Dream generation_utils.py, alg entropy, eps 0.001",
    "The lowest entropy first, floor(|M| (1 − t'/t)) positions per pass, as many passes as positions.",
    "Every text has its own count (the public one is the mean over the batch); passes that reveal nothing "
    "are left out; alg origin, the public default, reveals at random and is not this preset. H is that of "
    "temperature 1; theirs is tempered and truncated.",
)
MASKGIT = Preset(
    "noised-prob+cosine=12",
    "MaskGIT, arXiv 2202.04200; google-research/maskgit libml/parallel_decode.py, mask_schedule.py",
    "log p of the proposal plus Gumbel noise that fades over 12 passes; the counts follow a cosine.",
    "Counts in exact arithmetic; passes that reveal nothing are left out; 12 passes per block.",
)
INFO_GAIN = Preset(
    "ahead-gain+unanimous=0.8",
    "Info-Gain, arXiv 2602.18176; yks23/Information-Gain-Sampler src/generators/info_gain.py",
    "Tries 8 positions (the most probable, others drawn at temperature 0.2) and takes the one with the least "
    "entropy now and afterwards; the whole block at once when all of it has p ≥ 0.8.",
    "No pass is wasted on a lone candidate, and no mask is left where the length is no multiple of the "
    "block; the winner's pass is made again instead of being reused.",
)
LOOKUM = Preset(
    "ahead-rest+unanimous=0.8",
    "LookUM; yks23/Information-Gain-Sampler src/generators/info_gain.py, variant lookum",
    "Info-Gain without the entropy of the chosen position itself.",
    "As for info-gain.",
)
PC_SAMPLER = Preset(
    "position-content",
    "PC-Sampler / UNCODE; NEUIR/PC-Sampler, NEUIR/Uncode src/generate.py",
    "e^(−0.25 i) · min(−p log f, 10), i the place in the block, f the corpus frequency of the proposal.",
    "Without a corpus all tokens count as equally rare, so only the place is weighed; the published "
    "frequencies belong to LLaDA's vocabulary: write position-content:frequencies=FILE.",
)
MDLM = Preset(
    "random+ancestral=128",
    "MDLM, arXiv 2406.07524; kuleshov-group/mdlm diffusion.py, ddpm_cache, 128 steps",
    "Every masked position is revealed with probability (t − s)/t in each of 128 even steps; chance alone "
    "says where and how many.",
    "128 steps per block, and steps that reveal nothing are left out; the last step draws instead of taking "
    "the most probable tokens.",
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
