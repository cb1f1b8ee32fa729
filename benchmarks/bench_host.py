"""Host work of a replication outside the forwards: tables and commits of units, external scores.

Texts and numbers are random, with the vocabulary of ``write_llada2.py``. From the repository's root:

    python benchmarks/bench_host.py --unit 204                 one unit of 204 texts × 5 orders × 128 tokens
    python benchmarks/bench_host.py --external 2000 --no-network --device cpu    stage external, host alone
    python benchmarks/bench_host.py --external 8000 --device cuda                the whole stage
    python benchmarks/bench_host.py --external 8000 --device cuda --keep FOLDER  and keep its scores

CPU seconds are those of the thread that runs a part; the tokenizer's threads count in the last line only.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from write_llada2 import MINI, words, write_tokenizer

from orderlens.decode.chains import Chain
from orderlens.decode.target_states import plan_canvases
from orderlens.metrics.external import load_evaluator
from orderlens.models import evaluators
from orderlens.models.evaluators import small
from orderlens.models.files.tokenizer import FastTokenizer
from orderlens.rules import parse_policies
from orderlens.runs.tables import TraceLabels, float_type, generated_outputs, reveal_table, token_table
from orderlens.store.reader import Run
from orderlens.store.writer import RunWriter, open_writer
from orderlens.studies import external
from orderlens.studies.replicate_plan import SWEPT
from orderlens.testing import make_run, make_trace
from orderlens.texts.samples import EncodedSample

PROMPT, NEW, BLOCK, TEXTS_PER_PROMPT = 32, 128, 32, 39
FLOATS = ("logq", "max_logprob", "second_logprob", "entropy", "eos_logprob", "tempered_logq")


class Clock:
    """Adds up wall and CPU seconds by part."""

    def __init__(self) -> None:
        self.parts: dict[str, list[float]] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time the body of the ``with`` statement."""
        wall, cpu = time.perf_counter(), time.thread_time()
        yield
        sums = self.parts.setdefault(name, [0.0, 0.0])
        sums[0] += time.perf_counter() - wall
        sums[1] += time.thread_time() - cpu

    def watch(self, owner: Any, method: str, name: str) -> None:
        """Time every call of a method."""
        plain: Callable[..., Any] = getattr(owner, method)

        def counted(*args: Any, **more: Any) -> Any:
            with self.part(name):
                return plain(*args, **more)

        setattr(owner, method, counted)

    def show(self) -> None:
        """Print the sums."""
        for name, (wall, cpu) in self.parts.items():
            print(f"  {name:34s} {wall:7.2f} s, {cpu:7.2f} s CPU")


def unit(texts: int, folder: Path) -> None:
    """Time tables and commit of one unit of the sweep, twice: the second time the texts of ids are cached."""
    write_tokenizer(folder, MINI)
    eos, mask, rng = MINI["eos_token_id"], MINI["mask_token_id"], np.random.default_rng(0)
    model: Any = SimpleNamespace(
        tokenizer=FastTokenizer.from_folder(folder), eos_ids={eos}, special_ids={mask}
    )
    model.precision = "float32"
    orders = parse_policies(SWEPT)
    samples = [EncodedSample(f"t{n}", rng.integers(0, eos, PROMPT)) for n in range(texts)]
    labels, canvases = TraceLabels(samples, orders, 1.0, 0), plan_canvases(BLOCK, samples, "zero", NEW)
    chains = [
        Chain(s, o, canvases[s], rng.integers(0, eos, PROMPT + NEW), NEW, PROMPT + NEW, "length")
        for s in range(texts)
        for o in range(len(orders))
    ]
    columns, pieces = random_columns(rng, texts, len(orders), eos), dict[int, str | None]()
    for turn in ("first unit", "later unit"):
        clock = Clock()
        with clock.part("reveals"):
            tables = {"reveals": reveal_table(columns, labels, model, float_type(model))}
        with clock.part("outputs"):
            tables["outputs"] = generated_outputs(model, labels, chains)
        with clock.part("tokens"):
            tables["tokens"] = token_table(model, tables, pieces)
        with open_writer(folder / turn, {"kind": "made up"}) as writer, clock.part("commit"):
            writer.commit("unit", tables)
        print(f"{turn}: {tables['reveals'].num_rows} reveals, {tables['tokens'].num_rows} token ids")
        clock.show()


