"""The loop: it learns, a resumed run equals a straight one to the bit, and a time budget ends decayed."""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")


from orderlens.common.rng import keyed_generator  # noqa: E402
from orderlens.errors import ModelLoadError, ModelOutputError, RunError, UserInputError  # noqa: E402
from orderlens.models.small.network import TransformerConfig  # noqa: E402
from orderlens.training import steps  # noqa: E402
from orderlens.training.data import WindowMixture, write_shard  # noqa: E402
from orderlens.training.loop import LoopSettings, Trainer  # noqa: E402
from orderlens.training.optimiser import LearningRateSchedule, OptimiserSettings  # noqa: E402
from orderlens.training.steps import CHECKPOINT, METRICS  # noqa: E402

WINDOW = 16


def easy_windows(count: int) -> np.ndarray:
    """Counting modulo 7 from a random start: learnable within a few steps."""
    start = keyed_generator(0, "easy").integers(0, 7, (count, 1))
    return ((start + np.arange(WINDOW)) % 7 + 2).astype(np.uint16)


def make(folder: Path, attention: str = "block-causal", bfloat16: bool | None = None, **schedule) -> Trainer:
    if not (folder / "windows").exists():
        write_shard(folder / "windows", "a", "0", easy_windows(40))
        write_shard(folder / "windows", "b", "0", easy_windows(20))
    config = TransformerConfig(
        vocab_size=12, n_layers=2, width=16, n_heads=2, ffn_width=32, block_size=8, attention=attention
    )
    mixture = WindowMixture(folder / "windows", {"a": 0.75, "b": 0.25}, batch_size=8, seed=5)
    settings = LoopSettings(
        window=WINDOW, seed=1, log_every=5, validate_every=10, checkpoint_seconds=1e9, bfloat16=bfloat16
    )
    schedule = LearningRateSchedule(**{"warmup_steps": 3, **schedule})
    return Trainer(
        config, settings, schedule, OptimiserSettings(matrix_lr=0.01), mixture, easy_windows(8), folder
    )


@pytest.mark.parametrize("attention", ["block-causal", "full", "permutation", "causal"])
def test_learns_an_easy_text(tmp_path: Path, attention: str) -> None:
    trainer = make(tmp_path, attention, steps=60)
    before = trainer.heldout_loss()
    trainer.run()
    lines = [json.loads(line) for line in (tmp_path / METRICS).read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(5, 61, 5))
    assert lines[-1]["heldout_loss"] == pytest.approx(trainer.heldout_loss(), abs=1e-4)
    assert trainer.heldout_loss() < 0.7 * before


def test_a_bfloat16_copy_learns_and_the_weights_stay_float32(tmp_path: Path) -> None:
    plain, rounded = make(tmp_path / "a", steps=60), make(tmp_path / "b", bfloat16=True, steps=60)
    before = rounded.heldout_loss()
    assert before != plain.heldout_loss()
    assert before == pytest.approx(plain.heldout_loss(), rel=0.02)
    rounded.run()
    assert {parameter.dtype for parameter in rounded.model.parameters()} == {torch.float32}
    assert rounded.heldout_loss() < 0.7 * before


@pytest.mark.parametrize("bfloat16", [None, True])
def test_a_resumed_run_equals_a_straight_one_bit_for_bit(tmp_path: Path, bfloat16: bool | None) -> None:
    straight = make(tmp_path / "straight", bfloat16=bfloat16, steps=14)
    straight.run()
    interrupted = make(tmp_path / "halves", bfloat16=bfloat16, steps=14)
    for step, windows in enumerate(map(interrupted.mixture.batch, range(9))):
        interrupted.train_step(windows, interrupted.schedule.factor(step, 0.0))
        interrupted.step += 1
    interrupted.checkpoint()
    resumed = make(tmp_path / "halves", bfloat16=bfloat16, steps=14)
    resumed.resume()
    resumed.run()
    assert resumed.step == 14
    for name, tensor in straight.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name]), name


def test_new_shards_start_a_phase_that_a_resume_remembers(tmp_path: Path) -> None:
    trainer = make(tmp_path, steps=10)
    write_shard(tmp_path / "windows", "a", "1", easy_windows(10))
    assert trainer.mixture.refresh(4)
    assert not trainer.mixture.refresh(6)
    trainer.checkpoint()
    again = make(tmp_path, steps=10)
    assert len(again.mixture.phases) == 1
    again.resume()
    for step in (0, 3, 4, 9):
        assert np.array_equal(again.mixture.batch(step), trainer.mixture.batch(step))


