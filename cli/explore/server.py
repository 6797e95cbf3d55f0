"""The server of `meshwright explore`: on the loopback interface only, for those who have the token.

starlette and uvicorn (the `explore` extra) are loaded when it starts.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING

from pydantic import ValidationError

from ...errors import InputError, MeshwrightError, MissingExtraError, reason
from .form import form
from .session import Answer, Ask, Session, SupersededError

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

HOST = "127.0.0.1"
# Nobody else may frame or keep the page, and its address, which has the token, goes nowhere.
_HEADERS = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY",
            "X-Content-Type-Options": "nosniff"}  # fmt: skip


def listening(port: int) -> socket.socket:
    """A socket on the loopback interface; port 0: a free one. Raises InputError where the port is taken."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen()
    except OSError as error:
        listener.close()
        hint = "leave `--port` out and a free one is taken"
        raise InputError(f"cannot listen on port {port}: {reason(error)}", hint=hint) from error
    return listener


def address(listener: socket.socket, token: str) -> str:
    return f"http://{HOST}:{listener.getsockname()[1]}/?token={token}"


def check_installed() -> None:
    """Raises MissingExtraError without the `explore` extra."""
    try:
        import starlette
        import uvicorn
    except ImportError:
        raise MissingExtraError("explore", "the explorer") from None
    del starlette, uvicorn


def serve(session: Session, listener: socket.socket, token: str) -> None:
    """Serves until the process is interrupted."""
    import uvicorn

    config = uvicorn.Config(application(session, token), log_level="critical", access_log=False,
                            timeout_graceful_shutdown=1, lifespan="off")  # fmt: skip
    uvicorn.Server(config).run(sockets=[listener])


def application(session: Session, token: str) -> Starlette:
    """The page at `/`, and an answer below it for each question of a Session. All of it needs the token."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.responses import HTMLResponse
    from starlette.routing import Route

    async def page(request: Request) -> Response:
        if not secrets.compare_digest(request.query_params.get("token", "").encode(), token.encode()):
            return _refused()
        return HTMLResponse(form(session), headers=_HEADERS)

    answers = (session.price, session.pipeline, session.study, session.search, session.frontier)
    routes = [Route("/", page), *(_route(answer, token) for answer in answers)]
    # A page of another site may point its own name at this address: only ours is served.
    return Starlette(routes=routes, middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])])


def _refused() -> Response:
    from starlette.responses import PlainTextResponse

    text = "The token is missing or wrong: open the address that `meshwright explore` printed."
    return PlainTextResponse(text, HTTPStatus.FORBIDDEN, headers=_HEADERS)


def _route(answer: Callable[[Ask], Answer], token: str) -> Route:
    """`POST /<name of the answer>`, computed beside the event loop."""
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def endpoint(request: Request) -> Response:
        given = request.headers.get("x-meshwright-token", "")
        if not secrets.compare_digest(given.encode(), token.encode()):
            return _refused()
        status, body = await run_in_threadpool(_answered, answer, await request.body())
        return JSONResponse(body, status, headers=_HEADERS)

    return Route(f"/{answer.__name__}", endpoint, methods=["POST"])


def _answered(answer: Callable[[Ask], Answer], body: bytes) -> tuple[HTTPStatus, Answer]:
    """The answer, or what is wrong, in the form of an error of the command line.

    A browser writes failed requests to its console. A wrong choice of the user is no failure of the request.
    """
    try:
        return HTTPStatus.OK, answer(Ask.model_validate_json(body))
    except ValidationError as error:
        return HTTPStatus.BAD_REQUEST, _problem("invalid_input", str(error.errors()[0]["msg"]), "")
    except MeshwrightError as error:
        return HTTPStatus.OK, _problem(error.code, error.message, error.hint)
    except SupersededError:
        return HTTPStatus.OK, _problem("superseded", "a later search was asked for", "")
    except Exception as error:  # the page goes on, and names the bug
        hint = "please report this; it is our bug, not yours"
        return HTTPStatus.INTERNAL_SERVER_ERROR, _problem("internal_error", f"{type(error).__name__}: {error}", hint)


def _problem(code: str, message: str, hint: str) -> Answer:
    return {"code": code, "message": message, "hint": hint}
