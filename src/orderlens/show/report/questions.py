"""The three questions of the first screen, each answered in a sentence, with a picture.

Answers come from tables and findings that exist already. Where the runs do not hold the numbers, the answer
names the command that measures them. Knows tables and findings by their names; does not depend on runs or
pages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orderlens.analysis.coherence import Coherence
from orderlens.analysis.table import Table
from orderlens.claims.checks import NOT_SUPPORTED, OPEN, SUPPORTED, Outcome
from orderlens.claims.judge import Finding
from orderlens.figures.cards import Card, Dot, LorenzCard, dot_card, lorenz_card
from orderlens.figures.style import power_of_ten
from orderlens.metrics.estimate import Estimate
from orderlens.rules.cards import display_name

_SHORT: Mapping[Outcome, str] = {SUPPORTED: "Yes.", NOT_SUPPORTED: "No.", OPEN: "Left open."}
_VAR = "Var(log q), nats²"
_CORRECT = "Does Var tell correct from wrong answers?"


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its answer.

    Attributes:
        id: anchor on the page.
        title: the question.
        answer: sentences that can be quoted without the page.
        short: yes, no or left open, for how many texts; empty where nothing was judged.
        outcome: of the finding: supported, not supported, left open; empty where nothing was judged.
        chart: the picture, None where there is nothing to draw.
        note: what the picture shows.
    """

    id: str
    title: str
    answer: str
    short: str = ""
    outcome: str = ""
    chart: Card | None = None
    note: str = ""

    @property
    def headline(self) -> str:
        """The short answer and the first sentence, for one line of text."""
        first = self.answer.partition(". ")[0].rstrip(".")
        return f"{self.title} {self.short} {first}.".replace("  ", " ")


def questions(
    tables: Mapping[str, Table],
    findings: Sequence[Finding],
    lorenz: Mapping[str, Any] | None = None,
    policies: Sequence[Mapping[str, Any]] = (),
    coherence: Coherence | None = None,
    at: str = "",
) -> list[Question]:
    """Return the three questions.

    Args:
        tables: by name.
        findings: judged.
        lorenz: what the Lorenz figure shows.
        policies: passes, tokens (n) and mean log q by policy (order).
        coherence: how much log P depends on the order.
        at: the temperature of the generated texts, such as ``at T = 0``, if the runs have others too.
    """
    found = {item.id: item for item in findings}
    graded = [item for item in findings if item.id == "lower-when-correct"]
    last = _correctness(tables, graded) if graded else _parallel(policies, at)
    judged = [found[name] for name in ("chain-rule-per-text", "chain-rule") if name in found]
    return [_likelihood(tables, coherence, judged), _path(tables, lorenz, at), last]


def _likelihood(
    tables: Mapping[str, Table], coherence: Coherence | None, judged: Sequence[Finding]
) -> Question:
    title = "Does the likelihood depend on the order?"
    plane = tables.get("fixed-sequence")
    rows = [] if plane is None else [row for row in plane.rows if _estimate(row["mean"]).is_defined]
    if not rows or coherence is None:
        why = "Not measured: these runs hold no fixed texts. 'orderlens score' scores texts under orders."
        return Question("likelihood", title, why)
    aware = {str(row["order"]): row["kind"] == "target-aware" for row in rows}
    chart = dot_card(
        "Mean log q per token by order: "
        + "; ".join(f"{display_name(name)} {_estimate(row['mean']).value:.3f}" for name, row in _named(rows)),
        "mean log q (nats per token)",
        [
            (display_name(name), [_dot(_estimate(row["mean"]), hollow=aware[name])])
            for name, row in _named(rows)
        ],
    )
    note = "Bars: 95 % intervals over texts."
    if len(rows) > 1:
        note += " The differences above compare orders on the same texts."
    if any(aware.values()):
        note += " Hollow: the order sees the target, so its sum of log q is not a likelihood."
    short, outcome = _verdict(judged)
    return Question("likelihood", title, _likelihood_answer(coherence), short, outcome, chart, note)


def _likelihood_answer(coherence: Coherence) -> str:
    """Say how far apart the orders are, for single texts first: few texts decide that before the average."""
    single = coherence.find("mean_of_ranges", "deployable").value
    average = coherence.find("range_of_means", "deployable").value
    if not single.is_defined and not average.is_defined:
        return (
            f"Not measured: {average.why or 'fewer than two orders'}. Score the same texts under two orders "
            "that reveal one token per pass and do not see the target."
        )
    sentences = []
    if single.is_defined:
        sentences.append(
            f"With the order alone, log P of one text changes by {interval(single, 3)} nats per token"
            " on average."
        )
    if average.is_defined:
        sentences.append(
            f"Averaged over the texts, the orders differ by {interval(average, 3)} nats per token."
        )
    if math.isfinite(coherence.noise_floor):
        sentences.append(
            f"Numerical noise alone accounts for {_small(coherence.noise_floor)} nats per token."
        )
    else:
        sentences.append("Numerical noise was not measured ('orderlens score --noise-floor' measures it).")
    return " ".join(sentences)


