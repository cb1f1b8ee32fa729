"""``orderlens theory``: the uniform-spreading theory on the command line."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orderlens.cli import options as opt
from orderlens.cli.console import JsonFlag, print_json, print_text, progress_bar
from orderlens.cli.interrupt import Verbs
from orderlens.cli.options import numbers
from orderlens.common.files import refuse_place
from orderlens.errors import UserInputError, counted

if TYPE_CHECKING:
    from orderlens.cli.theory_traces import Trace

SigmaOption = Annotated[str, typer.Option("--sigma", help="Comma-separated noise scales.")]
KOption = Annotated[float, typer.Option("--k", help="Number of equal competitors.")]
FileArgument = Annotated[
    Path, typer.Argument(help="A run folder, or a JSON, CSV, Parquet or text file with log q.")
]
ColumnOption = Annotated[str, typer.Option("--column", help="Column that holds log q.")]
StepOption = Annotated[str, typer.Option("--step", help="Column that sorts the rows of a trace.")]
ByOption = Annotated[
    str | None,
    typer.Option(
        "--by",
        show_default="sample_id, order, …",
        help="Columns that name a trace of a file, comma-separated; none: one trace in all.",
    ),
]
SampleOption = Annotated[str | None, typer.Option("--sample", help="Only this sample_id.")]
OrderOption = Annotated[str | None, typer.Option("--order", help="Only this order.")]


def sigma0(
    k: Annotated[str, typer.Option("--k", help="Comma-separated numbers of equal competitors.")] = "1",
    json: JsonFlag = False,
) -> None:
    """Print the noise up to which log-recoverability is concave, and the q where that fails first."""
    from orderlens.theory import critical_point

    rows = []
    for count in _numbers("--k", k, "1,7"):
        point = critical_point(count)
        rows.append({"k": count, "sigma0": point.sigma, "q": point.q})
    if json:
        print_json(rows)
        return
    for row in rows:
        digits, places = (12, 12) if row["k"] == 1 else (8, 4)
        print_text(f"sigma0(k={row['k']:g}) = {row['sigma0']:.{digits}f}   at q = {row['q']:.{places}f}")


def curve(
    sigma: SigmaOption = "0.1,0.5,1,2",
    k: KOption = 1,
    points: Annotated[int, typer.Option("--points", help="Values of q, even in logit q.")] = 19,
    figures: Annotated[
        Path | None,
        typer.Option("--figures", parser=opt.local_place, help="Also write the theory's figures."),
    ] = None,
    overwrite: opt.OverwriteFlag = False,
    json: JsonFlag = False,
) -> None:
    """Print f, g and its derivatives d1 and d2 in log q against q, and where g is convex."""
    rows = _curve_rows(_numbers("--sigma", sigma, "0.3,1"), k, points)
    written: list[Path] = []
    if figures is not None:
        from orderlens.figures.save import FORMATS
        from orderlens.figures.theory import FIGURES, save_theory_figures

        files = [figures / f"{name}.{kind}" for name in FIGURES for kind in (*FORMATS, "json")]
        refuse_place(figures, folder=True, overwrite=overwrite, files=files)
        written = save_theory_figures(figures)
    if json:
        print_json({"rows": rows, "figures": [str(path) for path in written]})
        return
    _print_rows(rows, {"sigma": "g", "k": "g", "q": ".4f", "convex": ""}, ".6g")
    for path in written:
        print_text(str(path))


def _curve_rows(sigmas: list[float], k: float, points: int) -> list[dict[str, Any]]:
    import numpy as np
    from scipy.special import expit, log_expit

    from orderlens import theory

    if not 2 <= points <= 100_000:
        raise UserInputError(f"--points {points} must be between 2 and 100,000")
    logit = np.linspace(-7.0, 7.0, points)
    y, rows = log_expit(logit), []
    for noise in sigmas:
        columns = {
            "f": np.exp(theory.log_success_k(y, k, noise)),
            "g": theory.log_success_k(y, k, noise),
            "d1": theory.d1_k(y, k, noise),
            "d2": theory.d2_k(y, k, noise),
        }
        for i, q in enumerate(expit(logit)):
            values = {name: float(column[i]) for name, column in columns.items()}
            rows.append({"sigma": noise, "k": k, "q": float(q), **values, "convex": bool(values["d2"] > 0)})
    return rows


def check(json: JsonFlag = False) -> None:
    """Re-derive every numerical claim of the paper's appendix; print its number, ours, whether it stands."""
    from orderlens.claims.audit import CLAIM_COUNT, check_claims

    claims = []
    with progress_bar("claims", CLAIM_COUNT, quiet=json) as advance:
        for claim in check_claims():
            claims.append(claim)
            advance()
    counts = {
        word: sum(claim.standing == word for claim in claims) for word in ("holds", "incomplete", "fails")
    }
    if json:
        print_json({"claims": [asdict(claim) for claim in claims], "counts": counts})
        return
    for claim in claims:
        print_text(f"[{claim.standing}] {claim.name} ({claim.section}): {claim.statement}")
        print_text(f"    paper  {claim.paper}\n    ours   {claim.ours}")
        if claim.note:
            print_text(f"    note   {claim.note}")
    print_text(", ".join(f"{count} {word}" for word, count in counts.items()) + f" of {len(claims)} claims")


