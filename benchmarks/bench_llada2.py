"""LLaDA-2.x with random weights of the real mini shape: exactness of the kernels, and speed against a bound.

A flag selects each section, which takes at most a few minutes; the results are repeated as one table at the
end. Examples (from the repository's root, with ``src`` on the path):

    python benchmarks/bench_llada2.py --check
    python benchmarks/bench_llada2.py --steps 1,8,32,128 --profile 1,32,128
    python benchmarks/bench_llada2.py --generate 1,32,128 --score 64 --table 64
    python benchmarks/bench_llada2.py --generate 1,32,128,256 --temperatures 0,1 --routing random,even
    python benchmarks/bench_llada2.py --generate 1,32,128,256 --speculation on,off
    python benchmarks/bench_llada2.py --sets 1,32,128 --shares 0.1,0.3
    python benchmarks/bench_llada2.py --stages measure,score,generate,sweep --texts 204
    python benchmarks/bench_llada2.py --weights bf16,fp8 --steps 1,32 --generate 1,32 --score 64
    python benchmarks/bench_llada2.py --weights fp8 --tune 32,1024,4096
    python benchmarks/bench_llada2.py --shape flash --weights fp8 --steps 1 --generate 1
    python benchmarks/bench_llada2.py --tiny --device cpu --steps 1,2 --generate 2 --score 1   (smoke run)
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from llada2_bench.setting import TINY, Bench

from orderlens.models.families.llada2 import FLASH, MINI


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def words(text: str) -> list[str]:
    return text.split(",")


def fractions(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="every kernel against plain torch")
    parser.add_argument(
        "--tune",
        nargs="?",
        const="32,256,1024,4096",
        type=numbers,
        help="grouped products: candidates (with --weights, of these weights)",
    )
    parser.add_argument(
        "--experts", action="store_true", help="one MoE layer: ours against torch's grouped product"
    )
    parser.add_argument("--head", action="store_true", help="the fused head's candidates")
    parser.add_argument("--steps", type=numbers, help="one decoding step at these batch sizes")
    parser.add_argument("--ablate", type=numbers, help="the gain of each part, at these batch sizes (CUDA)")
    parser.add_argument("--profile", type=numbers, help="kernel times of one step at these batch sizes")
    parser.add_argument("--passes", type=int, help="host and device time per pass, for this number of texts")
    parser.add_argument(
        "--widest",
        type=numbers,
        default=[],
        help="for passes and score: maximum numbers of tokens per forward, each measured separately",
    )
    parser.add_argument("--generate", type=numbers, help="32 + 128 tokens at these batch sizes")
    parser.add_argument(
        "--temperatures",
        type=fractions,
        default=[0.0],
        help="for --generate; 0.0001 draws the same tokens as 0, so their ratio is the cost of drawing "
        "(random weights repeat tokens at 0, which uses fewer experts than at 1)",
    )
    parser.add_argument(
        "--speculation",
        type=words,
        default=["on"],
        help="for --generate: on, off (the device waits for the host)",
    )
    parser.add_argument(
        "--routing",
        type=words,
        default=["random"],
        help="for steps, profile, passes, generate and score: random (by the weights), even (independent)",
    )
    parser.add_argument("--stages", type=words, help="stages of replicate --preset full")
    parser.add_argument("--texts", type=int, default=204, help="texts of --stages")
    parser.add_argument("--swept", type=fractions, default=[0.7], help="temperatures of the stage sweep")
    parser.add_argument("--new-tokens", type=int, default=128, help="tokens of --generate and --sets")
    parser.add_argument("--sets", type=numbers, help="--generate with a forced share of parallel commits")
    parser.add_argument("--shares", type=fractions, default=[0.1, 0.3], help="accepted shares of --sets")
    parser.add_argument("--table", type=int, help="generation table with this many prompts")
    parser.add_argument("--score", type=int, help="fixed-sequence table with this many sequences")
    parser.add_argument("--long", type=numbers, help="step time at these context lengths")
    parser.add_argument("--long-batch", type=numbers, default=[1, 8], help="batch sizes of --long")
    parser.add_argument("--memory", type=numbers, help="peak memory at these batch sizes")
    parser.add_argument("--shape", choices=("mini", "flash"), default="mini", help="the published shape")
    parser.add_argument(
        "--weights",
        type=words,
        default=[],
        help="of steps, profile, passes, generate and score: bf16 (the device's dtype) or fp8 (experts in 8 "
        "bits), one after the other with the same random numbers",
    )
    parser.add_argument("--tiny", action="store_true", help="a small shape, for smoke runs")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, help="write all numbers as JSON")
    return parser.parse_args()


def run_kernels(arguments: argparse.Namespace, bench: Bench) -> None:
    from llada2_bench import checks, tuning

    if arguments.check:
        checks.check_all(bench)
    if arguments.tune:
        from llada2_bench.products import tune_float8, tune_products

        if "fp8" not in arguments.weights or "bf16" in arguments.weights:
            tune_products(bench, arguments.tune)
        if "fp8" in arguments.weights:
            tune_float8(bench, arguments.tune)
    if arguments.experts:
        tuning.compare_experts(bench)
    if arguments.head:
        tuning.tune_head(bench)
    if bench.cuda:
        torch.cuda.empty_cache()


def run(arguments: argparse.Namespace, bench: Bench) -> None:
    if arguments.check or arguments.tune or arguments.experts or arguments.head:
        run_kernels(arguments, bench)
    for weights in arguments.weights or [""]:
        if weights:
            bench.use(weights)
        for routing in arguments.routing:
            with routed(bench, routing):
                run_decoding(arguments, bench)
    run_rest(arguments, bench)


@contextmanager
def routed(bench: Bench, routing: str) -> Iterator[None]:
    """Route by the weights or evenly; the printed results name the routing."""
    if routing == "random":
        yield
        return
    from llada2_bench.routing import even_routing

    before = bench.label
    bench.label = f"{before}[{routing} routing] "
    with even_routing(bench):
        yield
    bench.label = before


def run_decoding(arguments: argparse.Namespace, bench: Bench) -> None:
    from llada2_bench import decoding, passes
    from llada2_bench.setting import forwards_of

    for argument, section in (
        (arguments.steps, decoding.measure_steps),
        (arguments.profile, passes.profile_steps),
    ):
        if argument:
            section(bench, argument)
    for tokens in arguments.widest or [bench.model.engine.widest]:
        with forwards_of(bench, tokens):
            if arguments.passes:
                passes.measure_passes(bench, arguments.passes)
            if arguments.score:
                decoding.measure_scoring(bench, arguments.score)
    if arguments.generate:
        decoding.measure_generation(
            bench, arguments.generate, arguments.new_tokens, arguments.temperatures, arguments.speculation
        )


def run_rest(arguments: argparse.Namespace, bench: Bench) -> None:
    from llada2_bench import decoding

    if arguments.table:
        decoding.measure_generation_table(bench, arguments.table)
    if arguments.memory:
        decoding.measure_memory(bench, arguments.memory)
    if arguments.ablate:
        from llada2_bench.ablation import measure_ablation

        measure_ablation(bench, arguments.ablate)
    if arguments.sets:
        from llada2_bench.sets import measure_sets

        measure_sets(bench, arguments.sets, arguments.shares, arguments.new_tokens)
    if arguments.long:
        decoding.measure_long(bench, arguments.long, arguments.long_batch)
    if arguments.stages:
        from llada2_bench.replication import measure_stages

        measure_stages(bench, arguments.stages, arguments.texts, tuple(arguments.swept))


def main() -> None:
    arguments = parse_arguments()
    device = torch.device(arguments.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    shape = TINY if arguments.tiny else {"mini": MINI, "flash": FLASH}[arguments.shape]
    bench = Bench(device, shape, dtype)
    if device.type == "cuda":
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
        print(f"copy bandwidth {bench.bandwidth / 1e12:.2f} TB/s", flush=True)
    try:
        with torch.no_grad():
            run(arguments, bench)
    finally:
        bench.finish(arguments.out)
    failed = [line for line in bench.lines if line[3] == "FAILED"]
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
