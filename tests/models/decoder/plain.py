"""The four families from their published modeling code, in the plainest torch: float64, one sequence.

Independent of the package: reads tensors by their published names and restates the definitions (LLaDA's
``LLaDALlamaBlock``; ``DreamAttention``, ``SDARAttention``, ``Fast_dLLM_QwenAttention`` and their layers).
"""

from __future__ import annotations

import torch


def rms(x, weight, eps):
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))


def rotate_half(x):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def rope(x_HLD, theta):
    size = x_HLD.shape[-1]
    inverse = 1.0 / theta ** (torch.arange(0, size, 2).double() / size)
    angles = torch.outer(torch.arange(x_HLD.shape[1]).double(), inverse)
    angles = torch.cat((angles, angles), dim=-1)
    return x_HLD * angles.cos() + rotate_half(x_HLD) * angles.sin()


def attention(q, k, v, seen, theta):
    """q [H, L, D], k and v [K, L, D]; seen [L, L] or None."""
    q, k = rope(q, theta), rope(k, theta)
    k, v = (part.repeat_interleave(len(q) // len(k), dim=0) for part in (k, v))
    scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
    if seen is not None:
        scores = scores.masked_fill(~seen, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)


def heads(x, count):
    return x.view(len(x), count, -1).transpose(0, 1)


def block_causal(length, block):
    number = torch.arange(length) // block
    return number[:, None] >= number[None, :]


def llada_logits(tensors, config, ids):
    """Logits [L, V] of LLaDA-8B: every position sees all."""
    t = {name.removeprefix("model.transformer."): value.double() for name, value in tensors.items()}
    x, eps = t["wte.weight"][ids], config["rms_norm_eps"]
    for n in range(config["n_layers"]):
        b = {name.removeprefix(f"blocks.{n}."): value for name, value in t.items()}
        h = rms(x, b["attn_norm.weight"], eps)
        q, k, v = (h @ b[f"{p}_proj.weight"].T + b.get(f"{p}_proj.bias", 0.0) for p in "qkv")
        kv = config["n_kv_heads"]
        att = attention(heads(q, config["n_heads"]), heads(k, kv), heads(v, kv), None, config["rope_theta"])
        x = x + att @ b["attn_out.weight"].T
        h = rms(x, b["ff_norm.weight"], eps)
        act = torch.nn.functional.silu(h @ b["ff_proj.weight"].T) * (h @ b["up_proj.weight"].T)
        x = x + act @ b["ff_out.weight"].T
    x = rms(x, t["ln_f.weight"], eps)
    return x @ (t["wte.weight"] if config["weight_tying"] else t["ff_out.weight"]).T


def qwen_logits(tensors, config, ids, seen=None):
    """Logits [L, V] of a Qwen-like body, not shifted; ``seen`` [L, L] says what a position sees (all)."""
    t = {name: value.double() for name, value in tensors.items()}
    x, eps = t["model.embed_tokens.weight"][ids], config["rms_norm_eps"]
    for n in range(config["num_hidden_layers"]):
        b = {name.removeprefix(f"model.layers.{n}."): value for name, value in t.items()}
        h = rms(x, b["input_layernorm.weight"], eps)
        q, k, v = (
            h @ b[f"self_attn.{p}_proj.weight"].T + b.get(f"self_attn.{p}_proj.bias", 0.0) for p in "qkv"
        )
        q, kv = heads(q, config["num_attention_heads"]), config["num_key_value_heads"]
        k, v = heads(k, kv), heads(v, kv)
        if "self_attn.q_norm.weight" in b:
            q, k = rms(q, b["self_attn.q_norm.weight"], eps), rms(k, b["self_attn.k_norm.weight"], eps)
        x = x + attention(q, k, v, seen, config["rope_theta"]) @ b["self_attn.o_proj.weight"].T
        h = rms(x, b["post_attention_layernorm.weight"], eps)
        act = torch.nn.functional.silu(h @ b["mlp.gate_proj.weight"].T) * (h @ b["mlp.up_proj.weight"].T)
        x = x + act @ b["mlp.down_proj.weight"].T
    head = t["model.embed_tokens.weight"] if config["tie_word_embeddings"] else t["lm_head.weight"]
    return rms(x, t["model.norm.weight"], eps) @ head.T


def shifted(logits):
    """Row i − 1 predicts position i, and row 0 also predicts position 0."""
    return torch.cat((logits[:1], logits[:-1]))


def logits_of(tensors, config, ids, block=None):
    """The family's logits, realigned: row i predicts position i."""
    ids = torch.as_tensor(ids)
    kind = config["model_type"]
    if kind == "llada":
        return llada_logits(tensors, config, ids)
    if kind == "Dream":
        return shifted(qwen_logits(tensors, config, ids))
    block = block or config.get("block_size") or config.get("bd_size")
    rows = qwen_logits(tensors, config, ids, block_causal(len(ids), block))
    return rows if kind == "sdar" else shifted(rows)


def log_probs(tensors, config, ids, mask_id, block=None):
    """Normalised log-probabilities [L, V] without the mask."""
    rows = logits_of(tensors, config, ids, block)
    rows[:, mask_id] = -torch.inf
    return rows.log_softmax(-1).numpy()
