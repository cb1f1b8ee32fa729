"""Adapters: gradients of the factors, masks with cuts, and a run that learns, resumes and falls back."""

from __future__ import annotations

import copy
import json
import signal

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from adapter_training import AdapterTrainer, AdaptSettings, RatioLosses, sample_cut_masks  # noqa: E402
from lowrank import LowRank, LowRankRates, MaskedStreams  # noqa: E402

from orderlens.errors import ModelOutputError, RunError  # noqa: E402
from orderlens.models.small.network import Transformer, TransformerConfig  # noqa: E402
from orderlens.models.smol.adapter import AdapterSettings, check_adapter, load_adapter, merge  # noqa: E402
from orderlens.training.data import WindowMixture, write_shard  # noqa: E402
from orderlens.training.objective import sample_masks  # noqa: E402
from orderlens.training.optimiser import LearningRateSchedule  # noqa: E402
from orderlens.training.validate import any_order_bound  # noqa: E402

BLOCK, WINDOW = 8, 32
CONFIG = TransformerConfig(
    vocab_size=24, n_layers=2, width=16, n_heads=4, n_kv_heads=2, ffn_width=24, block_size=BLOCK,
    mask_id=3, eos_id=2, qk_norm=False,
)  # fmt: skip
SETTINGS = AdapterSettings(rank=3, scale=2.0, block_size=BLOCK, mask_id=3)
CPU = torch.device("cpu")


@pytest.fixture
def base():
    torch.manual_seed(0)
    return Transformer(CONFIG).requires_grad_(False)


def streams(base):
    return MaskedStreams(copy.deepcopy(base), WINDOW, CPU, "dense")


def test_cut_masks_hide_one_side_and_weigh_the_token_beside_the_cut():
    masks = sample_cut_masks(4, WINDOW, BLOCK, 1.0, torch.Generator().manual_seed(0))
    first, weight = masks.first.view(-1, BLOCK), masks.weight.view(-1, BLOCK)
    copies = len(first) * 2 * BLOCK / (BLOCK + 1)
    for row, values in zip(first, weight, strict=True):
        size = int(row.sum())
        assert row.tolist() == [True] * size + [False] * (BLOCK - size)
        for part, beside in ((slice(0, size), size - 1), (slice(size, None), 0)):
            if len(values[part]):
                assert values[part].sum() * copies == pytest.approx(1)
                assert values[part].argmax() == beside
    none = sample_cut_masks(4, WINDOW, BLOCK, 0.0, torch.Generator().manual_seed(0))
    assert torch.allclose(none.weight.view(-1, BLOCK)[first.all(1)], torch.tensor(1 / BLOCK / copies))


def test_an_untrained_adapter_is_the_base_with_its_own_mask_vector(base):
    loss = streams(base)
    lowrank = LowRank(base, loss, SETTINGS, LowRankRates(), 0)
    lowrank.push()
    masks = sample_masks(2, WINDOW, BLOCK, torch.Generator().manual_seed(1))
    tokens = torch.randint(4, 24, (2, WINDOW))
    merged = copy.deepcopy(base)
    merge(merged, lowrank.state(), SETTINGS)
    plain = -(loss(tokens, masks.first) * masks.weight.flatten()).sum()
    reference = MaskedStreams(merged, WINDOW, CPU, "dense")
    with torch.no_grad():
        reference.mask_C.copy_(merged.embedding.weight[3])
        merged.embedding.weight[3] = base.embedding.weight[3]  # training leaves the mask's id in the softmax
    assert plain.item() == pytest.approx(
        -(reference(tokens, masks.first) * masks.weight.flatten()).sum().item(), abs=1e-5
    )


