"""Speed of the engine compared with the machine's sgemm and with naive decoding.

The model has the bundled model's shape (12 layers, width 384, vocabulary 8192) and random weights. Naive
decoding is what published samplers do: one forward of the whole 160-token window per step, batch 1, head on
every row. The batched-naive column batches whole windows, which separates the gain of batching from that of
the engine (cache, sharing, row selection). On the CPU two more columns give shares of sgemm's rate (products
of 1024³ in float32). One is for the engine, counting only its matrix products. The other is for the layers'
matrix products alone, with the same number of rows as a pass of the engine; with few rows they are the upper
bound. sgemm is measured five times before and after each measurement; a share is the median over the repeats.

    python benchmarks/bench_decode.py [--sequences 2] [--repeats 5] [--device cpu] [--clock cpu]

All works are measured alternately, ``repeats`` times in one process, so that other load on the machine
affects all equally. The minimum time is reported. ``--clock cpu`` counts the process's CPU seconds; ``wall``
is for an idle machine and for CUDA.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

from orderlens.common.rng import keyed_generator
from orderlens.decode.generate import GenerationSettings, generate_batch
from orderlens.decode.score import score_batch
from orderlens.models.engine.layer_parts import packed_linear
from orderlens.models.files.tokenizer import CharacterTokenizer
from orderlens.models.small.model import TransformerModel
from orderlens.models.small.network import Transformer, TransformerConfig, block_causal_mask
from orderlens.rules import parse_policies
from orderlens.texts.samples import EncodedSample

PREFIX, TARGET = 32, 128


def random_model(device: str) -> TransformerModel:
    torch.manual_seed(0)
    network = Transformer(TransformerConfig()).to(device)
    for parameter in network.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.05)  # logits of a usual size, so no denormal numbers
    return TransformerModel(network, CharacterTokenizer(), name="random", digest="random")


def random_samples(n: int, vocab: int) -> list[EncodedSample]:
    numbers = keyed_generator(0, "bench").integers(2, vocab, size=(n, PREFIX + TARGET))
    return [EncodedSample(str(i), row[:PREFIX], row[PREFIX:]) for i, row in enumerate(numbers)]


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
settings = {"clock": "wall"}
GEMM, SHORT = 1024, 0.3
"""Size of sgemm's matrices; minimum seconds of a single measurement (shorter ones are too noisy)."""


def attention_operations(q_shape: list[int], k_shape: list[int], *_: object, **__: object) -> int:
    """Return two operations per multiply–add of both products of attention."""
    return 4 * math.prod(q_shape) * k_shape[-2]


def packed_operations(x_shape: list[int], *_: object, out_shape: list[int], **__: object) -> int:
    """Return two operations per multiply–add of a product with a packed matrix."""
    return 2 * math.prod(x_shape) * out_shape[-1]


UNCOUNTED: dict[Any, Any] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention_operations,
    torch.ops.mkldnn._linear_pointwise: packed_operations,
}
"""Operations of products that torch's counter does not support."""


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


def sgemm_work() -> Callable[[], object]:
    """Return a function that computes one product of 2 · 1024³ operations."""
    a, b, out = (torch.rand(GEMM, GEMM) for _ in range(3))
    return lambda: torch.mm(a, b, out=out)


def counted_products(work: Callable[[], object]) -> float:
    """Return the operations (two per multiply–add) of all matrix products in ``work``."""
    with FlopCounterMode(display=False, custom_mapping=UNCOUNTED) as counter:
        work()
    return float(counter.get_total_flops())


def layers_products(network: Transformer, rows: int) -> tuple[float, Callable[[], object]]:
    """Return the operations of all layers' products with ``rows`` rows, and a function that runs them."""
    weights = [module.weight for module in network.modules() if isinstance(module, torch.nn.Linear)]
    inputs = {width: torch.rand(rows, width) for width in {weight.shape[1] for weight in weights}}

    @torch.inference_mode()
    def work() -> None:
        for weight in weights:
            packed_linear(inputs[weight.shape[1]], weight)

    return 2.0 * rows * sum(weight.numel() for weight in weights), work


