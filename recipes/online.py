"""The study of docs/results/online.md: rules that aim at low Var while they decode, at equal cost.

PYTHONPATH=src:recipes python recipes/online.py items ITEMS            # arith and choice, split by hash
PYTHONPATH=src:recipes python recipes/online.py run dev ITEMS DEV      # settings are chosen on these items
PYTHONPATH=src:recipes python recipes/online.py tune DEV               # prints the chosen settings
PYTHONPATH=src:recipes python recipes/online.py run test ITEMS TEST    # the test, with the settings below
PYTHONPATH=src:recipes python recipes/online.py hmm HMM                # the exact control
PYTHONPATH=src:recipes python recipes/online_page.py TEST HMM docs/results/online

``run`` decodes the groups of rules in several processes (``--processes``) and writes one Parquet file per
group and chunk with one row per trace; those that exist are skipped. Set OMP_NUM_THREADS=1 for many of them.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

N_ITEMS, N_TEST, N_DEV = 3_700, 3_000, 600
MAX_NEW_TOKENS = 96
TASKS = ("arith", "choice")
HMM_TEXTS = 200
MEASURES = ("var", "mean", "sum", "min", "recover", "entropy", "random", "majority")
LOOKAHEAD = ("var", "ll", "entropy", "gain", "recover", "min")
# Chosen on the development items by ``tune``: the largest accuracy, averaged over both tasks.
TAU, MU, FORK, POSITION, HEAT = 0.5, -0.01, 0.9, 0.05, 0.3
HEATS = (0.3, 0.5, 0.7, 1.0)
HOT = 0.7
"""The higher temperature of pass@k; not tuned."""
SINGLE = ("forced-ar", "max-prob", "top-margin", "entropy")
SEEDS = range(8)
CHUNK = 600
"""Items of a task that one process decodes at a time."""
CHAINS = 2_000
"""Paths in one batch on a GPU."""
Group = dict[str, Any]


def dev_groups() -> dict[str, Group]:
    """Return the groups of the development split: name → orders, temperature, seed of the draws."""
    levels = [f"defer:tau={tau}" for tau in (0.5, 0.7, 0.9, 0.97)]
    levels += [f"level:mu={mu}" for mu in (-0.01, -0.05, -0.2, -0.5)]
    forks = [f"forced-ar+above={t}" for t in (0.5, 0.6, 0.8, 0.9)]
    positions = [f"sampled-position:temp={t}:{s}" for t in (0.05, 0.1, 0.2, 0.4) for s in range(4)]
    groups = {"greedy": _group([*SINGLE, *levels, *forks, *positions])}
    for heat in HEATS:
        for seed in range(4):
            orders = ["forced-ar", "max-prob", "fast-dllm", "eb-sampler"]
            groups[f"draws-{heat}-{seed}"] = _group(orders, heat, seed)
    return groups


def test_groups() -> dict[str, Group]:
    """Return the groups of the test split, the most important ones first."""
    base = f"sampled-position:temp={POSITION}"
    learned = ["learned", "learned:teacher=census"]
    levels = [f"defer:tau={TAU}", f"level:mu={MU}", "even", "first-hard"]
    parallel = ["fast-dllm", "eb-sampler", f"forced-ar+above={FORK}"]
    groups = {order: _group([order]) for order in (*SINGLE, *levels, *learned, "random:0", "random:1")}
    groups["parallel"] = _group(parallel)
    groups["sr-smc"] = _group(["sr-smc"], 1.0)
    groups |= {f"positions-{seed}": _group([f"{base}:{seed}"]) for seed in SEEDS}
    groups |= {f"draws-{seed}": _group(["forced-ar"], HEAT, seed) for seed in SEEDS}
    groups |= {f"parallel-{seed}": _group(["fast-dllm"], HEAT, seed) for seed in range(24)}
    for name, measure in zip(LOOKAHEAD, ("var", "random", "majority", "mean", "entropy", "min"), strict=True):
        groups[f"lookahead-{name}-3"] = _group([_tries(name, 3)])
        groups[f"best-4-{measure}"] = _group([f"{base}+best=4:{measure}"])
    for measure in ("sum", "recover"):
        groups[f"best-4-{measure}"] = _group([f"{base}+best=4:{measure}"])
    groups["particles-sum"] = _group([f"{base}+particles=4:1:sum"])
    groups["particles-var"] = _group([f"{base}+particles=4:100:var"])
    groups["restart-var"] = _group([f"{base}+restart=-0.005:var:4"])
    groups["restart-mean"] = _group([f"{base}+restart=-0.02:mean:4"])
    for measure in ("var", "mean", "random", "majority", "min", "entropy"):
        groups[f"drawn-best-4-{measure}"] = _group([f"forced-ar+best=4:{measure}"], HEAT)
    groups["entropy-text"] = _group([f"{base}+best=4:entropy:text"])
    for measure in ("var", "mean", "majority"):
        groups[f"best-2-{measure}"] = _group([f"{base}+best=2:{measure}"])
        groups[f"best-8-{measure}"] = _group([f"{base}+best=8:{measure}"])
    for name in ("var", "ll", "entropy"):
        groups[f"lookahead-{name}-7"] = _group([_tries(name, 7)])
    return groups | added_groups()


def added_groups() -> dict[str, Group]:
    """Return the groups that joined the test split after its first run and before they were run."""
    groups = {
        "order-token-search": _group(["order-token-search"], HEAT),
        "order-token-search-8": _group(["max-prob+top=2+beams=8"], HEAT),
        "order-token-search-one": _group(["max-prob+beams=4"], HEAT),
        "lookum-nis": _group(["lookum-nis"], HEAT),
        "lookum-best-7": _group(["entropy+lookahead-sets=7:2:5:0"]),
        "pairs": _group(["max-prob+top=2", "entropy+top=2"]),
    }
    groups |= {f"draws-hot-{seed}": _group(["forced-ar", "max-prob"], HOT, seed) for seed in SEEDS}
    return groups | {f"draws-max-prob-{seed}": _group(["max-prob"], HEAT, seed) for seed in SEEDS}


def _tries(objective: str, n: int) -> str:
    """Return the look-ahead order that tries the n most probable positions in every pass."""
    return f"lookahead-{objective}:n={n}:temp=0:bypass=1"


def _group(orders: list[str], temperature: float = 0.0, seed: int = 0) -> Group:
    return {"orders": orders, "temperature": temperature, "seed": seed}


def write_items(folder: Path) -> None:
    """Write the items of both tasks, split by the hash of their ids."""
    from bundled_tasks.generator import items

    folder.mkdir(parents=True, exist_ok=True)
    for task in TASKS:
        parts: dict[str, list[str]] = {"dev": [], "test": []}
        for item in items(task, "test", N_ITEMS):
            number = int(hashlib.sha256(f"online/{item['id']}".encode()).hexdigest(), 16)
            parts["test" if number % 6 else "dev"].append(json.dumps(item, ensure_ascii=False))
        for part, count in (("dev", N_DEV), ("test", N_TEST)):
            if len(parts[part]) < count:
                raise SystemExit(f"only {len(parts[part])} items of {task} for {part}; raise N_ITEMS")
            text = "\n".join(parts[part][:count]) + "\n"
            (folder / f"{task}-{part}.jsonl").write_text(text)
            print(task, part, count, hashlib.sha256(text.encode()).hexdigest()[:16])


def decode(name: str, group: Group, part: str, chunk: int, items: Path, out: Path, device: str | None) -> str:
    """Decode and grade one group on one chunk of the items; write one row per trace."""
    import time

    import orderlens as ol

    began = time.time()
    sources = {task: items / f"{task}-{part}-{chunk}.jsonl" for task in TASKS}
    for task, file in sources.items():
        lines = (items / f"{task}-{part}.jsonl").read_text().splitlines(keepends=True)
        own = items / f"{file.name}.{name}"
        own.write_text("".join(lines[chunk * CHUNK : (chunk + 1) * CHUNK]))
        own.replace(file)
    run = ol.evaluate(
        _model(device),
        list(TASKS),
        group["orders"],
        limit=CHUNK,
        max_new_tokens=MAX_NEW_TOKENS,
        temperature=group["temperature"],
        seed=group["seed"],
        sources=sources,
        batch_size=None if device in (None, "cpu") else max(50, CHAINS // _n_paths(group["orders"])),
    )
    frame = traces(run)
    frame["group"] = name
    partial = out / f"{name}.{chunk}.partial"
    frame.to_parquet(partial, compression="zstd")
    partial.rename(out / f"{name}.{chunk}.parquet")
    return (
        f"{name} {chunk}: {len(frame)} traces, {int(frame['rows'].sum()):,} rows, {time.time() - began:.0f} s"
    )


@functools.cache
def _model(device: str | None) -> Any:
    """Return ``tiny``, loaded once per process."""
    import orderlens as ol

    return ol.load_model("tiny", device=device, dtype="bfloat16" if device == "cuda" else None)


def _n_paths(orders: list[str]) -> int:
    from orderlens.rules import parse_policy

    return sum(policy.n_paths for policy in map(parse_policy, orders))


KEY = ["task", "sample_id", "order", "seed", "temperature", "sample_seed"]


def traces(run: Any) -> pd.DataFrame:
    """Return one row per trace: verdict, length, statistics of log q without end tokens, model states."""
    frame = run.samples().to_pandas()[[*KEY, "n", "n_passes", "n_passes_lookahead"]]
    frame["rows"] = frame.pop("n_passes") + frame.pop("n_passes_lookahead")
    columns = [*KEY, "logq", "entropy", "is_eos", "is_overflow"]
    reveals = run.reveals().to_arrow().select(columns).to_pandas()
    reveals = reveals[~reveals["is_overflow"]]
    groups = reveals.groupby(KEY, dropna=False, observed=True)
    frame = frame.merge(groups["is_eos"].mean().rename("eos_share").reset_index(), on=KEY)
    content = reveals[~reveals["is_eos"]]
    content = content.assign(square=content["logq"] ** 2, recover=_log_success(content["logq"].to_numpy()))
    own = content.groupby(KEY, dropna=False, observed=True)
    summed = own.agg(
        length=("logq", "size"), mean=("logq", "mean"), sum=("logq", "sum"), min=("logq", "min"),
        square=("square", "mean"), recover=("recover", "sum"),
    )  # fmt: skip
    summed["var"] = (summed.pop("square") - summed["mean"] ** 2).clip(lower=0)
    frame = frame.merge(summed.reset_index(), on=KEY, how="left")
    verdicts = run.table("verdicts").to_pandas()[[*KEY, "correct", "extracted"]]
    outputs = run.table("outputs").to_pandas()[[*KEY, "text", "token_ids"]]
    outputs["distinct3"] = [_distinct3(list(ids)) for ids in outputs.pop("token_ids")]
    outputs["text"] = [hashlib.sha256(str(text).encode()).hexdigest()[:12] for text in outputs["text"]]
    return frame.merge(verdicts, on=KEY).merge(outputs, on=KEY)


def _log_success(y: np.ndarray) -> np.ndarray:
    from orderlens.theory.step import log_success

    return np.asarray(log_success(np.minimum(y.astype(np.float64), -1e-300), 1.0))


def _distinct3(ids: list[int]) -> float:
    grams = [tuple(ids[i : i + 3]) for i in range(len(ids) - 2)]
    return len(set(grams)) / len(grams) if grams else 1.0


def run_groups(
    part: str, items: Path, out: Path, limit: int, processes: int, device: str | None, skip: str, only: str
) -> None:
    """Decode the groups of one split chunk by chunk, in several processes."""
    out.mkdir(parents=True, exist_ok=True)
    groups = dev_groups() if part == "dev" else test_groups()
    chunks = range(-(-min(limit, N_DEV if part == "dev" else N_TEST) // CHUNK))
    skipped, wanted = tuple(skip.split(",")) if skip else (), tuple(only.split(","))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        jobs = [
            pool.submit(decode, name, group, part, chunk, items, out, device)
            for name, group in groups.items()
            for chunk in chunks
            if name.startswith(wanted) and not name.startswith(skipped)
            if not (out / f"{name}.{chunk}.parquet").exists()
        ]
        for job in as_completed(jobs):
            print(job.result(), flush=True)


def read(folder: Path) -> pd.DataFrame:
    """Return all traces of a folder."""
    files = sorted(folder.glob("*.parquet"))
    if not files:
        raise SystemExit(f"no results in {folder}; run 'online.py run' first")
    return pd.concat([pd.read_parquet(file) for file in files], ignore_index=True)


def majority(frame: pd.DataFrame) -> pd.Series:
    """Return, per item, whether the most frequent answer is correct; ties go to the first seed's answer."""
    frame = frame.sort_values(["sample_seed", "seed"])
    answer = frame["extracted"].astype(object).where(frame["extracted"].notna(), "")  # no answer is an answer
    votes = frame.assign(answer=answer).groupby(["sample_id", "answer"], sort=False)
    counted = votes.agg(n=("correct", "size"), correct=("correct", "first")).reset_index()
    return counted.sort_values("n", ascending=False, kind="stable").groupby("sample_id")["correct"].first()


