"""``orderlens models``: what it says about the families is what their code does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orderlens.cli.main import main
from orderlens.errors import ModelLoadError
from orderlens.models.family_facts import FACTS, UNSUPPORTED, facts, refused
from orderlens.models.family_index import BUILTIN, find_family
from orderlens.models.loading import load_model
from orderlens.rules import parse_policies
from support import write_dense

ANCHORS = {"zero": "from 0", "prompt": "from the prompt's end"}


def dialects() -> dict[str, Any]:
    pytest.importorskip("torch")
    from orderlens.models.families import dream, fast_dllm, llada, llada2, llada_moe, nemotron, sdar

    return {
        "llada2_moe": llada2.DIALECT,
        "llada": llada.DIALECT,
        "lladamoe": llada_moe.DIALECT,
        "Dream": dream.DIALECT,
        "sdar": sdar.DIALECT,
        "sdar_moe": sdar.MOE_DIALECT,
        "Fast_dLLM_Qwen": fast_dllm.DIALECT,
        "nemotron_labs_diffusion": nemotron.DIALECT,
    }


def test_every_family_has_facts() -> None:
    assert set(FACTS) == set(BUILTIN) - {"orderlens"}  # whose folders state them
    assert all(all(found.row.values()) for found in FACTS.values())
    assert facts("somebody's") == {}


def test_facts_are_those_of_the_code() -> None:
    for name, dialect in dialects().items():
        found = FACTS[name]
        assert found.mask == str(dialect.roles.mask_id), name
        assert (found.shifted, found.causal_past) == (dialect.shifted, dialect.causal_past), name
        assert found.grid.startswith(str(dialect.block_size)), name
        assert found.grid.endswith(ANCHORS[dialect.anchor]), name
        shapes = dialect.published or {}
        assert all(shape.attention == found.attention for shape in shapes.values()), name
        assert dialect.block_in_name == ("-bN" in found.grid), name


@pytest.mark.parametrize("rule", ["max-prob", "random", "entropy", "max-prob+above=0.85", "seed-first"])
def test_named_rules_exist(rule: str) -> None:
    assert any(rule in found.rule for found in FACTS.values())
    assert parse_policies(rule)


@pytest.mark.parametrize(
    ("published", "family"),
    [
        ("Dream-org/Dream-Coder-v0-Instruct-7B", "Dream"),
        ("apple/DiffuCoder-7B-cpGRPO", "Dream"),
        ("d3LLM/d3LLM_Dream", "Dream"),
        ("Gen-Verse/TraDo-8B-Instruct", "sdar"),
        ("d3LLM/d3LLM_LLaDA", "llada"),
    ],
)
def test_relatives_are_loaded_as_what_they_are(tmp_path: Path, published: str, family: str) -> None:
    """They publish the files of another family under their own name."""
    name = published.partition("/")[2].replace("_", "-").partition("-7B")[0].partition("-8B")[0]
    named = name.removesuffix("-v0-Instruct").removesuffix("-cpGRPO")
    assert named in FACTS[family].models
    write_dense(tmp_path, family=family, _name_or_path=published, mask_token_id=99)
    assert find_family(tmp_path) == family
    model: Any = load_model(str(tmp_path), device="cpu")
    assert model.attention == FACTS[family].attention
    assert model.facts.shifted == FACTS[family].shifted


@pytest.mark.parametrize("name", ["WeDLMForCausalLM", "DreamForCausalLM"])
def test_networks_that_are_not_loaded_say_why_and_what_to_do(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [name], "model_type": "Dream"}))
    with pytest.raises(ModelLoadError, match=rf"{name} is not supported: .*ol\.wrap"):
        load_model(str(tmp_path), device="cpu")
    assert name in refused()
    assert name.casefold() in UNSUPPORTED


def test_the_list_shows_facts_and_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json"]) == 0
    rows = {row["id"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["Dream"]["logits"] == "shifted by one"
    assert rows["sdar_moe"]["exact cache"].startswith("yes")
    assert rows["DiffusionGemmaForBlockDiffusion"]["kind"] == "not supported"
    assert all("docs/" in row["summary"] for row in rows.values() if row["kind"] == "not supported")
    assert main(["models"]) == 0
    text = capsys.readouterr().out
    assert "DiffuCoder" in text
    assert "checked against" in text
