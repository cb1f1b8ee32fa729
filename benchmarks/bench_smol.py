"""smol's shape with random weights: the engine compared with the plain path and with naive decoding.

    python benchmarks/bench_smol.py --device cuda --batch 1,64,256        # bfloat16: engine, plain, naive
    python benchmarks/bench_smol.py --device cpu --batch 1 --new 32 --clock cpu    # float32 and bfloat16

Naive is one forward of the whole window per token, batch 1, head and softmax on every row (timed on a sample
of its steps, which all cost the same). Plain is the model without our kernels: cached blocks, eager torch.
Engine is the path of ``--model smol --device cuda --dtype bfloat16``: paged cache, recorded graphs, fused
head. Decoding is greedy max-prob after 32 prompt tokens, without early stopping. On CUDA the first run of
each path compiles and records and does not count; the paths' log-probabilities are compared first. On the CPU
all works are measured alternately, ``--repeats`` times, and the minimum time is reported; the share is
relative to sgemm's rate at the same time (see ``bench_decode.py``).
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_decode import (
    CLOCKS,
    GEMM,
    counted_products,
    interleave,
    layers_products,
    seconds,
    settings,
)

from orderlens.common.rng import keyed_generator
from orderlens.decode.generate import GenerationSettings, generate_batch
from orderlens.decode.score import score_batch
from orderlens.models.engine.device import with_index
from orderlens.models.families.small import fast_model, runs_fast
from orderlens.models.files.roles import TokenRoles
from orderlens.models.files.tokenizer import CharacterTokenizer
from orderlens.models.small.model import TransformerModel
from orderlens.models.small.network import Transformer, TransformerConfig, attention, block_causal_mask
from orderlens.rules import parse_policies
from orderlens.texts.samples import EncodedSample

PREFIX = 32
SMOL = TransformerConfig(
    vocab_size=49152, n_layers=30, width=576, n_heads=9, n_kv_heads=3, ffn_width=1536, max_positions=8192,
    rope_theta=100000.0, norm_eps=1e-5, qk_norm=False, block_size=32, mask_id=16, eos_id=2,
)  # fmt: skip
TINY = TransformerConfig(
    vocab_size=256, n_layers=2, width=96, n_heads=3, n_kv_heads=1, ffn_width=160, max_positions=512,
    qk_norm=False, block_size=32, mask_id=16, eos_id=2,
)  # fmt: skip


def random_network(config: TransformerConfig) -> Transformer:
    torch.manual_seed(0)
    network = Transformer(config)
    for parameter in network.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.05)
    return network.requires_grad_(False).eval()


def random_samples(count: int, new: int, vocab: int) -> list[EncodedSample]:
    numbers = keyed_generator(0, "bench", count).integers(17, vocab, size=(count, PREFIX + new))
    return [EncodedSample(str(i), row[:PREFIX], row[PREFIX:]) for i, row in enumerate(numbers)]


def paths(network: Transformer, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Return the plain model and, if our kernels apply, the model on the engine."""
    config, tokenizer = network.config, CharacterTokenizer()
    found: dict[str, Any] = {}
    if runs_fast(device, dtype):
        roles = TokenRoles(config.mask_id, frozenset({config.eos_id}), frozenset(), config.vocab_size)
        found["engine"] = fast_model(network, device, dtype, "random", roles, tokenizer, "random")
    plain = network.to(device=device, dtype=dtype)
    return {"plain": TransformerModel(plain, tokenizer, name="random", digest="random"), **found}


@torch.inference_mode()
def naive_step(model: TransformerModel, tokens_BT: torch.Tensor) -> torch.Tensor:
    positions = torch.arange(tokens_BT.shape[1], device=tokens_BT.device).expand_as(tokens_BT)
    mask = block_causal_mask(tokens_BT.shape[1], model.block_size, 0, tokens_BT.device)
    hidden = model.network(tokens_BT, positions, lambda _, q, k, v: attention(q, k, v, mask))
    logits = (hidden @ model.network.embedding.weight.T).float()
    return torch.log_softmax(logits, dim=-1).amax(dim=-1)


def naive_seconds(model: TransformerModel, length: int, steps: int, device: str) -> float:
    """Return the median seconds of one step, which reveals one token."""
    tokens = torch.randint(17, model.vocab_size, (1, length), device=model.device)
    naive_step(model, tokens)
    return float(np.median([seconds(lambda: naive_step(model, tokens), device) for _ in range(steps)]))


