"""The ``orderlens`` command: finds the verb and turns errors into one line and an exit code.

Exit codes: 0 done, 2 bad input, 1 failure, 130 interrupted, 143 terminated. ``--debug`` anywhere shows the
traceback.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from orderlens._version import __version__
from orderlens.cli.command import Verb, overview, run
from orderlens.cli.terminal import (
    NOTHING,
    interrupted,
    listen,
    mute,
    prepare_streams,
    print_line,
    stopped_by,
)
from orderlens.common.files import refusal
from orderlens.errors import OrderLensError, UserInputError, one_line

VERBS = {
    "score": "decode:score",
    "generate": "decode:generate",
    "sweep": "decode:sweep",
    "evaluate": "decode:evaluate",
    "census": "decode:census",
    "downstream": "studies:downstream",
    "frontier": "frontier:frontier",
    "lm-eval": "lm_eval:lm_eval",
    "orders": "listing:orders",
    "models": "listing:models",
    "models get": "listing:get",
    "tasks": "listing:tasks",
    "runs list": "runs:list_runs",
    "runs show": "runs:show",
    "runs diff": "runs:diff_runs",
    "runs verify": "maintain:verify",
    "runs export": "maintain:export",
    "runs import": "maintain:import_traces",
    "runs compact": "maintain:compact",
    "runs watch": "runs:watch",
    "analyze": "read:analyze",
    "figures": "read:figures",
    "report": "read:report",
    "view": "read:view",
    "replicate": "studies:replicate",
    "demo": "demo:demo",
    "theory sigma0": "theory:sigma0",
    "theory curve": "theory:curve",
    "theory check": "theory:check",
    "theory profile": "theory:profile",
    "theory fit": "theory:fit",
    "train": "train:train",
    "doctor": "doctor:doctor",
}
"""Verb → module of this package and the command in it, in the order of ``--help``."""
GROUPS = {
    "runs": "List, show, compare, verify, export, import, compact and watch runs.",
    "theory": "The paper's uniform-spreading theory: critical noise, curves, claims, fits to traces.",
}
"""Groups of commands."""
ABOUT = "Measure and show what the decoding order does in masked and diffusion language models."
BEGIN = (
    "'orderlens' without arguments prints five commands to try. Add --debug to any command to see the "
    "traceback of a failure."
)
TO_TRY = {
    "orderlens score --model hmm --limit 4 --out runs/first": "score 4 texts under 6 orders (seconds)",
    "orderlens analyze runs/first --table fixed-sequence": "print how certain the model was per order",
    "orderlens report runs/first --out first.html": "write one HTML page with figures and findings",
    "orderlens view runs/first": "replay each text in the browser",
    "orderlens demo": "repeat the paper in small on the bundled model (minutes)",
}
"""Five first commands, each with what it does."""


def load_verb(name: str) -> Verb[Any]:
    """Return a command by its name, ``score`` or ``runs show``."""
    module, _, attribute = VERBS[name].partition(":")
    found: Verb[Any] = getattr(importlib.import_module(f"orderlens.cli.{module}"), attribute)
    return found


def dispatch(words: Sequence[str]) -> int:
    """Run the command that the words name; return its exit code."""
    first, second = [*words[:2], "", ""][:2]
    if first == "--version":
        sys.stdout.write(f"{__version__}\n")
        return 0
    if f"{first} {second}" in VERBS:
        return run(f"{first} {second}", load_verb(f"{first} {second}"), words[2:])
    if first in VERBS:
        return run(first, load_verb(first), words[1:])
    if not first:
        sys.stdout.write(first_steps())
        return 0
    if first == "--help" or (first in GROUPS and second in ("", "--help")):
        sys.stdout.write(_help(first if first in GROUPS else "") + "\n")
        return 0
    raise UserInputError(_unknown(first, second))


def first_steps() -> str:
    """Return the commands that a new user tries first."""
    width = max(len(command) for command in TO_TRY)
    lines = [f"  {command:<{width}}  {what}" for command, what in TO_TRY.items()]
    head = f"{ABOUT}\nTry these five commands, in this order:\n"
    return "\n".join([head, *lines, "", "'orderlens --help' lists all commands.", ""])


def _unknown(first: str, second: str) -> str:
    from orderlens.registry import suggest

    if first in GROUPS:
        known = [name.partition(" ")[2] for name in VERBS if name.startswith(f"{first} ")]
        return f"unknown command '{first} {second}'{suggest(second, known) or ';'} known: {', '.join(known)}"
    kind = "option" if first.startswith("-") else "command"
    known = list(dict.fromkeys(name.partition(" ")[0] for name in VERBS))
    return f"unknown {kind} '{first}'{suggest(first, known) or ';'} 'orderlens --help' lists all"


def _help(group: str) -> str:
    """Return the help that lists all commands, or those of a group."""
    if group:
        names = {name.partition(" ")[2]: name for name in VERBS if name.startswith(f"{group} ")}
        rows = {short: load_verb(name).summary for short, name in names.items()}
        return overview(f"orderlens {group}", GROUPS[group], rows, [])
    tops = dict.fromkeys(name.partition(" ")[0] for name in VERBS)
    rows = {name: GROUPS.get(name) or load_verb(name).summary for name in tops}
    return overview("orderlens", ABOUT, rows, [("--version", "Print the version and exit.")], BEGIN)


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code; never raises for a user's mistake."""
    # Read when torch loads: spinning threads make small products ten times slower on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    debug = "--debug" in arguments
    prepare_streams()
    try:
        _mute_followers()
        _refuse_deleted_folder()
        return dispatch([item for item in arguments if item != "--debug"])
    except KeyboardInterrupt as stop:
        return _stop(stop, debug)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OrderLensError as error:
        return _fail(one_line(error), error.exit_code, debug)
    except Exception as error:  # noqa: BLE001  a user sees one line instead of a traceback
        cause = stopped_by(error)
        return _fail(*explain(error), debug) if cause is None else _stop(cause, debug)


