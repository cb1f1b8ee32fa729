"""``orderlens theory``: the uniform-spreading theory on the command line.

No postponed annotations here: the types of fields are read when the command line is built.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from orderlens.cli.command import Output, takes
from orderlens.cli.read import Writes, opened
from orderlens.cli.terminal import print_json, print_text
from orderlens.common.files import refuse_place
from orderlens.errors import UserInputError, counted
from orderlens.registry import refuse_unknown
from orderlens.runs.options import COLUMNS, Bootstrap, as_pairs, limit_option, local_place
from orderlens.runs.request import BadValueError, Opt, Request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orderlens.texts.foreign.series import Series, SeriesColumns

Sigma = Annotated[Sequence[float], Opt("Noise scales σ, separated by commas.")]
K = Annotated[float, Opt("Number of equally probable competitors.")]


@dataclass(frozen=True, kw_only=True)
class TraceFile(Request):
    """Options that select the traces and columns of a run or file."""

    file: Annotated[Path, Opt("A run folder, or a JSON, CSV, Parquet or text file with log q.", place=True)]
    columns: Annotated[
        Sequence[str],
        replace(COLUMNS, help="Column of logq (nats), step or is_argmax, e.g. logq=lp; repeatable."),
    ] = ()
    by: Annotated[
        Sequence[str] | None,
        Opt(
            "Columns that identify a trace, separated by commas; 'none' reads the file as one trace.",
            shown="sample_id, order, …",
        ),
    ] = None
    sample: Annotated[str | None, Opt("Read only the sample with this id.")] = None
    order: Annotated[str | None, Opt("Read only the traces of this order.")] = None

    def traces(self) -> "Iterator[Series]":
        """Yield the selected traces; an incomplete run is named on standard error."""
        from orderlens.texts.foreign.series import read_series

        if self.file.is_dir():
            opened([str(self.file)])
        return read_series(self.file, self.named_columns, self.sample, self.order)

    @property
    def named_columns(self) -> "SeriesColumns":
        """Names of the columns that hold log q, the hits and the step."""
        from orderlens.texts.foreign.series import SeriesColumns

        names = as_pairs("columns", self.columns)
        for name in names:
            refuse_unknown("field of --column", name, ("logq", "step", "is_argmax"))
        if "is_argmax" in names:
            names["hits"] = names.pop("is_argmax")
        return SeriesColumns(**names, by=self.naming)

    @property
    def naming(self) -> tuple[str, ...] | None:
        """Columns that identify a trace; None for the default ones, () for a single trace."""
        if self.by is not None and not self.by:
            raise UserInputError("--by is empty; name columns, separated by commas, or write --by none")
        return () if self.by == ("none",) else None if self.by is None else tuple(self.by)


@dataclass(frozen=True, kw_only=True)
class Sigma0(Output):
    """Print σ0, the noise up to which log-recoverability is concave in log q, and the q where it fails."""

    k: Annotated[Sequence[float], Opt("Numbers of equally probable competitors, separated by commas.")] = (1,)


@takes(Sigma0)
def sigma0(request: Sigma0) -> None:
    """Print one line per number of competitors."""
    from orderlens.theory import critical_point

    rows = []
    for count in _some("k", request.k):
        point = critical_point(count)
        rows.append({"k": count, "sigma0": point.sigma, "q": point.q})
    if request.json:
        print_json(rows)
        return
    for row in rows:
        digits, places = (12, 12) if row["k"] == 1 else (8, 4)
        print_text(f"sigma0(k={row['k']:g}) = {row['sigma0']:.{digits}f}   at q = {row['q']:.{places}f}")


@dataclass(frozen=True, kw_only=True)
class Curve(Writes, Output):
    """Print the success probability f, g = log f and its derivatives in log q, and where g is convex."""

    sigma: Sigma = (0.1, 0.5, 1, 2)
    k: K = 1
    points: Annotated[int, Opt("Number of values of q, evenly spaced in logit q.", least=2, most=100_000)] = (
        19
    )
    figures: Annotated[
        Path | None,
        Opt("Folder for the theory's figures.", shown="no figures", metavar="FOLDER", read=local_place),
    ] = None


@takes(Curve)
def curve(request: Curve) -> None:
    """Print the curve, write its figures."""
    rows = _curve_rows(_some("sigma", request.sigma), request.k, request.points)
    written: list[Path] = []
    if (folder := request.figures) is not None:
        from orderlens.figures.catalogue import FORMATS
        from orderlens.figures.theory import FIGURES, save_theory_figures

        files = [folder / f"{name}.{kind}" for name in FIGURES for kind in (*FORMATS, "json")]
        refuse_place(folder, folder=True, overwrite=request.overwrite, files=files)
        written = save_theory_figures(folder)
    if request.json:
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
    """Recompute every number of the paper's appendix and say which claims hold."""


@takes(CheckCommand)
def check(request: CheckCommand) -> None:
    """Print one claim after the other."""
    from orderlens.claims.audit import CLAIM_COUNT, check_claims
    from orderlens.cli.console import progress_bar

    claims = []
    with progress_bar("claims", CLAIM_COUNT, quiet=request.json) as advance:
        for claim in check_claims():
            claims.append(claim)
            advance()
    counts = {
        word: sum(claim.standing == word for claim in claims) for word in ("holds", "incomplete", "fails")
    }
    if request.json:
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
    """Print per trace: log A, the Jensen loss, its second-order value and the bottleneck steps."""

    sigma: Sigma = (0.1, 0.3, 0.5, 1)
    k: K = 1
    top: Annotated[int, Opt("Number of bottleneck steps to list.", least=0)] = 5
    limit: Annotated[int, limit_option("traces")] = 10


@takes(Profile)
def profile(request: Profile) -> None:
    """Print the profile of some traces."""
    noises = _some("sigma", request.sigma)
    reports, total = [], 0
    for trace in request.traces():
        total += 1
        if total <= request.limit:
            reports.append(_report(trace, noises, request.k, request.top))
    if request.json:
        print_json({"traces": reports, "n_traces": total})
        return
    print_text(f"{request.file}: {_count(total)}")
    for report in reports:
        _print_report(report)
    if total > len(reports):
        print_text(
            f"{total - len(reports)} more traces; --limit shows more of them, --sample and --order select"
        )


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
        print_text("invalid: a step is outside the Taylor radius of the mean; use the Jensen loss instead")


@dataclass(frozen=True, kw_only=True)
class Fit(TraceFile, Output):
    """Fit the noise σ and the number of competitors k to scored traces, and test the fit."""

    bootstrap: Bootstrap = 0


@takes(Fit)
def fit(request: Fit) -> None:
    """Print the fit."""
    import numpy as np

    from orderlens.texts.foreign.series import texts_of
    from orderlens.theory import fit_noise

    traces = list(request.traces())
    flags = [trace.hits for trace in traces if trace.hits is not None]
    if len(flags) < len(traces):
        raise UserInputError(
            f"{request.file} lacks the column {request.named_columns.hits!r}, telling whether the target was "
            "the argmax; name another with --column is_argmax=NAME, or score the texts with 'orderlens score'"
        )
    values = np.concatenate([trace.values for trace in traces])
    groups = np.repeat(texts_of(traces), [trace.values.size for trace in traces])
    result = fit_noise(values, np.concatenate(flags), groups=groups, bootstrap=request.bootstrap)
    if request.json:
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
    cells = [[format(value, formats.get(name, default)) for name, value in row.items()] for row in rows]
    lines = [list(rows[0]), *cells]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    for line in lines:
        print_text("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
