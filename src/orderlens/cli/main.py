"""The ``orderlens`` command: assembles the verbs and turns errors into one line and an exit code.

Exit codes: 0 done, 2 bad input, 1 failure, 130 interrupted. ``--debug`` anywhere shows the traceback.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

import typer

from orderlens._version import __version__
from orderlens.cli.console import stderr
from orderlens.errors import OrderLensError, one_line

VERB_MODULES: tuple[str, ...] = (
    "score",
    "generate",
    "evaluate",
    "downstream",
    "lm_eval",
    "catalogue",
    "runs",
    "analyze",
    "figures",
    "replicate",
    "demo",
    "theory",
    "train",
    "doctor",
)
"""Modules of this package with a ``register(app)`` function, in the order of ``--help``."""


_USAGE_ERROR: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)
"""Wrong options and arguments. Found through typer, which uses click or a copy of its own by version."""


def build_app() -> typer.Typer:
    """Return the command-line application with all verbs."""
    app = typer.Typer(
        name="orderlens",
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
    try:
        outcome = build_app()(args=[item for item in arguments if item != "--debug"], standalone_mode=False)
        return outcome if isinstance(outcome, int) else 0
    except typer.Exit as stop:
        return int(stop.exit_code)
    except _USAGE_ERROR as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # a group without a command: its help is the answer
            typer.echo(str(getattr(error, "message", error)))
            return 0
        return _fail(_usage_message(error), 2, debug)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted; what was already committed is kept", 130, debug)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OrderLensError as error:
        return _fail(one_line(error), error.exit_code, debug)
    except Exception as error:  # noqa: BLE001  the last line of defence: one line instead of a traceback
        code = 2 if getattr(error, "is_user_input_error", False) else 1
        label = "" if code == 2 else f"unexpected {type(error).__name__}: "
        hint = "" if code == 2 else " (run again with --debug for the traceback)"
        return _fail(f"{label}{one_line(error)}{hint}", code, debug)


def _usage_message(error: Exception) -> str:
    message = getattr(error, "format_message", None)
    return " ".join(str(message() if message else error).split())


def _fail(message: str, code: int, debug: bool) -> int:
    if debug and sys.exc_info()[0] is not None:
        stderr.print_exception()
    stderr.print(f"orderlens: {message}", markup=False, style="red" if stderr.is_terminal else None)
    return code


def entry_point() -> None:
    """Console-script entry point."""
    sys.exit(main(sys.argv[1:]))
