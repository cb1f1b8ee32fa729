"""Decoding through our engine, compared with the transformers classes, with unusual options."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

import torch
import transformers

from orderlens.decode.generate import GenerationSettings, generate_batch
from orderlens.models.loading import load_model
from orderlens.rules import parse_policies
from orderlens.texts.samples import EncodedSample
from support import write_bert, write_modernbert, write_roberta, write_xlnet

MASK, BLOCK, LENGTH = 60, 5, 10
PROMPT = np.random.default_rng(1).integers(9, 50, 7)
NARROW = {"hidden_size": 36, "num_attention_heads": 3, "max_position_embeddings": 40}
CASES = {
    "bert": (write_bert, "BertForMaskedLM", {"hidden_act": "gelu_new", "type_vocab_size": 3}),
    "bert-untied": (write_bert, "BertForMaskedLM", {**NARROW, "tie_word_embeddings": False}),
    "roberta": (write_roberta, "RobertaForMaskedLM", {**NARROW, "pad_token_id": 5, "layer_norm_eps": 1e-3}),
    "modernbert": (
        write_modernbert,
        "ModernBertForMaskedLM",
        {**NARROW, "attention_bias": True, "mlp_bias": True, "norm_bias": True, "decoder_bias": False,
         "local_attention": 6, "global_attn_every_n_layers": 2},
    ),
    "xlnet": (write_xlnet, "XLNetLMHeadModel", {"n_head": 2, "clamp_len": 4, "untie_r": False, "mem_len": 8}),
}  # fmt: skip


def rows(network: Any, tokens: np.ndarray) -> np.ndarray:
    """Log-probabilities of hidden positions [hidden, V] without the mask; XLNet is asked one at a time."""
    ids, hidden = torch.tensor(tokens)[None], np.flatnonzero(tokens == MASK)
    if type(network).__name__.startswith("XLNet"):
        unseen = (ids == MASK).float()[:, None].expand(1, len(tokens), len(tokens))
        one_hot = torch.eye(len(tokens))[hidden]
        found = [
            network(ids, perm_mask=unseen, target_mapping=one[None, None]).logits[0, 0] for one in one_hot
        ]
        logits = torch.stack(found)
    else:
        logits = network(input_ids=ids).logits[0, hidden]
    logits[:, MASK] = -torch.inf
    return logits.double().log_softmax(-1).numpy()


@pytest.mark.parametrize("case", CASES)
def test_every_reveal_is_what_the_class_says(tmp_path, case):
    """Token, place and log q of every step, on canvases that the class is given as they are."""
    write, name, changes = CASES[case]
    write(tmp_path, tokenizer=False, **changes)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "mask_token_id": MASK}))
    network = getattr(transformers, name).from_pretrained(tmp_path).eval().requires_grad_(False)
    model = load_model(str(tmp_path), device="cpu").with_block_size(BLOCK)
    sample = EncodedSample("x", PROMPT, np.array([], np.int64))
    settings = GenerationSettings(max_new_tokens=LENGTH, stop_at_eos=False)
    columns = generate_batch(model, [sample], parse_policies("max-prob"), settings).columns
    canvas = np.concatenate([PROMPT, np.full(LENGTH, MASK)])
    for position, token, logq in zip(columns["position"], columns["token_id"], columns["logq"], strict=True):
        start = len(PROMPT) + (position - len(PROMPT)) // BLOCK * BLOCK
        hidden = np.flatnonzero(canvas == MASK)
        said = dict(zip(hidden.tolist(), rows(network, canvas), strict=True))
        surest = max(said[place].max() for place in said if start <= place < start + BLOCK)
        assert said[position][token] == pytest.approx(surest, abs=1e-5)  # two may be as sure but for rounding
        assert logq == pytest.approx(surest, abs=1e-5)
        canvas[position] = token
