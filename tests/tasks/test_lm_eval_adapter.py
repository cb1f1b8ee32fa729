"""The lm-eval adapter against the exact model, and real lm-eval tasks run through it offline."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval")

import orderlens as ol
from orderlens import tasks
from orderlens.cli.main import main
from orderlens.errors import UserInputError
from orderlens.models.hmm import HiddenMarkovModel
from orderlens.tasks.lm_eval_adapter import OrderLensLM

EXACT = HiddenMarkovModel.parse("")


def instances(kind: str, arguments: list[tuple[Any, ...]], task: str | None = "t") -> list[Any]:
    from lm_eval.api.instance import Instance

    return [Instance(kind, {}, given, 0, (task, number, 1)) for number, given in enumerate(arguments)]


def conditional(context: str, continuation: str) -> float:
    before, after = EXACT.tokenizer.encode(context), EXACT.tokenizer.encode(continuation)
    return EXACT.joint_log_prob([*before, *after]) - (EXACT.joint_log_prob(before) if before else 0.0)


PAIRS = [("the cat sat", " on the mat"), ("the cat ", "sat."), ("", "hello"), ("a", "b"), ("same", " text")]


@pytest.mark.parametrize("order", ["forced-ar", "max-prob", "random:3"])
def test_loglikelihood_is_the_exact_conditional_under_every_order(order: str) -> None:
    lm = OrderLensLM("hmm", order, block_size=8)
    found = lm.loglikelihood(instances("loglikelihood", PAIRS))
    for (context, continuation), (value, _) in zip(PAIRS, found, strict=True):
        kept = context.rstrip()  # lm-eval's convention: spaces at the end belong to the continuation
        expected = conditional(kept, context[len(kept) :] + continuation)
        assert value == pytest.approx(expected, abs=1e-9)


def test_the_any_order_bound_of_a_coherent_model_is_its_conditional() -> None:
    lm = OrderLensLM("hmm", block_size=8, likelihood="elbo", draws=1500)
    found = lm.loglikelihood(instances("loglikelihood", PAIRS))
    for (context, continuation), (value, greedy) in zip(PAIRS, found, strict=True):
        kept = context.rstrip()
        assert value == pytest.approx(conditional(kept, context[len(kept) :] + continuation), abs=0.5)
        assert not greedy
    with pytest.raises(UserInputError, match="unknown likelihood 'bound'"):
        OrderLensLM("hmm", likelihood="bound")
    with pytest.raises(UserInputError, match="draws=0 must be at least 1"):
        OrderLensLM("hmm", likelihood="elbo", draws=0)


def test_greedy_flags_and_empty_continuations() -> None:
    lm = OrderLensLM("hmm", block_size=8)
    tokens = EXACT.tokenizer.encode("the ca")
    best = EXACT.log_probs([*tokens, EXACT.mask_id])[-1].argmax()
    likely = EXACT.tokenizer.decode([int(best)])
    unlikely = next(char for char in EXACT.tokenizer.characters if char not in likely + "?")
    pairs = [("the ca", likely), ("the ca", unlikely), ("the ca", "")]
    flags = [flag for _, flag in lm.loglikelihood(instances("loglikelihood", pairs))]
    assert flags == [True, False, True]


def test_rolling_is_the_joint_and_windows_keep_context() -> None:
    lm = OrderLensLM("hmm", block_size=8)
    text = "the quick brown fox jumps over the lazy dog, twice."
    assert lm.loglikelihood_rolling(instances("r", [(text,), ("",)])) == [
        pytest.approx(EXACT.joint_log_prob(EXACT.tokenizer.encode(text)), abs=1e-9),
        0.0,
    ]
    lm.model.max_positions = 40  # type: ignore[misc]
    tokens = EXACT.tokenizer.encode(text)
    expected = sum(
        conditional(text[max(0, start - 16) : start], text[start : start + 16])
        for start in range(0, len(tokens), 16)
    )
    assert lm.loglikelihood_rolling(instances("r", [(text,)]))[0] == pytest.approx(expected, abs=1e-9)


def test_generate_until_cuts_and_groups() -> None:
    lm = OrderLensLM("hmm", "max-prob", block_size=8)
    wanted = [
        ("the cat", {"until": ["\n"], "max_gen_toks": 12}),
        ("a dog", {"until": "zzz", "max_gen_toks": 5}),
    ]
    wanted.append(("the cat", {"max_new_tokens": 12, "until": None, "do_sample": False, "temperature": 0.9}))
    plain = ol.generate("hmm", ["the cat"], "max-prob", max_new_tokens=12, block_size=8)
    text = plain.outputs().to_arrow()["text"][0].as_py()
    found = lm.generate_until(instances("generate_until", wanted))
    assert found[2] == text
    assert found[0] == text.partition("\n")[0]
    assert len(found[1]) <= 5
    stopped = lm.generate_until(
        instances("generate_until", [("the cat", {"until": [text[2]], "max_gen_toks": 12})])
    )
    assert stopped == [text.partition(text[2])[0]]


def test_long_contexts_lose_their_beginning() -> None:
    lm = OrderLensLM("hmm", block_size=8)
    lm.model.max_positions = 32  # type: ignore[misc]
    kept = ("x" * 100 + "the cat")[-(32 - 8 - 4) :]
    ((value, _),) = lm.loglikelihood(instances("l", [("x" * 100 + "the cat", " sat")]))
    assert value == pytest.approx(conditional(kept, " sat"), abs=1e-9)
    assert len(lm.generate_until(instances("g", [("y" * 100, {"max_gen_toks": 1000})]))) == 1


def test_traces_are_kept_and_reused(tmp_path: Path) -> None:
    lm = OrderLensLM("hmm", "random:2", block_size=8, traces=str(tmp_path))
    first = lm.loglikelihood(instances("loglikelihood", PAIRS))
    (folder,) = tmp_path.iterdir()
    run = ol.open_run(folder)
    assert run.is_complete
    assert {row["order"] for row in run.samples().to_arrow().to_pylist()} == {"random"}
    assert run.samples().to_arrow().num_rows == len(PAIRS)
    assert lm.loglikelihood(instances("loglikelihood", PAIRS)) == first
    assert list(tmp_path.iterdir()) == [folder]


def test_repeated_requests_get_their_own_ids() -> None:
    lm = OrderLensLM("hmm", block_size=8)
    request = instances("loglikelihood", [PAIRS[0]])[0]
    first, second = lm.loglikelihood([request, request])
    assert first == second


@pytest.mark.parametrize("order", ["oracle-max-q", "forced-ar,random"])
def test_orders_that_define_no_likelihood_are_refused(order: str) -> None:
    with pytest.raises(UserInputError, match="one order that needs no target"):
        OrderLensLM("hmm", order)


def test_chat_templates_are_the_models() -> None:
    lm = OrderLensLM("hmm")
    assert lm.chat_template(True) == ""
    with pytest.raises(UserInputError, match="no chat template"):
        lm.apply_chat_template([{"role": "user", "content": "hi"}])


def test_lm_eval_knows_the_name() -> None:
    from lm_eval.api.registry import get_model

    assert get_model("orderlens") is OrderLensLM
    lm = OrderLensLM.create_from_arg_string(
        "pretrained=hmm,order=max-prob", {"batch_size": "auto", "max_batch_size": None, "device": None}
    )
    assert lm.batch_size == 32
    assert lm.get_model_info()["order"] == "max-prob"


SMALL = 4
TEXTS = [
    {"id": 0, "page": "The river was low that year. Nobody in the village had seen the old stones before."},
    {"id": 1, "page": "Bread needs flour, water, salt and time."},
]
KINDS: dict[str, dict[str, Any]] = {
    "arith": {
        "output_type": "generate_until",
        "doc_to_text": "{{prompt}}",
        "doc_to_target": "{{golden}}",
        "generation_kwargs": {"until": ["Question:"], "max_gen_toks": 16},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    },
    "choice": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{prompt}}",
        "doc_to_choice": "{{options}}",
        "doc_to_target": "answer_index",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    },
    "pages": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{page}}",
        "metric_list": [{"metric": "bits_per_byte"}],
    },
}
"""One lm-eval task per request type."""


def write_tasks(folder: Path) -> None:
    """Write lm-eval's task files over local data."""
    for name, config in KINDS.items():
        docs = TEXTS if name == "pages" else list(tasks.get_task(name).load(limit=SMALL).values())
        kept = [{key: doc[key] for key in doc if key not in ("facts", "query")} for doc in docs]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in kept))
        shared = {
            "task": f"local_{name}",
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(folder / f"{name}.jsonl")}},
            "test_split": "test",
        }
        (folder / f"local_{name}.yaml").write_text(json.dumps(shared | config))  # JSON is YAML


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with task files and a separate cache; lm-eval's own tasks are not searched."""
    import datasets
    from lm_eval import tasks as known

    monkeypatch.setattr(known, "TaskManager", partial(known.TaskManager, include_defaults=False))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    write_tasks(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("model", "order"),
    [
        ("hmm", "forced-ar"),
        pytest.param("tiny", "forced-ar", marks=pytest.mark.slow),
        pytest.param("tiny", "max-prob", marks=pytest.mark.slow),
    ],
)
def test_real_lm_eval_tasks_run_offline(alone: Path, model: str, order: str) -> None:
    """lm-eval's own evaluator, unmodified; all three request types."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    if model == "tiny":
        pytest.importorskip("torch")  # the weights come with the package: without them this must fail
    found = simple_evaluate(
        "orderlens",
        {"model": model, "order": order, "traces": str(alone / "traces")},
        tasks=["local_arith", "local_choice", "local_pages"],
        task_manager=TaskManager(include_path=str(alone)),
        bootstrap_iters=0,
    )
    results = found["results"]
    answers = {
        name: [(row["doc"]["id"], row["resps"]) for row in rows] for name, rows in found["samples"].items()
    }
    assert {path.name.partition("-")[0] for path in (alone / "traces").iterdir()} == {
        "generate", "loglikelihood", "rolling",
    }  # fmt: skip
    check_choices(model, order, answers["local_choice"], results["local_choice"]["acc,none"])
    check_pages(model, order, answers["local_pages"], results["local_pages"]["bits_per_byte,none"])
    check_generations(model, order, answers["local_arith"])
    assert "exact_match,none" in results["local_arith"]


def totals(model: str, order: str, samples: list[ol.Sample]) -> list[float]:
    """Score texts with the package itself, without lm-eval."""
    frame = ol.score(model, samples, order).samples().to_pandas().set_index("sample_id")
    return [float(frame.loc[sample.id, "log_prob"]) for sample in samples]


def check_choices(model: str, order: str, answers: list[Any], accuracy: float) -> None:
    docs = {doc["id"]: doc for doc in tasks.get_task("choice").load(limit=SMALL).values()}
    right = 0
    for name, found in answers:
        doc = docs[name]
        pairs = [(doc["prompt"].rstrip(), f" {option}") for option in doc["options"]]
        if model == "hmm":
            expected = [conditional(*pair) for pair in pairs]
        else:
            encode = ol.load_model(model).tokenizer.encode
            tokens = [(encode(before), encode(before + after)) for before, after in pairs]
            assert all(both[: len(prompt)] == prompt for prompt, both in tokens)
            samples = [ol.Sample(str(n), p, both[len(p) :]) for n, (p, both) in enumerate(tokens)]
            expected = totals(model, order, samples)
        assert [float(answer[0][0]) for answer in found] == pytest.approx(expected, abs=1e-4)
        right += max(range(4), key=expected.__getitem__) == doc["answer_index"]
    assert len(answers) == SMALL
    assert accuracy == pytest.approx(right / SMALL)


def check_pages(model: str, order: str, answers: list[Any], bits: float) -> None:
    samples = [ol.Sample(str(doc["id"]), "", doc["page"]) for doc in TEXTS]
    expected = totals(model, order, samples)
    found = {str(name): float(answer[0][0]) for name, answer in answers}
    assert [found[sample.id] for sample in samples] == pytest.approx(expected, abs=1e-4)
    n_bytes = sum(len(str(doc["page"]).encode()) for doc in TEXTS)
    assert bits == pytest.approx(-sum(expected) / n_bytes / math.log(2), abs=1e-5)


def check_generations(model: str, order: str, answers: list[Any]) -> None:
    docs = {doc["id"]: doc for doc in tasks.get_task("arith").load(limit=SMALL).values()}
    prompts = [ol.Sample(str(name), docs[name]["prompt"]) for name, _ in answers]
    run = ol.generate(model, prompts, order, max_new_tokens=16).outputs().to_arrow().to_pylist()
    texts = {row["sample_id"]: row["text"].partition("Question:")[0] for row in run}
    assert {str(name): answer[0][0] for name, answer in answers} == texts


def test_the_launcher_writes_results_and_traces(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = ["--tasks", "local_choice,local_arith", "--limit", "2", "--include_path", str(alone)]
    out = alone / "results"
    given = ["lm-eval", "--model", "hmm", "--order", "max-prob", *wanted, "--out", str(out), "--json"]
    assert main([*given, "--num_fewshot", "1"]) == 0  # an option of lm-eval's own
    shown = json.loads(capsys.readouterr().out)
    assert set(shown["results"]) == {"local_arith", "local_choice"}
    assert json.loads(Path(shown["file"]).read_text())["n-shot"]["local_arith"] == 1
    run = ol.open_run(out / "traces")
    assert {row["order"] for row in run.samples().to_arrow().to_pylist()} == {"max-prob"}
    assert {row["task"] for row in run.outputs().to_arrow().to_pylist()} == {"local_arith", "local_choice"}


def test_the_launcher_passes_model_args_on(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = alone / "bound"
    given = ["lm-eval", "--model", "hmm", "--tasks", "local_pages", "--include_path", str(alone)]
    assert main([*given, "--out", str(out), "--json", "--model_args", "likelihood=elbo,draws=3"]) == 0
    found = json.loads(capsys.readouterr().out)["results"]["local_pages"]["bits_per_byte,none"]
    exact = totals("hmm", "forced-ar", [ol.Sample(str(doc["id"]), "", doc["page"]) for doc in TEXTS])
    n_bytes = sum(len(doc["page"].encode()) for doc in TEXTS)
    assert abs(found + sum(exact) / n_bytes / math.log(2)) > 1e-3, "three draws are not exact"
    assert not (out / "traces").exists()
    assert main([*given, "--out", str(alone / "other"), "--model_args", "likelyhood=elbo"]) == 2
    assert "did you mean 'likelihood'" in capsys.readouterr().err


def error_lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 2, done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    return [line for line in done.stderr.splitlines() if line.startswith("orderlens:")]


@pytest.mark.parametrize(
    ("tasks_named", "message"),
    [
        pytest.param("hellaswag", "add tasks from local files", marks=pytest.mark.slow),
        (" ", "--tasks is empty"),
    ],
)
def test_launcher_errors_are_one_line(tmp_path: Path, tasks_named: str, message: str) -> None:
    """In a process without network."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    given = ["lm-eval", "--model", "hmm", "--tasks", tasks_named, "--out", str(tmp_path / "out")]
    command = [sys.executable, "-m", "orderlens", *given]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | offline)
    (line,) = error_lines(done)
    assert message in line


@pytest.mark.usefixtures("alone")
def test_an_unknown_task_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lm-eval", "--model", "hmm", "--tasks", "nope", "--out", str(tmp_path / "out")]) == 2
    (line,) = [row for row in capsys.readouterr().err.splitlines() if row.startswith("orderlens:")]
    assert "Tasks not found: nope" in line
