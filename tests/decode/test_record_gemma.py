"""DiffusionGemma of transformers on small random weights: what is recorded, against notes of its sampler."""

from __future__ import annotations

import pytest

import orderlens as ol
from orderlens.decode.record_gemma import canvas_log_probs
from orderlens.errors import UserInputError
from orderlens.show.views.replay import canvas as replayed

torch = pytest.importorskip("torch")
theirs = pytest.importorskip(
    "transformers.models.diffusion_gemma", reason="DiffusionGemma needs transformers 5.22"
)
VOCAB, CANVAS, PROMPT, STEPS = 40, 8, 5, 7
pytestmark = pytest.mark.filterwarnings(
    "ignore:`torch.jit.script_method` is deprecated"
)  # torch's own import


@pytest.fixture(scope="module")
def model():
    text = {
        "vocab_size": VOCAB, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "global_head_dim": 8,
        "num_global_key_value_heads": 1, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 8,
        "sliding_window": 16, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2,
    }  # fmt: skip
    vision = {
        "model_type": "gemma4_vision", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8,
    }  # fmt: skip
    torch.manual_seed(0)
    config = theirs.DiffusionGemmaConfig(text_config=text, vision_config=vision, canvas_length=CANVAS)
    found = theirs.DiffusionGemmaForBlockDiffusion(config).eval()
    with torch.no_grad():
        for weight in found.parameters():
            if weight.ndim > 1:
                weight.normal_(0, 0.6)
    return found


