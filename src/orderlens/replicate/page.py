"""One plain, self-contained page: findings, figures, tables. Every text is escaped; no script, no network."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from orderlens.analysis.judge import NOT_SUPPORTED, OPEN, RULES, SUPPORTED, Finding, Reading
from orderlens.analysis.render import cell_text
from orderlens.analysis.table import Table
from orderlens.figures.catalogue import Drawn
from orderlens.files import write_text
from orderlens.replicate.plan import Plan

_CLASSES = {SUPPORTED: "yes", NOT_SUPPORTED: "no", OPEN: "open"}
_SIGNS = {SUPPORTED: "●", NOT_SUPPORTED: "○", OPEN: "◐"}
_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1d1d1f; background: #fff; max-width: 64rem;
  margin: 2rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.7rem; margin-bottom: .2rem; } h2 { font-size: 1.25rem; margin-top: 2.6rem; }
h3 { font-size: 1rem; margin: 0; font-weight: 600; }
.facts, .small, figcaption { color: #555; font-size: .86rem; }
.finding { border-left: 4px solid #bbb; padding: .3rem 0 .3rem 1rem; margin: 1.1rem 0; }
.yes { border-color: #195e33; } .no { border-color: #ac530f; } .open { border-color: #8a8a8a; }
.word { font-weight: 600; } .finding ul { margin: .3rem 0; padding-left: 1.2rem; }
figure { margin: 1.6rem 0; } img { max-width: 100%; height: auto; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .8rem; margin: .6rem 0; }
th, td { text-align: left; padding: .22rem .7rem .22rem 0; white-space: nowrap; }
thead th { border-bottom: 1.5px solid #1d1d1f; } tbody tr { border-bottom: 1px solid #e6e6e6; }
td { font-variant-numeric: tabular-nums; } a { color: #1b4f8f; }
"""


def write_page(
    path: Path,
    plan: Plan,
    tables: Sequence[Table],
    reading: Reading,
    figures: Sequence[Drawn],
    notes: Sequence[str],
) -> Path:
    """Write the page and return its path; figures must lie in ``figures/`` beside it."""
    body = [
        *_head(plan, reading, notes),
        "<h2>Findings</h2>",
        *(_finding(place, item) for place, item in enumerate(reading.findings, 1)),
        *(f'<p class="small">{escape(rule)}</p>' for rule in RULES),
        "<h2>Figures</h2>",
        *(_figure(item) for item in figures),
        "<h2>Tables</h2>",
        *(_table(table) for table in tables),
    ]
    return write_text(path, _document(f"OrderLens: {plan.model}, {plan.preset}", body))


def _document(title: str, body: Iterable[str]) -> str:
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def plan_facts(plan: Plan) -> str:
    """Return in one sentence what was computed."""
    warm = "".join(f", {value:g}" for value in plan.temperatures)
    asked = f" and {plan.questions} questions (T = 0 only)" if plan.questions else ""
    return (
        f"Model {plan.model}; data {Path(plan.data).name}; preset {plan.preset}: up to {plan.n_sequences} "
        f"texts chosen by hash of their id{asked}, {plan.prefix_tokens} + {plan.target_tokens} tokens, "
        f"blocks of {plan.block_size}, one token per step, no early stop; T = 0{warm}."
    )


def _head(plan: Plan, reading: Reading, notes: Sequence[str]) -> list[str]:
    return [
        "<h1>What the reveal order does</h1>",
        f'<p class="facts">{escape(plan_facts(plan))}</p>',
        *(f'<p class="facts">{escape(note)}</p>' for note in notes),
        f"<p>{escape(reading.sentence())} Intervals are 95 % bootstrap intervals over texts.</p>",
    ]


def _finding(place: int, item: Finding) -> str:
    numbers = "".join(f"<li>{escape(line)}</li>" for line in item.lines())
    remarks = "".join(f'<p class="small">{escape(remark)}</p>' for remark in item.remarks)
    return (
        f'<section class="finding {_CLASSES[item.word]}">'
        f"<h3>{place}. {escape(item.claim)}</h3>"
        f'<p class="word">{_SIGNS[item.word]} {escape(item.sentence())} '
        f'<span class="small">({escape(item.source)})</span></p>'
        f'<ul>{numbers}</ul><p class="small">Rule: {escape(item.rule)}</p>{remarks}</section>'
    )


def _figure(item: Drawn) -> str:
    caption = escape(item.title)
    pictures = [path for path in item.paths if path.suffix in (".svg", ".png")]
    if item.why is not None or not pictures:
        why = escape(item.why or "no picture format was asked for")
        return f'<p class="small">{caption}: not drawn ({why}).</p>'
    links = ", ".join(
        f'<a href="figures/{escape(path.name)}">{escape(path.suffix[1:].upper())}</a>' for path in item.paths
    )
    return (
        f'<figure id="{escape(item.name)}"><img alt="{caption}" src="{_data_uri(pictures[0])}">'
        f"<figcaption>{caption} ({links})</figcaption></figure>"
    )


def _data_uri(path: Path) -> str:
    kind = "svg+xml" if path.suffix == ".svg" else "png"
    return f"data:image/{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"


def _table(table: Table) -> str:
    heads = "".join(f"<th>{escape(head)}</th>" for head in (*table.keys, *(c.heading for c in table.columns)))
    rows = []
    for row in table.rows:
        cells = [str(row[key]) for key in table.keys]
        cells += [cell_text(row[column.name], column.digits) for column in table.columns]
        rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    notes = "".join(f'<p class="small">{escape(note)}</p>' for note in table.notes)
    return (
        f'<h3 id="table-{escape(table.name)}">{escape(table.title)}</h3>'
        f'<div class="scroll"><table><thead><tr>{heads}'
        f"</tr></thead><tbody>{''.join(rows)}</tbody></table></div>{notes}"
    )