def test_gradients_of_the_factors_are_those_of_the_product(base):
    """Autograd through W + scale · up @ down gives what the full gradient is turned into."""
    loss = streams(base)
    lowrank = LowRank(base, loss, SETTINGS, LowRankRates(), 0)
    group = lowrank._groups[0]
    with torch.no_grad():
        group.up_NRK.normal_(std=0.1, generator=torch.Generator().manual_seed(2))
    lowrank.push()
    tokens = torch.randint(4, 24, (2, WINDOW))
    first = sample_masks(2, WINDOW, BLOCK, torch.Generator().manual_seed(3)).first
    loss(tokens, first).sum().backward()
    lowrank._pull()
    found = group.up_NRK.grad[0].clone(), group.down_NKC.grad[0].clone()

    place = group.places[0]
    up, down = (part[0].detach().clone().requires_grad_() for part in (group.up_NRK, group.down_NKC))
    weights = dict(loss.named_parameters())
    name = f"model.{place.weight}"
    rows = weights[name].detach().clone()
    piece = group.base_NRC[0] + SETTINGS.scale * up @ down
    whole = torch.cat((rows[: place.first], piece, rows[place.last :]))
    value = torch.func.functional_call(loss, {name: whole}, (tokens, first)).sum()
    wanted = torch.autograd.grad(value, (up, down))
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(found, wanted, strict=True))


def test_losses_are_sorted_by_hidden_share():
    ratios = RatioLosses(BLOCK, CPU)
    first = torch.zeros(1, 2 * BLOCK, dtype=torch.bool)
    first[0, 0] = (
        True  # one hidden by the first copy, seven by the second; the other block: all by the second
    )
    ratios.add(torch.arange(16.0), first)
    found = ratios.take()
    assert found["0.125"] == 0
    assert found["0.875"] == 4
    assert found["1"] == pytest.approx(np.arange(8, 16).mean())


def trainer(base, folder, steps):
    """Text that repeats one token per window: easy to learn for any order."""
    rng = np.random.default_rng(0)
    windows = np.repeat(rng.integers(4, 24, (64, 1)), WINDOW, axis=1).astype(np.uint16)
    write_shard(folder / "windows", "same", "0", windows)
    return AdapterTrainer(
        base, SETTINGS, LowRankRates(factors=2e-2, norms=1e-2, mask=2e-2),
        AdaptSettings(window=WINDOW, log_every=10, validate_every=10, save_seconds=1e9),
        LearningRateSchedule(steps=steps, warmup_steps=2),
        WindowMixture(folder / "windows", {"same": 1.0}, 8, 0), windows[:4], folder / "run", folder / "out",
    )  # fmt: skip


def test_a_run_learns_and_its_files_are_the_trained_model(tmp_path, base):
    lines = []
    last = trainer(base, tmp_path, 60).run(lines.append)
    assert lines[0]["way"].startswith("dense, plain")
    assert last["heldout_loss"] < 0.6 * lines[1]["heldout_loss"]
    adapter = load_adapter(tmp_path / "out")
    merged = copy.deepcopy(base)
    check_adapter(adapter, merged, tmp_path)
    before = any_order_bound(merged, torch.full((2, WINDOW), 9))
    merge(merged, adapter.state, adapter.settings)
    assert any_order_bound(merged, torch.full((2, WINDOW), 9)) < 0.5 * before


def test_an_interrupt_keeps_the_step_and_the_run_goes_on_as_if_there_had_been_none(tmp_path, base):
    trainer(base, tmp_path / "whole", 20).run()

    def stop_at_ten(line):
        if line["step"] == 10:
            signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            trainer(base, tmp_path / "parts", 20).run(stop_at_ten)
    finally:
        signal.signal(signal.SIGINT, before)
    lines = []
    trainer(base, tmp_path / "parts", 20).run(lines.append)
    assert (lines[0]["step"], lines[-1]["step"]) == (10, 20)
    whole, parts = (load_adapter(tmp_path / name / "out").state for name in ("whole", "parts"))
    assert all(torch.allclose(whole[name], parts[name], atol=1e-6) for name in whole)


def test_a_way_that_fails_is_replaced_before_the_first_step(tmp_path, base, monkeypatch):
    run = trainer(base, tmp_path, 10)
    run._methods = [("dense", True), ("dense", False)]
    monkeypatch.setattr(MaskedStreams, "compile_parts", lambda self: setattr(self, "_end", broken))
    lines = []
    run.run(lines.append)
    assert lines[0]["way"].startswith("dense, plain")
    assert "no compiler here" in lines[0]["troubles"][0]


def broken(*_):
    raise RuntimeError("no compiler here")


