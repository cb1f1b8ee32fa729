"""The ``orderlens`` command: assembles the verbs and turns errors into one line and an exit code.

Exit codes: 0 done, 2 bad input, 1 failure, 130 interrupted, 143 terminated. ``--debug`` anywhere shows the
traceback.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import sys
from collections.abc import Sequence

import typer

from orderlens._version import __version__
from orderlens.cli.console import hush, prepare_streams, print_line, stderr
from orderlens.cli.interrupt import NOTHING, Verbs, interrupted, listen, stopped_by
from orderlens.cli.option_groups import spread
from orderlens.common.files import refusal
from orderlens.common.machine import is_out_of_memory
from orderlens.errors import OrderLensError, UserInputError, one_line
from orderlens.runs.ranks import this_rank

VERBS = {
    "score": "score",
    "generate": "generate",
    "sweep": "generate:sweep",
    "evaluate": "evaluate",
    "downstream": "downstream",
    "frontier": "frontier",
    "lm-eval": "lm_eval:lm_eval",
    "orders": "listing:orders",
    "models": "listing:model_verbs",
    "tasks": "listing:tasks",
    "runs": "runs:run_verbs",
    "analyze": "analyze",
    "figures": "figures",
    "report": "report",
    "view": "view",
    "replicate": "replicate",
    "demo": "replicate:demo",
    "theory": "theory:theory_verbs",
    "train": "train",
    "doctor": "doctor",
}
"""Verb → module of this package and the function or group in it (of the verb's name unless given), in the
order of ``--help``."""
LOOSE = {"lm-eval": {"allow_extra_args": True, "ignore_unknown_options": True}}
"""Verbs that hand on options they do not know."""


FORMER = {"--eos-stop": "--stop-at-eos", "--no-eos-stop": "--no-stop-at-eos"}
"""Earlier spellings of options, still understood."""

_USAGE_ERROR: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)
"""Wrong options and arguments. Found through typer, which uses click or a copy of its own by version."""


_EXTRA = re.compile(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)")
_NUMBERS = {
    "int_parsing": "a whole number",
    "float_parsing": "a number",
    "less_than_equal": "at most {le}",
    "greater_than_equal": "at least {ge}",
}
"""What pydantic calls a word that is no number, or one out of range → what is allowed."""


def build_app() -> typer.Typer:
    """Return the command-line application with all verbs."""
    app = typer.Typer(
        name="orderlens",
        cls=Verbs,
        context_settings={"max_content_width": 100},
        help="See what the decoding order does inside an order-agnostic language model.",
        epilog="Begin with 'orderlens demo', or 'orderlens score --model hmm --limit 4 --out runs/first' "
        "and 'orderlens report runs/first'. Add --debug to any command to see the traceback of a failure.",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )

    @app.callback(invoke_without_command=True)
    def root(
        context: typer.Context,
        version: bool = typer.Option(False, "--version", help="Print the version and exit."),
    ) -> None:
        if version:
            typer.echo(__version__)
            raise typer.Exit
        if context.invoked_subcommand is None:
            typer.echo(context.get_help())

    for name, place in VERBS.items():
        module, _, attribute = place.partition(":")
        verb = getattr(importlib.import_module(f"orderlens.cli.{module}"), attribute or name)
        if isinstance(verb, typer.Typer):
            app.add_typer(verb, name=name)
        else:
            app.command(name, context_settings=LOOSE.get(name))(spread(verb))
    return app


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code; never raises for a user's mistake."""
    # Read when torch loads: spinning threads make small products ten times slower on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    debug = "--debug" in arguments
    prepare_streams()
    if (rank := this_rank()) is not None and not rank.leads:
        hush(f"rank {rank.index}")
    try:
        _refuse_deleted_folder()
        plain = [FORMER.get(item, item) for item in arguments if item != "--debug"]
        outcome = build_app()(args=plain, prog_name="orderlens", standalone_mode=False)
        return outcome if isinstance(outcome, int) else 0
    except typer.Exit as stop:
        return int(stop.exit_code)
    except _USAGE_ERROR as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # a group without a command: its help is the answer
            typer.echo(str(getattr(error, "message", error)))
            return 0
        return _fail(_usage_message(error), 2, debug)
    except (KeyboardInterrupt, typer.Abort) as stop:
        return _stop(stop, debug)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OrderLensError as error:
        return _fail(one_line(error), error.exit_code, debug)
    except Exception as error:  # noqa: BLE001  the last line of defence: one line instead of a traceback
        behind = stopped_by(error)
        return _fail(*explain(error), debug) if behind is None else _stop(behind, debug)


def _stop(stop: BaseException, debug: bool) -> int:
    told = interrupted(stop, NOTHING)
    return _fail(one_line(told), told.exit_code, debug)


def _refuse_deleted_folder() -> None:
    try:
        os.getcwd()  # noqa: PTH109  Path.cwd says the same
    except FileNotFoundError:
        raise UserInputError("the folder you are in was deleted; change to another one (cd)") from None


def _usage_message(error: Exception) -> str:
    message = getattr(error, "format_message", None)
    text = " ".join(str(message() if message else error).split())
    if extra := _EXTRA.fullmatch(text):
        return f"nothing takes '{extra[1]}' here; write a list as one word (a,b,c), quote what holds spaces"
    details = getattr(error.__cause__, "errors", None)  # typer's own words do not name the value
    if details and (wanted := _NUMBERS.get((first := details()[0])["type"])):
        allowed = wanted.format(**first.get("ctx", {}))
        return f"{text.partition(': ')[0]}: '{first['input']}' must be {allowed}"
    return text


def _fail(message: str, code: int, debug: bool) -> int:
    if debug and sys.exc_info()[0] is not None:
        stderr.print_exception()
    print_line(message)
    return code


def entry_point() -> None:
    """Console-script entry point."""
    listen()
    logging.captureWarnings(True)
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
"""Package to import → what to install."""
_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError")


def explain(error: Exception) -> tuple[str, int]:
    """Return the line to print and the exit code for an exception that is not ours."""
    name, text = type(error).__name__, one_line(error)
    if getattr(error, "is_user_input_error", False):
        return text, 2
    if isinstance(error, ModuleNotFoundError) and error.name:
        top = error.name.partition(".")[0]
        return f"the package {top} is missing: pip install '{_PACKAGES.get(top, top)}'", 2
    if name in _CREDENTIALS or "Unable to locate credentials" in text:
        return f"no credentials for the object store ({text}); set them up as its client expects", 2
    if isinstance(error, RecursionError):
        return "the input is nested too deeply to be read", 2
    if is_out_of_memory(error):
        return "not enough memory; use fewer or shorter texts at once (--batch-size, --limit, lengths)", 1
    if isinstance(error, OverflowError):
        return f"a number is too large ({text})", 2
    if isinstance(error, UnicodeError):
        return f"a text or a name holds characters that cannot be stored ({text})", 2
    if isinstance(error, OSError):
        where = f"{error.filename}: " if isinstance(error.filename, str) else ""
        return f"the system refused: {where}{refusal(error)}", 1
    return f"unexpected {name}: {text} (run again with --debug for the traceback)", 1
