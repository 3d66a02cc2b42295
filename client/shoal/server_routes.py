"""Routes of a shared port that belong to no single model: health, and the list of models.

Also serves TorchServe's management API on its own port. That API starts programs on this machine, so it listens on the
loopback only and rejects requests from web pages.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any, Final, Protocol
from urllib.parse import quote

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from shoal.pair import Launch
from shoal.serving.errors import FieldError, LocalError
from shoal_schema.interfaces.protocols import DOCS, HTTP, TORCHSERVE, HealthCheck
from shoal_schema.version import VERSION

KINDS: Final = {
    400: "BadRequestException",
    403: "ForbiddenException",
    404: "ModelNotFoundException",
    405: "MethodNotAllowedException",
    409: "ConflictStatusException",
}
LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "::1")
REGISTER: Final = "models are registered at the port of `shoal serve --management`, not here"


class ServedModels(Protocol):
    """Interface to the models of ``shoal serve``, for the routes."""

    @property
    def sockets(self) -> Mapping[str, str]:
        """Path of the socket of each model's proxy, by model."""

    @property
    def urls(self) -> Mapping[str, str]:
        """Source URI of each served model, by model name."""

    @property
    def counted(self) -> Mapping[str, str]:
        """Proxy sockets of the models that the port's readiness depends on."""

    async def register(self, query: Mapping[str, str]) -> tuple[Launch, str]:
        """Start the model that a TorchServe registration request names.

        Returns:
            The model's settings, and the reason for its end, which is empty while it runs.
        """

    async def unregister(self, name: str) -> bool:
        """Stop a registered model; return whether there was a model of this name."""


class Listener(uvicorn.Server):
    """An HTTP server that does not handle signals."""

    task: asyncio.Task[None]

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Disable uvicorn's signal handling."""
        yield

    async def stop(self) -> None:
        """Complete the open requests, and stop the server."""
        self.should_exit = True
        await self.task


