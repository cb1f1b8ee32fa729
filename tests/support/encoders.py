"""Small random BERT, RoBERTa, ModernBERT and XLNet checkpoints, as transformers saves them.

Needs torch, tokenizers and transformers when called.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.letters import LETTERS, write_letters

_BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_ROBERTA = ("<s>", "<pad>", "</s>", "<unk>")
_XLNET = ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>")
_SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 200,
}


def write_bert(folder: Path, *, seed: int = 0, tokenizer: bool = True, **changes: Any) -> dict[str, Any]:
    """Write a folder that ``load_model`` reads; return the tensors by published name.

    Args:
        folder: made if it does not exist.
        seed: of the weights.
        tokenizer: whether to write a tokenizer.
        changes: further values for the configuration.
    """
    names = {"mask_token": "[MASK]", "sep_token": "[SEP]"} if tokenizer else None
    shape = {**_SHAPE, "vocab_size": len(_BERT) + len(LETTERS) + 3, "pad_token_id": 0, **changes}
    return _write(folder, "Bert", shape, seed, (_BERT, ()), names)


def write_roberta(folder: Path, *, seed: int = 0, tokenizer: bool = True, **changes: Any) -> dict[str, Any]:
    """Write a RoBERTa folder; arguments as for ``write_bert``."""
    names = {"mask_token": "<mask>", "eos_token": "</s>"} if tokenizer else None
    shape = {**_SHAPE, "vocab_size": len(_ROBERTA) + len(LETTERS) + 1, "pad_token_id": 1, **changes}
    return _write(folder, "Roberta", shape, seed, (_ROBERTA, ("<mask>",)), names)


def write_modernbert(
    folder: Path, *, seed: int = 0, tokenizer: bool = True, **changes: Any
) -> dict[str, Any]:
    """Write a ModernBERT folder: every third layer sees all, the others eight neighbours."""
    names = {"mask_token": "[MASK]", "sep_token": "[SEP]"} if tokenizer else None
    ids = {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
    local = {"num_hidden_layers": 4, "global_attn_every_n_layers": 3, "local_attention": 8}
    shape = {**_SHAPE, **ids, **local, "vocab_size": len(_BERT) + len(LETTERS) + 3, **changes}
    return _write(folder, "ModernBert", shape, seed, (_BERT, ()), names)


def write_xlnet(folder: Path, *, seed: int = 0, tokenizer: bool = True, **changes: Any) -> dict[str, Any]:
    """Write an XLNet folder; arguments as for ``write_bert``."""
    names = {"mask_token": "<mask>", "eos_token": "</s>"} if tokenizer else None
    shape = {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48, "mem_len": None}
    shape |= {"vocab_size": len(_XLNET) + len(LETTERS), **changes}
    return _write(folder, "XLNet", shape, seed, (_XLNET, ()), names)


def _write(
    folder: Path,
    family: str,
    shape: dict[str, Any],
    seed: int,
    specials: tuple[tuple[str, ...], tuple[str, ...]],
    names: dict[str, str] | None,
) -> dict[str, Any]:
    import torch
    import transformers

    head = "LMHeadModel" if family == "XLNet" else "ForMaskedLM"
    config = getattr(transformers, f"{family}Config")(**shape)
    with torch.random.fork_rng(devices=[]):
        network = getattr(transformers, f"{family}{head}")(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            values = torch.randn(parameter.shape, generator=generator)
            scale = 1.2 / parameter.shape[-1] ** 0.5 if parameter.ndim > 1 else 0.4
            centre = 1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0
            parameter.copy_(centre + scale * values)
    folder.mkdir(parents=True, exist_ok=True)
    network.save_pretrained(folder)
    if names is not None:
        write_letters(folder, before=specials[0], after=specials[1], settings=names)
    return dict(network.state_dict())
