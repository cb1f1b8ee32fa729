"""The authors' samplers, restated plainly: batch 1, greedy, no cache. Independent of the package.

Each takes ``rows(x) -> log-probabilities [L, V]`` of the whole canvas, realigned, the mask excluded (their
own code leaves the mask in the softmax), and returns the reveals as (position, token) in order.
"""

from __future__ import annotations

import numpy as np

CONFIDENCE = {
    "max-prob": lambda p: p.max(-1),  # LLaDA low_confidence, Dream maskgit_plus, SDAR low_confidence_static
    "top-margin": lambda p: np.sort(p)[:, -1] - np.sort(p)[:, -2],  # Dream topk_margin
    "entropy": lambda p: (p * np.log(p + 1e-10)).sum(-1),  # Dream entropy
}


def llada(rows, prompt, length, block, mask, by="max-prob"):
    """``generate`` of LLaDA-8B with a step per token: blocks count from the end of the prompt."""
    x = np.concatenate([prompt, np.full(length, mask)])
    reveals = []
    for start in range(len(prompt), len(x), block):
        for _ in range(block):
            p = np.exp(rows(x))
            confidence = np.where(x == mask, CONFIDENCE[by](p), -np.inf)
            confidence[start + block :] = -np.inf
            place = int(confidence.argmax())
            x[place] = p[place].argmax()
            reveals.append((place, int(x[place])))
    return reveals


def dream(rows, prompt, length, mask, by, eps=1e-3):
    """``_sample`` of Dream with a step per token; returns the set that each step commits."""
    x = np.concatenate([prompt, np.full(length, mask)])
    times = np.linspace(1, eps, length + 1)
    sets = []
    for i in range(length):
        masked = np.flatnonzero(x == mask)
        count = int(len(masked) * (1 - times[i + 1] / times[i])) if i < length - 1 else len(masked)
        p = np.exp(rows(x)[masked])
        best = np.argsort(-CONFIDENCE[by](p), kind="stable")[:count]
        sets.append([(int(masked[place]), int(p[place].argmax())) for place in best])
        for place, token in sets[-1]:
            x[place] = token
    return sets


def sdar(rows, prompt, length, block, mask):
    """``block_diffusion_generate`` of SDAR, ``low_confidence_static`` with a step per token; grid from 0."""
    total = -(-(len(prompt) + length) // block) * block
    x = np.concatenate([prompt, np.full(total - len(prompt), mask)])
    reveals = []
    for start in range(len(prompt) // block * block, total, block):
        while (x[start : start + block] == mask).any():
            p = np.exp(rows(x[: start + block]))
            confidence = np.where(x[: start + block] == mask, p.max(-1), -np.inf)
            place = int(confidence.argmax())
            x[place] = p[place].argmax()
            reveals.append((place, int(x[place])))
    return reveals


def fast_dllm(raw, prompt, length, block, small, mask):
    """``generate`` of Fast-dLLM v2 with threshold 1: the next block's first token, then its sub-blocks.

    ``raw(x)`` gives the rows as the network does, not realigned, the mask excluded.
    """
    x = list(prompt)
    reveals = []

    def reveal(place, token):
        x[place] = int(token)
        reveals.append((place, int(token)))

    while len(x) < len(prompt) + length:
        if len(x) % block == 0:
            x.append(mask)
            reveal(len(x) - 1, raw(np.array(x[:-1]))[-1].argmax())
        start = len(x) // block * block
        x += [mask] * (block - len(x) % block) if len(x) % block else []
        for low in range(start, start + block, small):
            inside = slice(low, low + small)
            while mask in x[inside]:
                rows = raw(np.array(x))[start:]
                rows = np.concatenate([rows[:1], rows[:-1]])[low - start : low - start + small]
                confidence = np.where(np.array(x[inside]) == mask, rows.max(-1), -np.inf)
                best = int(confidence.argmax())
                reveal(low + best, rows[best].argmax())
    return reveals