def random_columns(rng: np.random.Generator, texts: int, orders: int, vocabulary: int) -> dict[str, Any]:
    """Return a decoder's columns with random numbers."""
    chains, steps = texts * orders, np.arange(NEW)
    count = chains * NEW
    tokens = rng.integers(0, vocabulary, count)
    paths = rng.permuted(np.tile(steps.reshape(-1, BLOCK), (chains, 1)), axis=1).ravel()
    return {
        "sample": np.repeat(np.arange(texts), orders * NEW),
        "order": np.tile(np.repeat(np.arange(orders), NEW), texts),
        "block": np.tile(steps // BLOCK, chains),
        "step": np.tile(steps, chains),
        "forward": np.tile(steps, chains),
        "position": paths + PROMPT,
        "token_id": tokens,
        "top_token": np.where(rng.random(count) < 0.3, tokens, 0),
        **{name: -rng.gamma(0.5, 2.0, count).astype(np.float32) for name in FLOATS},
        "is_overflow": np.zeros(count, bool),
        "n_tied": np.ones(count, np.int64),
        "n_committed": np.ones(count, np.int64),
    }


def made_run(texts: int, folder: Path) -> Run:
    """Write a run of ``texts`` different texts of random words."""
    known, rng = words(MINI["eos_token_id"]), np.random.default_rng(1)

    def said(count: int, length: int) -> list[str]:
        return [" ".join(known[i] for i in row) for row in rng.integers(0, len(known), (count, length))]

    prompts, key = said(-(-texts // TEXTS_PER_PROMPT), PROMPT), {"order": "max-prob", "temperature": 1.0}
    rows = [
        {
            **key,
            "sample_id": f"t{n}",
            "sample_seed": 0,
            "prompt_text": prompts[n % len(prompts)],
            "text": text,
        }
        | {"prompt_ids": [0], "token_ids": [0], "n_requested": NEW, "finish_reason": "length"}
        for n, text in enumerate(said(texts, NEW))
    ]
    return make_run([make_trace("t0", "max-prob", [-1.0], temperature=1.0)], outputs=rows).save(folder)


def score(texts: int, device: str, network: bool, folder: Path, keep: Path | None) -> None:
    """Time the stage ``external`` with the bundled evaluator; its parts overlap on a GPU."""
    run, evaluator, clock = made_run(texts, folder / "run"), load_evaluator("tiny-ar", device), Clock()
    if not network:
        ready = -torch.rand(1 << 20, device=device) * 16
        small.log_probs_at = lambda _network, _inputs, places_R, _targets: ready[: len(places_R)].clone()
    evaluator.token_logprobs([("baba", " bobo")] * 8)  # the first forward of a process loads kernels
    clock.watch(external, "_units", "reading texts, cutting units")
    clock.watch(FastTokenizer, "encode_pairs", "tokenising")
    clock.watch(evaluators, "_queue", "batches: fill, send, launch")
    clock.watch(external, "score_table", "making rows")
    clock.watch(RunWriter, "commit", "commit")
    wall, cpu = time.perf_counter(), time.process_time()
    external.score_texts(run, evaluator, keep or folder / "scores")
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"{texts} texts on {device}: {wall:.2f} s, {cpu:.2f} s CPU")
    clock.show()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--unit", type=int, default=0, metavar="TEXTS")
    parser.add_argument("--external", type=int, default=0, metavar="TEXTS")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--no-network", action="store_true", help="skip the forwards")
    parser.add_argument("--keep", type=Path, help="folder for the scores")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if options.unit:
            unit(options.unit, Path(name))
        if options.external:
            score(options.external, options.device, not options.no_network, Path(name), options.keep)


if __name__ == "__main__":
    main()
