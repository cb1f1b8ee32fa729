"""Cost of one decoding pass outside the model: bookkeeping, rules and trace columns per forward pass.

The model is a stub that returns precomputed rows, so only the decoder's work is timed (CPU time, best of
several). Compare two checkouts by running the file in each:

    python benchmarks/bench_rounds.py [--order max-prob] [--temperature 0] [--batch 1,32,128]
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from orderlens.decode.generate import GenerationSettings, generate_batch
from orderlens.models.hmm import HiddenMarkovModel
from orderlens.models.protocol import LogProbRows, StateBatch
from orderlens.rules import parse_policies
from orderlens.texts.samples import EncodedSample

NEW, CHARACTERS, REPEATS = 128, 6, 7


class ReadyRows:
    """A session that caches nothing and computes nothing."""

    def __init__(self) -> None:
        self.rows = np.log(np.random.default_rng(0).dirichlet(np.ones(CHARACTERS + 2), size=8192))

    def prefill(self, *_: object) -> None:
        """Keep nothing."""

    def extend(self, *_: object) -> None:
        """Keep nothing."""

    def keep(self, *_: object) -> None:
        """Keep nothing."""

    def evaluate(self, states: StateBatch) -> LogProbRows:
        """Return one precomputed row per requested row."""
        return LogProbRows(self.rows[: len(states.row_state_R)])


class StandIn(HiddenMarkovModel):
    """The interface of ``hmm`` with precomputed rows."""

    def open_session(self) -> ReadyRows:  # type: ignore[override]
        """Return the stub session."""
        return ReadyRows()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--order", default="max-prob")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--batch", default="1,32,128")
    arguments = parser.parse_args()
    model = StandIn(n_characters=CHARACTERS)
    settings = GenerationSettings(NEW, arguments.temperature, stop_at_eos=False)
    print(f"{arguments.order} at T = {arguments.temperature:g}: host work per forward pass, CPU time")
    for batch in map(int, arguments.batch.split(",")):
        samples = [EncodedSample(str(i), np.arange(32) % CHARACTERS) for i in range(batch)]
        best = np.inf
        for _ in range(REPEATS):
            start = time.process_time()
            columns = generate_batch(model, samples, parse_policies(arguments.order), settings).columns
            best = min(best, time.process_time() - start)
        passes = int(columns["forward"].max()) + 1
        print(f"  {batch:4d} chains  {1e3 * best / passes:7.3f} ms")


if __name__ == "__main__":
    main()
