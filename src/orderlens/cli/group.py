"""How groups of commands show their help and end when they are interrupted."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

from orderlens.cli.interrupt import NOTHING, interrupted


class Verbs(TyperGroup):
    """A group of commands whose summaries are shown uncut, and whose interrupts are not silent."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands with their first sentences, folded instead of cut."""
        shown = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, item.get_short_help_str(10_000)) for name, item in shown if item and not item.hidden]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def invoke(self, ctx: Any) -> Any:
        """Run a command; what typer would turn into a silent exit says that nothing was written."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            raise interrupted(stop, NOTHING) from stop
