"""BERT, RoBERTa, ModernBERT and XLNet once more, from their published definitions: numpy, float64."""

from __future__ import annotations

import math

import numpy as np

erf = np.vectorize(math.erf)


def bert(tensors, tokens, *, heads, layers):
    """Return the outputs [L, V]: embeddings, post-norm layers, a transform, the tied output layer."""
    w = Weights(tensors, "bert.")
    x = w["embeddings.word_embeddings"][tokens] + w["embeddings.position_embeddings"][: len(tokens)]
    x = w.norm("embeddings.LayerNorm", x + w["embeddings.token_type_embeddings"][0])
    x = post_norm_layers(w, x, heads, layers)
    head = Weights(tensors, "cls.predictions.")
    x = head.norm("transform.LayerNorm", gelu(head.linear("transform.dense", x)))
    return x @ w["embeddings.word_embeddings"].T + tensors["cls.predictions.bias"].double().numpy()


def roberta(tensors, tokens, *, heads, layers, padding=1):
    """The same, with positions that start after the padding id."""
    w = Weights(tensors, "roberta.")
    positions = padding + 1 + np.arange(len(tokens))
    x = w["embeddings.word_embeddings"][tokens] + w["embeddings.position_embeddings"][positions]
    x = w.norm("embeddings.LayerNorm", x + w["embeddings.token_type_embeddings"][0])
    x = post_norm_layers(w, x, heads, layers)
    head = Weights(tensors, "lm_head.")
    x = head.norm("layer_norm", gelu(head.linear("dense", x)))
    return x @ w["embeddings.word_embeddings"].T + tensors["lm_head.bias"].double().numpy()


def post_norm_layers(w, x, heads, layers):
    for index in range(layers):
        own = w.under(f"encoder.layer.{index}.")
        q, k, v = (own.linear(f"attention.self.{part}", x) for part in ("query", "key", "value"))
        attended = multi_head(q, k, v, heads)
        x = own.norm("attention.output.LayerNorm", x + own.linear("attention.output.dense", attended))
        inner = gelu(own.linear("intermediate.dense", x))
        x = own.norm("output.LayerNorm", x + own.linear("output.dense", inner))
    return x


def modernbert(tensors, tokens, *, heads, layers, reach, every=3):
    """Pre-norm without biases, rotary positions, gated feed-forward; most layers see ``reach`` far."""
    w = Weights(tensors, "model.", eps=1e-5)
    x = w.norm("embeddings.norm", w["embeddings.tok_embeddings"][tokens])
    place = np.arange(len(tokens))
    near = np.abs(place[:, None] - place[None, :]) <= reach
    for index in range(layers):
        own, everything = w.under(f"layers.{index}."), index % every == 0
        h = x if index == 0 else own.norm("attn_norm", x)
        q, k, v = np.split(h @ own["attn.Wqkv"].T, 3, axis=1)
        theta = 160000.0 if everything else 10000.0
        attended = multi_head(q, k, v, heads, None if everything else near, theta)
        x = x + attended @ own["attn.Wo"].T
        value, gate = np.split(own.norm("mlp_norm", x) @ own["mlp.Wi"].T, 2, axis=1)
        x = x + (gelu(value) * gate) @ own["mlp.Wo"].T
    x = w.norm("final_norm", x)
    head = Weights(tensors, "head.", eps=1e-5)
    x = head.norm("norm", gelu(x @ head["dense"].T))
    return x @ w["embeddings.tok_embeddings"].T + tensors["decoder.bias"].double().numpy()


def xlnet(tensors, tokens, hidden, *, heads, layers):
    """Two streams: content for what is known, queries that know a position but not its token.

    Args:
        tokens: ids [L]; those at hidden positions are read by their own content only.
        hidden: booleans [L].
    """
    w = Weights(tensors, "transformer.")
    content = w["word_embedding"][tokens]
    query = np.tile(tensors["transformer.mask_emb"].double().numpy()[0, 0], (len(tokens), 1))
    blocked = np.tile(hidden, (len(tokens), 1))
    for index in range(layers):
        own = w.under(f"layer.{index}.")
        seen = blocked & ~np.eye(len(tokens), dtype=bool)  # content may always look at itself
        both = [
            relative_attention(own, stream, content, mask, heads)
            for stream, mask in ((content, seen), (query, blocked))
        ]
        content, query = (xlnet_feed_forward(own, stream) for stream in both)
    return query @ w["word_embedding"].T + tensors["lm_loss.bias"].double().numpy()


def relative_attention(w, stream, content, blocked, heads):
    """One pair of positions at a time: content with content, and content with the distance between them."""
    width, length = stream.shape[1], len(stream)
    size, out = width // heads, np.zeros_like(stream)
    frequency = 1 / 10000 ** (np.arange(0, width, 2) / width)
    for head in range(heads):
        matrix = {part: w.raw(f"rel_attn.{part}")[:, head] for part in "qkvro"}
        bias = {part: w.raw(f"rel_attn.{part}")[head] for part in ("r_w_bias", "r_r_bias")}
        q, k, v = stream @ matrix["q"], content @ matrix["k"], content @ matrix["v"]
        scores = np.empty((length, length))
        for i in range(length):
            for j in range(length):
                angle = (i - j) * frequency
                distance = np.concatenate([np.sin(angle), np.cos(angle)]) @ matrix["r"]
                score = (q[i] + bias["r_w_bias"]) @ k[j] + (q[i] + bias["r_r_bias"]) @ distance
                scores[i, j] = score / math.sqrt(size) if not blocked[i, j] else -1e30
        out += softmax(scores) @ v @ matrix["o"].T
    return w.norm("rel_attn.layer_norm", stream + out)


def xlnet_feed_forward(w, x):
    return w.norm("ff.layer_norm", x + w.linear("ff.layer_2", gelu(w.linear("ff.layer_1", x))))


def multi_head(q, k, v, heads, visible=None, theta=None):
    size, out = q.shape[1] // heads, np.empty_like(q)
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        queries, keys = (x[:, part] if theta is None else turned(x[:, part], theta) for x in (q, k))
        scores = queries @ keys.T / math.sqrt(size)
        scores = scores if visible is None else np.where(visible, scores, -np.inf)
        out[:, part] = softmax(scores) @ v[:, part]
    return out


def turned(x, theta):
    half = x.shape[1] // 2
    angle = np.arange(len(x))[:, None] / theta ** (np.arange(half) / half)
    first, second = x[:, :half], x[:, half:]
    return np.hstack(
        [first * np.cos(angle) - second * np.sin(angle), second * np.cos(angle) + first * np.sin(angle)]
    )


def softmax(scores):
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def gelu(x):
    return x * (1 + erf(x / math.sqrt(2))) / 2


class Weights:
    """Tensors under a prefix, in float64."""

    def __init__(self, tensors, prefix, eps=1e-12):
        self.tensors, self.prefix, self.eps = tensors, prefix, eps

    def under(self, more):
        return Weights(self.tensors, self.prefix + more, self.eps)

    def raw(self, name):
        return self.tensors[self.prefix + name].double().numpy()

    def __getitem__(self, name):
        return self.raw(f"{name}.weight")

    def linear(self, name, x):
        return x @ self[name].T + self.raw(f"{name}.bias")

    def norm(self, name, x):
        centred = x - x.mean(axis=-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + self.eps) * self[name]
        bias = self.prefix + f"{name}.bias"
        return scaled + self.tensors[bias].double().numpy() if bias in self.tensors else scaled
