"""Reads a whole ``config.json``: each key is read by the family, known to be harmless, or refused by name.

A key that is not read may change the computation, so a network built without it would be another network.
Null, empty and false are accepted for unknown keys: a switch that is off. The exceptions are switches whose
absence means on. Does not depend on a family: a family passes the function that reads its keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from orderlens.errors import ModelLoadError
from orderlens.models.files.configfile import short_repr

Shape = TypeVar("Shape")
_HARMLESS = (
    "architectures auto_map model_type name_or_path transformers_version tokenizer_class torch_dtype dtype",
    "use_bfloat16 torchscript use_cache cache_implementation return_dict return_dict_in_generate",
    "attn_implementation attention_implementation flash_attention attn_backend deterministic_flash_attn",
    "reference_compile gradient_checkpointing chunk_size_feed_forward keys_to_ignore_at_inference",
    "problem_type finetuning_task task_specific_params id2label label2id num_labels prefix",
    "output_attentions output_hidden_states output_router_logits output_scores",
    "max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature",
    "top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "bad_words_ids num_return_sequences remove_invalid_values",
    "exponential_decay_length_penalty suppress_tokens",
    "begin_suppress_tokens pretraining_tp router_jitter_noise precision ep_size fuse_cross_entropy",
    "unsloth_version unsloth_fixed license base_model notes",
)
HARMLESS = frozenset(" ".join(_HARMLESS).split())
"""Keys without influence on the network's output: names, precision, training, decoding with other tools."""
_HARMLESS_KINDS = re.compile(
    r"_.*|.*dropout(_prob)?|(?!delete|split|expand|insert).*_token_ids?|init_.*|initializer_.*"
    r"|.*_loss(_(coef|coefficient|weight|alpha|scale|scaling_factor|type|function))?"
)
"""Tokens that move positions (DELETE, EXPAND, …) are not harmless: a family must exclude them."""
_ON_WITHOUT = frozenset({"rope", "use_rope", "use_rotary", "use_rmsnorm", "use_residual", "is_diffusion"})
"""Switches that are on in every network here: false would be another network."""


class _Recorded(Mapping[str, Any]):
    """A mapping that remembers which of its keys were read; nested objects are recorded as well."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values_read = dict[str, Any]()
        self._values = values

    def __getitem__(self, key: str) -> Any:
        if key not in self.values_read:
            value = self._values[key]
            self.values_read[key] = _Recorded(value) if isinstance(value, Mapping) else value
        return self.values_read[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(dict(self._values))

    def unread(self, harmless: frozenset[str]) -> Iterator[tuple[str, Any]]:
        """Yield the keys, with their values, that were not read and may change the computation."""
        for key, value in self._values.items():
            if key not in self.values_read and not _is_harmless(key, value, harmless):
                yield key, value
            elif isinstance(nested := self.values_read.get(key), _Recorded):
                yield from ((f"{key}.{inner}", value) for inner, value in nested.unread(harmless))


def parse_known(
    parse: Callable[[Mapping[str, Any]], Shape], values: Mapping[str, Any], harmless: Iterable[str] = ()
) -> Shape:
    """Return ``parse(values)``; refuse keys that it does not read and that are not known to be harmless.

    Args:
        parse: reads every key that changes the family's computation.
        values: contents of ``config.json``.
        harmless: keys of this family without influence on inference, besides ``HARMLESS``.
    """
    recorded = _Recorded(values)
    shape = parse(recorded)
    refuse_keys(recorded.unread(HARMLESS | frozenset(harmless)))
    return shape


def refuse_unknown(values: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuse keys outside ``known`` that are not harmless in every family."""
    refuse_keys(_Recorded(values).unread(HARMLESS | frozenset(known)))


def refuse_keys(found: Iterable[tuple[str, Any]]) -> None:
    """Refuse some keys by name."""
    names = [f"{key}={short_repr(value)}" for key, value in found]
    if names:
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        raise ModelLoadError(
            f"config.json: {', '.join(names[:4])}{more} is not supported: the family does not define it, and "
            "it may change the computation; if it has no influence on inference, remove it from config.json"
        )


def _is_harmless(key: str, value: object, harmless: frozenset[str]) -> bool:
    off = value in (None, "", [], {}) or (value is False and key not in _ON_WITHOUT)
    return off or key in harmless or _HARMLESS_KINDS.fullmatch(key) is not None