def _verdict(judged: Sequence[Finding]) -> tuple[str, Outcome | str]:
    """Return the short answer and its outcome: of the first finding that is decided, else of the first.

    A finding that is left open may still hold for the texts of the run; then the short answer says so.
    """
    if not judged:
        return "", ""
    decided = [item for item in judged if item.outcome != OPEN]
    item = (decided or judged)[0]
    if item.outcome == OPEN and item.checks and all(check.fits() for check in item.checks):
        return f"Yes for {_these(item.checks[0].estimate.n)}; left open in general.", OPEN
    return _SHORT[item.outcome], item.outcome


def _these(n: int) -> str:
    return f"these {n} texts" if n > 1 else "this text"


def _path(tables: Mapping[str, Table], lorenz: Mapping[str, Any] | None, at: str) -> Question:
    title = "How even is the certainty along the path?"
    plane = tables.get("fixed-sequence")
    rows = [] if plane is None else [row for row in plane.rows if _estimate(row["var"]).is_defined]
    if not rows:
        return _decoded_path(tables, title, at)
    rows.sort(key=lambda row: _estimate(row["var"]).value)
    ends = rows[:1] if len(rows) == 1 else [rows[0], rows[-1]]
    names = [display_name(str(row["order"])) for row in ends]
    values = [
        f"{interval(_estimate(row['var']), 2)} nats² with {name}"
        for row, name in zip(ends, names, strict=True)
    ]
    answer = f"Var(log q) is {values[0]}."
    if len(ends) > 1:
        answer = f"Var(log q) is lowest, {values[0]}, and highest, {values[1]}."
    rates = [_estimate(row["bottleneck_rate"]) for row in ends]
    if all(rate.is_defined for rate in rates):
        shares = [f"{100 * rate.value:.0f} % with {name}" for rate, name in zip(rates, names, strict=True)]
        answer += f" Tokens revealed at q < ½: {', '.join(shares)}."
    return Question("path", title, answer, chart=_lorenz(lorenz), note=_lorenz_note(lorenz))


def _decoded_path(tables: Mapping[str, Table], title: str, at: str) -> Question:
    """Return the answer for runs that hold generated text only."""
    content = tables.get("content") or tables.get("temperature")
    if content is None:
        return Question("path", title, "Not measured: these runs hold no trace with log q.")
    name = "content_var" if any(column.name == "content_var" for column in content.columns) else "var"
    rows = [
        (
            " ".join(filter(None, (_key(key, row[key]) for key in content.keys))),
            [_dot(_estimate(row[name]))],
        )
        for row in content.rows
        if _estimate(row[name]).is_defined
    ]
    values = [dots[0].value for _, dots in rows]
    if not values:
        return Question("path", title, "Not measured: Var is undefined in every trace.")
    ends = [_small(value) if 0 < value < 0.1 else f"{value:.2f}" for value in (min(values), max(values))]
    found = f"lies between {ends[0]} and {ends[1]}" if len(rows) > 1 else f"is {ends[0]}"
    chart = dot_card(
        "Var of log q: " + "; ".join(f"{label} {dots[0].value:.2f}" for label, dots in rows[:12]),
        _VAR,
        rows[:12],
    )
    note = "Bars: 95 % intervals over prompts." + (
        f" The first 12 of {len(rows)} rows." if len(rows) > 12 else ""
    )
    return Question("path", title, f"Var(log q) of generated text{at} {found} nats².", chart=chart, note=note)


def _lorenz(data: Mapping[str, Any] | None) -> LorenzCard | None:
    if data is None:
        return None
    usual = [item for item in data["curves"] if item["kind"] != "target-aware"] or data["curves"]
    chosen = [usual[0], usual[-1]] if len(usual) > 1 else usual
    curves = [(display_name(str(item["order"])), item["lorenz"], item["gini"]) for item in chosen]
    title = "Lorenz curves of −log q in the first block: " + "; ".join(
        f"{name}, Gini {gini:.2f}" for name, _, gini in curves
    )
    return lorenz_card(title, curves)


def _lorenz_note(data: Mapping[str, Any] | None) -> str:
    if data is None:
        return ""
    left_out = {"target-aware"} < {item["kind"] for item in data["curves"]}
    return (
        f"Share of −Σ log q that the most certain steps of the first block ({data['length']} steps) carry. "
        "Dashed: every step carries the same." + (" Without orders that see the target." if left_out else "")
    )