def largest_difference(models: dict[str, Any], vocab: int) -> float:
    """Return the largest difference in log q between the two paths on the same states (nats)."""
    samples, orders = random_samples(8, 64, vocab), parse_policies("forced-ar,random:3")
    values = [score_batch(model, samples, orders)["logq"] for model in models.values()]
    return float(np.abs(values[0] - values[1]).max())


def on_cpu(model: TransformerModel, batches: list[int], new: int, repeats: int) -> list[dict[str, Any]]:
    """Print and return CPU times: the engine against 16 bits, naive steps, sgemm and its products alone."""
    tokens, rows = torch.randint(17, model.vocab_size, (1, PREFIX + new)), []
    short = paths(copy.deepcopy(model.network), torch.device("cpu"), torch.bfloat16)["plain"]
    for batch in batches:
        samples = random_samples(batch, new, model.vocab_size)
        work = greedy(model, samples, new)
        operations = counted_products(work)
        alone, products = layers_products(model.network, batch * model.block_size)
        works = {"engine": work, "products": products, "naive": lambda: naive_step(model, tokens)}
        works["bfloat16"] = greedy(short, samples, new)
        found = interleave(works, repeats, "cpu")
        spent, rate = found["engine"].least, 2 * GEMM**3 / found["sgemm"].least
        row = {
            "batch": batch,
            "seconds": spent,
            "naive_over_engine": found["naive"].least * batch * new / spent,
            "float32_over_bfloat16": spent / found["bfloat16"].least,
            "share_of_sgemm": found["engine"].share(operations),
            "share_of_products_alone": found["products"].share(alone),
            "sgemm_gflops": rate / 1e9,
        }
        print(", ".join(f"{name} {value:.3f}" for name, value in row.items()), flush=True)
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", default="1,64,256")
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--naive-steps", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument(
        "--speculation", default="on", help="of the engine on CUDA: on, off (the device waits)"
    )
    parser.add_argument("--tiny", action="store_true", help="a small shape, for smoke runs")
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    args = parser.parse_args()
    settings["clock"] = args.clock
    device = with_index(torch.device(args.device))
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    models = paths(random_network(TINY if args.tiny else SMOL), device, dtype)
    vocab, batches = models["plain"].vocab_size, [int(part) for part in args.batch.split(",")]
    if device.type == "cpu":
        print(f"cpu, {PREFIX} + {args.new} tokens, {torch.get_num_threads()} threads, {args.clock} time")
        written(args.out, on_cpu(models["plain"], batches, args.new, args.repeats))
        return
    naive = naive_seconds(models["plain"], PREFIX + args.new, args.naive_steps, args.device)
    rows: list[dict[str, Any]] = [{"path": "naive", "batch": 1, "tokens_per_s": 1 / naive}]
    print(
        f"{device}, {dtype}, {PREFIX} + {args.new} tokens, {args.clock} time; naive {1 / naive:.1f} tokens/s"
    )
    if len(models) > 1:
        print(
            f"largest difference in log q, engine against plain: {largest_difference(models, vocab):.4f} nats"
        )
    for batch in batches:
        samples = random_samples(batch, args.new, vocab)
        spent = {}
        for name, model in models.items():
            for word in args.speculation.split(",") if name == "engine" else ("on",):
                if name == "engine":
                    model.engine.can_speculate = word == "on"
                shown = name if word == "on" else "waiting"
                spent[shown] = timed(model, samples, args.new, args.device)
        for name, value in spent.items():
            rate = batch * args.new / value
            rows.append({"path": name, "batch": batch, "seconds": value, "tokens_per_s": rate})
            against = f", {spent['plain'] / value:.1f} × plain" if name != "plain" else ""
            line = f"batch {batch:4} {name:7} {value:8.2f} s {rate:9.1f} tokens/s"
            print(f"{line}, {rate * naive:6.1f} × naive{against}", flush=True)
    written(args.out, rows)


def written(out: Path | None, rows: list[dict[str, Any]]) -> None:
    if out:
        out.write_text(json.dumps(rows, indent=1) + "\n")


def greedy(model: Any, samples: list[EncodedSample], new: int) -> Callable[[], object]:
    how, orders = GenerationSettings(new, stop_at_eos=False), parse_policies("max-prob")
    return lambda: generate_batch(model, samples, orders, how)


def timed(model: Any, samples: list[EncodedSample], new: int, device: str) -> float:
    """Return the seconds of one greedy generation after a warm-up."""
    run = greedy(model, samples, new)
    if device != "cpu":
        run()
    return seconds(run, device)


if __name__ == "__main__":
    main()
