"""``ol.probe``: the same numbers as scoring, within the stated number of forward passes."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import orderlens as ol
from orderlens.errors import UserInputError

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")


def samples(n: int = 4, length: int = 12) -> list[ol.Sample]:
    return ol.load_samples("passages", "hmm", limit=n, prefix_tokens=8, target_tokens=length)


def test_a_coherent_model_has_no_gap_and_no_circulation() -> None:
    found = ol.probe("hmm", samples())
    assert found["order_gap"] == 0
    assert found["order_gap_high"] < 1e-9
    assert found["circulation"] < 1e-9
    assert found["any_order_bound"] == pytest.approx(found["log_prob/forced-ar"])


def test_numbers_are_those_of_score() -> None:
    model, texts = ol.load_model("hmm:incoherence=2"), samples(length=24)  # up to the end of a block
    found = ol.probe(model, texts, ["forced-ar", "random"])
    table = ol.score(model, texts, ["forced-ar", "random"]).samples().to_pandas()
    for order, part in table.groupby("order"):
        assert found[f"log_prob/{order}"] == pytest.approx(part["mean"].mean(), abs=1e-12)
        assert found[f"var/{order}"] == pytest.approx(part["var"].mean(), abs=1e-12)
    assert found["any_order_bound"] == found["log_prob/random"]
    assert found["order_gap_low"] <= found["order_gap"] <= found["order_gap_high"]
    assert found["circulation"] > 0.1
    path = ol.generate(
        model, [ol.Sample(t.id, t.prompt) for t in texts], ["max-prob"], max_new_tokens=24, stop_at_eos=False
    )
    first = path.reveals().to_pandas()
    steps = first[~first["is_overflow"] & ~first["is_eos"]].groupby("sample_id")["position"]
    expected = np.mean([(np.diff(part.to_numpy()) == 1).mean() for _, part in steps if len(part) > 1])
    assert found["arness"] == pytest.approx(expected)


def test_the_cascade_of_ends_is_that_of_decoded_texts() -> None:
    from orderlens.testing import StubModel

    rows = np.log([[0.05, 0.95], [0.04, 0.96], [0.03, 0.97], [0.02, 0.98]])  # token 1 ends the text
    model = StubModel(rows, block_size=4, eos_ids=[1])
    found = ol.probe(model, [ol.Sample("a", [], [0, 0, 0, 1])], ["forced-ar"])
    assert found["eos_cascade"] == 4  # right to left
    assert math.isnan(found["arness"])  # no content, hence no order of content


def test_the_result_is_flat_and_a_logger_takes_it() -> None:
    found = ol.probe("hmm", samples(2))
    assert all(type(value) is float for value in found.values())
    assert json.loads(json.dumps(found)) == found


class Counting:
    """A network of known logits that counts the sequences it sees."""

    def __init__(self) -> None:
        self.n = 0

    def __call__(self, ids: Any) -> Any:
        import torch

        self.n += len(ids)
        places = torch.arange(ids.shape[1])[None, :, None]
        return torch.sin(places + torch.arange(6)[None, None] + ids.sum(1)[:, None, None] * 0.1).double()


@pytest.mark.needs_torch
@pytest.mark.parametrize("budget", [40, 100, 200])
def test_the_budget_holds_for_the_network_itself(budget: int) -> None:
    pytest.importorskip("torch")
    network = Counting()
    model = ol.wrap(network, mask_id=5, check=False)
    texts = [ol.Sample(str(i), [1, 2], [3, 4, 1, 2]) for i in range(6)]
    before = network.n
    found = ol.probe(model, texts, ["forced-ar", "random"], budget=budget, swaps=1)
    assert network.n - before <= found["passes"] <= budget
    per_text = 2 * (4 + 3) + 4
    assert found["texts"] == min(6, budget // per_text)


def test_a_budget_without_swaps_and_decoding() -> None:
    found = ol.probe("hmm", samples(2), ["forced-ar", "random"], budget=48, swaps=0, decode=None)
    assert (found["passes"], found["texts"]) == (48, 2)
    assert math.isnan(found["circulation"])
    assert "arness" not in found


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"budget": 10}, "budget of 10 passes"),
        ({"orders": ["max-prob+top=2"]}, "one pass per token"),
        ({"orders": ["lookahead-gain"]}, "one pass per token"),
    ],
)
def test_refusals(arguments: dict[str, Any], word: str) -> None:
    with pytest.raises(UserInputError, match=word):
        ol.probe("hmm", samples(1), **arguments)


def test_several_ranks_each_probe_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ol.probe("hmm", samples(2))
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert ol.probe("hmm", samples(2)) == expected


@pytest.mark.needs_torch
@pytest.mark.filterwarnings("ignore")
def test_the_callback_of_the_page_works_in_a_real_trainer(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate", reason="transformers.Trainer needs accelerate")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)
    (code,) = [text for _, text in blocks if "TrainerCallback" in text]
    names: dict[str, Any] = {}
    exec(code, names)
    config = transformers.BertConfig(
        vocab_size=12, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    network = transformers.BertForMaskedLM(config)
    rows = [{"input_ids": torch.tensor([1, 2, 3, 4]), "labels": torch.tensor([1, 2, 3, 4])} for _ in range(8)]
    texts = [ol.Sample(str(i), [1, 2], [3, 4, i]) for i in range(3)]
    callback = names["ProbeCallback"](texts, mask_id=11, budget=200)
    settings = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=4, eval_strategy="steps", eval_steps=2, report_to=[],
        use_cpu=True, per_device_train_batch_size=2, save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = transformers.Trainer(
        network, settings, train_dataset=rows, eval_dataset=rows[:2], callbacks=[callback]
    )
    trainer.train()
    logged = [line for line in trainer.state.log_history if "probe/order_gap" in line]
    assert [line["step"] for line in logged] == [2, 4]
    assert all(line["probe/passes"] <= 200 for line in logged)
    assert logged[0]["probe/any_order_bound"] != logged[1]["probe/any_order_bound"]
    network.train()
    callback.on_evaluate(settings, trainer.state, trainer.control, network)
    assert network.training
