"""Generation under a search rule: several paths per text, compared and copied at the end of each block.

Every path is a chain. The chains of all texts decode one block; then the rule of each text (``rules.search``)
says which path each of them continues from, and the chains copy text and trace. The result is one trace per
text, as if the kept path had been decoded alone. Forward passes of the other paths are counted in its
``n_lookahead``, at the first reveal of the block, so that the cost of a search is in the trace.

Shape letters: N chains, n paths of one text, r reveals. Does not depend on files, text or torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderlens.common.grid import Canvas
from orderlens.common.rng import keyed_generator
from orderlens.decode.batches import BatchLimit, run_in_batches
from orderlens.decode.chains import Chain, Chains
from orderlens.decode.passes import BoolArray, Columns, StateRecorder, TraceRecorder
from orderlens.decode.rounds import Rounds
from orderlens.models.protocol import FloatArray, IntArray, Model
from orderlens.rules.policy import Policy
from orderlens.rules.search import NOT_ADDITIVE, Search, path_measure
from orderlens.rules.stats import PositionStats
from orderlens.texts.samples import EncodedSample


class EntropyMeter(StateRecorder):
    """Adds up, per chain, the mean entropy of the masked positions of every pass (nats)."""

    with_certainty = False

    def __init__(self, n_policies: int) -> None:
        super().__init__()
        self._n_policies = n_policies
        self.total: Counter[int] = Counter()

    def add(self, chains: Columns, visible_CB: BoolArray, chain_R: IntArray, stats: PositionStats) -> None:
        """Add one pass."""
        masked_C = np.bincount(chain_R, minlength=len(visible_CB))
        mean_C = np.bincount(chain_R, stats.entropy, len(visible_CB)) / np.maximum(masked_C, 1)
        index_C = chains["sample"] * self._n_policies + chains["order"]
        self.total.update(dict(zip(index_C.tolist(), mean_C.tolist(), strict=True)))


@dataclass(slots=True)
class SearchedPath:
    """One path so far: its reveals, block by block, and the sum over its passes of the mean entropy."""

    blocks: list[Columns] = field(default_factory=list)
    entropy: float = 0.0

    def values(self, name: str) -> NDArray[Any]:
        """Return a column over all blocks."""
        return np.concatenate([block[name] for block in self.blocks]) if self.blocks else np.zeros(0)

    def measure(self, name: str, eos_ids: Sequence[int]) -> float:
        """Return the measure over the requested positions."""
        if not self.blocks:
            return 0.0
        counted = ~self.values("is_overflow")
        counted = counted if counted.any() else ~counted
        is_eos = np.isin(self.values("token_id"), eos_ids)[counted]
        entropy = self.entropy / sum(_passes(block) for block in self.blocks)
        return path_measure(name, np.asarray(self.values("logq"), np.float64)[counted], is_eos, entropy)


def _passes(block: Columns) -> int:
    return len(np.unique(block["forward"]))


def count_states(block: Columns) -> int:
    """Return how many states the model evaluated for a block: passes and look-ahead."""
    return _passes(block) + int(np.sum(block.get("n_lookahead", 0)))


@dataclass(slots=True, eq=False)
class SearchedText:
    """One (sample, policy) pair.

    Attributes:
        sample, policy: indices.
        rule: its search rule.
        chain_n: its chains, one per path.
        value_n: the measure of each path so far; −inf for a path that was not decoded in this block.
        before_n: the measure at the end of the last block.
        weight_n: log weights.
        states: states that the model evaluated, by block number.
    """

    sample: int
    policy: int
    rule: Search
    chain_n: IntArray
    value_n: FloatArray
    before_n: FloatArray
    weight_n: FloatArray
    states: Counter[int] = field(default_factory=Counter)


class SearchBatch:
    """Decodes every prompt under policies with a search rule."""

    def __init__(
        self,
        model: Model,
        samples: Sequence[EncodedSample],
        policies: Sequence[Policy],
        canvases: Sequence[Canvas],
        *,
        temperature: float,
        sample_seed: int,
        stop_at_eos: bool,
        on_reveals: Callable[[int], None],
        limit: BatchLimit,
    ) -> None:
        """Create the chains of every text; arguments as in ``generate``."""
        self.model, self.samples, self.limit = model, samples, limit
        self.temperature, self.sample_seed, self.stop_at_eos = temperature, sample_seed, stop_at_eos
        self.on_reveals, self.eos = on_reveals, sorted(model.eos_ids)
        paths = [path for policy in policies for path in policy.paths(temperature)]
        self.n_paths = len(paths)
        keys = [key for _, key in paths]
        self.chains = Chains(model, samples, [one for one, _ in paths], canvases, sample_seed, keys)
        self.chains.check_paths()
        self.paths = [SearchedPath() for _ in range(len(samples) * self.n_paths)]
        self.texts: list[SearchedText] = []
        for index in range(len(samples) * len(policies)):
            sample, p = divmod(index, len(policies))
            rule = policies[p].search
            assert rule is not None
            first = self.texts[-1].chain_n[-1] + 1 if self.texts else 0
            zeros = np.zeros(rule.n)
            self.texts.append(SearchedText(sample, p, rule, first + np.arange(rule.n), zeros, zeros, zeros))
        measured = {text.rule.measure for text in self.texts}
        self.meter = EntropyMeter(self.n_paths) if "entropy" in measured else None

    def run(self) -> tuple[Columns, list[Chain]]:
        """Decode all texts to their end; return the columns of the kept paths and their chains."""
        while live := [text for text in self.texts if len(self._open(text))]:
            open_n = {text: self._open(text) for text in live}
            for text in live:
                text.value_n = text.value_n.copy()
                text.value_n[open_n[text] - text.chain_n[0]] = -np.inf
            tried, waiting = dict.fromkeys(live, 0), live
            while waiting := [text for text in waiting if self._wave(text, open_n[text], tried[text]).size]:
                wave = {text: self._wave(text, open_n[text], tried[text]) for text in waiting}
                self._decode([int(n) for chain_w in wave.values() for n in chain_w])
                for text, chain_w in wave.items():
                    self._measure(text, chain_w)
                    tried[text] += len(chain_w)
            for text in live:
                self._select(text, open_n[text][: tried[text]])
        return self._result()

    def _open(self, text: SearchedText) -> IntArray:
        """Return the chains of a text that have not ended."""
        return text.chain_n[[self.chains.reason[n] is None for n in text.chain_n]]

    def _wave(self, text: SearchedText, open_n: IntArray, n_tried: int) -> IntArray:
        """Return the chains to decode next in this block."""
        best = float(np.max(text.value_n[open_n[:n_tried] - text.chain_n[0]], initial=-np.inf))
        return open_n[n_tried : n_tried + text.rule.next_paths(n_tried, best)]

    def _decode(self, members: Sequence[int]) -> None:
        """Decode the current block of the given chains and add its reveals to their paths."""
        chains, recorder = self.chains, TraceRecorder()
        filled = int(chains.filled_N.sum())

        def work(batch: Sequence[int]) -> None:
            Rounds(
                self.model,
                chains,
                np.asarray(batch),
                recorder,
                lambda _: None,
                temperature=self.temperature,
                stop_at_eos=self.stop_at_eos,
                states=self.meter,
                one_block=True,
            ).run()

        def unfinished(batch: Sequence[int]) -> list[int]:
            done_C = chains.done_with_block(np.asarray(batch))
            return [n for n, done in zip(batch, done_C, strict=True) if not done]

        self._in_batches(members, work, unfinished)
        if int(chains.filled_N.sum()) > filled:
            self._add_reveals(recorder.columns()[0])
        if self.meter is not None:
            for n, total in self.meter.total.items():
                self.paths[n].entropy += total
            self.meter.total.clear()

    def _in_batches(
        self,
        members: Sequence[int],
        work: Callable[[Sequence[int]], None],
        unfinished: Callable[[Sequence[int]], Sequence[int]],
    ) -> None:
        """Call ``work`` on chains of equal window width, in batches that fit in memory."""
        chains = self.chains
        widths = [chains.width(n) for n in members]
        for width in sorted(set(widths)):
            own = [n for n, mine in zip(members, widths, strict=True) if mine == width]
            run_in_batches(
                self.limit, self.model, own, work,
                lambda n: f"sample '{self.samples[chains.sample_N[n]].id}'", unfinished,
            )  # fmt: skip

    def _add_reveals(self, columns: Columns) -> None:
        chain_r = columns["sample"] * self.n_paths + columns["order"]
        edges = [0, *(np.flatnonzero(np.diff(chain_r)) + 1).tolist(), len(chain_r)]
        for low, high in pairwise(edges):
            block = {name: values[low:high] for name, values in columns.items()}
            blocks = self.paths[int(chain_r[low])].blocks
            if blocks and blocks[-1]["block"][0] == block["block"][0]:  # its first pass was decoded before
                first = blocks.pop()
                block = {name: np.concatenate((first[name], values)) for name, values in block.items()}
            blocks.append(block)

    def _measure(self, text: SearchedText, chain_w: IntArray) -> None:
        """Compute the measure of the paths that were just decoded, and count their states."""
        for n in chain_w.tolist():
            path, block = self.paths[n], int(self.chains.block_N[n])
            if path.blocks and path.blocks[-1]["block"][0] == block:
                text.states[block] += count_states(path.blocks[-1])
            if text.rule.measure not in NOT_ADDITIVE:
                text.value_n[n - text.chain_n[0]] = path.measure(text.rule.measure, self.eos)

    def _select(self, text: SearchedText, decoded_n: IntArray) -> None:
        """Let every path continue from the one that the rule says, and enter the next block."""
        chains, chain_n = self.chains, text.chain_n
        block = int(chains.block_N[decoded_n[0]])
        self.on_reveals(int(chains.filled_NB[decoded_n[0]].sum()))
        if not text.rule.waits_for_end:
            value_n = self._values(text, block)
            uniform = float(self._generator(text, block).random())
            with np.errstate(invalid="ignore"):  # −inf for a path that was not decoded
                gain_n = value_n - text.before_n
            source_n, text.weight_n = text.rule.survivors(value_n, gain_n, text.weight_n, uniform)
            kept = [self.paths[n] for n in chain_n[source_n]]
            for n, path in zip(chain_n.tolist(), kept, strict=True):
                self.paths[n] = SearchedPath(list(path.blocks), path.entropy)
            chains.adopt(chain_n, chain_n[source_n])
            text.value_n = text.before_n = value_n[source_n]
        for n in self._open(text).tolist():
            chains.next_block(n)

    def _generator(self, text: SearchedText, block: int) -> np.random.Generator:
        spec = self.chains.policies[self.chains.policy_N[text.chain_n[0]]].spec
        return keyed_generator(self.sample_seed, self.samples[text.sample].id, spec, "search", block)

    def _values(self, text: SearchedText, block: int) -> FloatArray:
        """Return what the paths are compared by now; −inf for a path that was not decoded in this block."""
        if text.rule.measure == "random":
            return self._generator(text, block).random(text.rule.n + 1)[1:]
        if text.rule.measure == "majority":
            texts = [self._text(n) for n in text.chain_n.tolist()]
            count = Counter(texts)
            return np.array([float(count[own]) for own in texts])
        return text.value_n

    def _text(self, n: int) -> tuple[int, ...]:
        """Return the tokens of a path so far, up to its first EOS."""
        path = self.paths[n]
        by = np.argsort(path.values("position"))
        tokens = path.values("token_id")[by].tolist()
        end = next((i for i, token in enumerate(tokens) if token in self.model.eos_ids), len(tokens))
        return tuple(tokens[:end])

    def _result(self) -> tuple[Columns, list[Chain]]:
        chains, parts, kept = self.chains, list[Columns](), list[Chain]()
        for text in self.texts:
            place = int(np.argmax(self._values(text, -1)))
            n = int(text.chain_n[place])
            parts += self._with_cost(text, self.paths[n])
            canvas = chains.canvases[n]
            tokens = chains.tokens_NL[n, : max(canvas.end, canvas.total)]
            stop = int(chains.start_N[n]) + chains.block_size
            kept.append(
                Chain(text.sample, text.policy, canvas, tokens, int(chains.step_N[n]), stop, chains.reason[n])
            )
        names = parts[0] if parts else {}
        return {name: np.concatenate([part[name] for part in parts]) for name in names}, kept

    def _with_cost(self, text: SearchedText, path: SearchedPath) -> list[Columns]:
        """Return the blocks of the kept path; states of the other paths are added to each first reveal."""
        states, blocks = text.states.copy(), list[Columns]()
        for index, block in enumerate(path.blocks):
            count = len(block["step"])
            others = states.pop(int(block["block"][0])) - count_states(block)
            if index == len(path.blocks) - 1:
                others += sum(states.values())  # blocks that only other paths reached
            n_lookahead = np.asarray(block.get("n_lookahead", np.zeros(count, np.int64))).copy()
            n_lookahead[0] += others
            names = {"sample": np.full(count, text.sample), "order": np.full(count, text.policy)}
            blocks.append({**block, **names, "n_lookahead": n_lookahead})
        return blocks
