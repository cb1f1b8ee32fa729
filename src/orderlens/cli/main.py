"""The ``orderlens`` command: assembles the verbs and turns errors into one line and an exit code.

Exit codes: 0 done, 2 bad input, 1 failure, 130 interrupted, 143 terminated. ``--debug`` anywhere shows the
traceback.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Sequence

import typer

from orderlens._version import __version__
from orderlens.cli.console import hush, prepare_streams, print_line, stderr
from orderlens.cli.foreign import explain
from orderlens.cli.group import Verbs
from orderlens.cli.interrupt import NOTHING, interrupted, listen
from orderlens.engines.ranks import this_rank
from orderlens.errors import OrderLensError, UserInputError, one_line

VERB_MODULES: tuple[str, ...] = (
    "score",
    "generate",
    "evaluate",
    "downstream",
    "frontier",
    "lm_eval",
    "listing",
    "runs",
    "analyze",
    "figures",
    "report",
    "view",
    "replicate",
    "demo",
    "theory",
    "train",
    "doctor",
)
"""Modules of this package with a ``register(app)`` function, in the order of ``--help``."""


FORMER = {"--eos-stop": "--stop-at-eos", "--no-eos-stop": "--no-stop-at-eos"}
"""Earlier spellings of options, still understood."""

_USAGE_ERROR: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)
"""Wrong options and arguments. Found through typer, which uses click or a copy of its own by version."""


def build_app() -> typer.Typer:
    """Return the command-line application with all verbs."""
    app = typer.Typer(
        name="orderlens",
        cls=Verbs,
        context_settings={"max_content_width": 100},
        help="See what the decoding order does inside an order-agnostic language model.",
        epilog="Add --debug to any command to see the full traceback of a failure.",
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

    for name in VERB_MODULES:
        importlib.import_module(f"orderlens.cli.{name}").register(app)
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
        return _fail(one_line(interrupted(stop, NOTHING)), 130, debug)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OrderLensError as error:
        return _fail(one_line(error), error.exit_code, debug)
    except Exception as error:  # noqa: BLE001  the last line of defence: one line instead of a traceback
        return _fail(*explain(error), debug)


def _refuse_deleted_folder() -> None:
    try:
        os.getcwd()  # noqa: PTH109  Path.cwd says the same
    except FileNotFoundError:
        raise UserInputError("the folder you are in was deleted; change to another one (cd)") from None


def _usage_message(error: Exception) -> str:
    message = getattr(error, "format_message", None)
    return " ".join(str(message() if message else error).split())


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
