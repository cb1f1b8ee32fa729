"""The three questions of the first screen, each answered in a sentence, with a picture.

Answers are read off tables and findings that were made anyway; what the runs do not hold is said, together
with the command that would measure it. Knows tables and findings by their names, not runs or pages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orderlens.analysis.coherence import Coherence
from orderlens.analysis.table import Table
from orderlens.claims.checks import NOT_SUPPORTED, OPEN, SUPPORTED, Word
from orderlens.claims.judge import Finding
from orderlens.figures.cards import Card, Dot, LorenzCard, dot_card, lorenz_card
from orderlens.metrics.estimate import Estimate
from orderlens.rules.cards import display_name

_YES: Mapping[Word, str] = {SUPPORTED: "Yes.", NOT_SUPPORTED: "Not here.", OPEN: "Not decided."}


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its answer.

    Attributes:
        id: anchor on the page.
        title: the question.
        short: yes or no in a word, empty where that is no answer.
        word: supported, not supported, left open; empty where nothing was judged.
        answer: one or two sentences.
        chart: the picture, None where there is nothing to draw.
        note: what the picture shows.
    """

    id: str
    title: str
    answer: str
    short: str = ""
    word: str = ""
    chart: Card | None = None
    note: str = ""


def questions(
    tables: Mapping[str, Table],
    findings: Sequence[Finding],
    lorenz: Mapping[str, Any] | None = None,
    policies: Sequence[Mapping[str, Any]] = (),
    coherence: Coherence | None = None,
) -> list[Question]:
    """Return the three questions.

    Args:
        tables: by name.
        findings: judged.
        lorenz: what the Lorenz figure shows.
        policies: rows of what decoding cost, by policy: order, passes, n, mean.
        coherence: how much log P depends on the order.
    """
    found = {item.id: item for item in findings}
    graded = [item for item in findings if item.id == "lower-when-correct"]
    last = _correctness(tables, graded) if graded else _together(policies)
    return [_likelihood(tables, coherence, found.get("chain-rule")), _path(tables, lorenz), last]


def _likelihood(
    tables: Mapping[str, Table], coherence: Coherence | None, finding: Finding | None
) -> Question:
    title = "Does the likelihood depend on the order?"
    plane = tables.get("fixed-sequence")
    rows = [] if plane is None else [row for row in plane.rows if _estimate(row["mean"]).is_defined]
    if not rows or coherence is None:
        why = "Not measured: these runs hold no fixed texts. 'orderlens score' scores texts under orders."
        return Question("likelihood", title, why)
    gap, floor = coherence.find("range_of_means", "deployable").value, coherence.noise_floor
    answer = (
        f"The same texts differ by {interval(gap, 3)} nats per token between the orders that can be deployed"
        if gap.is_defined
        else f"Not measured ({gap.why or 'fewer than two orders'})"
    )
    if gap.is_defined:
        answer += (
            f"; rounding alone makes {_small(floor)}."
            if math.isfinite(floor)
            else "; how much of it is rounding was not measured ('orderlens score --noise-floor' does)."
        )
    else:
        answer += "."
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
    note = "Bars: 95 % intervals over texts; the difference above compares orders on the same texts."
    if any(aware.values()):
        note += " Hollow: the order sees the target, so its sum is no likelihood."
    return _judged("likelihood", title, answer, finding, chart, note)


def _path(tables: Mapping[str, Table], lorenz: Mapping[str, Any] | None) -> Question:
    title = "How bottlenecked is the path?"
    plane = tables.get("fixed-sequence")
    rows = [] if plane is None else [row for row in plane.rows if _estimate(row["var"]).is_defined]
    if not rows:
        return _decoded_path(tables, title)
    rows.sort(key=lambda row: _estimate(row["var"]).value)
    ends = rows[:1] if len(rows) == 1 else [rows[0], rows[-1]]
    variances = [
        f"{interval(_estimate(row['var']), 2)} nats² ({display_name(str(row['order']))})" for row in ends
    ]
    answer = f"Var(log q) {'runs from' if len(ends) > 1 else 'is'} {' to '.join(variances)}."
    rates = [_estimate(row["bottleneck_rate"]) for row in ends]
    if all(rate.is_defined for rate in rates):
        shares = " and ".join(f"{100 * rate.value:.0f} %" for rate in rates)
        answer += f" {shares} of the tokens were revealed at q < ½."
    return Question("path", title, answer, chart=_lorenz(lorenz), note=_lorenz_note(lorenz))


def _decoded_path(tables: Mapping[str, Table], title: str) -> Question:
    """Return the answer for runs that only hold generated text."""
    content = tables.get("content") or tables.get("temperature")
    if content is None:
        return Question("path", title, "Not measured: there is no trace with numbers.")
    name = "content_var" if any(column.name == "content_var" for column in content.columns) else "var"
    rows = [
        (
            " ".join(filter(None, (_key(key, row[key]) for key in content.keys))),
            [_dot(_estimate(row[name]))],
        )
        for row in content.rows
        if _estimate(row[name]).is_defined
    ][:12]
    values = [dots[0].value for _, dots in rows]
    if not values:
        return Question("path", title, "Not measured: Var is undefined in every trace.")
    answer = f"Var(log q) of generated text lies between {min(values):.2f} and {max(values):.2f} nats²."
    chart = dot_card(
        "Var of log q: " + "; ".join(f"{label} {dots[0].value:.2f}" for label, dots in rows),
        "Var(log q), nats²",
        rows,
    )
    return Question("path", title, answer, chart=chart, note="Bars: 95 % intervals over prompts.")


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
    return (
        f"The share of the cost −Σ log q that the easiest steps of the first block ({data['length']} steps) "
        "carry; dashed: every step costs the same."
    )


