"""Never the wrong network: a family is chosen by its network, and each key is understood or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from contracts.test_every_model import CHECKPOINTS
from orderlens.errors import ModelLoadError, UnknownNameError
from orderlens.models.checkpoint_info import describe_checkpoint
from orderlens.models.files.configfile import parse_known
from orderlens.models.loading import load_model
from support import write_dense, write_llada2
from support.dense import write_shards

PLANTED: dict[str, Any] = {
    "use_hybrid_mixer": True,
    "expert_capacity": 48,
    "canvas_length": 256,
    "moe_router_topk_scaling": 1.5,
    "residual_multiplier": 0.5,
    "attention_pattern": "local",
    "layer_plan": ["a", "b"],
    "per_layer_config": {"0": {"head_dim": 4}},
    "expand_token_id": 3,
    "router_loss_free_bias": True,
}
"""Keys that no family defines, with values that could change the computation."""
READ_BY_TRANSFORMERS = {"bert", "roberta", "modernbert", "xlnet"}


@pytest.fixture(scope="module", params=CHECKPOINTS)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    family, write, options = CHECKPOINTS[request.param]
    folder = tmp_path_factory.mktemp("checkpoint") / "model"
    write(folder, **options)
    return family, folder


def planted(folder: Path, copy: Path, **changes: Any) -> Path:
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).symlink_to(path)
    config = json.loads((folder / "config.json").read_text())
    (copy / "config.json").unlink()
    (copy / "config.json").write_text(json.dumps(config | changes))
    return copy


@pytest.mark.parametrize("key", PLANTED)
def test_an_unknown_key_is_refused_by_name(written: tuple[str, Path], tmp_path: Path, key: str) -> None:
    family, folder = written
    if key == "expert_capacity" and family == "llada2_moe":
        pytest.skip("LLaDA-2.2 has it")
    copy = planted(folder, tmp_path / "copy", **{key: PLANTED[key]})
    with pytest.raises(ModelLoadError, match=rf"{key}=.*is not supported"):
        load_model(str(copy), device="cpu")
    if family not in READ_BY_TRANSFORMERS | {"orderlens"}:  # these have no reader
        with pytest.raises(ModelLoadError, match=key):
            describe_checkpoint(str(copy))


def test_a_switch_that_is_another_network_is_refused(written: tuple[str, Path], tmp_path: Path) -> None:
    family, folder = written
    if family != "orderlens":  # it defines qk_norm
        with pytest.raises(ModelLoadError, match="qk_norm=True is not supported"):
            load_model(str(planted(folder, tmp_path / "norm", qk_norm=True)), device="cpu")
    if family != "modernbert":  # its class reads the key
        for number, rope in enumerate(({"rope_type": "yarn", "factor": 4.0}, {"rope_type": "linear"})):
            copy = planted(folder, tmp_path / str(number), rope_parameters=rope)
            with pytest.raises(ModelLoadError, match="rope_parameters"):
                load_model(str(copy), device="cpu")
    switches = "rope use_rotary_embeddings pre_norm norm_first final_norm gated_mlp bidirectional norm_affine"
    for key in switches.split():
        if (family, key) != ("llada", "rope"):
            with pytest.raises(ModelLoadError, match=f"{key}=False is not supported"):
                load_model(str(planted(folder, tmp_path / key, **{key: False})), device="cpu")


def test_norms_that_are_switched_off_are_refused(written: tuple[str, Path], tmp_path: Path) -> None:
    family, folder = written
    if family not in {"llada2_moe", "lladamoe", "sdar", "sdar_moe"}:
        pytest.skip("no norms on queries and keys, or its own key for them")
    with pytest.raises(ModelLoadError, match="qk_norm=False is not supported"):
        load_model(str(planted(folder, tmp_path / "norm", qk_norm=False)), device="cpu")


@pytest.mark.parametrize("place", [None, "rope_parameters", "rope_scaling"])
def test_a_part_of_a_head_is_refused_where_all_of_it_turns(
    written: tuple[str, Path], tmp_path: Path, place: str | None
) -> None:
    family, folder = written
    if family not in {"llada", "Dream", "sdar", "sdar_moe", "Fast_dLLM_Qwen", "nemotron_labs_diffusion"}:
        pytest.skip("its class reads the key, or refuses it as unknown")
    config = json.loads((folder / "config.json").read_text())
    part = {"partial_rotary_factor": 0.5}
    copy = planted(
        folder, tmp_path / "part", **({place: (config.get(place) or {}) | part} if place else part)
    )
    with pytest.raises(ModelLoadError, match=r"partial_rotary_factor=0\.5 is not supported \(only 1\)"):
        load_model(str(copy), device="cpu")


def test_harmless_keys_change_nothing(written: tuple[str, Path], tmp_path: Path) -> None:
    harmless = {
        "transformers_version": "5.0",
        "use_cache": True,
        "auto_map": {"AutoModel": "x.Y"},
        "attention_dropout": 0.1,
        "initializer_range": 0.02,
        "bos_token_id": 1,
        "debug": False,
        "some_switch": False,
        "output_router_logits": True,
        "router_aux_loss_coef": 0.01,
        "something": None,
        "nothing_pruned": {},
    }
    _, folder = written
    tokens = list(range(5, 25))
    copy = planted(folder, tmp_path / "copy", **harmless)
    same = load_model(str(copy), device="cpu").log_probs(tokens)
    assert (same == load_model(str(folder), device="cpu").log_probs(tokens)).all()


def test_nested_keys_are_read_too() -> None:
    def parse(values: Any) -> int:
        return int(values["model"]["width"])

    assert parse_known(parse, {"model": {"width": 3, "dropout": 0.1}}) == 3
    with pytest.raises(ModelLoadError, match=r"model\.depth=2, heads=4 is not supported"):
        parse_known(parse, {"model": {"width": 3, "depth": 2}, "heads": 4})
    assert parse_known(parse, {"model": {"width": 3}, "heads": 4}, ["heads"]) == 3


def test_both_places_of_rotary_values_are_checked(tmp_path: Path) -> None:
    write_dense(tmp_path, family="Dream", rope_parameters={"rope_theta": 7.0}, rope_scaling={"type": "yarn"})
    with pytest.raises(ModelLoadError, match=r"rope_scaling\.type: rope type 'yarn'"):
        load_model(str(tmp_path), device="cpu")


@pytest.mark.parametrize("place", ["rope_parameters", "rope_scaling"])
def test_two_bases_of_rotary_angles_are_refused(
    written: tuple[str, Path], tmp_path: Path, place: str
) -> None:
    family, folder = written
    config = json.loads((folder / "config.json").read_text())
    if "rope_theta" not in config or family in {"orderlens", "nemotron_labs_diffusion"}:
        pytest.skip("no such base, or no unscaled angles")
    same = {"rope_type": "default", "rope_theta": config["rope_theta"]}
    load_model(str(planted(folder, tmp_path / "same", **{place: same})), device="cpu")
    copy = planted(folder, tmp_path / "other", **{place: same | {"rope_theta": 77.0}})
    with pytest.raises(ModelLoadError, match=rf"rope_theta=.*, but {place}\.rope_theta=77\.0"):
        load_model(str(copy), device="cpu")


def test_a_tied_output_matrix_with_other_numbers_is_refused(tmp_path: Path) -> None:
    tensors = write_dense(tmp_path, family="Dream", tie_word_embeddings=True)
    embedding = tensors["model.embed_tokens.weight"]
    write_shards(tmp_path, tensors | {"lm_head.weight": embedding.clone()}, 2)
    assert load_model(str(tmp_path), device="cpu").vocab_size == len(embedding)
    write_shards(tmp_path, tensors | {"lm_head.weight": embedding + 1}, 2)
    with pytest.raises(ModelLoadError, match=r"lm_head\.weight differs from model\.embed_tokens\.weight"):
        load_model(str(tmp_path), device="cpu")


def test_the_network_counts_more_than_the_model_type(tmp_path: Path) -> None:
    for stated in (["DreamForCausalLM"], "DreamForCausalLM"):
        write_dense(tmp_path, family="Dream", architectures=stated)
        with pytest.raises(ModelLoadError, match="DreamForCausalLM is not supported: Dream-Reasoner"):
            load_model(str(tmp_path), device="cpu")
    write_dense(tmp_path, family="Dream", architectures=["DreamWithTwists"])
    with pytest.raises(
        UnknownNameError, match=r"names DreamWithTwists, but model_type 'Dream' means DreamModel"
    ):
        load_model(str(tmp_path), device="cpu")


def test_a_network_without_masks_is_refused_with_the_reason(tmp_path: Path) -> None:
    for stated in (
        {"architectures": ["DiffusionGemmaForBlockDiffusion"]},
        {"model_type": "diffusion_gemma", "architectures": None},
    ):
        write_llada2(tmp_path, **stated)
        with pytest.raises(ModelLoadError, match="DiffusionGemma has no mask token"):
            load_model(str(tmp_path), device="cpu")


PUBLISHED: dict[str, dict[str, Any]] = {
    "sdar": {
        "auto_map": {"AutoConfig": "configuration_sdar.SDARConfig"},
        "attention_dropout": 0.0,
        "attn_implementation": "flex_attention",
        "bos_token_id": 98,
        "debug": False,
        "ep_size": 1,
        "fuse_cross_entropy": True,
        "initializer_range": 0.02,
        "max_window_layers": 36,
        "micro_forward": False,
        "skip_checkpoint": False,
        "sliding_window": None,
        "transformers_version": "4.52.4",
        "use_cache": False,
        "use_deepep": False,
    },
    "llada": {
        "alibi_bias_max": 8.0,
        "attention_dropout": 0.0,
        "attention_layer_norm_with_affine": True,
        "embedding_dropout": 0.0,
        "flash_attention": False,
        "init_cutoff_factor": None,
        "init_device": "meta",
        "init_fn": "mitchell",
        "init_std": 0.02,
        "multi_query_attention": None,
        "precision": "amp_bf16",
        "residual_dropout": 0.0,
        "transformers_version": "4.46.3",
        "use_cache": False,
    },
    "Dream": {
        "attention_dropout": 0.0,
        "bos_token_id": 98,
        "initializer_range": 0.02,
        "max_window_layers": 28,
        "sliding_window": 4096,
        "use_cache": True,
    },
    "Fast_dLLM_Qwen": {
        "attention_dropout": 0.0,
        "bd_size": 8,
        "bos_token_id": 98,
        "conplemenrary_mask": True,
        "layer_types": ["full_attention"] * 3,
        "max_window_layers": 28,
        "sliding_window": None,
        "use_mrope": False,
    },
    "nemotron_labs_diffusion": {
        "ar_loss_weight": 1.0,
        "attention_dropout": 0.0,
        "attn_implementation": "sdpa",
        "bos_token_id": 1,
        "dlm_loss_weight": None,
        "dlm_paradigm": "bidirectional",
        "dp_varying_mask_ratio": False,
        "initializer_range": 0.02,
        "mlp_bias": False,
        "rope_theta": 1000.0,
        "use_cache": False,
    },
}
"""Keys of the published files and configuration classes that the small checkpoints lack."""


@pytest.mark.parametrize("family", PUBLISHED)
def test_published_keys_are_accepted(tmp_path: Path, family: str) -> None:
    write_dense(tmp_path, family=family, **PUBLISHED[family])
    assert load_model(str(tmp_path), device="cpu").attention in ("full", "block-causal")


def test_published_keys_of_llada2_are_accepted(tmp_path: Path) -> None:
    write_llada2(
        tmp_path,
        embedding_dropout=0.0,
        output_dropout=0.0,
        initializer_range=0.02,
        max_window_layers=28,
        moe_shared_expert_intermediate_size=32,
        norm_head=False,
        norm_softmax=False,
        num_nextn_predict_layers=0,
        output_router_logits=False,
        rotary_dim=8,
        sliding_window=4096,
        use_cache=True,
        use_qk_norm=True,
        use_rmsnorm=True,
        use_sliding_window=False,
        using_split_qkv_in_self_attention=False,
    )
    assert load_model(str(tmp_path), device="cpu").block_size == 32
    write_llada2(tmp_path / "other", rotary_dim=4)
    with pytest.raises(ModelLoadError, match="rotary_dim=4 is not supported"):
        load_model(str(tmp_path / "other"), device="cpu")
    write_llada2(tmp_path / "other", moe_shared_expert_intermediate_size=48)
    with pytest.raises(ModelLoadError, match="moe_shared_expert_intermediate_size=48 is not supported"):
        load_model(str(tmp_path / "other"), device="cpu")


def test_the_rotary_base_of_llada22_is_not_guessed(tmp_path: Path) -> None:
    write_llada2(tmp_path, expert_capacity=5, rope_theta=None)
    with pytest.raises(ModelLoadError, match="lacks rope_theta"):
        load_model(str(tmp_path), device="cpu")
    write_llada2(tmp_path, expert_capacity=5, rope_theta=None, rope_parameters={"rope_theta": 3e6})
    model: Any = load_model(str(tmp_path), device="cpu")
    assert model.config.rope_theta == 3e6
