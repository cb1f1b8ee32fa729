"""Serving the viewer on this machine: a port, a token, the printed address, the browser."""

from __future__ import annotations

import secrets
import socket
import threading
import webbrowser
from collections.abc import Callable
from dataclasses import dataclass

from orderlens.errors import MissingPackageError, UserInputError
from orderlens.store.reader import Run

ADDRESS = "127.0.0.1"
"""Only this machine; there is no option to listen elsewhere."""


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
        """The names under which a browser on this machine may ask."""
        names = (ADDRESS, "localhost")
        short = names if self.port == 80 else ()
        return frozenset({*(f"{name}:{self.port}" for name in names), *short})


def serve(
    run: Run, *, port: int = 0, browser: bool = True, ready: Callable[[Place], None] = lambda _: None
) -> None:
    """Serve until interrupted.

    Args:
        run: one or several opened runs.
        port: 0 takes a free one.
        browser: open the page.
        ready: called with the place once it is taken.

    Raises:
        UserInputError: the port is taken.
    """
    try:
        import uvicorn

        from orderlens.show.viewer.app import make_app
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f"the viewer needs {error.name}; install it with 'pip install starlette uvicorn'"
        ) from None
    listening = _listen(port)
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
    app.state.index.wait("peek")  # so that the first page has rows, and a damaged run is told here
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
        listening.listen(128)  # whoever asks from now on waits for the server instead of being refused
    except (OSError, OverflowError) as error:
        listening.close()
        raise UserInputError(
            f"cannot listen on {ADDRESS}:{port} ({error}); choose another --port, or 0 for a free one"
        ) from error
    return listening
