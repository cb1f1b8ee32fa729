"""``orderlens lm-eval``: lm-eval's own tasks on our models, with traces beside its results."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from json import loads
from pathlib import Path
from typing import Annotated, Any

import typer

from orderlens.cli import options as opt
from orderlens.cli.console import JsonFlag, print_json
from orderlens.cli.interrupt import keeping, kept_in
from orderlens.common.files import refuse_place
from orderlens.errors import DataFileError, MissingPackageError, UnknownNameError, UserInputError, one_line


def lm_eval(
    context: typer.Context,
    tasks: Annotated[str, typer.Option("--tasks", help="lm-eval task names, comma-separated.")],
    out: Annotated[Path, opt.out_option("Folder for lm-eval's results and our traces.")],
    model: opt.ModelOption = "tiny",
    order: Annotated[
        str, typer.Option("--order", help="Reveal order; see 'orderlens orders'.")
    ] = "forced-ar",
    limit: opt.LimitOption = None,
    include_path: Annotated[
        Path | None, typer.Option("--include-path", help="Folder with further lm-eval task files.")
    ] = None,
    traces: Annotated[bool, typer.Option(help="Keep the traces of all requests under OUT/traces.")] = True,
    block_size: opt.BlockOption = None,
    batch_size: opt.BatchOption = None,
    device: opt.DeviceOption = None,
    dtype: opt.DtypeOption = None,
    json: JsonFlag = False,
) -> None:
    """Run lm-eval tasks; options that are not listed here (--num_fewshot 5 …) go to lm-eval as they are."""
    refuse_place(out, folder=True)
    arguments = {"model": model, "order": order, "block_size": block_size, "device": device, "dtype": dtype}
    arguments["traces"] = str(out / "traces") if traces else None
    command = ["--batch_size", str(batch_size or "auto"), "--output_path", str(out), "--log_samples"]
    command += ["--limit", str(limit)] if limit is not None else []
    command += ["--include_path", str(include_path)] if include_path is not None else []
    with keeping(lambda: kept_in(out)):
        launch([*command, *context.args], _split(tasks), arguments, quiet=json)
    if json:
        print_json(_newest_results(out) | {"out": str(out)})


def launch(
    command: Sequence[str],
    tasks: Sequence[str],
    model_arguments: Mapping[str, Any],
    *,
    quiet: bool = False,
) -> None:
    """Run lm-eval's own command line in this process, with our model registered.

    Args:
        command: lm-eval options other than model and tasks.
        tasks: lm-eval task names.
        model_arguments: keyword arguments of the adapter; None values are left out.
        quiet: send what lm-eval prints to standard error.

    Raises:
        UnknownNameError: lm-eval has no such task.
        UserInputError: lm-eval refused the arguments.
        DataFileError: the hub cannot be reached and the task's data are not in the cache.
    """
    harness = _harness()
    argv, sys.argv = sys.argv, ["lm-eval", "run", "--model", "orderlens", "--tasks", *tasks, *command]
    try:
        parsed = harness.parse_args()
        parsed.model_args = {name: value for name, value in model_arguments.items() if value is not None}
        with contextlib.redirect_stdout(sys.stderr) if quiet else contextlib.nullcontext():
            harness.execute(parsed)
    except SystemExit as stop:
        if stop.code:
            raise UserInputError(f"lm-eval refused the command ({one_line(stop)}); see its message") from stop
    except ValueError as error:
        if str(error).startswith("Tasks not found"):
            raise UnknownNameError(f"lm-eval: {one_line(error)}; 'lm-eval ls tasks' lists them") from error
        raise
    except ConnectionError as error:
        why = one_line(error)
        raise DataFileError(
            f"lm-eval: {why}; connect, or bring tasks over local files with --include-path"
        ) from error
    finally:
        sys.argv = argv


def _harness() -> Any:
    try:
        from lm_eval._cli import HarnessCLI
        from lm_eval.utils import setup_logging
    except ImportError as error:
        raise MissingPackageError("lm-eval is missing: pip install 'orderlens[eval]'") from error
    import orderlens.tasks.lm_eval_adapter  # noqa: F401  registers the model

    setup_logging()
    return HarnessCLI()


def _newest_results(out: Path) -> dict[str, Any]:
    files = sorted(out.rglob("results_*.json"), key=lambda path: path.stat().st_mtime)
    if not files:
        return {"results": {}}
    found = loads(files[-1].read_text(encoding="utf-8"))
    return {"results": found.get("results", {}), "file": str(files[-1])}


def _split(tasks: str) -> list[str]:
    names = opt.entries(tasks)
    if not names:
        raise UserInputError("--tasks is empty; name lm-eval tasks separated by commas")
    return names
