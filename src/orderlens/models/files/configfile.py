"""Reads ``config.json`` and similar files: one JSON object whose values are checked and refused by name.

Each key is read by the family, known to be harmless, or refused: a key that is not read may change the
computation. Null, empty and false are accepted for unknown keys: a switch that is off. The exceptions are
switches whose absence means on. Does not depend on architectures: a family passes the function that reads
its keys.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from orderlens.errors import ModelLoadError, one_line

CONFIG = "config.json"
MAX_SIZE = 2**24
"""Upper bound of widths, vocabularies and head counts; a larger value means a broken file."""
MAX_LAYERS = 4096
MAX_CONTEXT = 2**22
"""Maximum number of positions with a rotary table; the longest published contexts are a quarter of it."""


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in ``path``."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelLoadError(f"{path} is missing; the folder is not a complete checkpoint") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path} cannot be read as JSON: {one_line(error)}") from None
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path} must hold a JSON object, not a {type(value).__name__}")
    return value


class ConfigValues:
    """The values of a configuration file, read by methods that check them.

    A missing key or null gives the default; without a default it is refused.
    """

    def __init__(self, values: Mapping[str, Any], source: str = CONFIG) -> None:
        self._values, self._source = values, source

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def integer(self, key: str, default: int | None = None, low: int = 1, high: int = MAX_SIZE) -> int:
        """Return a whole number between ``low`` and ``high``."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            at_most = f" and at most {high}" if isinstance(value, int) and value > high else ""
            raise self.error(f"{key}={short_repr(value)} must be an integer of at least {low}{at_most}")
        return value

    def number(self, key: str, default: float | None = None, high: float = sys.float_info.max) -> float:
        """Return a positive finite number of at most ``high``."""
        value = self._get(key, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 < value <= high:
            at_most = f" of at most {high:g}" if high < sys.float_info.max else ""
            raise self.error(f"{key}={short_repr(value)} must be a positive number{at_most}")
        return float(value)

    def flag(self, key: str, default: bool | None = None) -> bool:
        """Return true or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.error(f"{key}={short_repr(value)} must be true or false")
        return value

    def choice(self, key: str, allowed: Sequence[str], default: str | None = None) -> str:
        """Return one of ``allowed``."""
        value = self._get(key, default)
        if value not in allowed:
            raise self.error(f"{key}={short_repr(value)} is not supported (only {', '.join(allowed)})")
        return str(value)

    def token(self, key: str, vocab_size: int, default: int | None = None) -> int:
        """Return a token id inside the vocabulary."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(f"{key}={short_repr(value)} must be a token id (a whole number)")
        if not 0 <= value < vocab_size:
            raise self.error(f"{key}={short_repr(value)} is outside the vocabulary of {vocab_size}")
        return value

    def error(self, message: str) -> ModelLoadError:
        """Return the error for a value that cannot be used."""
        return ModelLoadError(f"{self._source}: {message}")

    def _get(self, key: str, default: Any) -> Any:
        value = self._values.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.error(f"lacks {key}")
        return value


def refuse_unsupported(
    values: Mapping[str, Any], only: Mapping[str, tuple[object, ...]], within: str = ""
) -> None:
    """Refuse values that ``only`` does not list for their key, and unknown formats of weights.

    Missing values and null are allowed. ``within`` names the nested object that has the values.
    """
    float8_block(values)
    for key, allowed in only.items():
        if values.get(key) is not None and values[key] not in allowed:
            wanted = f" (only {' or '.join(map(repr, allowed))})" if allowed else ""
            raise ModelLoadError(f"config.json: {within}{key}={values[key]!r} is not supported{wanted}")


_FLOAT8_HARMLESS = ("modules_to_not_convert", "ignored_layers", "scale_fmt")
"""Keys about the format that the tensors show themselves."""


def float8_block(values: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return rows and columns per scale of a checkpoint in float8, None for a plain one.

    Refuses every other quantisation by name. The tensors' dtypes show which modules are in float8.
    """
    found = values.get("quantization_config") or values.get("quantization")
    if found is None:
        return None
    stated = found if isinstance(found, Mapping) else {"quant_method": short_repr(found)}
    method = stated.get("quant_method") or _guessed_method(stated)
    if method != "fp8":
        raise _unsupported_quantisation(method, "fp8 with weight_block_size")
    for key, allowed in (("fmt", "e4m3"), ("activation_scheme", "dynamic")):
        if stated.get(key) not in (None, allowed):
            raise _unsupported_quantisation(f"fp8 with {key}={short_repr(stated[key])}", allowed)
    block, *_ = map(stated.get, ("weight_block_size", *_FLOAT8_HARMLESS))
    sizes = block if isinstance(block, list) else []
    if [type(size) for size in sizes] != [int, int] or min(sizes) < 32 or sizes[1] % 32:
        what = f"fp8 with weight_block_size={short_repr(block)}"
        raise _unsupported_quantisation(what, "two sizes of at least 32, a multiple of 32 columns")
    return sizes[0], sizes[1]


def _guessed_method(stated: Mapping[str, Any]) -> str:
    """Return the method of a file that does not name it, from its keys."""
    if any(key.startswith(("load_in_", "bnb_")) for key in stated):
        return "bitsandbytes"
    return "mlx" if "bits" in stated else "unknown"


def _unsupported_quantisation(what: str, allowed: str) -> ModelLoadError:
    return ModelLoadError(
        f"config.json: quantization_config {what} is not supported (only {allowed}); use the checkpoint that "
        "is not quantised (--weights fp8 converts experts)"
    )


def rope_values(values: Mapping[str, Any], *, scaled: bool = False, is_partial: bool = False) -> ConfigValues:
    """Return ``rope_theta`` and ``partial_rotary_factor``, from the top level or from a nested object.

    Refuses places that disagree, scaled angles unless the caller reads their values itself (``scaled``), and
    a part of a head unless the family has it (``is_partial``).
    """
    found = {key: values.get(key) for key in ("rope_theta", "partial_rotary_factor")}
    for key in ("rope_scaling", "rope_parameters"):
        nested = values.get(key) or {}
        if not isinstance(nested, Mapping):
            raise ModelLoadError(f"config.json: {key}={nested!r} is not supported (only null)")
        if not scaled:
            _refuse_scaling(key, nested)
        for name, stated in found.items():
            if nested.get(name) not in (None, stated) and stated is not None:
                raise ModelLoadError(
                    f"config.json: {name}={short_repr(stated)}, but {key}.{name}={short_repr(nested[name])}; "
                    "remove the one that the network does not use"
                )
        found |= {name: nested[name] for name in found if nested.get(name) is not None}
    if not is_partial:
        refuse_unsupported(found, {"partial_rotary_factor": (1,)})
    return ConfigValues(found)


def _refuse_scaling(key: str, nested: Mapping[str, Any]) -> None:
    """Refuse rotary angles other than the plain ones."""
    for name in ("rope_type", "type"):
        if nested.get(name) not in (None, "default"):
            raise ModelLoadError(
                f"config.json: {key}.{name}: rope type {nested[name]!r} is not supported (only 'default', no "
                "scaling)"
            )
    if nested.get("factor", 1.0) != 1.0:
        raise ModelLoadError(f"config.json: {key}.factor={nested['factor']!r} is not supported (only 1.0)")


def short_repr(value: object) -> str:
    """Return ``repr(value)``, cut to 40 characters."""
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "…"


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
_ON_WITHOUT = re.compile(
    r"((use|is|apply|do)_)?(rope|rotary(_emb(eddings?)?)?|(pre|final|rms)_?(layer_?)?norm|(swi)?glu"
    r"|gated_(mlp|linear_unit)|layer_norm_before|residuals?|diffusion|bidirectional(_attention)?)|norm_first"
    r"|scale_attn_weights|(elementwise|(layer_)?norm(_with)?)_affine"
)
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
    off = value in (None, "", [], {}) or (value is False and not _ON_WITHOUT.fullmatch(key))
    return off or key in harmless or _HARMLESS_KINDS.fullmatch(key) is not None