def profile(
    file: FileArgument,
    sigma: SigmaOption = "0.1,0.3,0.5,1",
    k: KOption = 1,
    column: ColumnOption = "logq",
    by: ByOption = None,
    step: StepOption = "step",
    sample: SampleOption = None,
    order: OrderOption = None,
    top: Annotated[int, typer.Option("--top", help="Bottleneck steps to list.")] = 5,
    limit: Annotated[int, typer.Option("--limit", help="Traces to report.")] = 10,
    json: JsonFlag = False,
) -> None:
    """Report log A, Jensen loss, second-order value and the bottleneck steps of traces."""
    from orderlens.cli.theory_traces import TraceColumns, parse_by, read_traces

    noises = _numbers("--sigma", sigma, "0.3,1")
    if limit < 1 or top < 0:
        raise UserInputError(f"--limit {limit} must be at least 1 and --top {top} at least 0")
    reports, total = [], 0
    columns = TraceColumns(column, step=step, by=parse_by(by))
    for trace in read_traces(file, columns, sample, order):
        total += 1
        if total <= limit:
            reports.append(_report(trace, noises, k, top))
    if json:
        print_json({"traces": reports, "n_traces": total})
        return
    print_text(f"{file}: {_count(total)}")
    for report in reports:
        _print_report(report)
    if total > len(reports):
        print_text(f"{total - len(reports)} more traces; --limit shows more, --sample and --order choose")


def _count(n_traces: int) -> str:
    return f"{counted(n_traces, 'trace')} found"


def _report(trace: Trace, sigmas: list[float], k: float, top: int) -> dict[str, Any]:
    from orderlens import theory

    y = trace.values
    rows = []
    for noise in sigmas:
        second = theory.second_order(y, noise, k)
        rows.append(
            {
                "sigma": noise,
                "log_a": float(theory.log_recoverability(y, noise, k)),
                "uniform_log_a": float(theory.uniform_log_recoverability(y.sum(), y.size, noise, k)),
                "jensen_loss": second.exact_loss,
                "second_order_loss": second.loss,
                "second_order_valid": second.is_valid,
                "curvature": second.curvature,
                "taylor_radius": second.radius,
                "bottlenecks": [asdict(step) for step in theory.bottlenecks(y, noise, k, top)],
            }
        )
    shape = {"n": int(y.size), "mean": float(y.mean()), "var": float(y.var()), "min": float(y.min())}
    below = {"share_below_half": float((y < -0.6931471805599453).mean()), "n_certain": int((y == 0).sum())}
    return {"name": trace.name, "label": trace.label, "k": k, **shape, **below, "by_sigma": rows}