@dataclass(frozen=True, slots=True)
class Reading:
    """Time of one work: the minimum in seconds, and the median in units of a product of 1024³."""

    least: float
    in_products: float

    def share(self, operations: float) -> float:
        """Return the share of sgemm's rate at which ``operations`` were carried out."""
        return operations / (2 * GEMM**3) / self.in_products


def interleave(works: dict[str, Callable[[], object]], repeats: int, device: str) -> dict[str, Reading]:
    """Time each work once per round (short ones: median of nine); on the CPU time sgemm before and after."""
    spent: dict[str, list[float]] = {name: [] for name in (*works, "sgemm")}
    ratios: dict[str, list[float]] = {name: [] for name in works}
    beside = sgemm_work() if device == "cpu" else None
    for _ in range(repeats):
        for name, work in works.items():
            before = median_seconds(beside, 5, device) if beside else math.nan
            first = seconds(work, device)
            value = first if first >= SHORT else median_seconds(work, 9, device)
            after = median_seconds(beside, 5, device) if beside else math.nan
            spent[name].append(value)
            spent["sgemm"].append((before + after) / 2)
            ratios[name].append(2 * value / (before + after))
    found = {name: Reading(min(spent[name]), statistics.median(ratios[name])) for name in works}
    return found | {"sgemm": Reading(statistics.median(spent["sgemm"]), 1.0)}


def median_seconds(work: Callable[[], object], times: int, device: str) -> float:
    return statistics.median(seconds(work, device) for _ in range(times))


def naive(model: TransformerModel, batch: int) -> Callable[[], object]:
    tokens = torch.randint(2, model.vocab_size, (batch, PREFIX + TARGET), device=model.device)
    return lambda: whole_window_step(model, tokens)


def engine_works(
    model: TransformerModel, samples: list[EncodedSample]
) -> dict[str, tuple[int, int, Callable[[], object]]]:
    """Return name → (tokens revealed, windows of 32 tokens in a pass, work)."""
    static = parse_policies("forced-ar,reverse-ar,random")
    oracles = parse_policies("oracle-max-q,oracle-margin,oracle-min-q")
    four = parse_policies("forced-ar,max-prob,top-margin,random")
    how, tokens = GenerationSettings(TARGET, stop_at_eos=False), len(samples) * TARGET
    return {
        "score, static orders": (3 * tokens, 32, lambda: score_batch(model, samples, static)),
        "score, oracle orders": (3 * tokens, 32, lambda: score_batch(model, samples, oracles)),
        "generate, four orders": (
            4 * tokens,
            min(32, 4 * len(samples)),
            lambda: generate_batch(model, samples, four, how),
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sequences", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--naive-batch", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--clock", choices=CLOCKS, default="cpu")
    parser.add_argument("--only", default="", help="only works whose name contains this")
    args = parser.parse_args()
    settings["clock"] = args.clock
    model, on_cpu = random_model(args.device), args.device == "cpu"
    samples = random_samples(args.sequences, model.vocab_size)
    print(
        f"{PREFIX}+{TARGET} tokens, {args.sequences} sequences, {args.device}, "
        f"{torch.get_num_threads()} threads, {args.clock} time, least of {args.repeats}"
    )
    for name, (tokens, windows, work) in engine_works(model, samples).items():
        if args.only not in name:
            continue
        operations = counted_products(work)  # and warm
        works = {"engine": work, "naive": naive(model, 1), "batched": naive(model, args.naive_batch)}
        if on_cpu:
            alone, products = layers_products(model.network, windows * model.block_size)
            works |= {"products": products}
        found = interleave(works, args.repeats, args.device)
        least = {name: reading.least for name, reading in found.items()}
        spent = least["engine"]
        ratio, batched = least["naive"] * tokens / spent, least["batched"] * tokens / spent / args.naive_batch
        line = f"{name:22} {1e3 * spent / tokens:7.2f} ms per token, naive ÷ engine {ratio:5.2f}"
        line += f", batched naive ÷ engine {batched:5.2f}"
        if on_cpu:
            rate = 2 * GEMM**3 / least["sgemm"]
            line += f", sgemm {rate / 1e9:.1f} GFLOP/s, share {found['engine'].share(operations):.3f}"
            line += f" (products alone {found['products'].share(alone):.3f})"
        print(line, flush=True)


if __name__ == "__main__":
    main()