def test_a_time_budget_ends_on_time_and_decayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(np.arange(0.0, 1e4, 0.5))
    monkeypatch.setattr(steps, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    trainer = make(tmp_path, max_minutes=1.0)
    trainer.run()
    lines = [json.loads(line) for line in (tmp_path / METRICS).read_text().splitlines()]
    assert 60.0 <= trainer.elapsed_s < 62.0
    assert lines[1]["lr_factor"] == 1.0
    assert lines[-1]["lr_factor"] < 0.15
    assert sorted((line["lr_factor"] for line in lines[1:]), reverse=True) == [
        x["lr_factor"] for x in lines[1:]
    ]


def test_elapsed_time_carries_over_a_resume(tmp_path: Path) -> None:
    trainer = make(tmp_path, max_minutes=1.0)
    trainer.elapsed_s = 59.99
    trainer.checkpoint()
    again = make(tmp_path, max_minutes=1.0)
    again.resume()
    assert again.schedule.factor(100, again.elapsed_s) < 0.01


def test_a_checkpoint_of_another_shape_is_refused(tmp_path: Path) -> None:
    make(tmp_path, steps=2).checkpoint()
    with pytest.raises(RunError, match="another model shape"):
        make(tmp_path, "causal", steps=2).resume()
    (tmp_path / CHECKPOINT).write_bytes(b"not a checkpoint")
    with pytest.raises(ModelLoadError, match="not a training checkpoint"):
        make(tmp_path, steps=2).resume()


def test_the_length_must_be_given_once_and_positive() -> None:
    for wrong in ({}, {"steps": 5, "max_minutes": 1.0}, {"steps": 0}, {"max_minutes": -1.0}):
        with pytest.raises(UserInputError):
            LearningRateSchedule(**wrong)


def test_schedule_warms_up_holds_and_decays_to_zero() -> None:
    schedule = LearningRateSchedule(steps=100, warmup_steps=10, hold=0.2)
    factors = [schedule.factor(step, 0.0) for step in range(100)]
    assert factors[0] == pytest.approx(0.1)
    assert factors[10:21] == [1.0] * 11
    assert factors[60] == pytest.approx(0.5)
    assert factors[99] == pytest.approx(0.0125)


def test_a_loss_that_is_no_number_ends_the_run_with_a_remedy(tmp_path: Path) -> None:
    trainer = make(tmp_path, steps=10)
    with torch.no_grad():
        trainer.model.embedding.weight[3] = torch.nan
    with pytest.raises(ModelOutputError, match=r"the loss is nan at step 5; lower the learning rate"):
        trainer.run()
    assert trainer.step == 5


def test_heldout_windows_are_repeated_to_fill_a_batch_and_none_give_nan(tmp_path: Path) -> None:
    trainer = make(tmp_path, steps=10)
    windows = easy_windows(3)
    trainer.heldout = windows
    filled = windows[[0, 1, 2, 0, 1, 2, 0, 1]]
    with torch.no_grad():
        assert trainer.heldout_loss() == pytest.approx(float(trainer.loss(filled, (-1, 0))))
    trainer.heldout = easy_windows(17)  # two whole batches of 8; the last window is left out
    with torch.no_grad():
        parts = [float(trainer.loss(easy_windows(17)[i * 8 : i * 8 + 8], (-1, i))) for i in (0, 1)]
    assert trainer.heldout_loss() == pytest.approx(sum(parts) / 2)
    trainer.heldout = windows[:0]
    assert np.isnan(trainer.heldout_loss())


def test_the_log_counts_tokens_and_reports_each_line(tmp_path: Path) -> None:
    reported: list[dict] = []
    trainer = make(tmp_path, steps=7)
    last = trainer.run(reported.append)
    assert [line["step"] for line in reported] == [5, 7]
    assert [line["tokens"] for line in reported] == [5 * 8 * WINDOW, 7 * 8 * WINDOW]
    assert last == reported[-1]
    assert last["progress"] == 1.0
    assert "heldout_loss" not in last
    assert [json.loads(line) for line in (tmp_path / METRICS).read_text().splitlines()] == reported


def test_checkpoints_are_close_together_at_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 1.0
        return now

    monkeypatch.setattr(steps, "time", SimpleNamespace(monotonic=clock))
    trainer = make(tmp_path, max_minutes=10.0)
    object.__setattr__(trainer.settings, "checkpoint_seconds", 60.0)
    saved: list[float] = []
    monkeypatch.setattr(trainer, "checkpoint", lambda: saved.append(now))
    monkeypatch.setattr(trainer, "train_step", lambda *_: (torch.zeros(()), torch.zeros(())))
    trainer.run()
    gaps = np.diff([0.0, *saved[:-1]])
    assert 20 <= gaps[0] <= 26
    assert 20 <= gaps[1] <= 26
    assert max(gaps) <= 66
    assert min(gaps[-3:]) >= 60
    assert all(later >= earlier - 4 for earlier, later in itertools.pairwise(gaps))


def test_new_shards_are_found_while_running(tmp_path: Path) -> None:
    trainer = make(tmp_path, steps=6)
    object.__setattr__(trainer.settings, "refresh_every", 2)
    write_shard(tmp_path / "windows", "a", "1", easy_windows(10))
    trainer.run()
    assert [phase.start for phase in trainer.mixture.phases] == [0, 0]
    assert trainer.mixture.phases[-1].size("a") == 50