def _correctness(tables: Mapping[str, Table], findings: Sequence[Finding]) -> Question:
    title = "Does it predict wrong answers?"
    words = {item.task: item.word for item in findings}
    parts = [
        f"{word} for {', '.join(task for task, found in words.items() if found == word)}"
        for word in (SUPPORTED, NOT_SUPPORTED, OPEN)
        if word in words.values()
    ]
    word = (
        SUPPORTED if set(words.values()) == {SUPPORTED} else OPEN if OPEN in words.values() else NOT_SUPPORTED
    )
    within = tables.get("within-cell")
    rows = []
    for row in () if within is None else within.rows:
        right, wrong = _estimate(row["var_correct"]), _estimate(row["var_incorrect"])
        name = f"{_key('task', row['task'])} {_key('order', row['order'])}"
        rows.append((name, [_dot(right), _dot(wrong, hollow=True)]))
    chart = dot_card(
        "Var of log q of correct and of wrong answers, by task and order", "Var(log q), nats²", rows[:12]
    )
    more = f" The first 12 of {len(rows)} cells." if len(rows) > 12 else ""
    note = f"Filled: correct answers; hollow: wrong ones.{more} Association is not causation."
    answer = f"That correct answers have the lower Var is {'; '.join(parts)}."
    return Question("answers", title, answer, _YES[word], word, chart, note)


def _together(policies: Sequence[Mapping[str, Any]]) -> Question:
    parallel = [row for row in policies if row["passes"] < 0.999 * row["n"]]
    if not parallel:
        why = (
            "Not measured: no text was graded and every pass revealed one token. 'orderlens evaluate' grades "
            "answers; policies such as max-prob+threshold=0.9 reveal several tokens at once."
        )
        return Question("answers", "Does it predict wrong answers?", why)
    alone = {str(row["order"]): row for row in policies if row not in parallel}
    lines = []
    for row in sorted(parallel, key=lambda item: float(item["passes"] / item["n"])):
        name = display_name(str(row["order"]))
        text = f"{name} took {_mean(row['passes'])} passes for {_mean(row['n'])} tokens"
        base = alone.get(str(row["order"]).partition("+")[0])
        if base is not None:
            text += f" and {_signed(row['mean'] - base['mean'])} nats per token against one at a time"
        lines.append(text)
    rows = [(display_name(str(row["order"])), [Dot(row["n"] / row["passes"])]) for row in policies]
    return Question(
        "together",
        "What does committing together cost?",
        "; ".join(lines[:2]) + ".",
        chart=dot_card(
            "Tokens per forward pass: " + "; ".join(f"{name} {dots[0].value:.1f}" for name, dots in rows),
            "tokens per forward pass",
            rows[:12],
        ),
        note="On prompts that all of them decoded. Texts differ: log q tells how sure each was, no more.",
    )


def _judged(
    anchor: str, title: str, answer: str, finding: Finding | None, chart: Card | None, note: str
) -> Question:
    if finding is None:
        return Question(anchor, title, answer, chart=chart, note=note)
    return Question(anchor, title, answer, _YES[finding.word], finding.word, chart, note)


def _named(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    return [(str(row["order"]), row) for row in sorted(rows, key=lambda row: -_estimate(row["mean"]).value)]


def _estimate(cell: object) -> Estimate:
    return cell if isinstance(cell, Estimate) else Estimate.undefined("no number")


def _dot(cell: Estimate, *, hollow: bool = False) -> Dot:
    return Dot(cell.value, cell.low, cell.high, hollow)


def interval(cell: Estimate, digits: int) -> str:
    """Return ``0.49 (0.41 to 0.57)``; a value that these digits would hide, in powers of ten."""
    if 0 < abs(cell.value) < 0.5 * 10.0**-digits:
        return _small(cell.value)
    text = _signed_minus(f"{cell.value:.{digits}f}")
    if not (math.isfinite(cell.low) and math.isfinite(cell.high)):
        return text
    return f"{text} ({_signed_minus(f'{cell.low:.{digits}f}')} to {_signed_minus(f'{cell.high:.{digits}f}')})"


def _small(value: float) -> str:
    if not 0 < abs(value) < 0.01:
        return _signed_minus(f"{value:.3f}")
    digits, _, power = f"{value:.0e}".partition("e")
    raised = str(int(power)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{_signed_minus(digits)} × 10{raised}"


def _mean(count: float) -> str:
    return f"{count:.1f}".removesuffix(".0")


def _signed(value: float) -> str:
    return ("+" if value >= 0 else "−") + f"{abs(value):.2f}"


def _signed_minus(text: str) -> str:
    return text.replace("-", "−")


def _key(name: str, value: object) -> str:
    """Return a row's key for people: an order under its name in figures, nothing for what is not there."""
    if isinstance(value, Estimate):
        value = f"{value.value:g}"
    if value in (None, "(none)"):
        return ""
    return {"order": display_name, "temperature": "T = {}".format}.get(name, str)(str(value))
