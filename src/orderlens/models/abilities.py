"""Optional abilities of a model beyond the Model protocol. Each is a small protocol.

Code tests for an ability with isinstance: a model that has the members of its protocol has the ability. A
wrapper around a model must define the members: from Python 3.12 on, attributes found through ``__getattr__``
do not count. numpy only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from orderlens.models.protocol import Model, Tokenizer


@runtime_checkable
class CountsUnknown(Protocol):
    """A tokenizer that replaces what it cannot represent, and can count it."""

    def count_unknown(self, text: str, ids: Sequence[int]) -> int:
        """Return the number of pieces of ``text`` (characters or words) that ``ids`` do not represent."""


def count_unknown(tokenizer: Tokenizer, text: str, ids: Sequence[int]) -> int:
    """Return the number of pieces of ``text`` that were replaced by an unknown token; 0 if not counted."""
    return tokenizer.count_unknown(text, ids) if isinstance(tokenizer, CountsUnknown) else 0


@runtime_checkable
class SuggestsBatch(Protocol):
    """Suggests a batch size for the memory of its device."""

    def suggested_batch(self, tokens_per_sequence: int) -> int:
        """Return the number of sequences of this length that fit in one batch now, at least 1."""


@runtime_checkable
class PrefersUnitSize(Protocol):
    """Gains more from large batches than most networks do."""

    @property
    def unit_sequences(self) -> int:
        """Sequences (samples × orders) per work unit that keep a large GPU busy."""


@runtime_checkable
class CountsParameters(Protocol):
    """Reports its size, which the estimate of a pass's time on a CPU uses."""

    @property
    def n_parameters(self) -> int:
        """Number of weights."""


@runtime_checkable
class ReleasesMemory(Protocol):
    """Holds memory between sessions (a cache pool, recorded graphs) and can release it."""

    def release_memory(self) -> None:
        """Release memory that no session uses; called after memory ran out, before a smaller batch."""


@runtime_checkable
class CastsDtype(Protocol):
    """Can be converted to another precision, to measure the numerical noise floor."""

    def with_dtype(self, name: str) -> Model:
        """Return a copy whose weights and activations have the dtype ``name``, e.g. ``"bfloat16"``."""


@runtime_checkable
class HasDtype(Protocol):
    """Reports the precision of its weights and activations."""

    @property
    def dtype(self) -> Any:
        """The dtype (a ``torch.dtype``; this module does not import torch)."""


@runtime_checkable
class HasWeightFormat(Protocol):
    """Reports the format of its weights."""

    @property
    def weight_format(self) -> str | None:
        """``"fp8"`` if its experts have 8 bits per weight, None if weights have the dtype of activations."""


@runtime_checkable
class RoundsWeights(Protocol):
    """May have rounded its weights when it was loaded, to measure the effect in the noise floor."""

    def with_stored_weights(self) -> Model | None:
        """Return the model with its weights as stored, None if they were not rounded."""


@runtime_checkable
class SeedsBlocks(Protocol):
    """May predict the first token of a masked block autoregressively."""

    @property
    def seeds_blocks(self) -> bool:
        """Whether the token before a block predicts its first token while the whole block is masked."""


@runtime_checkable
class LimitsTargets(Protocol):
    """Has ids in its vocabulary, besides the mask, that no order may reveal."""

    @property
    def unrevealed_ids(self) -> frozenset[int]:
        """Padding of the vocabulary, and tokens that move positions."""


@runtime_checkable
class OnDevice(Protocol):
    """Computes on a torch device."""

    @property
    def device(self) -> Any:
        """The device of the weights (a ``torch.device``; this module does not import torch)."""


@runtime_checkable
class HasJoint(Protocol):
    """Has an explicit joint distribution over its tokens, so it serves as an exact control."""

    @property
    def is_coherent(self) -> bool:
        """Whether its conditionals are those of the joint distribution."""

    def marginal_log_prob(self, tokens: Sequence[int]) -> float:
        """Return the log-probability of the visible tokens, summed over all values of the masked ones."""


class Template(Protocol):
    """A chat template: see ``models.files.chat``."""

    @property
    def source(self) -> str:
        """The template's text."""

    def render(self, messages: Sequence[Mapping[str, str]], *, reply: bool = True, **variables: Any) -> str:
        """Return the prompt text of ``messages``; ``reply`` opens the assistant's turn."""


@runtime_checkable
class Chats(Protocol):
    """Has a chat template, or None if its checkpoint has none."""

    @property
    def chat(self) -> Template | None:
        """The template, or None."""


def chat_template(model: Model) -> Template | None:
    """Return the model's chat template, or None."""
    return model.chat if isinstance(model, Chats) else None


def as_question(template: Template, text: str) -> str:
    """Return the prompt of a conversation with the user message ``text``, up to the assistant's turn."""
    return template.render([{"role": "user", "content": text}])


def other_dtype(model: CastsDtype) -> str:
    """Return the precision to compare with: bfloat16, or float16 for a model in bfloat16."""
    return "float16" if isinstance(model, HasDtype) and str(model.dtype) == "torch.bfloat16" else "bfloat16"


def weight_format(model: Model) -> str | None:
    """Return the format of the model's weights, None if they have the dtype of its activations."""
    return model.weight_format if isinstance(model, HasWeightFormat) else None


def seeds_blocks(model: Model) -> bool:
    """Return whether the first token of a masked block is predicted by the token before it."""
    return isinstance(model, SeedsBlocks) and model.seeds_blocks


def unrevealed_ids(model: Model) -> frozenset[int]:
    """Return the ids, besides the mask, that no order may reveal."""
    return model.unrevealed_ids if isinstance(model, LimitsTargets) else frozenset()


def device_type(model: Model) -> str:
    """Return the type of the model's device; models without torch compute on the CPU."""
    return str(model.device.type) if isinstance(model, OnDevice) else "cpu"
