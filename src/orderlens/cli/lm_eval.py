"""``orderlens lm-eval``: lm-eval's own tasks on our models; stores its results and the traces.

No postponed annotations here: the types of fields are read when the command line is built.
"""

import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from json import loads
from pathlib import Path
from typing import Annotated, Any

from orderlens.cli.command import Output, takes
from orderlens.cli.terminal import keeping, kept_in, print_json
from orderlens.common.files import refuse_place
from orderlens.errors import DataFileError, MissingPackageError, UnknownNameError, UserInputError, one_line
from orderlens.registry import refuse_unknown
from orderlens.runs.options import FOLDER_OUT, BlockSize, Device, Dtype, ModelName, Weights
from orderlens.runs.request import Opt

LmEvalTasks = Annotated[
    Sequence[str], Opt("Tasks of lm-eval, separated by commas; 'lm-eval ls tasks' lists them.")
]
OneOrder = Annotated[str, Opt("Order or policy; 'orderlens orders' lists them.")]


@dataclass(frozen=True, kw_only=True)
class LmEval(Output):
    """Run tasks of lm-eval under one reveal order and store the traces.

    Options that are not listed here (--limit, --num_fewshot, …) are passed on to lm-eval.
    """

    tasks: LmEvalTasks
    out: Annotated[Path, FOLDER_OUT]
    model: ModelName
    order: OneOrder = "forced-ar"
    traces: Annotated[bool, Opt("Store the traces of all requests in OUT/traces.", negative=True)] = True
    block_size: BlockSize = None
    device: Device = None
    dtype: Dtype = None
    weights: Weights = None
    rest: tuple[str, ...] = ()


@takes(LmEval, loose=True)
def lm_eval(request: LmEval) -> None:
    """Run lm-eval with our model."""
    out = request.out
    refuse_place(out, folder=True)
    if not request.tasks:
        raise UserInputError("--tasks is empty; name lm-eval tasks separated by commas")
    names = ("model", "order", "block_size", "device", "dtype", "weights")
    arguments = {name: getattr(request, name) for name in names}
    arguments["traces"] = str(out / "traces") if request.traces else None
    command = ["--output_path", str(out), "--log_samples"]
    command += [] if "--batch_size" in request.rest else ["--batch_size", "auto"]
    with keeping(lambda: kept_in(out)):
        launch([*command, *request.rest], request.tasks, arguments, quiet=request.json)
    if request.json:
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
        model_arguments: keyword arguments of the adapter; None values are left out. ``--model_args`` adds to
            them, and its values take precedence.
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
        parsed.device = model_arguments.get("device") or "auto"  # lm-eval takes a GPU otherwise
        own = {name: value for name, value in model_arguments.items() if value is not None}
        parsed.model_args = own | _checked(parsed.model_args or {})
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
            f"lm-eval: {why}; connect to the internet, or add tasks from local files with --include_path"
        ) from error
    finally:
        sys.argv = argv


def _checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``--model_args`` of the command line; refuse names that the adapter does not have."""
    from orderlens.tasks.lm_eval_adapter import OrderLensLM

    known = list(signature(OrderLensLM.__init__).parameters)[1:]
    for name in given:
        refuse_unknown("argument of --model_args", name, known)
    return dict(given)


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