def _correctness(tables: Mapping[str, Table], findings: Sequence[Finding]) -> Question:
    outcomes = {item.task: item.outcome for item in findings}
    parts = [
        f"{outcome} for {', '.join(task for task, found in outcomes.items() if found == outcome)}"
        for outcome in (SUPPORTED, NOT_SUPPORTED, OPEN)
        if outcome in outcomes.values()
    ]
    within = tables.get("within-cell")
    rows = []
    for row in () if within is None else within.rows:
        correct, wrong = _estimate(row["var_correct"]), _estimate(row["var_incorrect"])
        name = f"{_key('task', row['task'])} {_key('order', row['order'])}"
        rows.append((name, [_dot(correct), _dot(wrong, hollow=True)]))
    chart = dot_card("Var of log q of correct and of wrong answers, by task and order", _VAR, rows[:12])
    more = f" The first 12 of {len(rows)} cells." if len(rows) > 12 else ""
    note = f"Filled: correct answers; hollow: wrong ones.{more} Association is not causation."
    answer = f"'Correct answers have lower Var than wrong ones' is {'; '.join(parts)}."
    short, outcome = _over_tasks(list(outcomes.values()))
    return Question("answers", _CORRECT, answer, short, outcome, chart, note)


def _over_tasks(outcomes: Sequence[Outcome]) -> tuple[str, Outcome]:
    """Return the short answer over several tasks, and its outcome."""
    if len(set(outcomes)) == 1:
        return _SHORT[outcomes[0]], outcomes[0]
    outcome: Outcome = OPEN if OPEN in outcomes else NOT_SUPPORTED
    return ("For some tasks." if SUPPORTED in outcomes else _SHORT[outcome]), outcome


def _parallel(policies: Sequence[Mapping[str, Any]], at: str) -> Question:
    parallel = [row for row in policies if row["passes"] < 0.999 * row["n"]]
    if not parallel:
        why = (
            "Not measured: no text was graded, and none was generated with several tokens per pass. "
            "'orderlens evaluate' grades answers, also under policies such as max-prob+threshold=0.9."
        )
        return Question("answers", _CORRECT, why)
    single = {str(row["order"]): row for row in policies if row not in parallel}
    fastest = sorted(parallel, key=lambda item: float(item["passes"] / item["n"]))
    rows = [(display_name(str(row["order"])), [Dot(row["n"] / row["passes"])]) for row in policies]
    return Question(
        "parallel",
        "What do several tokens per pass cost?",
        " ".join(_cost(row, single.get(str(row["order"]).partition("+")[0])) for row in fastest[:2]),
        chart=dot_card(
            "Tokens per forward pass: " + "; ".join(f"{name} {dots[0].value:.1f}" for name, dots in rows),
            "tokens per forward pass",
            rows[:12],
        ),
        note=f"On prompts that all policies decoded{at}. The texts differ, so log q says how certain each "
        "policy was, not which text is better.",
    )


def _cost(row: Mapping[str, Any], single: Mapping[str, Any] | None) -> str:
    """Say how many passes a policy needed, and how its mean log q compares with one token per pass."""
    name = display_name(str(row["order"]))
    text = f"{name} needs {_count(row['passes'])} passes for {_count(row['n'])} tokens"
    if single is None:
        return f"{text}."
    change = row["mean"] - single["mean"]
    way = "higher" if change >= 0 else "lower"
    return f"{text}; its mean log q is {abs(change):.2f} nats per token {way} than with one token per pass."


def _named(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    return [(str(row["order"]), row) for row in sorted(rows, key=lambda row: -_estimate(row["mean"]).value)]


def _estimate(cell: object) -> Estimate:
    return cell if isinstance(cell, Estimate) else Estimate.undefined("no number")


def _dot(cell: Estimate, *, hollow: bool = False) -> Dot:
    return Dot(cell.value, cell.low, cell.high, hollow)


def interval(cell: Estimate, digits: int) -> str:
    """Return ``0.49 (0.41 to 0.57)``; a value that these digits would round to 0, as a power of ten."""
    if 0 < abs(cell.value) < 0.5 * 10.0**-digits:
        return _small(cell.value)
    text = _signed_minus(f"{cell.value:.{digits}f}")
    if not (math.isfinite(cell.low) and math.isfinite(cell.high)):
        return text
    return f"{text} ({_signed_minus(f'{cell.low:.{digits}f}')} to {_signed_minus(f'{cell.high:.{digits}f}')})"


def _small(value: float) -> str:
    if not 0 < abs(value) < 0.01:
        return _signed_minus(f"{value:.3f}")
    return power_of_ten(value, 0)


def _count(count: float) -> str:
    return f"{count:.1f}".removesuffix(".0")


def _signed_minus(text: str) -> str:
    return text.replace("-", "−")


def _key(name: str, value: object) -> str:
    """Return a row's key for people: an order by its name in figures, an empty text for a missing value."""
    if isinstance(value, Estimate):
        value = f"{value.value:g}"
    if value in (None, "(none)"):
        return ""
    return {"order": display_name, "temperature": "T = {}".format}.get(name, str)(str(value))
