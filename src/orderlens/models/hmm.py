"""``hmm``: a hidden Markov model. Its joint distribution is explicit, so all orders give the same log P.

The chain has a small vocabulary and one absorbing hidden state that emits EOS forever. Given any set of
revealed tokens, its conditionals are exact (forward–backward in float64). Later blocks are marginalised out;
for a Markov chain this means leaving them out. It is the ground truth of the tests and a public test double.

``hmm:attention=full`` sees the whole canvas, so that text on both sides of a gap counts.
``hmm:incoherence=ε`` tilts each conditional by a function of the visible context (``_tilt``). The result is
normalised but is not the conditional of any joint distribution, so orders disagree by a computable amount.

Shape letters: N windows, W width, K hidden states (the last is the EOS state), V vocabulary.
Needs numpy only; does not depend on orders or targets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from orderlens.common.grid import block_edges
from orderlens.common.rng import keyed_generator
from orderlens.errors import UserInputError
from orderlens.models.files.tokenizer import ALPHABET, CharacterTokenizer
from orderlens.models.protocol import (
    Attention,
    FloatArray,
    IntArray,
    LogProbRows,
    StateBatch,
    model_repr,
    token_ids,
)

TILT_PERIOD = 64
"""Positions that share a row of the tilt table."""


@dataclass(frozen=True, slots=True)
class HmmParameters:
    """Probabilities of the chain (rows sum to 1) and the tables of its incoherent variant."""

    initial_K: FloatArray
    transition_KK: FloatArray
    emission_KV: FloatArray
    phase_PV: FloatArray
    angle_V: FloatArray

    @classmethod
    def draw(cls, seed: int, n_states: int, n_characters: int) -> HmmParameters:
        """Draw a peaked chain; every EOS-free sequence keeps positive probability."""
        generator = keyed_generator(seed, "hmm", n_states, n_characters)
        vocab = n_characters + 2
        leave = generator.uniform(0.0005, 0.005, size=n_states)
        stay = 0.97 * generator.dirichlet(np.full(n_states, 0.25), size=n_states) + 0.03 / n_states
        transition = np.zeros((n_states + 1, n_states + 1))
        transition[:-1, :-1] = stay * (1 - leave)[:, None]
        transition[:-1, -1] = leave
        transition[-1, -1] = 1.0
        emission = np.zeros((n_states + 1, vocab))
        peaked = generator.dirichlet(np.full(n_characters, 0.15), size=n_states)
        emission[:-1, :n_characters] = 0.98 * peaked + 0.02 / n_characters
        emission[-1, n_characters] = 1.0
        initial = np.append(generator.dirichlet(np.full(n_states, 1.0)), 0.0)
        phase = generator.uniform(0, 2 * np.pi, size=(TILT_PERIOD, vocab))
        return cls(initial, transition, emission, phase, generator.uniform(0, 2 * np.pi, size=vocab))

    def digest(self) -> str:
        """Return a digest of all tables."""
        state = hashlib.blake2b(digest_size=16)
        for table in (self.initial_K, self.transition_KK, self.emission_KV, self.phase_PV, self.angle_V):
            state.update(np.ascontiguousarray(table).tobytes())
        return state.hexdigest()


class HiddenMarkovModel:
    """The exact control model (``incoherence`` 0) and its deliberately incoherent variant."""

    special_ids: frozenset[int] = frozenset()
    anchor: Literal["zero"] = "zero"
    precision: Literal["float64"] = "float64"
    max_positions = 32768

    def __init__(
        self,
        seed: int = 0,
        n_states: int = 12,
        n_characters: int = len(ALPHABET),
        incoherence: float = 0.0,
        block_size: int = 32,
        attention: Attention = "block-causal",
    ) -> None:
        if not 2 <= n_characters <= len(ALPHABET):
            raise UserInputError(f"hmm: characters={n_characters} must be between 2 and {len(ALPHABET)}")
        if block_size > self.max_positions:
            raise UserInputError(
                f"hmm: block={block_size} must be at most {self.max_positions}, the longest text it takes"
            )
        if n_states < 1 or block_size < 1:
            raise UserInputError(f"hmm: states={n_states} and block={block_size} must be at least 1")
        if not 0 <= incoherence < np.inf:
            raise UserInputError(f"hmm: incoherence={incoherence} must be a finite number ≥ 0")
        if attention not in get_args(Attention):
            raise UserInputError(
                f"hmm: attention={attention} must be one of {', '.join(get_args(Attention))}"
            )
        self.attention: Attention = attention
        self._options = {"seed": seed, "states": n_states, "characters": n_characters, "block": block_size}
        self.incoherence = float(incoherence)
        self.block_size = block_size
        self.tokenizer = CharacterTokenizer(n_characters)
        self.parameters = HmmParameters.draw(seed, n_states, n_characters)

    def __repr__(self) -> str:
        return model_repr(self)

    @classmethod
    def parse(cls, argument: str) -> HiddenMarkovModel:
        """Build from ``key=value`` pairs: seed, states, characters, block, incoherence, attention."""
        names = {"seed": "seed", "states": "n_states", "characters": "n_characters", "block": "block_size"}
        kinds = {**dict.fromkeys(names, int), "incoherence": float, "attention": str}
        values: dict[str, Any] = {}
        for part in filter(None, argument.split(",")):
            key, _, text = part.partition("=")
            if key not in kinds:
                raise UserInputError(
                    f"model 'hmm:{argument}': unknown option '{key}' (allowed: {', '.join(kinds)})"
                )
            try:
                values[names.get(key, key)] = kinds[key](text)
            except ValueError:
                raise UserInputError(f"model 'hmm:{argument}': '{part}' is not key=number") from None
        return cls(**values)

    @property
    def name(self) -> str:
        defaults = {"seed": 0, "states": 12, "characters": len(ALPHABET), "block": 32}
        options: dict[str, object] = {
            key: value for key, value in self._options.items() if value != defaults[key]
        }
        if self.incoherence:
            options["incoherence"] = self.incoherence
        if self.attention == "full":
            options["attention"] = self.attention
        return "hmm" + (":" + ",".join(f"{key}={value}" for key, value in options.items()) if options else "")

    @property
    def vocab_size(self) -> int:
        return len(self.tokenizer.characters) + 2

    @property
    def mask_id(self) -> int:
        return self.tokenizer.mask_id

    @property
    def eos_ids(self) -> frozenset[int]:
        return frozenset({self.tokenizer.eos_id})

    @property
    def digest(self) -> str:
        return f"{self.parameters.digest()}-{self.incoherence}"

    def with_block_size(self, block_size: int) -> HiddenMarkovModel:
        options = self._options
        return HiddenMarkovModel(
            options["seed"],
            options["states"],
            options["characters"],
            self.incoherence,
            block_size,
            self.attention,
        )

    @property
    def is_coherent(self) -> bool:
        return self.incoherence == 0

    def joint_log_prob(self, tokens: Sequence[int]) -> float:
        """Return the exact log-probability that a sequence begins with ``tokens``, of any length."""
        if self.mask_id in tokens:
            raise UserInputError(
                f"hmm: token id {self.mask_id} is not in the vocabulary (0…{self.mask_id - 1})"
            )
        return self.marginal_log_prob(tokens)

    def marginal_log_prob(self, tokens: Sequence[int]) -> float:
        """Return the exact log-probability of the visible ``tokens``, summed over the masked ones."""
        total = 0.0
        state_K = self.parameters.initial_K
        for token in tokens:
            if not 0 <= token < self.vocab_size:
                raise UserInputError(f"hmm: token id {token} is not in the vocabulary (0…{self.mask_id - 1})")
            if token != self.mask_id:
                seen_K = state_K * self.parameters.emission_KV[:, token]
                mass = seen_K.sum()
                if mass == 0:
                    return -np.inf
                total += float(np.log(mass))
                state_K = seen_K / mass
            state_K = state_K @ self.parameters.transition_KK
        return total

    def log_probs(self, tokens: Sequence[int], grid_offset: int = 0) -> FloatArray:
        """Return log p [L, V] at every position given the other visible tokens up to the end of its block.

        With full attention the whole sequence is one block.
        """
        ids = token_ids(tokens, self.vocab_size)
        rows = []
        size = self.block_size if self.attention == "block-causal" else max(1, len(ids))
        for start, stop in block_edges(len(ids), size, grid_offset if size == self.block_size else 0):
            state_K, phase = self.advance(ids[:start], first=0)
            window = ids[None, start:stop]
            rows.append(self.conditionals(state_K[None], np.array([phase]), np.array([start]), window)[0])
        return np.concatenate(rows) if rows else np.empty((0, self.vocab_size))

    def advance(
        self, tokens: IntArray, first: int, state_K: FloatArray | None = None
    ) -> tuple[FloatArray, float]:
        belief_K = self.parameters.initial_K if state_K is None else state_K
        emission_LK = self._evidence(self._mask_after_eos(tokens[None], belief_K[None])[0])
        for seen_K in emission_LK:
            joint_K = belief_K * seen_K
            belief_K = (joint_K / joint_K.sum()) @ self.parameters.transition_KK
        return belief_K, float(self._phases(tokens, first + np.arange(len(tokens))).sum())

    def conditionals(
        self, belief_NK: FloatArray, phase_N: FloatArray, starts_N: IntArray, tokens_NW: IntArray
    ) -> FloatArray:
        """Return log p [N, W, V] at every window position given the prefix and the other visible tokens."""
        evidence_NWK = self._evidence(self._mask_after_eos(tokens_NW, belief_NK))
        with np.errstate(invalid="ignore"):
            forward_NWK = self._forward(belief_NK, evidence_NWK)
            backward_NWK = self._backward(evidence_NWK)
        state_NWK = forward_NWK * backward_NWK
        mass_NW1 = state_NWK.sum(axis=-1, keepdims=True)
        with np.errstate(divide="ignore"):  # a token may be impossible
            log_p_NWV = np.log((state_NWK / mass_NW1) @ self.parameters.emission_KV)
        return self._tilt(log_p_NWV, phase_N, starts_N, tokens_NW) if self.incoherence else log_p_NWV

    def open_session(self) -> HmmSession:
        return HmmSession(self)

    def _mask_after_eos(self, tokens_NW: IntArray, belief_NK: FloatArray) -> IntArray:
        """Mask characters after an EOS. No text has them, but tokens committed in parallel may produce them.

        Tokens after the first EOS then count as unseen. So the conditionals of an impossible canvas are still
        those of the chain, which emits EOS forever after the first one.
        """
        eos_NW = tokens_NW == self.tokenizer.eos_id
        ended_NW = np.logical_or.accumulate(eos_NW, axis=1) | (belief_NK[:, -1:] == 1.0)
        return np.where(ended_NW & ~eos_NW, self.mask_id, tokens_NW)

    def _evidence(self, tokens: IntArray) -> FloatArray:
        visible = np.where(tokens == self.mask_id, 0, tokens)
        return np.where((tokens == self.mask_id)[..., None], 1.0, self.parameters.emission_KV.T[visible])

    def _forward(self, belief_NK: FloatArray, evidence_NWK: FloatArray) -> FloatArray:
        """Return the belief over the hidden state at each position given all earlier positions."""
        forward_NWK = np.empty_like(evidence_NWK)
        for w in range(evidence_NWK.shape[1]):
            forward_NWK[:, w] = belief_NK
            belief_NK = _normalised(belief_NK * evidence_NWK[:, w]) @ self.parameters.transition_KK
        return forward_NWK

    def _backward(self, evidence_NWK: FloatArray) -> FloatArray:
        """Return the likelihood of all later positions of the window, up to a factor, per hidden state."""
        backward_NWK = np.ones_like(evidence_NWK)
        for w in range(evidence_NWK.shape[1] - 2, -1, -1):
            later_NK = evidence_NWK[:, w + 1] * backward_NWK[:, w + 1]
            backward_NWK[:, w] = _normalised(later_NK @ self.parameters.transition_KK.T)
        return backward_NWK

    def _phases(self, tokens: IntArray, positions: IntArray) -> FloatArray:
        visible = np.where(tokens == self.mask_id, 0, tokens)
        return np.where(
            tokens == self.mask_id, 0.0, self.parameters.phase_PV[positions % TILT_PERIOD, visible]
        )

    def _tilt(
        self, log_p_NWV: FloatArray, phase_N: FloatArray, starts_N: IntArray, tokens_NW: IntArray
    ) -> FloatArray:
        """Add ε · cos(Σ phases of the other visible tokens + angle of v) and normalise again."""
        positions_NW = starts_N[:, None] + np.arange(tokens_NW.shape[1])
        own_NW = self._phases(tokens_NW, positions_NW)
        context_NW = (phase_N + own_NW.sum(axis=1))[:, None] - own_NW
        tilted = log_p_NWV + self.incoherence * np.cos(context_NW[..., None] + self.parameters.angle_V)
        top = tilted.max(axis=-1, keepdims=True)
        with np.errstate(invalid="ignore"):
            normalised: FloatArray = tilted - top - np.log(np.exp(tilted - top).sum(axis=-1, keepdims=True))
        return normalised


def _normalised(mass_NK: FloatArray) -> FloatArray:
    scaled: FloatArray = mass_NK / np.add.reduce(mass_NK, axis=-1, keepdims=True)
    return scaled


@dataclass(frozen=True, slots=True)
class _Slot:
    """Beliefs after each block boundary of a slot: ``boundaries[position] = (belief_K, phase)``."""

    length: int
    boundaries: dict[int, tuple[FloatArray, float]]


class HmmSession:
    """The Session protocol over cached beliefs at block boundaries."""

    def __init__(self, model: HiddenMarkovModel) -> None:
        self._model = model
        self._slots: list[_Slot] = []

    def prefill(self, prefixes: Sequence[IntArray], grid_offsets: Sequence[int]) -> None:
        start = (self._model.parameters.initial_K, 0.0)
        self._slots = [_Slot(0, {0: start}) for _ in prefixes]
        for index, (prefix, offset) in enumerate(zip(prefixes, grid_offsets, strict=True)):
            for low, high in block_edges(len(prefix), self._model.block_size, offset):
                self._append(index, prefix[low:high])

    def extend(self, slots: IntArray, tokens_NW: IntArray) -> None:
        for index, tokens in zip(slots.tolist(), tokens_NW, strict=True):
            self._append(index, tokens)

    def keep(self, slots: IntArray) -> None:
        self._slots = [
            replace(self._slots[i], boundaries=dict(self._slots[i].boundaries)) for i in slots.tolist()
        ]

    def evaluate(self, states: StateBatch) -> LogProbRows:
        pairs = zip(states.slots_N.tolist(), states.starts_N.tolist(), strict=True)
        cached = [self._slots[slot].boundaries[start] for slot, start in pairs]
        beliefs_NK = np.stack([belief for belief, _ in cached])
        phases_N = np.array([phase for _, phase in cached])
        log_p_NWV = self._model.conditionals(beliefs_NK, phases_N, states.starts_N, states.tokens_NW)
        return LogProbRows(log_p_NWV[states.row_state_R, states.row_offset_R])

    def _append(self, index: int, tokens: IntArray) -> None:
        slot = self._slots[index]
        belief_K, phase = slot.boundaries[slot.length]
        after_K, added = self._model.advance(tokens, slot.length, belief_K)
        end = slot.length + len(tokens)
        self._slots[index] = _Slot(end, slot.boundaries | {end: (after_K, phase + added)})