class ServerRoutes:
    """Route handlers of the shared port and of TorchServe's management API."""

    def __init__(self, models: ServedModels) -> None:
        self._models = models

    async def listen(self, path: str) -> Listener:
        """Serve the shared port's own routes on the unix socket ``path``."""
        handlers = {"server": self.server, "v1_models": self.names, "list_models": self.models}
        pages = [Route(page.path, handlers[page.handler]) for page in HTTP.pages if page.handler in handlers]
        routes = [*(Route(check.path, self._health_check(check)) for check in HTTP.checks), *pages]
        return await self._serve(routes, uds=path)

    async def manage(self, host: str, port: int) -> Listener:
        """Serve TorchServe's management API."""
        # With and without a version.
        one = [Route(path, self.one, methods=["GET", "PUT", "DELETE"]) for path in ("/models/{m}", "/models/{m}/{v}")]
        checks = [Route(check.path, self._health_check(check)) for check in TORCHSERVE.checks]
        routes = [*checks, Route("/models", self.all, methods=["GET", "POST"]), *one]
        return await self._serve(routes, host=host, port=port)

    async def _serve(self, routes: Sequence[Route], **where: Any) -> Listener:
        app = Starlette(routes=list(routes), exception_handlers={HTTPException: self.failed})
        listener = Listener(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", **where))
        listener.task = asyncio.create_task(listener.serve())
        while not (listener.started or listener.task.done()):  # noqa: ASYNC110 (uvicorn has no event for it)
            await asyncio.sleep(0.005)
        return listener

    async def failed(self, request: Request, error: Exception) -> Response:
        """Return an error as JSON.

        The format is TorchServe's for TorchServe's paths, otherwise V2's.
        """
        assert isinstance(error, HTTPException)
        path = request.url.path
        message = error.detail
        if error.status_code == 404:
            # Some paths belong to one model, and are ambiguous for several.
            unnamed = ", because the path does not name a model. Serve that model on its own port"
            where = unnamed if path in HTTP.nameless else f": /v2/models/NAME{path} has it" if path in DOCS else ""
            names = ", ".join(self._models.sockets) or "none yet"
            message = f"there is no {path} here{where}; the models are: {names}"
        if error.status_code == 405 and request.method == "POST" and path == "/models":
            message = REGISTER
        if HTTP.owner(path) is not TORCHSERVE:
            return JSONResponse({"error": message}, error.status_code)
        kind = KINDS.get(error.status_code, "InternalServerException")
        return JSONResponse({"code": error.status_code, "type": kind, "message": message}, error.status_code)

    async def _unready(self) -> list[str]:
        """Return the names of models that are not ready, among those that the port's readiness depends on."""

        async def is_ready(socket: str) -> bool:
            try:
                return (await _get(socket, "/ping")).status_code == 200
            except httpx.HTTPError:
                return False

        # All at once, since each may take up to the timeout.
        sockets = self._models.counted
        states = await asyncio.gather(*map(is_ready, sockets.values()))
        return [name for name, ready in zip(sockets, states, strict=True) if not ready]

    def _health_check(self, check: HealthCheck) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            if check.path == "/" and "text/html" in request.headers.get("accept", ""):
                return self._list_pages()
            # A liveness check does not depend on the models.
            unready = await self._unready() if check.unhealthy is not None else []
            return JSONResponse(*check.response(f"not ready: {', '.join(unready)}" if unready else ""))

        return respond

    def _list_pages(self) -> Response:
        """Return a page with a link to each model's own page, for a browser."""
        links = "".join(
            f'<li><a href="v2/models/{quote(name)}/docs">{escape(name)}</a>' for name in self._models.sockets
        )
        page = f"<!doctype html><title>Shoal</title><h1>Shoal</h1><ul>{links}</ul>"
        return Response(page, headers={"content-security-policy": "default-src 'none'"}, media_type="text/html")

    async def server(self, request: Request) -> Response:
        """Return the server metadata (V2)."""
        return JSONResponse({"name": "shoal", "version": VERSION, "extensions": ["binary_tensor_data"]})

    async def names(self, request: Request) -> Response:
        """List the models (V1)."""
        return JSONResponse({"models": list(self._models.sockets)})

    async def models(self, request: Request) -> Response:
        """List the models (TorchServe)."""
        return JSONResponse({"models": [{"modelName": name, "modelUrl": name} for name in self._models.sockets]})

    async def all(self, request: Request) -> Response:
        """List the models, or register one (TorchServe)."""
        _reject_browsers(request)
        if request.method == "GET":
            listed = [{"modelName": name, "modelUrl": url} for name, url in self._models.urls.items()]
            return JSONResponse({"models": listed})
        query = request.query_params
        try:
            launch, why = await self._models.register(query)
        except (FieldError, LocalError) as error:
            # TorchServe's status for a taken name.
            raise HTTPException(409 if "is registered" in str(error) else 400, str(error)) from None
        if why:
            raise HTTPException(400, why)
        # The texts below are TorchServe's own.
        if query.get("synchronous", "").lower() != "true":
            return JSONResponse({"status": "Processing worker updates..."}, 202)
        version = launch.settings.get("SHOAL_MODEL_VERSION") or "1"
        status = f'Model "{launch.name}" Version: {version} registered with 1 initial workers'
        return JSONResponse({"status": status})

    async def one(self, request: Request) -> Response:
        """Handle a request for one model (TorchServe).

        GET describes the model, DELETE stops it, and PUT has no effect, since a model always has one worker.
        """
        _reject_browsers(request)
        name = request.path_params["m"]
        socket = self._models.sockets.get(name)
        if socket is None:
            raise HTTPException(404)
        if request.method == "GET":
            try:
                response = await _get(socket, request.url.path)
            except httpx.HTTPError:
                raise HTTPException(503, f"{name} is starting") from None
            document = response.json()
            if response.is_success:
                document = [{**each, "modelUrl": self._models.urls.get(name, name)} for each in document]
            return JSONResponse(document, response.status_code)
        if request.method == "PUT":
            return JSONResponse({"status": f"Workers scaled to 1 for model: {name}"})
        if not await self._models.unregister(name):
            raise HTTPException(403, f"{name} was given on the command line and cannot be unregistered")
        return JSONResponse({"status": f'Model "{name}" unregistered'})


def _reject_browsers(request: Request) -> None:
    """Raise a 403 for a request that a web page sent.

    Such a request has another host name (DNS rebinding), or headers of another origin.
    """
    named = request.url.hostname in LOOPBACK_NAMES
    if not named or "origin" in request.headers or request.headers.get("sec-fetch-site", "none") != "none":
        raise HTTPException(403, "this port accepts requests from programs on this machine, not from web pages")


async def _get(socket: str, path: str) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=socket), timeout=5) as client:
        return await client.get(f"http://localhost{path}")
