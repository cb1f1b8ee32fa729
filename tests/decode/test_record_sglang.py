"""The plug-in for SGLang: its algorithms run on a small network, and what they change is recorded.

``published`` runs the algorithms and the hook registry of the wheel (``sglang==0.5.23``), whose package is
``ORDERLENS_PUBLISHED/sglang``; only modules that need a GPU are replaced. ``retyped`` has the same interface.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import orderlens as ol
from orderlens.cli.main import main

torch = pytest.importorskip("torch")
from orderlens.decode import record_sglang  # noqa: E402

VOCAB, MASK, SIZE, PROMPT, BLOCKS = 40, 39, 8, 12, 3
PACKAGE = "sglang.srt.dllm.algorithm"
FOLDER = Path(os.environ.get("ORDERLENS_PUBLISHED", "")) / "sglang"
REPLACED = {
    "layers.logits_processor": ("LogitsProcessorOutput",),
    "model_executor.forward_batch_info": ("ForwardBatch",),
    "model_executor.model_runner": ("ModelRunner",),
    "server_args": ("ServerArgs",),
    "configs.model_config": ("ModelConfig",),
    "arg_groups.overrides": ("resolving_view",),
    "utils": ("is_npu",),
}
"""Modules of SGLang that need more than its algorithms do, with what is imported from them."""


class LowConfidence:
    """Reveals positions with p above a threshold, at least one; the ids change in place."""

    def __init__(self, config: Any) -> None:
        self.block_size, self.mask_id = config.block_size, config.mask_id
        self.threshold = config.algorithm_config["threshold"]

    def step(self, batch: Any, logits: Any, states: Any) -> list[bool]:
        return self.fill(batch, logits)

    def fill(self, batch: Any, logits: Any) -> list[bool]:
        ids, done = batch.input_ids.view(-1, self.block_size), []
        for row, part in zip(ids, logits.view(-1, self.block_size, logits.shape[-1]), strict=True):
            done.append(bool((row != self.mask_id).all()))
            p, token = part.softmax(-1).max(-1)
            p = torch.where(row == self.mask_id, p, -1.0)
            chosen = (p > max(self.threshold, -0.5)) | ((p == p.max()) & (p >= 0))
            row[chosen] = token[chosen]
        return done

    def run(self, runner: Any, batch: Any) -> None:
        done = [False]
        while not all(done):
            done = self.step(batch, runner.forward(batch).logits_output.full_logits, None)


class JointThreshold(LowConfidence):
    """The same, and replaces tokens of the block once; it penalises repetition in place."""

    penalty_lambda = 1.0

    def step(self, batch: Any, logits: Any, states: Any) -> list[bool]:
        logits[:, 0] -= self.penalty_lambda
        had_masks = bool((batch.input_ids == self.mask_id).any())
        self.fill(batch, logits)
        if had_masks and not bool((batch.input_ids == self.mask_id).any()):
            batch.input_ids.view(-1, self.block_size)[:, -1] = 5
        return [not had_masks]


class Registry:
    """Retyped: wraps a method at once."""

    @staticmethod
    def register(target: str, hook: Any, kind: str) -> None:
        assert kind == "around"
        module, name, method = target.rsplit(".", 2)
        found = getattr(sys.modules[module], name)
        theirs = getattr(found, method)
        setattr(found, method, lambda *args, **more: hook(theirs, *args, **more))

    @staticmethod
    def apply_hooks() -> None:
        """Hooks are applied when they are registered."""


def package(name: str, monkeypatch: pytest.MonkeyPatch, path: Path | None = None, **content: Any) -> None:
    module = ModuleType(name)
    module.__path__ = [] if path is None else [str(path)]
    vars(module).update(content)
    monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture(params=["retyped", "published"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import SGLang's hook registry and algorithms; return a function from a name to the class."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "sglang"]:
        monkeypatch.delitem(sys.modules, name)
    if request.param == "retyped":
        for name in ("sglang", "sglang.srt", "sglang.srt.plugins"):
            package(name, monkeypatch)
        kinds = SimpleNamespace(AROUND="around")
        package("sglang.srt.plugins.hook_registry", monkeypatch, HookRegistry=Registry, HookType=kinds)
        classes = {"low_confidence": LowConfidence, "joint_threshold": JointThreshold}
        for name, found in classes.items():
            monkeypatch.setattr(found, "step", found.step)  # restored after the test
            package(f"{PACKAGE}.{name}", monkeypatch, **{found.__name__: found})
        return Registry
    if not FOLDER.is_dir():
        pytest.skip("no wheel of SGLang available (ORDERLENS_PUBLISHED)")
    package("sglang", monkeypatch, FOLDER)
    for name in ("", ".layers", ".model_executor", ".configs", ".arg_groups", ".plugins", ".dllm"):
        package(f"sglang.srt{name}", monkeypatch, FOLDER / "srt" / name[1:])
    for name, content in REPLACED.items():
        package(f"sglang.srt.{name}", monkeypatch, **dict.fromkeys(content, lambda *_: False))
    return importlib.import_module("sglang.srt.plugins.hook_registry").HookRegistry


class Runner:
    """A network over a block of each text; notes the ids and the logits of every pass."""

    def __init__(self) -> None:
        torch.manual_seed(2)
        self.tokens, self.places = torch.nn.Embedding(VOCAB, 16), torch.nn.Embedding(64, 16)
        self.head = torch.nn.Linear(16, VOCAB)
        self.passes: list[tuple[Any, Any]] = []

    @torch.no_grad()
    def forward(self, batch: Any, pp_proxy_tensors: Any = None) -> Any:
        ids, places = batch.input_ids.view(-1, SIZE), batch.positions.view(-1, SIZE)
        hidden = (self.tokens(ids) + self.places(places)).cumsum(1) + self.tokens(ids).flip(1).cumsum(1)
        logits = 3 * self.head(hidden.tanh())
        logits[..., MASK] = -9.0
        self.passes.append((ids.clone(), logits.clone()))
        found = SimpleNamespace(full_logits=logits.view(-1, VOCAB))
        return SimpleNamespace(logits_output=found, can_run_graph=False)


def serve(algorithm: Any, runner: Runner) -> list[tuple]:
    """Decode two requests block by block; return (request, position, event, token, log q) of all changes."""
    texts = torch.randint(0, 38, (2, PROMPT), generator=torch.Generator().manual_seed(4)).tolist()
    events = []
    for low in range(0, BLOCKS * SIZE, SIZE):
        ids = torch.tensor([(text[low:] + [MASK] * SIZE)[:SIZE] for text in texts]).view(-1)
        batch = SimpleNamespace(
            batch_size=2,
            input_ids=ids,
            positions=torch.arange(low, low + SIZE).repeat(2),
            rids=["one", "two"],
            dllm_prompt_mask=None,
        )
        runner.passes = []
        algorithm.run(runner, batch)
        after = [ids for ids, _ in runner.passes[1:]] + [batch.input_ids.view(-1, SIZE)]
        for (old, logits), new in zip(runner.passes, after, strict=True):
            log_p = logits.log_softmax(-1)
            for row, place in (old != new).nonzero().tolist():
                kind, token = "reveal" if old[row, place] == MASK else "edit", int(new[row, place])
                log_q = float(log_p[row, place, token])
                events.append((batch.rids[row], low + place, kind, token, log_q))
        for text, row in zip(texts, batch.input_ids.view(-1, SIZE).tolist(), strict=True):
            text[low:] = text[low:] if low + SIZE <= len(text) else row
    return events


@pytest.mark.parametrize("name", record_sglang.ALGORITHMS)
def test_what_an_algorithm_decides_is_recorded(
    name: str, engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(record_sglang.FOLDER, str(tmp_path / "served"))
    record_sglang.register()
    engine.apply_hooks()
    module, title = name.split(".")
    settings = {"threshold": 0.6, "edit_threshold": 0.3, "max_post_edit_steps": 3}
    config = SimpleNamespace(
        block_size=SIZE, mask_id=MASK, algorithm_config=settings, first_done_first_out_mode=False
    )
    algorithm = getattr(importlib.import_module(f"{PACKAGE}.{module}"), title)(config)
    expected = serve(algorithm, Runner())
    (file,) = (tmp_path / "served").iterdir()
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    found = [(row["sample_id"], row["position"], row["event"], row["token_id"], row["logq"]) for row in rows]
    assert {kind for _, _, kind, _, _ in found} == ({"reveal"} if "Low" in name else {"reveal", "edit"})
    assert [row[:4] for row in sorted(found)] == [row[:4] for row in sorted(expected)]
    for mine, theirs in zip(sorted(found), sorted(expected), strict=True):
        assert mine[4] == pytest.approx(theirs[4], abs=1e-5)
    assert main(["runs", "import", str(file), "--out", str(tmp_path / "run")]) == 0
    run = ol.open_run(tmp_path / "run")
    table = run.samples().to_pandas()
    assert table["n"].tolist() == [BLOCKS * SIZE - PROMPT] * 2
    assert table["order"].tolist() == ["max-prob+above=0.6" if "Low" in name else title] * 2
    assert run.reveals().to_pandas()["block"].max() == 1


def test_nothing_is_imported_or_written_unless_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(record_sglang.FOLDER, raising=False)
    record_sglang.register()
    assert "sglang" not in sys.modules


def test_a_failure_ends_the_recording_and_not_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorder, batch = record_sglang.StepRecorder(tmp_path), SimpleNamespace(input_ids=torch.tensor([MASK]))
    for _ in range(2):
        assert recorder.around(lambda *_: "done", None, batch, torch.zeros(1, VOCAB)) == "done"
    assert caplog.text.count("stops recording") == 1
    assert not recorder.path.exists()


def test_only_some_texts_are_kept_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_sglang, "MAX_TEXTS", 2)
    recorder = record_sglang.StepRecorder(tmp_path)
    first = recorder._text("a", MASK, 0)
    for name in ("b", "a", "c"):
        recorder._text(name, MASK, 0)
    assert recorder._text("a", MASK, 0) is first
    assert len(recorder._texts) == 2
