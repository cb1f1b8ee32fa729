"""Census states per second compared with those of ``score``, in one process: the ratio is what counts.

python benchmarks/bench_census.py --model tiny --spans 8,10 --texts 1
python benchmarks/bench_census.py --llada2 --spans 12 --texts 64 --score 64        (CUDA, random weights)
python benchmarks/bench_census.py --llada2 --spans 16 --texts 4 --score 64
python benchmarks/bench_census.py --llada2 --tiny --device cpu --spans 4 --texts 2 --score 2   (smoke run)
python benchmarks/bench_census.py --arithmetic 16                    (the dynamic programmes alone)
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from orderlens.common.grid import Canvas
from orderlens.decode.census import Span, census_batch
from orderlens.decode.score import score_batch
from orderlens.metrics.census import SpanCensus
from orderlens.metrics.census_front import least_variance
from orderlens.rules import parse_policies
from orderlens.texts.samples import EncodedSample

PREFIX, TARGET = 32, 128
ORDERS = "forced-ar,reverse-ar,random,oracle-max-q,oracle-margin,oracle-min-q"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--llada2", action="store_true", help="random weights of the LLaDA-2.1-mini shape")
    parser.add_argument("--tiny", action="store_true", help="of --llada2: a small shape")
    parser.add_argument("--device", default=None)
    parser.add_argument("--spans", default="8,10", help="positions of the spans")
    parser.add_argument("--texts", type=int, default=1)
    parser.add_argument("--score", type=int, default=1, help="texts that are scored for comparison")
    parser.add_argument("--arithmetic", type=int, help="time the quantities of a random span of this size")
    return parser.parse_args()


def model_of(arguments: argparse.Namespace) -> Any:
    if not arguments.llada2:
        from orderlens.models.loading import load_model

        return load_model(arguments.model, device=arguments.device)
    import torch
    from llada2_bench.setting import TINY, Bench

    from orderlens.models.families.llada2 import MINI

    device = torch.device(arguments.device or "cuda")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    return Bench(device, TINY if arguments.tiny else MINI, dtype).model


def texts_of(model: Any, count: int) -> list[EncodedSample]:
    top = min(200, model.vocab_size - 300) if model.vocab_size > 400 else model.vocab_size - 2
    tokens = np.random.default_rng(0).integers(3, top, (count, PREFIX + TARGET))
    return [EncodedSample(str(i), row[:PREFIX], row[PREFIX:]) for i, row in enumerate(tokens)]


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(model: Any, arguments: argparse.Namespace) -> None:
    orders = parse_policies(ORDERS)
    scored = texts_of(model, arguments.score)
    score_batch(model, scored[: max(1, len(scored) // 8)], orders)
    took = seconds(lambda: score_batch(model, scored, orders))
    rate = len(scored) * len(orders) * TARGET / took
    print(f"score: {len(scored)} texts × {len(orders)} orders × {TARGET}: {took:.2f} s, {rate:.0f} states/s")
    texts = texts_of(model, arguments.texts)
    for size in map(int, arguments.spans.split(",")):
        spans = [
            Span(
                text, Canvas.plan(PREFIX, TARGET, model.block_size, model.anchor), tuple(range(size)), text.id
            )
            for text in texts
        ]
        census_batch(model, spans[: max(1, len(spans) // 8)], orders)
        took = seconds(lambda spans=spans: census_batch(model, spans, orders))
        found = len(spans) * spans[0].n_states / took
        print(
            f"census B = {size}: {len(spans)} texts, {took:.2f} s, {took / len(spans):.2f} s a text, "
            f"{found:.0f} states/s, {found / rate:.2f} of score's",
            flush=True,
        )


def measure_arithmetic(size: int) -> None:
    table = -np.random.default_rng(0).exponential(2.0, (2**size, size)).astype(np.float32)
    census = SpanCensus(table)
    parts: dict[str, Callable[[], object]] = {
        "best, worst, mean, sd, mixture": lambda: (
            census.best, census.worst, census.mean, census.sd, census.mixture
        ),
        "distribution": census.distribution,
        "circulations": census.circulations,
        "shares": census.shares,
        "least Var": lambda: least_variance(census),
    }  # fmt: skip
    for name, work in parts.items():
        print(f"B = {size}, {name}: {seconds(work):.2f} s")


def main() -> None:
    arguments = parse_arguments()
    if arguments.arithmetic:
        measure_arithmetic(arguments.arithmetic)
        return
    measure(model_of(arguments), arguments)


if __name__ == "__main__":
    main()
