"""``ol.diff``: one planted difference per pair, with the verdict and the explanation that it must get.

The decoder here is a second implementation: a plain loop over ``model.log_probs``.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import orderlens as ol
from orderlens.analysis.diff import GOLDEN_FOLDER, diff, open_golden
from orderlens.cli.main import main
from orderlens.errors import UserInputError
from orderlens.store.reader import Run
from orderlens.store.schema import conform
from orderlens.testing import make_run, make_trace

MODEL = ol.load_model("hmm:states=6,characters=12,incoherence=8,block=16")
EOS = 12
N_PROMPT, N = 16, 32


@dataclass(frozen=True)
class Decoder:
    """Greedy most-probable-first decoding with one knob per planted difference."""

    shift: int = 0
    mask_logit: float = -np.inf
    temperature: float = 1.0
    limit: float = 2.0
    anchor: int = 0
    size: int = 16
    eos_bias: float = 0.0
    stop: bool = False
    least_first: bool = False
    noise: float = 0.0
    known_blocks: bool = True

    def rows(self, canvas: np.ndarray, n_prompt: int) -> np.ndarray:
        """log p [L, V] as the decoder reads it."""
        logits = MODEL.log_probs(canvas.tolist()) / self.temperature
        logits[:, EOS] += self.eos_bias
        logits[:, -1] = self.mask_logit
        if self.shift:  # the wrong row: that of the neighbour
            logits = np.roll(logits, -self.shift, axis=0)
            logits[-1] = logits[-2]
        rng = np.random.default_rng(int((canvas != MODEL.mask_id).sum()))
        logits = logits + self.noise * rng.normal(size=logits.shape)
        logits -= logits.max(axis=1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))

    def decode(self, sample_id: str, prompt: list[int]) -> pa.Table:
        """Return the reveals of one text."""
        canvas = np.array([*prompt, *[MODEL.mask_id] * N])
        out: list[dict[str, Any]] = []
        forward = 0
        for block, (low, high) in enumerate(self.blocks(len(prompt))):
            while (canvas[low:high] == MODEL.mask_id).any():
                log_p = self.rows(canvas, len(prompt))
                masked = [place for place in range(low, high) if canvas[place] == MODEL.mask_id]
                token = {place: int(log_p[place, :-1].argmax()) for place in masked}
                best = sorted(masked, key=lambda place: -log_p[place, token[place]])
                if self.least_first:
                    best = best[::-1]
                chosen = [p for p in best if log_p[p, token[p]] >= np.log(self.limit)] or best[:1]
                out += [self.row(block, forward, place, token[place], log_p[place]) for place in chosen]
                canvas[chosen] = [token[place] for place in chosen]
                forward += 1
            if self.stop and (canvas[low:high] == EOS).any():
                break
        key = {"sample_id": sample_id, "order": "recorded", "temperature": 0.0}
        rows = [key | {"step": step} | row for step, row in enumerate(out)]
        return conform("reveals", pa.Table.from_pylist(rows))

    def blocks(self, n_prompt: int) -> list[tuple[int, int]]:
        end = n_prompt + N
        starts = sorted({n_prompt, *range(n_prompt + (self.anchor or self.size), end, self.size)})
        return list(zip(starts, [*starts[1:], end], strict=True))

    def row(self, block: int, forward: int, place: int, token: int, log_p: np.ndarray) -> dict[str, Any]:
        finite = log_p[np.isfinite(log_p)]
        top = np.sort(log_p[:-1])[::-1]
        return {
            "block": block if self.known_blocks else 0,
            "forward": forward,
            "position": place,
            "token_id": token,
            "logq": float(log_p[token]),
            "max_logprob": float(top[0]),
            "second_logprob": float(top[1]),
            "entropy": float(-(np.exp(finite) * finite).sum()),
            "is_eos": token == EOS,
        }

    def run(self, n_texts: int = 4) -> Run:
        """Decode the prompts of the golden runs."""
        prompts = open_golden("golden:llada").outputs().to_pandas()
        texts = list(zip(prompts["sample_id"], prompts["prompt_ids"], strict=True))[:n_texts]
        traces = [self.decode(name, list(ids)) for name, ids in texts]
        return make_run(traces, spec={"model": {"name": "mine", "precision": "float64"}})


BASE = Decoder()


def settings(a: Run, b: Run) -> list[str]:
    return [item.setting for item in diff(a, b).explanations]


def verdicts(a: Run, b: Run, **more: Any) -> set[str]:
    return set(diff(a, b, **more).table().to_pandas()["verdict"])


def test_another_implementation_of_the_same_rule_decodes_the_same() -> None:
    found = diff(BASE.run(), "golden:llada")
    assert found.same
    assert found.totals["same"] == 4
    table = found.table().to_pandas()
    assert table["same_text"].all()
    assert table["same_path"].all()
    assert table["first_pass"].isna().all()
    assert found.explanations == []


@pytest.mark.parametrize(("limit", "preset"), [(0.9, "fast-dllm"), (0.95, "llada2.0"), (0.85, "sdar")])
def test_thresholds_agree_with_their_golden_runs_and_not_with_others(limit: float, preset: str) -> None:
    mine = replace(BASE, limit=limit).run()
    assert diff(mine, f"golden:{preset}").same
    assert not diff(mine, "golden:llada").same


def test_a_threshold_explains_other_tokens_per_pass() -> None:
    found = diff(replace(BASE, limit=0.9).run(), replace(BASE, limit=0.6).run())
    assert {*found.table().to_pandas()["verdict"]} <= {"same", "different-rule"}
    assert not found.same
    (item,) = [item for item in found.explanations if item.setting == "tokens per pass"]
    assert "least probability" in item.text
    left, right = found.tokens_per_pass
    assert left < right


def test_the_first_difference_names_both_candidates() -> None:
    found = diff(BASE.run(), replace(BASE, least_first=True).run())
    row = found.table().to_pandas().iloc[0]
    assert row["verdict"] == "different-rule"
    assert row["first_pass"] == 0
    first = BASE.run().reveals().to_pandas()
    first = first[(first["sample_id"] == row["sample_id"]) & (first["step"] == 0)].iloc[0]
    assert row["first_position"] == first["position"]
    assert row["p_a"] == pytest.approx(np.exp(first["logq"]))
    assert row["p_a"] > row["p_b"]
    assert "order" in settings(found.a, found.b)


@pytest.mark.parametrize(
    ("mine", "setting", "verdict"),
    [
        (replace(BASE, mask_logit=1.0), "mask in the softmax", "different-model"),
        (replace(BASE, temperature=0.7), "temperature", "different-model"),
        (replace(BASE, anchor=5), "block anchor", "different-rule"),
        (replace(BASE, anchor=5, known_blocks=False), "block anchor", "different-rule"),
        (replace(BASE, size=N), "block size", "different-rule"),
        (replace(BASE, mask_logit=6.0), "mask in the softmax", "different-model"),
        (replace(BASE, least_first=True), "order", "different-rule"),
        (replace(BASE, limit=0.5), "tokens per pass", "different-rule"),
    ],
)
def test_one_planted_difference_is_explained(mine: Decoder, setting: str, verdict: str) -> None:
    run = mine.run()
    assert setting in settings(run, BASE.run())
    assert setting in settings(BASE.run(), run)
    assert verdicts(run, BASE.run()) - {"same"} == {verdict}


@pytest.mark.parametrize(
    ("mine", "setting", "words"),
    [
        ({"anchor": 3, "size": 8}, "block anchor", ("offset 8", "offset 3")),
        ({"size": 20}, "block size", ("blocks of 8", "blocks of 20")),
        ({"size": N}, "block size", ("in blocks of 8", "does not")),
    ],
)
def test_blocks_that_no_run_states_are_found(
    mine: dict[str, Any], setting: str, words: tuple[str, str]
) -> None:
    base = replace(BASE, size=8, known_blocks=False)
    a, b = base.run(), replace(base, **mine).run()
    for left, right in ((a, b), (b, a)):
        (item,) = diff(left, right).explanations
        assert item.setting == setting
        assert all(word in item.text for word in words)


def test_logits_of_a_lower_precision_allow_more_noise() -> None:
    run = BASE.run()
    half = make_run(
        [trace([-0.5])], spec=run.spec | {"recorded": {"precision": "bfloat16"}, "model": "theirs"}
    )
    assert diff(run, half).noise == 0.05


def test_a_missing_shift_is_explained_and_its_side_is_named() -> None:
    found = diff(BASE.run(), replace(BASE, shift=1).run())
    assert found.totals["different-model"] == 3  # at the edge of a block one text shows no common row
    (item,) = [i for i in diff(BASE.run(), replace(BASE, shift=1).run()).explanations if i.setting == "shift"]
    (back,) = [i for i in diff(replace(BASE, shift=1).run(), BASE.run()).explanations if i.setting == "shift"]
    assert item.text != back.text


def trace(logq: list[float], **more: Any) -> pa.Table:
    return make_trace("a", more.pop("order", "max-prob"), np.array(logq), temperature=0.0, **more)


def pair(a: pa.Table, b: pa.Table, *specs: dict[str, Any]) -> tuple[Run, Run]:
    first, second = specs or ({"model": "x"}, {"model": "x"})
    return make_run([a], spec=first), make_run([b], spec=second)


def test_equal_probabilities_are_a_tie() -> None:
    half = [np.log(0.6), np.log(0.6), np.log(0.9)]
    a, b = trace(half, path=[0, 2, 1], tokens=[2, 3, 4]), trace(half, path=[2, 0, 1], tokens=[2, 3, 4])
    assert verdicts(*pair(a, b)) == {"tie"}


def test_close_probabilities_are_rounding_up_to_the_noise() -> None:
    a = trace([-0.5, -0.5002, -1.0], path=[0, 2, 1], tokens=[2, 3, 4])
    b = trace([-0.5002, -0.5, -1.0], path=[2, 0, 1], tokens=[2, 3, 4])
    assert verdicts(*pair(a, b), noise=1e-3) == {"rounding"}
    assert verdicts(*pair(a, b), noise=1e-6) == {"different-rule"}


def test_measured_noise_is_used() -> None:
    key = {"sample_id": "a", "order": "max-prob", "temperature": 0.0}
    noise = [{**key, "perturbation": "cache", "log_prob": -1.0, "log_prob_perturbed": -1.02, "n": 4}]
    a = trace([-0.5, -0.505, -1.0], path=[0, 2, 1], tokens=[2, 3, 4])
    b = trace([-0.505, -0.5, -1.0], path=[2, 0, 1], tokens=[2, 3, 4])
    measured = diff(make_run([a], noise=noise), make_run([b]))
    assert measured.noise == pytest.approx(0.01)
    assert measured.noise_source == "measured"
    assert measured.totals["rounding"] == 1
    assert diff(make_run([a]), make_run([b])).totals["different-rule"] == 1


def test_a_threshold_that_rounding_crosses_is_rounding() -> None:
    near = float(np.log(0.9)) + 1e-5
    name = "max-prob+threshold=0.9"
    a = trace([-0.01, near, -0.5], forward=[0, 0, 1], order=name)
    b = trace([-0.01, near, -0.5], forward=[0, 1, 2], order=name)
    assert verdicts(*pair(a, b), noise=1e-3) == {"rounding"}
    assert verdicts(*pair(a, b), noise=1e-7) == {"different-rule"}


def test_another_log_q_on_the_same_canvas_is_another_model() -> None:
    found = diff(*pair(trace([-0.5, -0.6, -0.7]), trace([-0.5, -0.9, -0.7])))
    row = found.table().to_pandas().iloc[0]
    assert (row["verdict"], row["first_pass"], row["first_position"]) == ("different-model", 1, 1)
    assert row["same_text"]
    assert row["same_path"]
    assert (row["p_a"], row["p_b"]) == pytest.approx((np.exp(-0.6), np.exp(-0.9)))


def test_an_offset_within_the_noise_is_no_mask() -> None:
    runs = replace(BASE, mask_logit=1.0).run(), BASE.run()  # an offset of 1.3 nats
    for noise, explained in ((0.3, ["mask in the softmax"]), (0.8, [])):
        found = diff(*runs, noise=noise)
        assert found.totals["different-model"]
        assert [item.setting for item in found.explanations] == explained


def test_log_q_after_the_paths_part_is_not_compared() -> None:
    a = trace([-0.1, -2.0, -3.0], path=[0, 1, 2], tokens=[2, 3, 4])
    b = trace([-0.9, -1.0, -0.2], path=[1, 0, 2], tokens=[2, 3, 4])
    assert verdicts(*pair(a, b)) == {"different-rule"}


def test_a_trace_that_one_run_lacks_is_missing() -> None:
    a = make_run([trace([-0.5]), make_trace("b", "max-prob", [-0.5], temperature=0.0)])
    found = diff(a, make_run([trace([-0.5])]))
    assert found.totals == dict.fromkeys(found.totals, 0) | {"same": 1, "missing": 1}
    assert not found.same


def test_other_prompts_or_targets_of_one_id_are_missing() -> None:
    key = {"sample_id": "a", "order": "max-prob", "temperature": 0.0}
    runs = [make_run([trace([-0.5])], outputs=[{**key, "prompt_ids": ids}]) for ids in ([1], [2])]
    assert verdicts(*runs) == {"missing"}
    scored = [make_run([make_trace("a", "max-prob", [-0.5], tokens=[token])]) for token in (2, 3)]
    assert verdicts(*scored) == {"missing"}


def test_texts_are_found_by_their_prompt_where_ids_differ() -> None:
    mine = make_run(
        [make_trace("row-0", "recorded", [-0.5], temperature=0.0)],
        outputs=[{"sample_id": "row-0", "order": "recorded", "temperature": 0.0, "prompt_ids": [4, 5]}],
    )
    key = {"sample_id": "a", "order": "max-prob", "temperature": 0.0}
    assert diff(mine, make_run([trace([-0.5])], outputs=[{**key, "prompt_ids": [4, 5]}])).same


def test_differences_after_the_end_of_text_are_eos_handling() -> None:
    logq = [-0.1, -0.2, -0.3, -0.4]
    a, b = trace(logq, tokens=[2, 0, 0, 0]), trace(logq[:2], tokens=[2, 0])
    found = diff(*pair(a, b))
    row = found.table().to_pandas().iloc[0]
    assert (row["verdict"], row["same_text"], row["same_path"]) == ("different-rule", True, False)
    assert found.explanations[0].setting == "EOS handling"


def test_an_end_of_text_that_one_run_avoids_is_eos_handling() -> None:
    a = trace([-0.1, -0.2, -0.3], path=[2, 0, 1], tokens=[2, 3, 0])
    b = trace([-0.2, -0.3, -0.1], path=[0, 1, 2], tokens=[2, 3, 0])
    assert settings(*pair(a, b))[0] == "EOS handling"
    assert "A reveals" in diff(*pair(a, b)).explanations[0].text


def test_a_run_that_never_ends_a_text_is_eos_handling() -> None:
    tokens = [[2, 3, 9], [2, 4, 9], [5, 3, 9], [6, 6, 3]]
    spec = {"model": {"name": "x", "eos_ids": [9]}}
    a, b = (
        make_run(
            [
                make_trace(f"t{i}", "x", np.array(q), path=path, tokens=ids, temperature=0.0)
                for i, ids in rows
            ],
            spec=spec,
        )
        for q, path, rows in (
            ([-0.1, -0.5, -0.9], [0, 1, 2], enumerate(tokens)),
            ([-0.4, -0.5, -0.9], [1, 0, 2], enumerate([[7, ids[1], 8] for ids in tokens])),
        )
    )
    (item,) = [item for item in diff(a, b).explanations if item.setting == "EOS handling"]
    assert "A reveals an end of text in 3 of 4" in item.text


def test_a_doubt_of_a_recording_about_its_shift_is_repeated() -> None:
    note = "10% of row i and 95% of row i − 1: did you mean shift=True?"
    a, b = BASE.run(), replace(BASE, least_first=True).run()
    doubtful = make_run([b.reveals().to_arrow()], spec=b.spec | {"recorded": {"notes": [note, "other"]}})
    item = diff(a, doubtful).explanations[0]
    assert (item.setting, item.text) == ("shift", f"recording of B: {note}")


def test_settings_of_the_specs_are_compared() -> None:
    a, b = trace([-0.1, -0.2], path=[0, 1]), trace([-0.2, -0.1], path=[1, 0])
    specs = ({"model": "x", "stop_at_eos": True}, {"model": "y", "stop_at_eos": False})
    found = diff(*pair(a, b, *specs)).explanations
    stated = {item.setting: item.source for item in found}
    assert stated["EOS handling"] == "spec"
    assert "model" not in stated  # log q agrees, so another name explains nothing


def test_temperatures_of_traces_are_named() -> None:
    found = ol.generate(MODEL, [ol.Sample("a", [0] * 16)], ["max-prob"], max_new_tokens=16)
    drawn = ol.generate(MODEL, [ol.Sample("a", [0] * 16)], ["max-prob"], max_new_tokens=16, temperature=1.0)
    assert settings(found, drawn)[0] == "temperature"


def test_revisions_are_part_of_the_path() -> None:
    golden = open_golden("golden:llada2.1")
    assert golden.table("revisions").to_arrow().num_rows
    assert diff(golden, golden).same
    without = make_run([golden.reveals().to_arrow()], outputs=golden.outputs().to_arrow())
    assert diff(golden, without).totals["different-rule"] == 4


def test_golden_runs_are_what_their_recipe_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    run, labels = importlib.import_module("golden_runs").golden_run()
    stored = json.loads((GOLDEN_FOLDER / "spec.json").read_text())
    assert stored == {"presets": labels, "spec": run.spec}
    for name in ("llada", "llada2.1", "wino"):
        part = make_run(
            [run.reveals().to_arrow()],
            spec=run.spec,
            **{table: run.table(table).to_arrow() for table in ("revisions", "outputs")},
        )
        found = diff(open_golden(f"golden:{name}"), part).table().to_pandas()
        assert (found["verdict"] == "same").sum() == 4, name
    assert sum(path.stat().st_size for path in GOLDEN_FOLDER.iterdir()) <= 300_000


def test_golden_rules_differ_from_each_other() -> None:
    names = ["llada", "fast-dllm", "llada2.0", "sdar", "dream", "llada2.1", "wino", "top-k-margin"]
    same = [(a, b) for i, a in enumerate(names) for b in names[:i] if diff(f"golden:{a}", f"golden:{b}").same]
    assert same == []


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: diff("golden:lada", "golden:llada"), "did you mean 'llada'"),
        (lambda: diff("golden:llada", "golden:llada", noise=-1), "noise -1"),
    ],
)
def test_refusals(call: Callable[[], object], word: str) -> None:
    with pytest.raises(UserInputError, match=word):
        call()


def test_the_command_exits_1_where_runs_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = BASE.run().save(tmp_path / "mine")
    assert mine.is_complete
    assert main(["runs", "diff", str(tmp_path / "mine"), "golden:llada", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["same"]
    page = tmp_path / "page.html"
    words = ["runs", "diff", str(tmp_path / "mine"), "golden:sdar", "--out", str(page)]
    assert main(words) == 1
    said = capsys.readouterr().out
    assert "explained by tokens per pass" in said
    assert "different-rule in pass" in said
    text = page.read_text(encoding="utf-8")
    assert text.count('class="sides"') == 4
    assert "log q by step" in text
    passes = ol.diff(tmp_path / "mine", "golden:sdar").table().to_arrow()["first_pass"].to_pylist()
    for number in passes:  # from 0 as data, from 1 in text and page
        assert f"different-rule in pass {number + 1}, " in said
        assert f"different-rule in pass {number + 1}</h2>" in text
    assert '<div class="wide" tabindex="0"' in text  # the table scrolls on a narrow screen
    assert main(words) == 2  # the page exists


def test_runs_without_a_common_trace_say_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample = ol.Sample("golden-0", "a ")
    ol.generate("hmm", [sample], "forced-ar,random", max_new_tokens=4, out=tmp_path / "mine")
    assert main(["runs", "diff", str(tmp_path / "mine"), "golden:llada"]) == 1
    assert "no trace is in both: texts or orders differ" in capsys.readouterr().out


@pytest.mark.needs_torch
@pytest.mark.parametrize(("limit", "preset"), [(2.0, "llada"), (0.9, "fast-dllm")])
def test_a_recorded_decoder_agrees_with_its_golden_run(limit: float, preset: str) -> None:
    torch = pytest.importorskip("torch")

    class Network(torch.nn.Module):  # type: ignore[name-defined,misc]
        def forward(self, ids: Any) -> Any:
            return torch.tensor(np.stack([MODEL.log_probs(row.tolist()) for row in ids])).clamp(min=-1e4)

    network = Network()
    golden = open_golden(f"golden:{preset}").outputs().to_pandas()
    with ol.record(network, mask_id=MODEL.mask_id) as recorder:
        for name, ids in zip(golden["sample_id"], golden["prompt_ids"], strict=True):
            recorder.sample(name)
            recorder.finish(_their_generate(network, torch.tensor(np.array(ids))[None], limit))
    assert diff(recorder.run, f"golden:{preset}").same
    other = diff(recorder.run, "golden:sdar")
    assert not other.same
    assert other.totals["same"] + other.totals["different-rule"] == 4
    assert other.explanations[0].setting == "tokens per pass"


def _their_generate(network: Any, prompt: Any, limit: float) -> Any:
    """A sampler in the manner of published code: blocks of 16, whole-canvas forwards, a threshold."""
    import torch

    start = prompt.shape[1]
    canvas = torch.cat([prompt, torch.full((1, N), MODEL.mask_id)], dim=1)
    for end in range(start + 16, start + N + 1, 16):
        while (canvas[:, :end] == MODEL.mask_id).any():
            p = network(canvas).softmax(-1)
            p[..., MODEL.mask_id] = -1.0
            sure, token = p.max(-1)
            sure[:, end:] = -1.0
            sure[canvas != MODEL.mask_id] = -1.0
            chosen = sure >= limit
            chosen[0, sure.argmax()] = True
            canvas = torch.where(chosen, token, canvas)
    return canvas
