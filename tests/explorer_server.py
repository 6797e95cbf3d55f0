"""A running server of the explorer, for tests with and without a browser."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from meshwright.cli.explore import server
from meshwright.cli.explore.session import Session


@contextmanager
def served(session: Session, token: str) -> Iterator[str]:
    """The address of a server on a free port, with the token in it."""
    import uvicorn

    listener = server.listening(0)
    running = uvicorn.Server(uvicorn.Config(server.application(session, token), log_level="critical", lifespan="off"))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield server.address(listener, token)
    finally:
        running.should_exit = True
        thread.join()
        listener.close()