def _mute_followers() -> None:
    """Silence all ranks but the leading one."""
    from orderlens.common.machine import this_rank

    if (rank := this_rank()) is not None and not rank.leads:
        mute(f"rank {rank.index}")


def _stop(stop: BaseException, debug: bool) -> int:
    said = interrupted(stop, NOTHING)
    return _fail(one_line(said), said.exit_code, debug)


def _refuse_deleted_folder() -> None:
    try:
        os.getcwd()  # noqa: PTH109  Path.cwd says the same
    except FileNotFoundError:
        raise UserInputError("the folder you are in was deleted; change to another one (cd)") from None


def _fail(message: str, code: int, debug: bool) -> int:
    if debug and sys.exc_info()[0] is not None:
        from orderlens.cli.console import stderr

        stderr.print_exception()
    print_line(message)
    return code


def entry_point() -> None:
    """Console-script entry point."""
    listen()
    logging.captureWarnings(True)
    warnings.simplefilter("ignore", RuntimeWarning)  # numpy's; undefined numbers are reported with a reason
    sys.exit(main(sys.argv[1:]))


_PACKAGES = {
    "torch": "orderlens[torch]",
    "safetensors": "orderlens[torch]",
    "tokenizers": "orderlens[torch]",
    "huggingface_hub": "orderlens[torch]",
    "transformers": "orderlens[hf]",
    "lm_eval": "orderlens[eval]",
    "polars": "orderlens[polars]",
    "s3fs": "s3fs",
    "gcsfs": "gcsfs",
    "adlfs": "adlfs",
}
"""Imported package → requirement to install."""
_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError")


def explain(error: Exception) -> tuple[str, int]:
    """Return the message and the exit code for an exception of another package."""
    name, text = type(error).__name__, one_line(error)
    if getattr(error, "is_user_input_error", False):
        return text, 2
    if isinstance(error, ModuleNotFoundError) and error.name:
        top = error.name.partition(".")[0]
        return f"the package {top} is missing: pip install '{_PACKAGES.get(top, top)}'", 2
    if name in _CREDENTIALS or "Unable to locate credentials" in text:
        return f"no credentials for the object store ({text}); configure them for its client", 2
    if isinstance(error, RecursionError):
        return "the input is nested too deeply to be read", 2
    from orderlens.common.machine import is_out_of_memory

    if is_out_of_memory(error):
        return "not enough memory; lower --batch-size, --limit or the lengths of texts and spans", 1
    if isinstance(error, OverflowError):
        return f"a number is too large ({text})", 2
    if isinstance(error, UnicodeError):
        return f"a text or a name contains characters that cannot be stored ({text})", 2
    if isinstance(error, OSError):
        where = f"{error.filename}: " if isinstance(error.filename, str) else ""
        return f"the system refused: {where}{refusal(error)}", 1
    return f"internal error, {name}: {text}; please report it with what --debug prints", 1
