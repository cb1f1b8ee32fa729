"""LLaDA-8B with random weights of the real shape (bf16, 32 + 128): exactness, and speed against two bounds.

Bounds: reading all weights once at the measured copy bandwidth, and the matrix peak measured in the same
process. A flag selects each section; the results are repeated as one table at the end. Examples (from the
repository's root, with ``src`` on the path):

    python benchmarks/bench_dense.py --check --steps 1,8,32,64 --products 1,32 --profile 1,32
    python benchmarks/bench_dense.py --score 8 --generate 1,32
    python benchmarks/bench_dense.py --tiny --device cpu --check --steps 1,2 --score 1 --generate 1
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from dense_bench import sections
from dense_bench.setting import LLADA_8B, NEW, TINY, DenseBench


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="the forward against plain float32")
    parser.add_argument("--products", type=numbers, help="a layer's matrix products at these batch sizes")
    parser.add_argument("--canvas", type=numbers, help="tiles of the attention at these batch sizes (CUDA)")
    parser.add_argument("--steps", type=numbers, help="one decoding step at these batch sizes")
    parser.add_argument("--parts", type=numbers, help="the forward without graphs, without kernels (CUDA)")
    parser.add_argument("--profile", type=numbers, help="kernel times of one step at these batch sizes")
    parser.add_argument("--score", type=int, help="fixed-sequence table with this many sequences")
    parser.add_argument("--generate", type=numbers, help="32 + 128 tokens at these batch sizes")
    parser.add_argument("--new-tokens", type=int, default=NEW, help="tokens of --generate")
    parser.add_argument(
        "--blas", default="default", choices=("default", "cublas", "cublaslt"), help="the vendor's interface"
    )
    parser.add_argument("--tiny", action="store_true", help="a small shape, for smoke runs")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, help="write all numbers as JSON")
    return parser.parse_args()


def run(arguments: argparse.Namespace, bench: DenseBench) -> None:
    if arguments.check:
        sections.check(bench)
    for argument, section in (
        (arguments.canvas, sections.tune_canvas),
        (arguments.steps, sections.measure_steps),
        (arguments.products, sections.measure_products),
        (arguments.parts, sections.measure_parts),
        (arguments.profile, sections.profile_steps),
        (arguments.score, sections.measure_scoring),
    ):
        if argument:
            section(bench, argument)
    if arguments.generate:
        sections.measure_generation(bench, arguments.generate, arguments.new_tokens)


def main() -> None:
    arguments = parse_arguments()
    device = torch.device(arguments.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    bench = DenseBench(device, TINY if arguments.tiny else LLADA_8B, dtype)
    if bench.cuda:
        torch.backends.cuda.preferred_blas_library(arguments.blas)
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    bench.report("copy bandwidth", f"{bench.bandwidth / 1e12:.2f} TB/s", bandwidth=bench.bandwidth)
    bench.report("matrix peak, 8192³ random", f"{bench.peak / 1e12:.0f} TFLOP/s", peak=bench.peak)
    try:
        with torch.no_grad():
            run(arguments, bench)
    finally:
        bench.finish(arguments.out)
    sys.exit(1 if any(line[3] == "FAILED" for line in bench.lines) else 0)


if __name__ == "__main__":
    main()
