"""Tables and figure of docs/results/online.md, from the traces that ``recipes/online.py`` wrote.

PYTHONPATH=src:recipes python recipes/online_page.py TEST [TEST …] HMM docs/results/online

Writes rules.csv, selection.csv, draws.csv, hmm.csv, online.svg, and the tables between the comments of the
page. Needs no model.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from online import TASKS, majority, read

BASE = "sampled-position:temp=0.05"
SCORES = {"var": -1, "mean": 1, "min": 1, "recover": 1}
"""Statistics of a whole trace that select among texts, and the sign of the better direction."""
DRAWS = 2_000


def interval(values: np.ndarray) -> str:
    """Return a mean over items in percentage points with its 95 % bootstrap interval."""
    rng = np.random.default_rng(1)
    means = [values[rng.integers(0, len(values), len(values))].mean() for _ in range(DRAWS)]
    low, high = np.percentile(means, [2.5, 97.5])
    return f"{100 * values.mean():+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"


def mcnemar(a: np.ndarray, b: np.ndarray) -> float:
    """Return the exact two-sided p-value of a difference between paired verdicts."""
    from scipy.stats import binomtest

    wins, losses = int((a & ~b).sum()), int((~a & b).sum())
    return float(binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0


def spec_of(row: pd.DataFrame) -> pd.Series:
    """Return the name of the rule of each trace, without seeds."""
    drawn = row["temperature"] > 0
    return row["order"] + np.where(drawn, " (T = " + row["temperature"].astype(str) + ")", "")


def chosen(texts: pd.DataFrame, score: str, n: int, rng: np.random.Generator) -> np.ndarray:
    """Return, per item, whether the text that a score picks among the first n seeds is correct."""
    wide = {
        name: texts.pivot(index="sample_id", columns="k", values=name).iloc[:, :n]
        for name in ("correct", "length")
    }
    correct = wide["correct"].to_numpy(bool)
    if score == "random":
        return correct.mean(axis=1)
    if score == "oracle":
        return correct.any(axis=1).astype(float)
    if score == "majority":
        part = texts[texts["k"] < n]
        return majority(part).reindex(wide["correct"].index).to_numpy(float)
    name = score.removeprefix("permuted ")
    values = SCORES[name] * texts.pivot(index="sample_id", columns="k", values=name).iloc[:, :n].fillna(
        -np.inf
    )
    values = values.to_numpy(float)
    if name != score:
        flat, length = values.ravel().copy(), wide["length"].fillna(0).to_numpy().ravel()
        for own in np.unique(length):
            mine = np.flatnonzero(length == own)
            flat[mine] = flat[rng.permutation(mine)]
        values = flat.reshape(values.shape)
    best = values == values.max(axis=1, keepdims=True)
    return (correct * best).sum(axis=1) / best.sum(axis=1)


def compare_rules(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row per task and rule: accuracy, cost, differences from both opponents, controls."""
    from statsmodels.stats.multitest import multipletests

    rules, tests = [], []
    for task, own in frame.groupby("task"):
        items = sorted(own["sample_id"].unique())
        left = own[(own["rule"] == "forced-ar")].set_index("sample_id").loc[items]
        fast = own[own["rule"].str.startswith("max-prob+threshold=0.9 (")]
        price = fast["rows"].sum() / fast["n"].sum()
        for rule, part in own.groupby("rule"):
            first = part[part["group"] == part["group"].iloc[0]].drop_duplicates("sample_id")
            first = first.set_index("sample_id").loc[items]
            cost = float(part["rows"].sum() / part["n"].sum())
            texts = int(min(max(1, cost // price), 24))
            votes = majority(fast[fast["sample_seed"] < texts]).reindex(items).to_numpy(bool)
            verdict = first["correct"].to_numpy(bool)
            row = {
                "task": task, "rule": rule, "cost": round(cost, 2),
                "accuracy": round(100 * verdict.mean(), 1),
                "votes": texts, "votes_accuracy": round(100 * votes.mean(), 1),
                "minus_left_to_right": interval(verdict.astype(float) - left["correct"].to_numpy(float)),
                "minus_votes": interval(verdict.astype(float) - votes.astype(float)),
                "var": round(float(first["var"].mean()), 4), "mean": round(float(first["mean"].mean()), 4),
                "length": round(float(first["length"].mean()), 1),
                "eos_share": round(float(first["eos_share"].mean()), 3),
                "distinct3": round(float(first["distinct3"].mean()), 3),
                "text_changed": round(100 * float((first["text"] != left["text"]).mean()), 1),
                "rho_var_correct": round(float(first["var"].corr(first["correct"], method="spearman")), 3),
            }  # fmt: skip
            changed = (first["text"] != left["text"]).to_numpy()
            if changed.any():
                row["accuracy_changed"] = round(100 * verdict[changed].mean(), 1)
                row["left_to_right_changed"] = round(100 * left["correct"].to_numpy()[changed].mean(), 1)
            rules.append(row)
            for name, other in (("left to right", left["correct"].to_numpy(bool)), ("votes", votes)):
                if rule != "forced-ar" or name != "left to right":
                    tests.append({"task": task, "rule": rule, "opponent": name, "p": mcnemar(verdict, other),
                                  "difference": 100 * (verdict.mean() - other.mean())})  # fmt: skip
    adjusted = pd.DataFrame(tests)
    adjusted["holm"] = multipletests(adjusted["p"], method="holm")[1]
    table = pd.DataFrame(rules)
    for name, opponent in (("holm_left_to_right", "left to right"), ("holm_votes", "votes")):
        found = adjusted[adjusted["opponent"] == opponent].set_index(["task", "rule"])["holm"]
        table[name] = [
            float(f"{found.get((t, r), np.nan):.2g}")
            for t, r in zip(table["task"], table["rule"], strict=True)
        ]
    print(f"{len(adjusted)} comparisons in Holm's correction")
    return table.sort_values(["task", "cost", "rule"])


def select_texts(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the accuracy of each selector among 2, 4 and 8 whole texts per item."""
    rng = np.random.default_rng(2)
    select = []
    for base, texts in (
        (BASE, frame[frame["rule"] == BASE].assign(k=lambda own: own["seed"])),
        (
            "forced-ar (T = 0.3)",
            frame[frame["rule"] == "forced-ar (T = 0.3)"].assign(k=lambda own: own["sample_seed"]),
        ),
    ):
        for task, own in texts.groupby("task"):
            for n in (2, 4, 8):
                picks = {
                    name: chosen(own, name, n, rng)
                    for name in (*SCORES, "permuted var", "random", "majority", "oracle")
                }
                row = {"task": task, "texts": base, "n": n}
                row |= {name: round(100 * float(values.mean()), 1) for name, values in picks.items()}
                row["var_minus_random"] = interval(picks["var"] - picks["random"])
                row["var_minus_mean"] = interval(picks["var"] - picks["mean"])
                row["var_minus_majority"] = interval(picks["var"] - picks["majority"])
                select.append(row)
    return pd.DataFrame(select)


PAIRS = {heat: (f"forced-ar (T = {heat})", f"max-prob (T = {heat})") for heat in (0.3, 0.7)}
"""Rules whose draws are compared, by temperature."""


def compare_draws(frame: pd.DataFrame) -> pd.DataFrame:
    """Return pass@k and majority@8 of eight draws per item, and max-prob minus left to right."""
    from orderlens.analysis.votes import votes_of

    rows = []
    for task, own in frame.groupby("task"):
        for heat, names in PAIRS.items():
            found = []
            for rule in names:
                texts = own[(own["rule"] == rule) & (own["sample_seed"] < 8)].rename(
                    columns={"sample_id": "item_id"}
                )
                if not (len(texts) and (texts.groupby("item_id").size() == 8).all()):
                    continue  # not all draws have been made
                wide = votes_of(texts, (1, 2, 4, 8)).pivot(index="item_id", columns="k")
                values = {f"pass@{k}": wide["passed"][k].to_numpy(float) for k in (1, 2, 4, 8)}
                found.append(values | {"majority@8": wide["majority"][8].to_numpy(float)})
                levels = {name: f"{100 * own_k.mean():.1f}" for name, own_k in found[-1].items()}
                rows.append({"temperature": heat, "task": task, "texts": rule, **levels})
            if len(found) == 2:
                gaps = {name: interval(found[1][name] - found[0][name]) for name in found[0]}
                rows.append({"temperature": heat, "task": task, "texts": "difference", **gaps})
    return pd.DataFrame(rows)


def draw_lines(table: pd.DataFrame) -> list[str]:
    """Return the table of draws as Markdown."""
    if not len(table):
        return ["These draws have not been made yet."]
    kinds = {f"forced-ar (T = {t})": "left to right" for t in PAIRS} | {
        f"max-prob (T = {t})": "max-prob" for t in PAIRS
    }
    names = [name for name in table.columns if "@" in name]
    lines = [f"| T | task | texts | {' | '.join(names)} |", "|---" * (3 + len(names)) + "|"]
    for _, row in table.iterrows():
        values = " | ".join(str(row[name]).replace("-", "−") for name in names)
        kind = kinds.get(row["texts"], "max-prob − left to right")
        lines.append(f"| {row['temperature']} | `{row['task']}` | {kind} | {values} |")
    return lines


def page(folders: list[Path], exact: Path, out: Path) -> None:
    """Write the tables and the figure of the page."""
    from scipy.stats import f_oneway

    out.mkdir(parents=True, exist_ok=True)
    frame = pd.concat([read(folder) for folder in folders], ignore_index=True)
    frame["rule"] = spec_of(frame)
    frame["correct"] = frame["correct"].astype(bool)
    table = compare_rules(frame)
    table.to_csv(out / "rules.csv", index=False)
    select = select_texts(frame)
    select.to_csv(out / "selection.csv", index=False)
    drawn = compare_draws(frame)
    drawn.to_csv(out / "draws.csv", index=False)
    control = pd.read_parquet(exact / "hmm.parquet")
    found = control.groupby(["temperature", "order"])["joint"].agg(["mean", "sem", "size"]).round(4)
    found.to_csv(out / "hmm.csv")
    laws = [own["joint"].to_numpy() for _, own in control[control["temperature"] == 1].groupby("order")]
    print("one law of texts at T = 1: p =", round(float(f_oneway(*laws).pvalue), 3))
    draw(table, out / "online.svg")
    text = out.with_suffix(".md")
    fill(text, "rules", rule_lines(table))
    fill(text, "selection", selection_lines(select))
    fill(text, "draws", draw_lines(drawn))
    print(table.to_string(), select.to_string(), found.to_string(), sep="\n\n")


NAMES = {
    "forced-ar": "left to right",
    "max-prob+threshold=0.9": "Fast-dLLM",
    "max-prob+threshold=0.9 (T = 0.3)": "Fast-dLLM, T = 0.3",
    "entropy+bound=0.1": "EB-Sampler",
    "forced-ar+above=0.9": "Fork-dLLM's rule",
    "max-prob+threshold=0.9+particles=4:1:sum (T = 1.0)": "SR-SMC, T = 1",
    "forced-ar (T = 0.3)": "left to right, T = 0.3",
    "forced-ar (T = 0.7)": "left to right, T = 0.7",
    "max-prob (T = 0.3)": "max-prob, T = 0.3",
    "max-prob (T = 0.7)": "max-prob, T = 0.7",
    "max-prob+top=2+beams=4 (T = 0.3)": "Order-Token Search, K = 4",
    "max-prob+top=2+beams=8 (T = 0.3)": "Order-Token Search, K = 8",
    "max-prob+beams=4 (T = 0.3)": "Order-Token Search, K = 4, one token per pass",
    "entropy+lookahead-sets (T = 0.3)": "LookUM, T = 0.3",
    "entropy+lookahead-sets=7:2:5:0": "LookUM's rule, best of 7 sets",
}


def rule_lines(table: pd.DataFrame) -> list[str]:
    """Return the table of rules as Markdown: both tasks in one row, by cost and accuracy on the first."""

    def cells(row: pd.Series) -> str:
        parts = [str(row["accuracy"])]
        for name in ("left_to_right", "votes"):
            text = "–" if np.isnan(row[f"holm_{name}"]) else str(row[f"minus_{name}"]).replace("-", "−")
            parts.append(f"**{text}**" if row[f"holm_{name}"] < 0.05 else text)
        return " | ".join(parts)

    first, second = (table[table["task"] == task].set_index("rule") for task in TASKS)
    first = first.sort_values(["cost", "accuracy"], ascending=[True, False])
    lines = ["| rule | cost | `arith` | − left to right | − votes | `choice` | − left to right | − votes |"]
    lines.append("|---" * 8 + "|")
    for rule, row in first.iterrows():
        name = NAMES.get(str(rule), f"`{rule}`")
        lines.append(f"| {name} | {row['cost']:.2f} | {cells(row)} | {cells(second.loc[rule])} |")
    return lines


def selection_lines(table: pd.DataFrame) -> list[str]:
    """Return the selection among four and eight whole texts as Markdown."""
    columns = ("random", "var", "mean", "min", "majority", "oracle", "var_minus_random", "var_minus_mean")
    heads = "one text | by Var | by mean | by minimum | majority | best possible | Var − random | Var − mean"
    lines = [f"| texts | n | task | {heads} |", "|---" * 11 + "|"]
    for _, row in table[table["n"] > 2].iterrows():
        kind = "positions" if row["texts"] == BASE else "draws"
        values = " | ".join(str(row[name]).replace("-", "−") for name in columns)
        lines.append(f"| {kind} | {row['n']} | `{row['task']}` | {values} |")
    return lines


def fill(page: Path, name: str, lines: list[str]) -> None:
    """Replace the lines of a page between two comments."""
    start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, _, rest = page.read_text("utf-8").partition(start)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"{page} has no comments '{name}' and 'end of {name}'")
    page.write_text(before + start + "\n".join(lines) + "\n" + end + after, "utf-8")


LABELS = {
    "forced-ar": "left to right",
    "max-prob": "max-prob",
    "defer:tau=0.5": "defer",
    "max-prob+threshold=0.9": "Fast-dLLM",
    "max-prob+threshold=0.9+particles=4:1:sum (T = 1.0)": "SR-SMC",
    "max-prob+top=2+beams=4 (T = 0.3)": "Order-Token Search",
    "entropy+lookahead-sets (T = 0.3)": "LookUM",
    f"{BASE}+best=4:var": "best of 4 by Var",
    "lookahead-var:n=3:temp=0:bypass=1": "look-ahead by Var",
}
BELOW = ("first-hard", "random", "learned:teacher=census")
"""Rules that are left out of the figure: they are far below the others."""


def draw(table: pd.DataFrame, file: Path) -> None:
    """Draw accuracy against cost, and change of accuracy against change of Var, per task."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "online"
    from matplotlib.figure import Figure

    table = table[~table["rule"].isin(BELOW)]
    figure = Figure(figsize=(10, 7.5), layout="constrained")
    for row, (task, own) in zip(figure.subplots(2, 2), table.groupby("task"), strict=True):
        base = own[own["rule"] == "forced-ar"].iloc[0]
        panels = (
            (row[0], own["cost"], own["accuracy"], "model states per position", "accuracy (%)"),
            (row[1], own["var"] - base["var"], own["accuracy"] - base["accuracy"],
             "change of Var against left to right (nats²)", "change of accuracy (points)"),
        )  # fmt: skip
        for axes, x, y, across, up in panels:
            by_var = own["rule"].str.contains(":var|lookahead-var")
            axes.scatter(x[~by_var], y[~by_var], s=18, color="0.45")
            axes.scatter(x[by_var], y[by_var], s=34, color="#c2410c", marker="D")
            for rule, left, top in zip(own["rule"], x, y, strict=True):
                if rule in LABELS and axes is row[0]:
                    place = (-4, -14) if "beams" in rule else (5, -9)
                    axes.annotate(LABELS[rule], (left, top), place, textcoords="offset points", fontsize=8)
            axes.set(xlabel=across, ylabel=up, title=str(task))
            axes.spines[["top", "right"]].set_visible(False)
            axes.margins(x=0.18, y=0.12)
        row[0].set_xscale("log")
        row[0].set_xticks([0.125, 0.25, 0.5, 1, 2, 4], ["1/8", "1/4", "1/2", "1", "2", "4"])
        row[0].minorticks_off()
        row[0].axhline(base["accuracy"], color="#1d4ed8", lw=1, zorder=0)
        row[1].locator_params(axis="x", nbins=5)
        row[1].axhline(0, color="#1d4ed8", lw=1, zorder=0)
        row[1].axvline(0, color="0.8", lw=0.8, zorder=0)
    figure.savefig(file, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("test", type=Path, nargs="+")
    parser.add_argument("hmm", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    page(given.test, given.hmm, given.out)


if __name__ == "__main__":
    main()
