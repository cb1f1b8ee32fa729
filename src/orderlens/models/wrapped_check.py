"""The probe of a wrapped network: does it do what its caller declared?

A few calls on short random sequences find networks in training mode, values that are not finite, rows that
depend on other sequences of the batch, causal attention, blocks of another size, and logits that are off by
one position. Every refusal names what was seen and what to change. Does not depend on files or decoding.

Shape letters: N sequences, L positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from orderlens.errors import UserInputError

LENGTH = 24
"""Positions of a probe where blocks do not ask for more."""
SHORT = 12
"""The same for networks that accept shorter texts only."""
SAME = 1e-3
"""Largest difference of log-probabilities (nats) that numerical noise may cause between two calls."""
UNSEEN = 1e-6
"""Change of a row's probabilities (total variation) up to which it does not see a token."""
CLEAR = 3.0
"""How many times larger a change must be to say which row belongs to a token."""
SKIP = "; pass check=False if this is intended"


class Declared(Protocol):
    """What the caller of ``wrap`` declared."""

    @property
    def mask_id(self) -> int: ...
    @property
    def valid_vocab(self) -> int: ...
    @property
    def attention(self) -> str: ...
    @property
    def shift(self) -> bool: ...
    @property
    def excluded(self) -> tuple[int, ...]: ...


def check_network(network: Callable[[Tensor], Tensor], declared: Declared, block_size: int) -> None:
    """Refuse a network that does not do what is declared.

    Raises:
        UserInputError: with what the probe found and the remedy.
    """
    try:
        _Probe(network, declared, block_size, LENGTH).run()
    except UserInputError as error:
        if not isinstance(error.__cause__, (IndexError, RuntimeError)) or block_size >= SHORT:
            raise
        _Probe(network, declared, block_size, SHORT).run()


