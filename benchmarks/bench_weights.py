"""What 8-bit weights do to the numbers: a small random network or a trained one, in four formats.

Compares bf16 and fp8 experts with float32 on the same texts: log q of every token, the gap between orders,
circulation, and generated paths. All formats are rounded from the same random numbers. The output matrix is
enlarged (``--sharp``), because the predictions of random weights are nearly uniform. A random network routes
close to its boundaries, so differences are larger than a trained model's; the ratio to bf16 is what counts.
From the repository's root, with ``src`` on the path:

    python benchmarks/bench_weights.py                       (CPU, about a minute)
    python benchmarks/bench_weights.py --device cuda         (our kernels, a larger shape)
    python benchmarks/bench_weights.py --model tiny          (trained; minutes)
    python benchmarks/bench_weights.py --model smol --texts 2 --tokens 32

Bundled models have no experts, so all their projections are rounded; embedding, norms and head are not.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from llada2_bench.setting import TINY

from orderlens.decode.generate import GenerationSettings, generate_batch
from orderlens.decode.measure import circulation_table
from orderlens.decode.score import score_batch
from orderlens.models.decoder.config import DecoderConfig
from orderlens.models.decoder.float8 import to_float8
from orderlens.models.decoder.model import DecoderModel
from orderlens.models.decoder.weights import DecoderWeights, random_weights
from orderlens.models.families.llada2 import DIALECT
from orderlens.models.files.roles import TokenRoles
from orderlens.models.loading import load_model
from orderlens.models.protocol import Model
from orderlens.models.small.model import TransformerModel
from orderlens.rules import parse_policies
from orderlens.texts.loading import load_samples
from orderlens.texts.samples import EncodedSample, encode_samples

SMALL = replace(TINY, n_layers=6, hidden_size=128, ffn_width=256, expert_width=64, n_experts=32)
LARGER = replace(
    TINY, vocab_size=4096, n_layers=12, hidden_size=512, ffn_width=1024, expert_width=256, n_experts=64
)
ORDERS = ("forced-ar", "reverse-ar", "random", "max-prob")
FIXED = 3
"""The first orders take the same path in every format."""
FORMATS = {
    "float32": (torch.float32, False),
    "bf16": (torch.bfloat16, False),
    "fp8, float32 activations": (torch.float32, True),
    "fp8, bf16 activations": (torch.bfloat16, True),
}
PROMPT = 16
STD = 0.25
"""Standard deviation of the weights × √width; with 1, rounding changes routes in every layer."""


@dataclass(frozen=True)
class Numbers:
    """What one format gives: log q [reveals], gap per text, Γ per pair, generated tokens and positions."""

    logq: Any
    gap: Any
    gamma: Any
    token: Any
    position: Any


def build(config: DecoderConfig, device: torch.device, name: str, sharp: float) -> DecoderModel:
    """Return the model in one format, rounded from the same float32 numbers."""
    dtype, float8 = FORMATS[name]
    std = STD * config.hidden_size**-0.5
    weights: DecoderWeights = random_weights(config, device, torch.float32, std=std, float8=float8)
    weights = replace(weights, unembed_VC=weights.unembed_VC * sharp).to(dtype)
    vocab = config.vocab_size
    roles = TokenRoles(vocab - 1, frozenset({vocab - 2}), frozenset(), vocab)
    return DecoderModel(weights, config, roles, DIALECT, name=name)


def rounded(name: str, device: torch.device, form: str) -> TransformerModel:
    """Return a bundled model in one format; in fp8 every projection has the values that float8 holds."""
    dtype, float8 = FORMATS[form]
    model = load_model(name, device=str(device), dtype="float32")
    assert isinstance(model, TransformerModel)
    for layer in model.network.modules() if float8 else ():
        if isinstance(layer, torch.nn.Linear):
            layer.weight.copy_(to_float8(layer.weight).plain())
    return model if dtype == torch.float32 else model.with_dtype("bfloat16")


def measure(model: Model, samples: list[EncodedSample], new_tokens: int) -> Numbers:
    """Score, measure circulation, and generate."""
    orders = parse_policies(ORDERS)
    columns = score_batch(model, samples, orders)
    order = np.lexsort((columns["position"], columns["order"], columns["sample"]))
    logq = np.asarray(columns["logq"], np.float64)[order].reshape(len(samples), len(ORDERS), -1)
    means = logq.mean(axis=2)
    pairs = circulation_table(model, samples, orders[:FIXED], columns, 4).column("gamma").to_numpy()
    settings = GenerationSettings(new_tokens, stop_at_eos=False)
    made = generate_batch(model, samples, parse_policies(["max-prob"]), settings).columns
    return Numbers(logq, means.max(axis=1) - means.min(axis=1), pairs, made["token_id"], made["position"])


def passages(model: str, count: int, length: int) -> list[EncodedSample]:
    """Return passages of ``PROMPT`` + ``length`` tokens."""
    loaded = load_model(model, device="cpu")
    samples = load_samples("passages", loaded, prefix_tokens=PROMPT, target_tokens=length, limit=count)
    return encode_samples(loaded, samples, need_target=True)


def line(name: str, found: Numbers, exact: Numbers) -> dict[str, Any]:
    """Compare one format with float32."""
    difference = np.abs(found.logq[:, :FIXED] - exact.logq[:, :FIXED])
    together = (found.token == exact.token) & (found.position == exact.position)
    diverged = ~np.logical_and.accumulate(together.reshape(len(exact.gap), -1), axis=1)
    return {
        "format": name,
        "mean log q": found.logq[:, 0].mean(),
        "|Δ log q| mean": difference.mean(),
        "|Δ log q| p99": np.quantile(difference, 0.99),
        "Δ mean log q": (found.logq[:, 0] - exact.logq[:, 0]).mean(),
        "gap": found.gap.mean(),
        "|Δ gap|": np.abs(found.gap - exact.gap).mean(),
        "|Γ|": np.abs(found.gamma).mean(),
        "|Δ Γ|": np.abs(found.gamma - exact.gamma).mean(),
        "same from start": 1 - diverged.mean(),
        "same steps": together.mean(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", choices=("tiny", "smol"), help="a trained model, on its passages")
    parser.add_argument("--texts", type=int, default=8, help="texts; random ones without a model")
    parser.add_argument("--tokens", type=int, default=64, help="scored and generated tokens of a text")
    parser.add_argument("--sharp", type=float, default=8.0, help="factor on the output matrix")
    parser.add_argument("--out", type=Path, help="write all numbers as JSON")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.backends.cuda.matmul.allow_tf32 = False
    config = LARGER if device.type == "cuda" else SMALL
    generator = np.random.default_rng(4)
    tokens = generator.integers(0, config.vocab_size - 10, (arguments.texts, PROMPT + arguments.tokens))
    samples = [EncodedSample(str(i), row[:PROMPT], row[PROMPT:]) for i, row in enumerate(tokens)]
    exact, rows = None, []
    with torch.no_grad():
        if arguments.model:
            samples = passages(arguments.model, arguments.texts, arguments.tokens)
        for name in FORMATS:
            if arguments.model:
                model: Model = rounded(arguments.model, device, name)
            else:
                model = build(config, device, name, arguments.sharp)
            found = measure(model, samples, arguments.tokens)
            exact = exact or found
            rows.append(line(name, found, exact))
            shown = "  ".join(f"{key} {value:.4g}" for key, value in rows[-1].items() if key != "format")
            print(f"{name:<26} {shown}", flush=True)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(rows, indent=1, default=float))


if __name__ == "__main__":
    main()
