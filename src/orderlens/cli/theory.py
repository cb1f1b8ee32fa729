"""``orderlens theory``: the uniform-spreading theory on the command line.

No postponed annotations here: the types of fields are read when the command line is built.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from orderlens.cli.command import Output, takes
from orderlens.cli.read import Writes
from orderlens.common.files import refuse_place
from orderlens.errors import UserInputError, counted
from orderlens.runs.options import local_place
from orderlens.runs.request import BadValueError, Opt, Request

if TYPE_CHECKING:
    from orderlens.texts.foreign.series import Series

Sigma = Annotated[Sequence[float], Opt("Noise scales, separated by commas.")]
K = Annotated[float, Opt("Number of equal competitors.")]


@dataclass(frozen=True, kw_only=True)
class TraceFile(Request):
    """Which traces of a run or file, and what its columns are called."""

    file: Annotated[Path, Opt("A run folder, or a JSON, CSV, Parquet or text file with log q.", place=True)]
    column: Annotated[str, Opt("Column that holds log q.")] = "logq"
    by: Annotated[
        Sequence[str] | None,
        Opt(
            "Columns that name a trace of a file, separated by commas; none: one trace in all.",
            shown="sample_id, order, …",
        ),
    ] = None
    step: Annotated[str, Opt("Column that sorts the rows of a trace.")] = "step"
    sample: Annotated[str | None, Opt("Only this sample_id.")] = None
    order: Annotated[str | None, Opt("Only this order.")] = None

    @property
    def naming(self) -> tuple[str, ...] | None:
        """Columns that name a trace; None leaves them to the file, () is one trace in all."""
        if self.by is not None and not self.by:
            raise UserInputError("--by names no column; give some separated by commas, or none")
        return () if self.by == ("none",) else None if self.by is None else tuple(self.by)


@dataclass(frozen=True, kw_only=True)
class Sigma0(Output):
    """Print the noise up to which log-recoverability is concave, and the q where that fails first."""

    k: Annotated[Sequence[float], Opt("Numbers of equal competitors, separated by commas.")] = (1,)


@takes(Sigma0)
def sigma0(asked: Sigma0) -> None:
    """Print one line per number of competitors."""
    from orderlens.cli.console import print_json, print_text
    from orderlens.theory import critical_point

    rows = []
    for count in _some("k", asked.k):
        point = critical_point(count)
        rows.append({"k": count, "sigma0": point.sigma, "q": point.q})
    if asked.json:
        print_json(rows)
        return
    for row in rows:
        digits, places = (12, 12) if row["k"] == 1 else (8, 4)
        print_text(f"sigma0(k={row['k']:g}) = {row['sigma0']:.{digits}f}   at q = {row['q']:.{places}f}")


@dataclass(frozen=True, kw_only=True)
class Curve(Writes, Output):
    """Print f, g and its derivatives d1 and d2 in log q against q, and where g is convex."""

    sigma: Sigma = (0.1, 0.5, 1, 2)
    k: K = 1
    points: Annotated[int, Opt("Values of q, even in logit q.", least=2, most=100_000)] = 19
    figures: Annotated[
        Path | None,
        Opt("Also write the theory's figures to this folder.", metavar="FOLDER", read=local_place),
    ] = None


@takes(Curve)
def curve(asked: Curve) -> None:
    """Print the curve, write its figures."""
    from orderlens.cli.console import print_json, print_text

    rows = _curve_rows(_some("sigma", asked.sigma), asked.k, asked.points)
    written: list[Path] = []
    if (folder := asked.figures) is not None:
        from orderlens.figures.save import FORMATS
        from orderlens.figures.theory import FIGURES, save_theory_figures

        files = [folder / f"{name}.{kind}" for name in FIGURES for kind in (*FORMATS, "json")]
        refuse_place(folder, folder=True, overwrite=asked.overwrite, files=files)
        written = save_theory_figures(folder)
    if asked.json:
        print_json({"rows": rows, "figures": [str(path) for path in written]})
        return
    _print_rows(rows, {"sigma": "g", "k": "g", "q": ".4f", "convex": ""}, ".6g")
    for path in written:
        print_text(str(path))


def _curve_rows(sigmas: Sequence[float], k: float, points: int) -> list[dict[str, Any]]:
    import numpy as np
    from scipy.special import expit, log_expit

    from orderlens import theory

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


@dataclass(frozen=True, kw_only=True)
class CheckCommand(Output):
    """Re-derive every numerical claim of the paper's appendix; print its number, ours, whether it holds."""


