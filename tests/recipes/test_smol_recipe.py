"""The recipe of smol on a small random base: every stage runs, and the adapter it leaves loads as a model."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")

from orderlens.models.files.chat import ChatTemplate
from orderlens.models.protocol import LoadOptions
from orderlens.models.smol.model import build
from orderlens.texts.sources import sample_rows

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("wikipedia-en", "wikinews-en", "gutenberg", "c4-en")
sys.path.insert(0, str(ROOT / "recipes"))
sys.path.insert(0, str(ROOT / "tests" / "models" / "smol"))

import smol  # noqa: E402
import smol_distil  # noqa: E402
import smol_prompts  # noqa: E402
from small_gguf import TEMPLATE, small_metadata, small_tensors, write_gguf  # noqa: E402


@pytest.mark.slow
def test_every_stage_runs_and_the_adapter_loads(tmp_path: Path) -> None:
    base, work, corpus = tmp_path / "base.gguf", tmp_path / "work", tmp_path / "corpus"
    write_gguf(base, small_metadata(), small_tensors(np.random.default_rng(0)))
    corpus.mkdir()
    rows = [
        {"source": SOURCES[index % 4], "text": row["text"]}
        for index, row in enumerate(list(sample_rows("passages"))[:24])
    ]
    (corpus / "text-0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    prepared = smol.prepare_part(corpus / "text-0.jsonl", base, work)
    assert [line.split("/")[0] for line in prepared] == list(SOURCES)
    environment = {
        **os.environ, "DEVICE": "cpu",
        "DISTIL": "--batch 8 --new 8 --wait-for c4-en", "EVALUATE": "--limit 1",
        "TRAIN": "--steps 2 --batch 6 --rank 4 --log-every 1 --wait-seconds 0",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }  # fmt: skip
    script = ["sh", "recipes/smol_gpu.sh"]
    done = subprocess.run(
        [*script, base, work, corpus / "text-0.jsonl", "0", "0", "0"],
        capture_output=True, text=True, check=False, env=environment, cwd=ROOT,
    )  # fmt: skip
    assert "exit code 0" in done.stdout, done.stdout + done.stderr
    (tmp_path / "out").mkdir()
    subprocess.run([*script, "collect", work, tmp_path / "out"], check=True, cwd=ROOT)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "adapter.json", "adapter-0.safetensors", "report.tgz",
    }  # fmt: skip
    figures = json.loads((work / "out" / "figures.json").read_text())
    assert set(figures["smol"]) == {"forced-ar", "reverse-ar", "random"}
    model = build(base, tmp_path / "out", "0" * 64, LoadOptions())
    assert np.isfinite(model.log_probs([20, 21, 16, 22])[2, 17:]).all()


def test_the_chat_format_is_the_templates() -> None:
    rendered = ChatTemplate(TEMPLATE, {}).render([{"role": "user", "content": "Hello!"}])
    assert smol_distil.chat_text("Hello!") == rendered


def test_conversations_start_on_blocks_and_are_never_cut() -> None:
    rng = np.random.default_rng(1)
    conversations = [[5, *([40 + n] * (30 + 11 * n)), 2] for n in range(20)]
    windows = smol_distil.chat_windows(conversations, rng)
    assert windows.shape[1] == 512
    flat = windows.reshape(-1, 32)
    starts = [row for row in flat if row[0] == 5]
    assert len(starts) == 20
    assert (windows == 5).sum() == 20
    for number, ids in enumerate(conversations):
        assert (windows == 40 + number).sum() == len(ids) - 2


def test_instructions_vary_and_their_checks_tell_good_from_bad() -> None:
    rng = np.random.default_rng(2)
    drawn = [smol_prompts.instruction(rng) for _ in range(3000)]
    assert len({item.text for item in drawn}) > 2500
    assert not any(re.search(r"\{\w+\}", item.text) for item in drawn)
    checked = [item for item in drawn if item.check is not None]
    assert 400 < len(checked) < 900
    quoted = next(item for item in checked if "double quot" in item.text)
    assert smol_prompts.worth_keeping('"A short answer."', quoted)
    assert not smol_prompts.worth_keeping("A short answer.", quoted)
    plain = smol_prompts.Instruction("Say something.")
    assert not smol_prompts.worth_keeping("", plain)
    assert not smol_prompts.worth_keeping("the same words again " * 10, plain)
    assert smol_prompts.worth_keeping("One two three four five six seven.", plain)
