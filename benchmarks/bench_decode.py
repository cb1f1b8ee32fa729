"""How much faster the engine is than the naive decoder, on the same work, in one run.

The model has the bundled model's shape (12 layers, width 384, vocabulary 8192) and random weights. Naive is
what published samplers do: one forward of the whole 160-token window per step, batch 1, head on every row.
The batched-naive column gives the naive path batches of whole windows too, so that the two gains (batching,
and the engine's cache, sharing and row selection) can be told apart.

    python benchmarks/bench_decode.py [--sequences 64] [--naive-steps 24] [--device cpu] [--clock wall]

The naive paths are timed on a sample of their steps (every step costs the same), the engine on all work.
``--clock cpu`` counts the process's CPU seconds instead of wall time, for machines that do other work too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from orderlens.decode.generate import GenerationSettings, generate_batch
from orderlens.decode.score import score_batch
from orderlens.models.characters import CharacterTokenizer
from orderlens.models.small.config import TransformerConfig
from orderlens.models.small.model import TransformerModel
from orderlens.models.small.network import Transformer, block_causal_mask
from orderlens.orders import Order
from orderlens.policies import parse_policies
from orderlens.rng import keyed_generator
from orderlens.samples import EncodedSample

PREFIX, TARGET = 32, 128


def random_model(device: str) -> TransformerModel:
    torch.manual_seed(0)
    network = Transformer(TransformerConfig()).to(device)
    for parameter in network.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.05)  # logits of an ordinary size, so no denormal numbers
    return TransformerModel(network, CharacterTokenizer(), name="random", digest="random")


def random_samples(n: int, vocab: int) -> list[EncodedSample]:
    numbers = keyed_generator(0, "bench").integers(2, vocab, size=(n, PREFIX + TARGET))
    return [EncodedSample(str(i), row[:PREFIX], row[PREFIX:]) for i, row in enumerate(numbers)]


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
settings = {"clock": "wall"}


def seconds(work: Callable[[], object], device: str) -> float:
    if device != "cpu":
        torch.cuda.synchronize()
    start = CLOCKS[settings["clock"]]()
    work()
    if device != "cpu":
        torch.cuda.synchronize()
    return CLOCKS[settings["clock"]]() - start


@torch.inference_mode()
def whole_window_step(model: TransformerModel, tokens_BT: torch.Tensor) -> torch.Tensor:
    """One naive step: forward of the whole window, head and softmax on every row."""
    positions = torch.arange(tokens_BT.shape[1], device=tokens_BT.device).expand_as(tokens_BT)
    mask = block_causal_mask(tokens_BT.shape[1], model.block_size, 0, tokens_BT.device)
    hidden = model.network(
        tokens_BT, positions, lambda _, q, k, v: scaled_dot_product_attention(q, k, v, attn_mask=mask)
    )
    return torch.log_softmax(hidden @ model.network.embedding.weight.T, dim=-1).amax(dim=-1)


def naive_seconds_per_step(model: TransformerModel, batch: int, steps: int, device: str) -> float:
    tokens = torch.randint(2, model.vocab_size, (batch, PREFIX + TARGET), device=device)
    whole_window_step(model, tokens)
    times = [seconds(lambda: whole_window_step(model, tokens), device) for _ in range(steps)]
    return float(np.median(times)) / batch


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--naive-steps", type=int, default=24)
    parser.add_argument("--naive-batch", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    args = parser.parse_args()
    settings["clock"] = args.clock
    model, device = random_model(args.device), args.device
    samples = random_samples(args.sequences, model.vocab_size)
    work: dict[str, tuple[list[Order], Callable[[list[Order]], object]]] = {
        "score, static orders": (
            parse_policies("forced-ar,reverse-ar,random"),
            lambda orders: score_batch(model, samples, orders),
        ),
        "score, oracle orders": (
            parse_policies("oracle-max-q,oracle-margin,oracle-min-q"),
            lambda orders: score_batch(model, samples, orders),
        ),
        "generate, four orders": (
            parse_policies("forced-ar,max-prob,top-margin,random"),
            lambda orders: generate_batch(
                model, samples, orders, GenerationSettings(TARGET, stop_at_eos=False)
            ),
        ),
    }
    score_batch(model, samples[:2], parse_policies("forced-ar"))
    print(
        f"{PREFIX}+{TARGET} tokens, {args.sequences} sequences, {device}, "
        f"{torch.get_num_threads()} threads, {args.clock} time"
    )
    print(f"{'work':24}{'engine':>10}{'per token':>12}{'naive ÷ engine':>17}{'batched naive ÷ engine':>25}")
    for name, (orders, run) in work.items():
        before = naive_seconds_per_step(model, 1, args.naive_steps, device)
        batched = naive_seconds_per_step(model, args.naive_batch, max(3, args.naive_steps // 4), device)
        spent = seconds(lambda run=run, orders=orders: run(orders), device)
        after = naive_seconds_per_step(model, 1, args.naive_steps, device)
        steps = len(orders) * len(samples) * TARGET
        per_token, naive = spent / steps, (before + after) / 2
        ratios = f"{naive / per_token:>16.1f}×{batched / per_token:>24.1f}×"
        print(f"{name:24}{spent:>9.1f}s{per_token * 1e3:>10.2f}ms{ratios}", flush=True)


if __name__ == "__main__":
    main()