class _Probe:
    def __init__(
        self, network: Callable[[Tensor], Tensor], declared: Declared, block_size: int, length: int
    ) -> None:
        self.network, self.declared, self.block_size = network, declared, block_size
        blockwise = declared.attention == "block-causal"
        self.length = max(length, 3 * block_size) if blockwise else length
        generator = np.random.default_rng(0)
        allowed = np.setdiff1d(np.arange(declared.valid_vocab), np.array(declared.excluded))
        self.ids_3L = torch.from_numpy(generator.choice(allowed, size=(3, self.length)))
        self.other_ids = generator.permutation(allowed)
        length = max(self.length, block_size + 1)  # shows blocks up to the declared size
        self.visible_2L = torch.from_numpy(generator.choice(allowed, size=(2, length)))
        self.masked = np.arange(self.length) % 3 == 1
        self.ids_3L[:, torch.from_numpy(self.masked)] = declared.mask_id

    def run(self) -> None:
        """Make all checks, the plainest first."""
        first = self._log_probs(self.ids_3L[:2])
        if not bool(torch.isfinite(first.amax(dim=2)).all()):
            raise UserInputError(f"the network returns logits that are not finite on a short probe{SKIP}")
        again = self._log_probs(self.ids_3L[:2])
        if _largest(first, again) > SAME:
            raise UserInputError(
                "the network gives different logits for the same input; call network.eval() before wrap"
                + SKIP
            )
        mixed = self._log_probs(self.ids_3L[[0, 2]])
        if _largest(first[:1], mixed[:1]) > SAME:
            raise UserInputError(
                "the logits of a sequence change with the other sequences of its batch: hidden text leaks; "
                "pass forward=… with one sequence at a time" + SKIP
            )
        change_LL = self._changes()
        self._check_causal(change_LL)
        if self.declared.attention == "block-causal":
            self._check_blocks(change_LL)
        self._check_block_size()
        self._check_shift(change_LL)

    def _log_probs(self, ids_NL: Tensor) -> Tensor:
        logits = self.network(ids_NL)[..., : self.declared.valid_vocab]
        return torch.log_softmax(logits.float(), dim=2).cpu()

    def _changes(self) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        """Return how much row i changes when the visible token at j becomes another [row i, token j]."""
        base = self._log_probs(self.ids_3L[:1])
        seen = np.flatnonzero(~self.masked)
        changed = self.ids_3L[:1].repeat(len(seen), 1)
        for row, place in enumerate(seen):
            new = next(int(token) for token in self.other_ids if token != int(changed[row, place]))
            changed[row, place] = new
        found = np.full((self.length, self.length), np.nan)
        for row, place in enumerate(seen):
            after = self._log_probs(changed[row : row + 1])
            found[:, place] = (after[0].exp() - base[0].exp()).abs().sum(dim=1).numpy() / 2
        return found

    def _check_causal(self, change_LL: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> None:
        """Refuse a network in which no row changes with a later token (the next one aside)."""
        rows, tokens = np.indices(change_LL.shape)
        later = change_LL[(tokens > rows + 1) & ~np.isnan(change_LL)]
        earlier = change_LL[(tokens < rows) & ~np.isnan(change_LL)]
        if later.max() <= UNSEEN < earlier.max():
            raise UserInputError(
                "this network is causal: no row changes with a later token, so it cannot reveal tokens in "
                "any order; wrap a masked model, or switch its causal mask off through forward=…" + SKIP
            )

    def _check_blocks(self, change_LL: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> None:
        """Refuse a network whose blocks are not those that were declared."""
        block = np.arange(self.length) // self.block_size
        after = (block[None, :] > block[:, None]) & ~np.isnan(change_LL)
        outside_LL = np.where(after, change_LL, 0.0)
        row, token = np.unravel_index(np.argmax(outside_LL), outside_LL.shape)
        if outside_LL[row, token] > UNSEEN:
            raise UserInputError(
                f"row {row} changes with token {token} of a later block: the network is not block-causal "
                f"with block_size={self.block_size}; did you mean attention='full', or other blocks?" + SKIP
            )

    def _check_block_size(self) -> None:
        """Refuse a network with smaller blocks than declared, or with blocks where none are declared."""
        found, declared = self._find_blocks(), self.declared
        if found is None or (declared.attention == "block-causal" and found == self.block_size):
            return
        raise UserInputError(
            f"no row changes with a token of a later block of {found}: did you mean "
            f"attention='block-causal', block_size={found}?" + SKIP
        )

    def _find_blocks(self) -> int | None:
        """Return the tokens per block of a network in which no row sees a later block; None for others.

        If all tokens from a place on change, the first row that changes begins the block of that place.
        """
        last = self._first_changed(self.visible_2L.shape[1] - 1)
        before = self._first_changed(last - 1) if last else 0
        size = last - before
        is_grid = size > 1 and not last % size and self._first_changed(last) == last
        return size if is_grid else None

    def _first_changed(self, place: int) -> int:
        """Return the first row that changes when all tokens from a place on change."""
        first, second = self.visible_2L
        changed = torch.cat([first[:place], second[place:]])
        base, after = self._log_probs(torch.stack([first, changed])).exp()
        seen = (after - base).abs().sum(dim=1) / 2 > UNSEEN
        return int(seen.nonzero()[0, 0]) if bool(seen.any()) else 0

    def _check_shift(self, change_LL: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> None:
        """Refuse logits that are off by one position, where the probe shows it clearly."""
        seen = [j for j in range(1, self.length) if not self.masked[j]]
        own = float(np.mean([change_LL[j, j] for j in seen]))
        before = float(np.mean([change_LL[j - 1, j] for j in seen]))
        if not self.declared.shift and before > CLEAR * own:
            raise UserInputError(
                f"row i changes with token i + 1 (by {before:.3g} on average) more than with token i "
                f"({own:.3g}): did you mean shift=True?" + SKIP
            )
        copied, next_copied = self._copied()
        if not self.declared.shift and next_copied > copied + 2.0 and next_copied > -2.0:
            raise UserInputError(
                f"row i predicts the visible token i + 1 (mean log p {next_copied:.2f}) rather than token i "
                f"({copied:.2f}): did you mean shift=True?" + SKIP
            )
        if self.declared.shift and copied > next_copied + 2.0 and copied > -2.0:
            raise UserInputError(
                f"row i predicts the visible token i (mean log p {copied:.2f}) rather than token i + 1 "
                f"({next_copied:.2f}): did you mean shift=False?" + SKIP
            )

    def _copied(self) -> tuple[float, float]:
        """Return the mean log p that row i gives to the visible tokens i and i + 1."""
        log_p = self._log_probs(self.ids_3L[:1])[0]
        places = [i for i in range(self.length - 1) if not self.masked[i] and not self.masked[i + 1]]
        ids = self.ids_3L[0].tolist()
        pairs = [(float(log_p[i, ids[i]]), float(log_p[i, ids[i + 1]])) for i in places]
        own, following = np.mean(pairs, axis=0)
        return float(own), float(following)


def _largest(first: Tensor, second: Tensor) -> float:
    return float((first.exp() - second.exp()).abs().amax())
