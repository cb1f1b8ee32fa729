"""``orderlens view``: look at runs in the browser, live and locally."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from orderlens.cli.console import JsonFlag, print_json, print_text

if TYPE_CHECKING:
    from orderlens.show.viewer.serve import Place


def view(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN…", help="Run folders, folders of runs, or a replication.")
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 takes a free one.")] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page.")] = True,
    json: JsonFlag = False,
) -> None:
    """Look at runs in the browser: filter and sort samples, replay them, compare two orders; reads only.

    Only this machine can reach it, and only with the printed address. Ends with Ctrl-C.
    """
    from orderlens.show.viewer.serve import serve
    from orderlens.store.reader import open_run

    run = open_run(runs)

    def ready(place: Place) -> None:
        if json:
            print_json({"address": place.address, "port": place.port, "runs": run.names})
        else:
            print_text(f"viewer: {place.address}\n(only from this machine; Ctrl-C ends it)")
        sys.stdout.flush()  # nothing follows until the end, and a script may wait for the address

    with contextlib.suppress(KeyboardInterrupt):  # the usual end
        serve(run, port=port, browser=browser, ready=ready)