class Notes:
    """What the sampler decides, noted at its own methods."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.accepted: list = []
        self.raw: list = []
        accept, process = (
            theirs.generation_diffusion_gemma.EntropyBoundSampler.accept_canvas,
            theirs.generation_diffusion_gemma.LinearTemperatureScheduleLogitsProcessor.__call__,
        )

        def accepting(sampler, current, denoiser, logits, cur_step):
            found = accept(sampler, current, denoiser, logits, cur_step)
            self.accepted.append(torch.where(sampler.accepted_token_mask, found, VOCAB).tolist())
            return found

        def processing(processor, ids, scores, cur_step):
            self.raw.append(scores.log_softmax(-1))
            return process(processor, ids, scores, cur_step)

        names = theirs.generation_diffusion_gemma
        monkeypatch.setattr(names.EntropyBoundSampler, "accept_canvas", accepting)
        monkeypatch.setattr(names.LinearTemperatureScheduleLogitsProcessor, "__call__", processing)

    def events(self, row: int, passes: list[int], final: list[int], first: int, start: int) -> list[tuple]:
        """Return (pass, position, event, token, log q) of one canvas of one text."""
        out, held = [], [VOCAB] * CANVAS
        for number, call in enumerate(passes):
            now = final if call == passes[-1] else self.accepted[call][row]
            for place, (old, new) in enumerate(zip(held, now, strict=True)):
                if old == new:
                    continue
                event = "remask" if new == VOCAB else "reveal" if old == VOCAB else "edit"
                logq = None if new == VOCAB else float(self.raw[call][row, place, new])
                out.append((first + number, start + place, event, None if new == VOCAB else new, logq))
            held = now
        return out


def recorded(run: ol.Run, name: str) -> list[tuple]:
    rows = [
        row | {"event": "reveal", "new_token": row["token_id"]}
        for row in run.reveals().to_arrow().to_pylist()
    ]
    final = {(row["sample_id"], row["forward"], row["position"]) for row in rows}
    edits = run.table("revisions").to_arrow().to_pylist() if "revisions" in run.tables else []
    assert not final & {
        (r["sample_id"], r["forward"], r["position"]) for r in edits if r["event"] == "reveal"
    }
    keys = ("forward", "position", "event", "new_token", "logq")
    return sorted(tuple(row[key] for key in keys) for row in rows + edits if row["sample_id"] == name)


def prompts():
    return torch.randint(3, VOCAB, (2, PROMPT), generator=torch.Generator().manual_seed(4))


def test_generate_is_recorded_as_its_sampler_decides(model, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = Notes(monkeypatch)
    torch.manual_seed(1)
    how = {"max_new_tokens": 2 * CANVAS, "max_denoising_steps": STEPS, "sampler_config": None}
    how["sampler_config"] = theirs.generation_diffusion_gemma.EntropyBoundSamplerConfig(entropy_bound=3.0)
    plain = model.generate(prompts(), **how).sequences
    notes.accepted.clear()
    notes.raw.clear()
    torch.manual_seed(1)
    with ol.record(model, mask_id=VOCAB) as rec:
        rec.sample("a")
        found = model.generate(prompts(), **how).sequences
    assert found.tolist() == plain.tolist()  # recording changes nothing
    for row, name in enumerate(("a", "text-0000-1")):
        wanted: list[tuple] = []
        for number in range(2):
            passes = list(range(number * STEPS, (number + 1) * STEPS))
            start = PROMPT + number * CANVAS
            final = found[row, start : start + CANVAS].tolist()
            wanted += notes.events(row, passes, final, number * STEPS, start)
        mine = recorded(rec.run, name)
        assert [event[:4] for event in mine] == [event[:4] for event in sorted(wanted)]
        for ours, theirs_ in zip(mine, sorted(wanted), strict=True):
            assert ours[4] == (None if theirs_[4] is None else pytest.approx(theirs_[4], abs=1e-5))
        shown = {cell.position: cell.token_id for cell in replayed(rec.run.sample(name).traces[0], 99)}
        assert [shown[PROMPT + i] for i in range(2 * CANVAS)] == found[row, PROMPT:].tolist()
    assert {event[2] for event in mine} == {"reveal", "edit", "remask"}
    outputs = rec.run.outputs().to_arrow().to_pylist()
    assert [row["token_ids"] for row in outputs] == found[:, PROMPT:].tolist()
    assert [row["prompt_ids"] for row in outputs] == prompts().tolist()
    assert rec.run.samples().to_arrow()["n_passes"].to_pylist() == [2 * STEPS] * 2
    assert set(rec.run.reveals().to_arrow()["block"].to_pylist()) == {0, 1}
    assert set(rec.run.reveals().to_arrow()["temperature"].to_pylist()) == {0.8}
    assert any("not accepted in the last pass" in note for note in rec.run.spec["recorded"]["notes"])
    assert not {"generate", "_denoising_step", "_finalize_canvas"} & set(vars(model))


def test_texts_that_stop_early_have_their_own_number_of_passes(model) -> None:
    """A text ends when its canvas is stable, or with an EOS; both are counted by ``tokens_per_forward``."""
    torch.manual_seed(3)
    how = {
        "max_new_tokens": 3 * CANVAS,
        "max_denoising_steps": 30,
        "confidence_threshold": 1.2,
        "stability_threshold": 1,
    }
    with ol.record(model, mask_id=VOCAB) as rec:
        found = model.generate(prompts(), eos_token_id=list(range(20, 30)), pad_token_id=0, **how)
    new = found.sequences[:, PROMPT:]
    passes = ((new != 0).sum(1) / found.tokens_per_forward).round().int().tolist()
    assert rec.run.samples().to_arrow()["n_passes"].to_pylist() == passes
    assert len(set(passes)) == 2
    for row, output in enumerate(rec.run.outputs().to_arrow().to_pylist()):
        kept = [token for token in new[row].tolist() if token]
        assert output["token_ids"][: len(kept)] == kept


def test_log_probabilities_of_a_fixed_canvas(model, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = Notes(monkeypatch)
    canvas = torch.randint(0, VOCAB, (1, CANVAS), generator=torch.Generator().manual_seed(8))
    torch.manual_seed(1)
    model.generate(prompts()[:1], decoder_input_ids=canvas, max_new_tokens=CANVAS, max_denoising_steps=2)
    ours = canvas_log_probs(model, prompts()[0].tolist(), canvas[0].tolist())
    assert torch.allclose(ours, notes.raw[0][0], atol=1e-5)
    assert torch.allclose(ours.exp().sum(-1), torch.ones(CANVAS), atol=1e-5)
    hinted = canvas_log_probs(model, prompts()[0].tolist(), canvas[0].tolist(), conditioning=10 * ours)
    assert not torch.allclose(ours, hinted, atol=1e-2)


def test_a_mask_that_is_a_token_is_refused(model) -> None:
    with (
        pytest.raises(UserInputError, match=f"has no mask; pass mask_id={VOCAB}"),
        ol.record(model, mask_id=3),
    ):
        raise AssertionError
    with pytest.raises(UserInputError, match="nothing was recorded"), ol.record(model, mask_id=VOCAB):
        model(input_ids=prompts(), decoder_input_ids=prompts())
    assert "generate" not in vars(model)


def test_a_decoder_that_fails_keeps_its_passes(model, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    step = theirs.generation_diffusion_gemma.EntropyBoundSampler.renoise_canvas

    def breaks(sampler, accepted, cur_step):
        calls.append(1)
        if len(calls) == 4:
            raise ValueError("out of luck")
        return step(sampler, accepted, cur_step)

    monkeypatch.setattr(theirs.generation_diffusion_gemma.EntropyBoundSampler, "renoise_canvas", breaks)
    with pytest.raises(ValueError, match="out of luck"), ol.record(model, mask_id=VOCAB) as rec:
        model.generate(prompts(), max_new_tokens=CANVAS, max_denoising_steps=STEPS)
    assert set(rec.run.reveals().to_arrow()["forward"].to_pylist()) <= {0, 1, 2}
    assert "generate" not in vars(model)