def tune(folder: Path) -> None:
    """Print the accuracy of every setting on the development items, and the settings that are chosen."""
    frame = read(folder)
    accuracy = frame[frame["temperature"] == 0].groupby(["order", "task"])["correct"].mean().unstack() * 100
    accuracy["both"] = accuracy.mean(axis=1)
    rows = frame.groupby("order").apply(lambda own: own["rows"].sum() / own["n"].sum(), include_groups=False)
    print(accuracy.assign(rows=rows).round(2).to_string())
    for kind in ("defer", "level", "forced-ar+above"):
        own = accuracy[accuracy.index.str.startswith(kind)]
        print(kind, "→", own["both"].idxmax())
    for part, what in (
        (frame[frame["temperature"] == 0], "order"),
        (frame[frame["temperature"] > 0], "heat"),
    ):
        for name, own in part.groupby("order" if what == "order" else ["order", "temperature"]):
            if what == "order" and not str(name).startswith("sampled-position"):
                continue
            found = [100 * majority(rows).mean() for _, rows in own.groupby("task")]
            print("majority of 4:", name, np.round(found, 2), round(float(np.mean(found)), 2))


def hmm(out: Path) -> None:
    """Decode on the exact control: the law of texts at T = 1, and the joint log-probability at T = 0."""
    import orderlens as ol

    out.mkdir(parents=True, exist_ok=True)
    model = ol.load_model("hmm")
    rng = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz "))
    prompts = [ol.Sample(f"p{i}", "".join(rng.choice(letters, 16))) for i in range(HMM_TEXTS)]
    greedy = [*SINGLE, "random", f"defer:tau={TAU}", f"level:mu={MU}", "even", "first-hard", "learned"]
    greedy += [_tries(name, 3) for name in LOOKAHEAD]
    greedy += [f"random+best=4:{measure}" for measure in ("var", "mean", "random")]
    drawn = ["forced-ar", "reverse-ar", "random", "max-prob:select=argmax", "entropy", "even", "first-hard"]
    rows = []
    for temperature, orders in ((0.0, greedy), (1.0, [*drawn, "learned", "forced-ar+best=4:random"])):
        run = ol.generate(model, prompts, orders, max_new_tokens=16, temperature=temperature)
        for row in run.outputs().to_arrow().to_pylist():
            prompt, own = list(row["prompt_ids"]), list(row["token_ids"])
            joint = model.joint_log_prob(prompt + own) - model.joint_log_prob(prompt)
            rows.append(
                {k: row[k] for k in ("sample_id", "order", "temperature")} | {"joint": joint / len(own)}
            )
    pd.DataFrame(rows).to_parquet(out / "hmm.parquet")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("items").add_argument("out", type=Path)
    run = verbs.add_parser("run")
    run.add_argument("part", choices=("dev", "test"))
    run.add_argument("items", type=Path)
    run.add_argument("out", type=Path)
    run.add_argument("--limit", type=int, default=N_TEST)
    run.add_argument("--processes", type=int, default=1)
    run.add_argument("--device", default=None)
    run.add_argument("--skip", default="", help="beginnings of group names to leave out, separated by commas")
    run.add_argument("--only", default="", help="beginnings of group names to decode, separated by commas")
    verbs.add_parser("tune").add_argument("out", type=Path)
    verbs.add_parser("hmm").add_argument("out", type=Path)
    given = parser.parse_args()
    if given.verb == "items":
        write_items(given.out)
    elif given.verb == "hmm":
        hmm(given.out)
    elif given.verb == "run":
        how = given.limit, given.processes, given.device, given.skip, given.only
        run_groups(given.part, given.items, given.out, *how)
    elif given.verb == "tune":
        tune(given.out)


if __name__ == "__main__":
    main()
