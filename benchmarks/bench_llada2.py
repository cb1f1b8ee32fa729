"""LLaDA-2.x on random weights of the real mini shape: exactness of the kernels, speed against the floor.

Every section is chosen by a flag and takes at most a few minutes; the results are repeated as one table at
the end. Examples (from the repository's root, with ``src`` on the path):

    python benchmarks/bench_llada2.py --check
    python benchmarks/bench_llada2.py --steps 1,8,32,128 --profile 1,32,128
    python benchmarks/bench_llada2.py --generate 1,32,128 --score 64 --table 64
    python benchmarks/bench_llada2.py --sets 1,32,128 --shares 0.1,0.3
    python benchmarks/bench_llada2.py --tiny --device cpu --steps 1,2 --generate 2 --score 1   (smoke run)
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from llada2_bench.setting import TINY, Bench

from orderlens.models.llada2.config import MINI


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def fractions(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="every kernel against plain torch")
    parser.add_argument(
        "--tune", nargs="?", const="32,256,1024,4096", type=numbers, help="grouped products: tokens"
    )
    parser.add_argument(
        "--experts", action="store_true", help="one MoE layer: ours against torch's grouped product"
    )
    parser.add_argument("--head", action="store_true", help="the fused head's candidates")
    parser.add_argument("--steps", type=numbers, help="one decoding step at these batch sizes")
    parser.add_argument("--ablate", type=numbers, help="what each part gains, at these batch sizes (CUDA)")
    parser.add_argument("--profile", type=numbers, help="kernel times of one step at these batch sizes")
    parser.add_argument("--generate", type=numbers, help="32 + 128 tokens at these batch sizes")
    parser.add_argument("--new-tokens", type=int, default=128, help="tokens of --generate and --sets")
    parser.add_argument("--sets", type=numbers, help="the same with sets and a forced acceptance rate")
    parser.add_argument("--shares", type=fractions, default=[0.1, 0.3], help="accepted shares of --sets")
    parser.add_argument("--table", type=int, help="generation table with this many prompts")
    parser.add_argument("--score", type=int, help="fixed-sequence table with this many sequences")
    parser.add_argument("--long", type=numbers, help="step time at these context lengths")
    parser.add_argument("--long-batch", type=numbers, default=[1, 8], help="batch sizes of --long")
    parser.add_argument("--memory", type=numbers, help="peak memory at these batch sizes")
    parser.add_argument("--tiny", action="store_true", help="a small shape, for smoke runs")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, help="write all numbers as JSON")
    return parser.parse_args()


def run_kernels(arguments: argparse.Namespace, bench: Bench) -> None:
    from llada2_bench import checks, tuning

    if arguments.check:
        checks.check_all(bench)
    if arguments.tune:
        tuning.tune(bench, set(arguments.tune))
    if arguments.experts:
        tuning.compare_experts(bench)
    if arguments.head:
        tuning.tune_head(bench)
    if bench.cuda:
        torch.cuda.empty_cache()


def run(arguments: argparse.Namespace, bench: Bench) -> None:
    from llada2_bench import decoding

    if arguments.check or arguments.tune or arguments.experts or arguments.head:
        run_kernels(arguments, bench)
    sections = (
        (arguments.steps, decoding.measure_steps),
        (arguments.profile, decoding.profile_steps),
        (arguments.table, decoding.measure_generation_table),
        (arguments.score, decoding.measure_scoring),
        (arguments.memory, decoding.measure_memory),
    )
    for argument, section in sections:
        if argument:
            section(bench, argument)
    if arguments.ablate:
        from llada2_bench.ablation import measure_ablation

        measure_ablation(bench, arguments.ablate)
    if arguments.generate:
        decoding.measure_generation(bench, arguments.generate, arguments.new_tokens)
    if arguments.sets:
        from llada2_bench.sets import measure_sets

        measure_sets(bench, arguments.sets, arguments.shares, arguments.new_tokens)
    if arguments.long:
        decoding.measure_long(bench, arguments.long, arguments.long_batch)


def main() -> None:
    arguments = parse_arguments()
    device = torch.device(arguments.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    bench = Bench(device, TINY if arguments.tiny else MINI, dtype)
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
