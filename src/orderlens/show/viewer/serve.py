"""Serving the viewer on this machine: a port, a token, the printed address, the browser."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from orderlens.errors import MissingPackageError, RunError, UserInputError
from orderlens.store.reader import Run, open_run

ADDRESS = "127.0.0.1"
"""Only this machine; no option changes it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a viewer listens."""

    port: int
    token: str

    @property
    def address(self) -> str:
        """The link to open."""
        return f"http://{ADDRESS}:{self.port}/?token={self.token}"

    @property
    def hosts(self) -> frozenset[str]:
        """Allowed values of ``Host`` for a browser on this machine."""
        names = (ADDRESS, "localhost")
        short = names if self.port == 80 else ()
        return frozenset({*(f"{name}:{self.port}" for name in names), *short})


def view(runs: Run | str | os.PathLike[str], *, port: int = 0, browser: bool = True) -> None:
    """Show runs in the browser until interrupted (Ctrl-C); only this machine is answered.

    Args:
        runs: an opened run or several (``open_run``), or the path of a folder.
        port: port on 127.0.0.1; 0 takes a free one.
        browser: open the page; otherwise only its address is printed.
    """
    run = runs if isinstance(runs, Run) else open_run(runs)

    def print_address(place: Place) -> None:
        sys.stdout.write(f"{place.address}\n")
        sys.stdout.flush()

    with suppress(KeyboardInterrupt):  # the usual end
        serve(run, port=port, browser=browser, ready=print_address)


def serve(
    run: Run, *, port: int = 0, browser: bool = True, ready: Callable[[Place], None] = lambda _: None
) -> None:
    """Serve until interrupted.

    Args:
        run: one or several opened runs.
        port: 0 takes a free one.
        browser: open the page.
        ready: called with the address and port once the server listens.

    Raises:
        RunError: a complete run has no traces, like a census of generated texts.
        UserInputError: the port is taken.
    """
    if "reveals" not in run.tables and not run.incomplete:
        raise RunError(run.no_traces())
    try:
        import uvicorn

        from orderlens.show.viewer.app import make_app
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f"the viewer needs {error.name}; install it with 'pip install starlette uvicorn'"
        ) from None
    with _listen(port) as listening:
        place = Place(listening.getsockname()[1], secrets.token_urlsafe(24))
        app = make_app(run, place.token, place.hosts)
        settings = uvicorn.Config(
            app,
            log_level="critical",
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        app.state.index.wait("peek")  # so that the first page has rows, and a damaged run is reported here
        ready(place)
        if browser:
            opening = threading.Timer(0.3, webbrowser.open, [place.address])
            opening.daemon = True
            opening.start()
        uvicorn.Server(settings).run(sockets=[listening])


def _listen(port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((ADDRESS, port))
        listening.listen(128)  # requests wait for the server from now on instead of being refused
    except (OSError, OverflowError) as error:
        listening.close()
        raise UserInputError(
            f"cannot listen on {ADDRESS}:{port} ({error}); choose another --port, or 0 for a free one"
        ) from error
    return listening
