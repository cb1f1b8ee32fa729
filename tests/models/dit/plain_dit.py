"""MDLM, BD3-LM and SEDD once more, from their published definition: numpy, float64, no cache."""

from __future__ import annotations

import math

import numpy as np


def logits(tensors, tokens, *, heads, sigma=0.0, visible=None, prefix="backbone."):
    """Return the network's outputs [L, V]; ``visible`` [L, L] says which columns a row may attend to."""
    weight = {
        name.removeprefix(prefix): tensor.double().numpy()
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
    x = weight["vocab_embed.embedding"][np.asarray(tokens)]
    condition = silu(noise_embedding(weight, sigma))
    for block in range(sum(name.endswith("norm1.weight") for name in weight)):
        own = {name.removeprefix(f"blocks.{block}."): value for name, value in weight.items()}
        x = one_block(own, x, condition, heads, visible)
    shift, scale = np.split(linear(weight, "output_layer.adaLN_modulation", condition), 2)
    x = layer_norm(x) * weight["output_layer.norm_final.weight"] * (1 + scale) + shift
    return linear(weight, "output_layer.linear", x)


def noise_embedding(weight, sigma):
    """The multi-layer perceptron over cosines, then sines, of the noise level."""
    frequencies = [math.exp(-math.log(10000) * index / 128) for index in range(128)]
    waves = [math.cos(sigma * f) for f in frequencies] + [math.sin(sigma * f) for f in frequencies]
    return linear(weight, "sigma_map.mlp.2", silu(linear(weight, "sigma_map.mlp.0", np.array(waves))))


def one_block(weight, x, condition, heads, visible):
    shift1, scale1, gate1, shift2, scale2, gate2 = np.split(linear(weight, "adaLN_modulation", condition), 6)
    h = layer_norm(x) * weight["norm1.weight"] * (1 + scale1) + shift1
    x = x + gate1 * (attention(h @ weight["attn_qkv.weight"].T, heads, visible) @ weight["attn_out.weight"].T)
    h = layer_norm(x) * weight["norm2.weight"] * (1 + scale2) + shift2
    return x + gate2 * linear(weight, "mlp.2", gelu(linear(weight, "mlp.0", h)))


def attention(qkv, heads, visible):
    """Each head on its own; all queries come first in the fused projection, then keys, then values."""
    length, width = len(qkv), qkv.shape[1] // 3
    size = width // heads
    out = np.empty((length, width))
    for head in range(heads):
        q, k, v = (qkv[:, part * width + head * size :][:, :size] for part in range(3))
        scores = turned(q) @ turned(k).T / math.sqrt(size)
        if visible is not None:
            scores = np.where(visible, scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[:, head * size : (head + 1) * size] = weights / weights.sum(axis=1, keepdims=True) @ v
    return out


def turned(x):
    """Rotary encoding: dimension i turns with i + half, by position times a falling frequency."""
    half = x.shape[1] // 2
    angle = np.arange(len(x))[:, None] / 10000 ** (np.arange(half) / half)
    first, second = x[:, :half], x[:, half:]
    return np.hstack(
        [first * np.cos(angle) - second * np.sin(angle), second * np.cos(angle) + first * np.sin(angle)]
    )


def block_causal(length, block_size, offset=0):
    block = (np.arange(length) - offset) // block_size
    return block[:, None] >= block[None, :]


def log_softmax_without(outputs, excluded):
    """Normalise over all tokens but one: MDLM's rule that the mask is never predicted."""
    outputs = outputs.copy()
    outputs[:, excluded] = -np.inf
    shifted = outputs - outputs.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def sedd_log_scores(outputs, tokens, sigma):
    """SEDD's last lines: divide by e^σ − 1 and the number of other tokens; a token's ratio to itself is 1."""
    scores = outputs - math.log(math.expm1(sigma)) - math.log(outputs.shape[1] - 1)
    scores[np.arange(len(tokens)), tokens] = 0.0
    return scores


def sedd_analytic_step(log_scores, sigma, step):
    """The published analytic sampler at masked positions: each token's probability after Δσ = ``step``."""
    score = np.exp(log_scores)
    staggered = score * math.exp(step)
    staggered[:, -1] += (1 - math.exp(step)) * score.sum(axis=1)
    transition = np.full(score.shape[1], 1 - math.exp(-step))
    transition[-1] += math.exp(-step)
    return staggered * transition


def linear(weight, name, x):
    return x @ weight[f"{name}.weight"].T + weight[f"{name}.bias"]


def layer_norm(x):
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)


def silu(x):
    return x / (1 + np.exp(-x))


def gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
