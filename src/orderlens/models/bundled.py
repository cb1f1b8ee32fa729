"""Checkpoint folders of our own transformer: ``config.json``, ``model.safetensors``, ``tokenizer.json``.

``orderlens train`` writes such folders, and the bundled models are two of them. Knows nothing of decoding.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from orderlens.errors import ModelLoadError, UnknownNameError
from orderlens.files import replacing, write_text
from orderlens.models.bpe import BpeTokenizer
from orderlens.models.quantised import file_digest, load_weights, save_weights
from orderlens.models.transformer import Transformer, TransformerConfig

MODEL_TYPE = "orderlens"
CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
BUNDLED = ("tiny", "tiny-ar")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A network in float32 and evaluation mode, its shape, its tokenizer and a digest of its files."""

    network: Transformer
    config: TransformerConfig
    tokenizer: BpeTokenizer
    digest: str


def bundled_folder(name: str) -> Path:
    """Return the folder of a bundled model inside the installed package."""
    if name not in BUNDLED:
        raise UnknownNameError(f"unknown bundled model '{name}' (known: {', '.join(BUNDLED)})")
    return Path(str(files("orderlens"))) / "data" / "models" / name


def is_model_folder(folder: Path) -> bool:
    """Tell whether ``folder`` holds a checkpoint of our own layout."""
    path = folder / CONFIG
    return path.is_file() and _read_json(path).get("model_type") == MODEL_TYPE


def load_folder(folder: Path) -> LoadedModel:
    """Load a checkpoint folder."""
    config = read_config(folder)
    with torch.random.fork_rng(devices=[]):  # the first weights are drawn at random, and then replaced
        network = Transformer(config)
    state = load_weights(folder / WEIGHTS)
    _check_shapes(folder, network, {name: tuple(tensor.shape) for name, tensor in state.items()})
    network.load_state_dict(state, assign=True)
    tokenizer = BpeTokenizer.from_file(folder / TOKENIZER)
    if tokenizer.vocab_size > config.vocab_size:
        raise ModelLoadError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} ids, the model {config.vocab_size}"
        )
    network.requires_grad_(False).eval()
    digest = file_digest(*(folder / name for name in (CONFIG, WEIGHTS, TOKENIZER)))
    return LoadedModel(network, config, tokenizer, digest)


def load_bundled(name: str) -> LoadedModel:
    """Load ``tiny`` or ``tiny-ar``."""
    return load_folder(bundled_folder(name))


def save_folder(
    folder: Path,
    network: Transformer,
    tokenizer: BpeTokenizer,
    *,
    int8: bool = True,
    notes: dict[str, Any] | None = None,
) -> None:
    """Write a checkpoint folder; ``notes`` (plain data) are kept in ``config.json`` for the reader."""
    record = {"model_type": MODEL_TYPE, **asdict(network.config), "notes": notes or {}}
    with replacing(folder / WEIGHTS) as fresh:
        save_weights(fresh, network.state_dict(), int8=int8)
    with replacing(folder / TOKENIZER) as fresh:
        tokenizer.save(fresh)
    write_text(folder / CONFIG, json.dumps(record, indent=2) + "\n")  # last: it makes the folder a model


def read_config(folder: Path) -> TransformerConfig:
    """Read the shape of the model in ``folder``; unknown keys are ignored."""
    path = folder / CONFIG
    if not path.is_file():
        raise ModelLoadError(f"{folder}: no {CONFIG}; not a model folder")
    record = _read_json(path)
    if record.get("model_type") != MODEL_TYPE:
        raise ModelLoadError(f"{path}: model_type is {record.get('model_type')!r}, expected {MODEL_TYPE!r}")
    known = {field.name for field in fields(TransformerConfig)}
    return TransformerConfig(**{key: value for key, value in record.items() if key in known})


def _read_json(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"{path}: not JSON ({error})") from error
    if not isinstance(record, dict):
        raise ModelLoadError(f"{path}: expected a JSON object")
    return record


def _check_shapes(folder: Path, network: Transformer, found: dict[str, tuple[int, ...]]) -> None:
    wanted = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    wrong = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    if wrong:
        name = wrong[0]
        raise ModelLoadError(
            f"{folder / WEIGHTS}: {len(wrong)} tensors do not fit config.json, "
            f"first '{name}': file {found.get(name)}, config {wanted.get(name)}"
        )
