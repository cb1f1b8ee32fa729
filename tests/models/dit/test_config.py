"""What the configuration files of MDLM, BD3-LM and SEDD say; weights are counted in the stored files."""

from __future__ import annotations

import json
import math

import pytest

from orderlens.errors import ModelLoadError
from orderlens.models.dit.config import is_sedd, parse_bd3lm, parse_mdlm, parse_sedd
from support import write_bd3lm, write_mdlm, write_sedd
from support.dit import BD3LM, MDLM, SEDD

PARSE = {"mdlm": parse_mdlm, "bd3lm": parse_bd3lm, "sedd": parse_sedd}
RECORDS = {"mdlm": MDLM, "bd3lm": BD3LM, "sedd": SEDD}


@pytest.mark.parametrize("kind", PARSE)
def test_weights_are_counted_as_they_are_stored(tmp_path, kind):
    pytest.importorskip("torch")
    write = {"mdlm": write_mdlm, "bd3lm": write_bd3lm, "sedd": write_sedd}[kind]
    tensors = write(tmp_path, tokenizer=False)
    config = PARSE[kind](json.loads((tmp_path / "config.json").read_text()))
    learned = [value for name, value in tensors.items() if not any(n in name for n in ("rotary", "sampling"))]
    assert config.n_parameters == sum(value.numel() for value in learned)
    assert config.vocab_size == max(
        value.shape[0] for name, value in tensors.items() if "vocab_embed" in name
    )
    assert (config.width, config.head_width, config.n_kv_heads) == (32, 8, 4)


@pytest.mark.parametrize(
    ("kind", "attention", "block", "cached"),
    [("mdlm", "full", 32, 0), ("bd3lm", "block-causal", 8, 2 * 2 * 32), ("sedd", "full", 32, 0)],
)
def test_what_a_position_sees_and_what_is_cached(kind, attention, block, cached):
    config = PARSE[kind](RECORDS[kind])
    assert (config.attention, config.block_size, config.kv_values_per_token) == (attention, block, cached)
    assert config.mask_id == config.vocab_size - 1
    assert config.eos_id == config.vocab_size - 2
    assert config.prefix == ("" if kind == "sedd" else "backbone.")


def test_a_bd3lm_without_blocks_is_an_mdlm_with_noise_where_it_says_so():
    plain = parse_bd3lm(BD3LM | {"cross_attn": False})
    assert (plain.attention, plain.block_size, plain.sigmas) == ("full", 32, None)
    timed = parse_bd3lm(BD3LM | {"cross_attn": False, "time_conditioning": True})
    assert timed.sigmas == parse_mdlm(MDLM | {"time_conditioning": True}).sigmas is not None


def test_noise_levels_are_those_of_the_schedules():
    """Loglinear: sigma(t) = −log(1 − 0.999 t) at t = 1e-5 and t = 1."""
    low, high = parse_sedd(SEDD).sigmas
    assert low == pytest.approx(-math.log(1 - 0.999e-5), rel=1e-12)
    assert high == pytest.approx(math.log(1000), rel=1e-12)
    geometric = SEDD | {"noise": {"type": "geometric", "sigma_min": 1e-4, "sigma_max": 20}}
    assert parse_sedd(geometric).sigmas == (1e-4, 20)
    assert parse_sedd(SEDD | {"noise": {"type": "geometric"}}).sigmas == (1e-3, 1.0)
    assert parse_mdlm(MDLM).sigmas is None


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("bd3lm", {"causal": True}, "autoregressive"),
        ("bd3lm", {"adaln": False}, "adaln=false"),
        ("bd3lm", {"time_conditioning": True}, "no exact prefix cache"),
        ("mdlm", {"n_heads": 3}, "32 cannot be split into 3 heads of even width"),
        ("mdlm", {"n_heads": 32}, "32 cannot be split into 32 heads of even width"),
        ("mdlm", {"mask_token_id": 5, "eos_token_id": 5}, "mask and EOS have the same id"),
        ("mdlm", {"vocab_size": 2}, "vocab_size=2 must be an integer of at least 3"),
        ("sedd", {"graph": {"type": "uniform"}}, "graph: type='uniform'"),
        ("sedd", {"tokens": 1}, "tokens=1 must be an integer of at least 2"),
        ("sedd", {"noise": {"type": "geometric", "sigma_min": 2, "sigma_max": 2}}, "must be below sigma_max"),
        ("sedd", {"model": 3}, "model=3 must be an object"),
        ("sedd", {"model": None}, "model: lacks hidden_size"),
        ("sedd", {"noise": "geometric"}, "noise='geometric' must be an object"),
    ],
)
def test_what_cannot_be_meant_is_refused(kind, changes, words):
    with pytest.raises(ModelLoadError, match=words):
        PARSE[kind](RECORDS[kind] | changes)


def test_missing_keys_take_the_published_defaults():
    config = parse_mdlm({})
    assert (config.vocab_size, config.width, config.n_layers, config.n_heads) == (50258, 768, 12, 12)
    assert (config.mask_id, config.eos_id, config.max_positions) == (50257, 50256, 1024)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, True),
        ({"model_type": "sedd"}, False),
        ({"tokens": "50257"}, False),
        ({"graph": "absorb"}, False),
        ({"graph": {}}, False),
        ({"model": {"hidden_size": 3}}, False),
        ({"model": None}, False),
    ],
)
def test_a_training_configuration_is_known_by_its_parts(changes, found):
    assert is_sedd(SEDD | changes) is found