def test_a_batch_that_does_not_fit_is_taken_in_pieces_with_the_same_gradients(tmp_path, base, monkeypatch):
    whole, cut = trainer(base, tmp_path / "whole", 4), trainer(base, tmp_path / "cut", 4)
    whole.prepare()
    run, sizes = MaskedStreams.forward, []

    def cramped(self, tokens, first):
        sizes.append(len(tokens))
        if len(tokens) > 2:
            raise torch.cuda.OutOfMemoryError("no room")
        return run(self, tokens, first)

    monkeypatch.setattr(MaskedStreams, "forward", cramped)
    cut.prepare()
    assert sizes == [8, 4, 2, 2, 2, 2]
    assert cut.way.endswith("4 piece(s) per batch")
    sizes.clear()
    windows = cut.mixture.batch(0)
    found = cut._gradients(windows, (0, 0))
    monkeypatch.setattr(MaskedStreams, "forward", run)
    wanted = whole._gradients(windows, (0, 0))
    assert sizes == [2, 2, 2, 2]
    assert float(found) == pytest.approx(float(wanted), rel=1e-5)
    for one, other in zip(whole._loss.model.parameters(), cut._loss.model.parameters(), strict=True):
        if one.grad is not None:
            assert torch.allclose(one.grad, other.grad, atol=1e-6)


def test_one_window_that_does_not_fit_is_the_end(tmp_path, base, monkeypatch):
    monkeypatch.setattr(
        MaskedStreams, "forward", lambda *_: (_ for _ in ()).throw(torch.cuda.OutOfMemoryError("no room"))
    )
    with pytest.raises(torch.cuda.OutOfMemoryError):
        trainer(base, tmp_path, 4).prepare()


def test_a_folder_with_another_adapter_is_refused(tmp_path, base):
    trainer(base, tmp_path, 2).run()
    other = trainer(base, tmp_path, 2)
    other.adapter = AdapterSettings(rank=2, scale=2.0, block_size=BLOCK, mask_id=3)
    with pytest.raises(RunError, match="its checkpoint has other adapter settings; use the same"):
        other.run()


def test_a_loss_that_is_no_number_ends_the_run(tmp_path, base):
    with torch.no_grad():
        base.final_norm.weight[0] = torch.nan
    with pytest.raises(ModelOutputError, match="the loss is nan at step 10; lower the learning rate"):
        trainer(base, tmp_path, 10).run()


def test_without_held_out_windows_there_is_no_loss_of_them(tmp_path, base):
    run = trainer(base, tmp_path, 4)
    run.heldout = run.heldout[:0]
    run.prepare()
    assert np.isnan(run.heldout_loss())


def test_the_adapter_says_how_it_was_made(tmp_path, base):
    trainer(base, tmp_path, 3).run()
    notes = json.loads((tmp_path / "out" / "adapter.json").read_text())
    flat = json.dumps(notes)
    assert f'"tokens": {3 * 8 * WINDOW}' in flat
    assert '"step": 3' in flat
    assert '"rank": 3' in flat


def test_cut_blocks_are_the_asked_share_and_the_rest_is_as_without_cuts() -> None:
    masks = sample_cut_masks(2000, 16, 8, 0.25, torch.Generator().manual_seed(3))
    first = masks.first.view(-1, 8)
    size = first.sum(1)
    prefix = (torch.arange(8) < size[:, None]).eq(first).all(1)
    middle = (size > 1) & (size < 7)
    by_chance = 1 / torch.tensor([1, 8, 28, 56, 70, 56, 28, 8, 1])
    expected = (0.25 + 0.75 * by_chance[size[middle]]).mean()
    assert float(prefix[middle].float().mean()) == pytest.approx(float(expected), abs=0.03)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_cut_or_not_the_weights_of_a_copy_sum_to_its_part(share: float) -> None:
    masks = sample_cut_masks(40, 12, 6, share, torch.Generator().manual_seed(4))
    copies = 40 * 2 * 2 * 6 / 7
    for here, values in zip(masks.first.view(-1, 6), masks.weight.view(-1, 6), strict=True):
        for part in (values[here], values[~here]):
            assert len(part) == 0 or float(part.sum()) * copies == pytest.approx(1.0, rel=1e-5)
