"""What a model may offer beyond the Model protocol: each ability is one small protocol, asked by isinstance.

A model has an ability by having its members; nothing is registered. A wrapper around a model must spell the
members out: attributes found through ``__getattr__`` do not count from Python 3.12 on. numpy only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from orderlens.models.protocol import Model


@runtime_checkable
class SuggestsBatch(Protocol):
    """Knows how many sequences fit in the memory of its device."""

    def suggested_batch(self, tokens_per_sequence: int) -> int:
        """Return how many sequences of this length can be decoded together now, at least 1."""
        ...


@runtime_checkable
class PrefersUnitSize(Protocol):
    """Gains from more sequences at once than most networks do."""

    @property
    def unit_sequences(self) -> int:
        """Sequences (samples × orders) per work unit that keep a large GPU busy."""
        ...


@runtime_checkable
class CountsParameters(Protocol):
    """Knows its size, from which the time of a pass on a CPU is estimated."""

    @property
    def n_parameters(self) -> int:
        """Number of weights."""
        ...


@runtime_checkable
class ReleasesMemory(Protocol):
    """Keeps memory between sessions (a cache pool, recorded graphs) that it can give back."""

    def release_memory(self) -> None:
        """Give back what no session uses; called after memory ran out, before a smaller batch is tried."""
        ...


@runtime_checkable
class CastsDtype(Protocol):
    """Can be had in another precision, for the numerical noise floor."""

    def with_dtype(self, name: str) -> Model:
        """Return a copy whose weights and activations have the dtype ``name``, e.g. ``"bfloat16"``."""
        ...


@runtime_checkable
class HasDtype(Protocol):
    """Says in which precision its weights and activations are."""

    @property
    def dtype(self) -> Any:
        """The dtype (a ``torch.dtype``; this module does not import torch)."""
        ...


@runtime_checkable
class OnDevice(Protocol):
    """Computes on a device of torch."""

    @property
    def device(self) -> Any:
        """Where the weights are (a ``torch.device``; this module does not import torch)."""
        ...


@runtime_checkable
class HasJoint(Protocol):
    """Knows the joint distribution of its tokens: an exact control."""

    @property
    def is_coherent(self) -> bool:
        """Whether its conditionals are those of the joint."""
        ...

    def marginal_log_prob(self, tokens: Sequence[int]) -> float:
        """Return the log-probability of the visible tokens, those behind a mask summed out."""
        ...


class Template(Protocol):
    """A chat template: see ``models.files.chat``."""

    @property
    def source(self) -> str:
        """The template's text."""
        ...

    def render(self, messages: Sequence[Mapping[str, str]], *, reply: bool = True, **variables: Any) -> str:
        """Return the prompt text of ``messages``; ``reply`` opens the assistant's turn."""
        ...


@runtime_checkable
class Chats(Protocol):
    """Comes with a chat template, or with None where its checkpoint has none."""

    @property
    def chat(self) -> Template | None:
        """The template, or None."""
        ...


def chat_template(model: Model) -> Template | None:
    """Return the model's chat template, or None."""
    return model.chat if isinstance(model, Chats) else None


def as_question(template: Template, text: str) -> str:
    """Return the prompt of a conversation that begins with ``text``, the assistant's turn opened."""
    return template.render([{"role": "user", "content": text}])


def other_dtype(model: CastsDtype) -> str:
    """Return a precision to compare with: bfloat16, or float16 for a model that is in bfloat16 already."""
    return "float16" if isinstance(model, HasDtype) and str(model.dtype) == "torch.bfloat16" else "bfloat16"


def device_type(model: Model) -> str:
    """Return the kind of device the model computes on; models without torch compute on the CPU."""
    return str(model.device.type) if isinstance(model, OnDevice) else "cpu"
