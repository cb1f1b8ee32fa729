"""BERT, RoBERTa and ModernBERT masked language models, through the classes of transformers.

A canvas goes in as it is: no [CLS] and no [SEP] are added, because an inserted token would shift every
position; prompt and suffix may hold them. Position ids, token types and attention are the class's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from orderlens.models.engine import hf
from orderlens.models.engine.model import CastableModel
from orderlens.models.files.configfile import CONFIG, MAX_CONTEXT, Values, read_json
from orderlens.models.files.roles import Published, find_roles
from orderlens.models.files.tokenizer import FastTokenizer, has_tokenizer
from orderlens.models.options import LoadOptions


@dataclass(frozen=True, slots=True)
class EncoderKind:
    """One of the three families.

    Attributes:
        class_name: its class in transformers.
        mask: name of the mask and its published id.
        end: name of the token that ends a text and its published id.
        padded_start: positions up to the padding id's are never used (RoBERTa).
    """

    class_name: str
    mask: tuple[str, int]
    end: tuple[str, int]
    padded_start: bool = False


BERT = EncoderKind("BertForMaskedLM", ("[MASK]", 103), ("[SEP]", 102))
ROBERTA = EncoderKind("RobertaForMaskedLM", ("<mask>", 50264), ("</s>", 2), padded_start=True)
MODERNBERT = EncoderKind("ModernBertForMaskedLM", ("[MASK]", 50284), ("[SEP]", 50282))


def load_bert(folder: Path, name: str, options: LoadOptions) -> CastableModel:
    """Load a BERT checkpoint."""
    return _load(folder, name, options, BERT)


def load_roberta(folder: Path, name: str, options: LoadOptions) -> CastableModel:
    """Load a RoBERTa checkpoint."""
    return _load(folder, name, options, ROBERTA)


def load_modernbert(folder: Path, name: str, options: LoadOptions) -> CastableModel:
    """Load a ModernBERT checkpoint."""
    return _load(folder, name, options, MODERNBERT)


def _load(folder: Path, name: str, options: LoadOptions, kind: EncoderKind) -> CastableModel:
    return hf.load_model(_source(folder, kind), name, options, lambda tokens_NW: {"input_ids": tokens_NW})


def _source(folder: Path, kind: EncoderKind) -> hf.Source:
    config = read_json(folder / CONFIG)
    values = Values(config, str(folder / CONFIG))
    if values.flag("is_decoder", default=False):
        raise values.error("is_decoder=true is autoregressive: it has no reveal orders")
    vocab_size = values.integer("vocab_size", low=3)
    positions = values.integer("max_position_embeddings", low=2, high=MAX_CONTEXT)
    if kind.padded_start:
        positions -= values.token("pad_token_id", vocab_size, 1) + 1
    tokenizer = FastTokenizer.from_folder(folder) if has_tokenizer(folder) else None
    ends = None if tokenizer is None else tokenizer.id_of(kind.end[0])
    published = Published(kind.mask[1], (kind.mask[0],), kind.end[1] if ends is None else ends)
    roles = find_roles(folder, config, vocab_size, tokenizer, published)
    return hf.Source(folder, config, kind.class_name, vocab_size, positions, roles, tokenizer)