@takes(CheckCommand)
def check(asked: CheckCommand) -> None:
    """Print one claim after the other."""
    from orderlens.claims.audit import CLAIM_COUNT, check_claims
    from orderlens.cli.console import print_json, print_text, progress_bar

    claims = []
    with progress_bar("claims", CLAIM_COUNT, quiet=asked.json) as advance:
        for claim in check_claims():
            claims.append(claim)
            advance()
    counts = {
        word: sum(claim.standing == word for claim in claims) for word in ("holds", "incomplete", "fails")
    }
    if asked.json:
        print_json({"claims": [asdict(claim) for claim in claims], "counts": counts})
        return
    for claim in claims:
        print_text(f"[{claim.standing}] {claim.name} ({claim.section}): {claim.statement}")
        print_text(f"    paper  {claim.paper}\n    ours   {claim.ours}")
        if claim.note:
            print_text(f"    note   {claim.note}")
    print_text(", ".join(f"{count} {word}" for word, count in counts.items()) + f" of {len(claims)} claims")


@dataclass(frozen=True, kw_only=True)
class Profile(TraceFile, Output):
    """Report log A, Jensen loss, second-order value and the bottleneck steps of traces."""

    sigma: Sigma = (0.1, 0.3, 0.5, 1)
    k: K = 1
    top: Annotated[int, Opt("Bottleneck steps to list.", least=0)] = 5
    limit: Annotated[int, Opt("Traces to report.", least=1)] = 10


@takes(Profile)
def profile(asked: Profile) -> None:
    """Print the profile of some traces."""
    from orderlens.cli.console import print_json, print_text
    from orderlens.texts.foreign.series import SeriesColumns, read_series

    noises = _some("sigma", asked.sigma)
    reports, total = [], 0
    columns = SeriesColumns(asked.column, step=asked.step, by=asked.naming)
    for trace in read_series(asked.file, columns, asked.sample, asked.order):
        total += 1
        if total <= asked.limit:
            reports.append(_report(trace, noises, asked.k, asked.top))
    if asked.json:
        print_json({"traces": reports, "n_traces": total})
        return
    print_text(f"{asked.file}: {_count(total)}")
    for report in reports:
        _print_report(report)
    if total > len(reports):
        print_text(f"{total - len(reports)} more traces; --limit shows more, --sample and --order choose")


def _count(n_traces: int) -> str:
    return f"{counted(n_traces, 'trace')} found"


def _report(trace: "Series", sigmas: Sequence[float], k: float, top: int) -> dict[str, Any]:
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
    from orderlens.cli.console import print_text

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


@dataclass(frozen=True, kw_only=True)
class Fit(TraceFile, Output):
    """Fit noise and number of competitors to the argmax hits of scored traces, with the misfit."""

    hits: Annotated[str, Opt("Column: was the target the argmax?")] = "is_argmax"
    bootstrap: Annotated[int, Opt("Resamples of whole texts; 0: none.")] = 0


@takes(Fit)
def fit(asked: Fit) -> None:
    """Print the fit."""
    import numpy as np

    from orderlens.cli.console import print_json, print_text
    from orderlens.texts.foreign.series import SeriesColumns, read_series, texts_of
    from orderlens.theory import fit_noise

    columns = SeriesColumns(asked.column, asked.hits, asked.step, asked.naming)
    traces = list(read_series(asked.file, columns, asked.sample, asked.order))
    flags = [trace.hits for trace in traces if trace.hits is not None]
    if len(flags) < len(traces):
        raise UserInputError(
            f"{asked.file} lacks the column {asked.hits!r} (was the target the argmax?); score it, or --hits"
        )
    values = np.concatenate([trace.values for trace in traces])
    groups = np.repeat(texts_of(traces), [trace.values.size for trace in traces])
    result = fit_noise(values, np.concatenate(flags), groups=groups, bootstrap=asked.bootstrap)
    if asked.json:
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


def _some(option: str, values: Sequence[float]) -> Sequence[float]:
    if not values:
        raise BadValueError(option, "", "is empty; give numbers separated by commas, e.g. 0.3,1")
    return values


def _print_rows(rows: list[dict[str, Any]], formats: dict[str, str], default: str) -> None:
    """Print rows in right-aligned columns, never cut to the width of a terminal."""
    from orderlens.cli.console import print_text

    cells = [[format(value, formats.get(name, default)) for name, value in row.items()] for row in rows]
    lines = [list(rows[0]), *cells]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    for line in lines:
        print_text("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