def _print_report(report: dict[str, Any]) -> None:
    print_text(
        f"{report['label']}: n = {report['n']}, mean {report['mean']:.4f}, Var {report['var']:.4f}, "
        f"min {report['min']:.4f}, q < 1/2 on {100 * report['share_below_half']:.1f} % of steps"
        + (f", q = 1 on {report['n_certain']}" if report["n_certain"] else "")
    )
    rows = [
        {
            "sigma": f"{row['sigma']:g}",
            "log A": f"{row['log_a']:.6g}",
            "uniform": f"{row['uniform_log_a']:.6g}",
            "Jensen loss": f"{row['jensen_loss']:.6g}",
            "second order": f"{row['second_order_loss']:.6g}"
            + ("" if row["second_order_valid"] else " (invalid)"),
            "bottleneck steps (share of log A)": ", ".join(
                f"{step['step']} ({100 * step['share']:.0f} %)"
                for step in row["bottlenecks"]
                if step["share"] >= 0.005
            ),
        }
        for row in report["by_sigma"]
    ]
    _print_rows(rows, {}, "")
    if not all(row["second_order_valid"] for row in report["by_sigma"]):
        print_text("invalid: some step lies outside the Taylor radius of the mean; trust the Jensen loss")


def fit(
    file: FileArgument,
    column: ColumnOption = "logq",
    by: ByOption = None,
    step: StepOption = "step",
    hits: Annotated[str, typer.Option("--hits", help="Column: was the target the argmax?")] = "is_argmax",
    sample: SampleOption = None,
    order: OrderOption = None,
    bootstrap: Annotated[int, typer.Option("--bootstrap", help="Resamples of whole texts; 0: none.")] = 0,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the resampling.")] = 0,
    json: JsonFlag = False,
) -> None:
    """Fit noise and number of competitors to the argmax hits of scored traces, with the misfit."""
    import numpy as np

    from orderlens.cli.theory_traces import TraceColumns, parse_by, read_traces, texts_of
    from orderlens.theory import fit_noise

    traces = list(read_traces(file, TraceColumns(column, hits, step, parse_by(by)), sample, order))
    flags = [trace.hits for trace in traces if trace.hits is not None]
    if len(flags) < len(traces):
        raise UserInputError(
            f"{file} lacks the column {hits!r} (was the target the argmax?); score it, or --hits"
        )
    values = np.concatenate([trace.values for trace in traces])
    groups = np.repeat(texts_of(traces), [trace.values.size for trace in traces])
    result = fit_noise(values, np.concatenate(flags), groups=groups, bootstrap=bootstrap, seed=seed)
    if json:
        print_json({**asdict(result), "remarks": result.remarks, "n_traces": len(traces)})
        return
    low, high = result.sigma_interval
    print_text(f"sigma = {result.sigma:.4f}   95 % {low:.4f} to {high:.4f} ({result.interval_kind})")
    low, high = result.k_interval
    print_text(f"k     = {result.k:.4g}   95 % {low:.4g} to {high:.4g}")
    left_out = f"{result.n_certain} more with q = 1 left out"
    print_text(f"{_count(len(traces))}: {result.n} reveals, {result.n_hits} hits, {left_out}")
    gain = result.log_likelihood - result.log_likelihood_one
    print_text(f"with k = 1 imposed: sigma = {result.sigma_one:.4f}, log-likelihood lower by {gain:.2f}")
    print_text(f"misfit: deviance {result.deviance:.1f} on {result.degrees} df, p = {result.p_value:.2g}")
    _print_rows([asdict(item) for item in result.bins], {"n": "d"}, ".4f")
    for remark in result.remarks:
        print_text(f"note: {remark}")


def _numbers(option: str, text: str, like: str) -> list[float]:
    found = numbers(option, text, float, like)
    if not found:
        raise UserInputError(f"{option} is empty; give numbers separated by commas, e.g. {like}")
    return found


def _print_rows(rows: list[dict[str, Any]], formats: dict[str, str], default: str) -> None:
    """Print rows in right-aligned columns, never cut to the width of a terminal."""
    cells = [[format(value, formats.get(name, default)) for name, value in row.items()] for row in rows]
    lines = [list(rows[0]), *cells]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    for line in lines:
        print_text("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))


theory_verbs = typer.Typer(
    cls=Verbs,
    help="The uniform-spreading theory: critical noise, curves, the paper's claims, your traces.",
    no_args_is_help=True,
)
for verb in (sigma0, curve, check, profile, fit):
    theory_verbs.command(verb.__name__)(verb)
