"""Small runs of the exact control behind all golden numbers, and how numbers are stored and compared."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

import orderlens as ol
from orderlens.analysis import Options, Resampling, Study
from orderlens.analysis.stored_scores import pair_key
from orderlens.store.reader import memory_run

HERE = Path(__file__).parent
OPTIONS = Options(Resampling(50), null_reps=20)
MODEL = "hmm:seed=3,states=6,characters=20,block=8,incoherence=0.3"
SAMPLES = [
    ol.Sample(f"s{i}", [(3 * i + k) % 19 for k in range(4)], [(5 * i + 3 * k * k) % 19 for k in range(16)])
    for i in range(5)
]
SEEDED = [f"random:{seed}" for seed in range(3)]


def scored():
    orders = ["forced-ar", "reverse-ar", *SEEDED, "max-prob", "oracle-max-q", "oracle-margin", "oracle-min-q"]
    return ol.score(ol.load_model(MODEL), SAMPLES, orders=orders, circulation=3, noise_floor=True)


def swept():
    """Texts at two temperatures, scored from outside by a made-up evaluator of letters."""
    orders = ["forced-ar", "max-prob", "random:0"]
    run = ol.generate(
        ol.load_model(MODEL),
        SAMPLES,
        orders=orders,
        max_new_tokens=16,
        temperature=[0.0, 0.7],
        stop_at_eos=False,
    )
    outputs = run.outputs().to_arrow()
    found = set(zip(outputs["prompt_text"].to_pylist(), outputs["text"].to_pylist(), strict=True))
    pairs = sorted(found | {("", prompt + text) for prompt, text in found})  # as continuation, and whole
    scores = {
        "evaluator": ["letters"] * len(pairs),
        "text_key": [pair_key(pair) for pair in pairs],
        "logprobs": [[-1.0 - ord(letter) % 5 for letter in text] for _, text in pairs],
    }
    tables = {name: run.table(name).to_arrow() for name in run.tables}
    return memory_run(tables | {"external": pa.table(scores)}, run.spec)


def graded():
    """Greedy texts of many prompts; a text counts as correct when its first two tokens have an even sum."""
    prompts = [ol.Sample(f"i{i}", [i % 19, (7 * i) % 19, i // 19], task="parity") for i in range(40)]
    run = ol.generate(
        ol.load_model(MODEL), prompts, orders=["forced-ar", "max-prob", *SEEDED[:2]], max_new_tokens=16
    )
    outputs = run.outputs().to_arrow()
    answers = [sum(row[:2]) % 4 for row in outputs["token_ids"].to_pylist()]
    correct = [answer % 2 == 0 for answer in answers]
    keys = outputs.select(["sample_id", "task", "order", "seed", "temperature", "sample_seed"])
    verdicts = keys.append_column("correct", pa.array(correct))
    verdicts = verdicts.append_column("extracted", pa.array([str(answer) for answer in answers]))
    verdicts = verdicts.append_column("grader", pa.array(["parity"] * len(correct)))
    return memory_run({"reveals": run.reveals().to_arrow(), "verdicts": verdicts}, run.spec)


def parallel():
    """Sets of several sizes with their couplings."""
    orders = ["forced-ar", "forced-ar+top=4", "max-prob+top=2", "max-prob+top=4", "max-prob+threshold=0.2"]
    return ol.score(ol.load_model(MODEL), SAMPLES, orders=orders, couplings=99)


def counted():
    """All orders of two spans per text."""
    orders = ["forced-ar", "random", "max-prob", "max-prob+top=2", "oracle-max-q"]
    return ol.census(ol.load_model(MODEL), SAMPLES, span=4, spans=2, orders=orders).run


def kept():
    """States of all masked positions, on more texts than a decision needs."""
    samples = [ol.Sample(f"k{i}", [i % 19, 3], [(7 * i + k * k) % 19 for k in range(16)]) for i in range(8)]
    orders = ["forced-ar", "random:0", "max-prob"]
    return ol.score(ol.load_model(MODEL), samples, orders=orders, states=True)


RUNS = {
    None: parallel,
    "score": scored,
    "generate": swept,
    "ending": swept,
    "sweep": swept,
    "evaluate": graded,
    "census": counted,
    "states": kept,
}


def studies():
    """Return a study by kind of traces."""
    made = {make: Study(make(), OPTIONS) for make in set(RUNS.values())}
    return {kind: made[make] for kind, make in RUNS.items()}


def close(found: Any, stored: Any, path: str = "") -> Iterator[str]:
    """Yield where two pieces of plain data differ by more than rounding."""
    if isinstance(stored, dict) and isinstance(found, dict):
        if set(found) != set(stored):
            yield f"{path}: {sorted(set(found) ^ set(stored))}"
            return
        for name in stored:
            yield from close(found[name], stored[name], f"{path}.{name}")
    elif isinstance(stored, list) and isinstance(found, list):
        if len(found) != len(stored):
            yield f"{path}: {len(found)} instead of {len(stored)}"
            return
        for place, (one, other) in enumerate(zip(found, stored, strict=True)):
            yield from close(one, other, f"{path}[{place}]")
    elif isinstance(stored, int | float) and isinstance(found, int | float) and not isinstance(stored, bool):
        if not math.isclose(found, stored, rel_tol=1e-4, abs_tol=1e-6):
            yield f"{path}: {found} instead of {stored}"
    elif found != stored:
        yield f"{path}: {found!r} instead of {stored!r}"


def rounded(value: Any) -> Any:
    """Return plain data with seven digits of every number."""
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return {name: rounded(item) for name, item in value.items()} if isinstance(value, dict) else value


def differences(kind: str, name: str, found: Any) -> list[str]:
    """Return where ``found`` differs from what is stored; ORDERLENS_RENEW_GOLDEN=1 stores it first."""
    path = HERE / kind / f"{name}.json"
    if os.environ.get("ORDERLENS_RENEW_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(rounded(found), ensure_ascii=False) + "\n", encoding="utf-8")
    return list(close(found, json.loads(path.read_text(encoding="utf-8"))))
