"""What is asked of a port that several models share, beside the models: is everybody ready, and who is there?

And TorchServe's management API, on a port of its own: who asks there starts programs on this machine, so it listens on
the loopback alone, and to no page in a browser.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from shoal.pair import Launch
from shoal.serving.fields import FieldError, MachineError
from shoal.serving.routing import NAMELESS
from shoal_schema.version import VERSION

KINDS: Final = {
    400: "BadRequestException",
    403: "ForbiddenException",
    404: "ModelNotFoundException",
    405: "MethodNotAllowedException",
    409: "ConflictStatusException",
}
TORCHSERVES: Final = ("/predictions", "/ping", "/models")
LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "::1")
ELSEWHERE: Final = {"/docs": ": /v2/models/NAME/docs has it", "/openapi.json": ": /v2/models/NAME/openapi.json has it"}
REGISTER: Final = "models are registered at the port of `shoal serve --management`, not here"


class Fleet(Protocol):
    """Who runs the models."""

    @property
    def sockets(self) -> Mapping[str, str]:
        """Return where each model's proxy is asked."""

    @property
    def urls(self) -> Mapping[str, str]:
        """Return where each model came from."""

    @property
    def counted(self) -> Mapping[str, str]:
        """Return those of them that the port's readiness depends on."""

    async def register(self, asked: Mapping[str, str]) -> tuple[Launch, str]:
        """Start a model."""

    async def unregister(self, name: str) -> bool:
        """Stop one."""


class Listener(uvicorn.Server):
    """A server of pages, which leaves signals alone."""

    task: asyncio.Task[None]

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield

    async def stop(self) -> None:
        """Answer what has been asked, and end."""
        self.should_exit = True
        await self.task


class Pages:
    """The handlers."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def listen(self, path: str) -> Listener:
        """Answer the front, on a unix socket."""
        routes = [
            Route("/", _told({"status": "alive"})),
            Route("/v2", _told({"name": "shoal", "version": VERSION, "extensions": ["binary_tensor_data"]})),
            Route("/v2/health/live", _told({"live": True})),
            Route("/v2/health/ready", self.ready),
            Route("/ping", self.ping),
            Route("/v1/models", self.names),
            Route("/models", self.models),
        ]
        return await self._serve(routes, uds=path)

    async def manage(self, host: str, port: int) -> Listener:
        """Answer who registers models."""
        one = [Route(path, self.one, methods=["GET", "PUT", "DELETE"]) for path in ("/models/{m}", "/models/{m}/{v}")]
        routes = [Route("/ping", self.ping), Route("/models", self.all, methods=["GET", "POST"]), *one]
        return await self._serve(routes, host=host, port=port)

    async def _serve(self, routes: Sequence[Route], **where: Any) -> Listener:
        app = Starlette(routes=list(routes), exception_handlers={HTTPException: self.refused})
        listener = Listener(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", **where))
        listener.task = asyncio.create_task(listener.serve())
        while not (listener.started or listener.task.done()):  # noqa: ASYNC110 (uvicorn tells nobody)
            await asyncio.sleep(0.005)
        return listener

    async def refused(self, request: Request, error: Exception) -> Response:
        """Say what is wrong in the words of the path's protocol."""
        assert isinstance(error, HTTPException)
        here = ", ".join(self._fleet.sockets) or "none yet"
        path = request.url.path
        said = f"there is no {path} here{_where(path)}; the models are: {here}"
        if error.status_code != 404:
            said = error.detail
        if error.status_code == 405 and request.method == "POST" and request.url.path == "/models":
            said = REGISTER
        if not request.url.path.startswith(TORCHSERVES):
            return JSONResponse({"error": said}, error.status_code)
        kind = KINDS.get(error.status_code, "InternalServerException")
        return JSONResponse({"code": error.status_code, "type": kind, "message": said}, error.status_code)

    async def _unready(self) -> list[str]:
        """Return the models that cannot be asked now, and could, or were to be when the server was started."""

        async def is_ready(socket: str) -> bool:
            try:
                return (await _ask(socket, "/ping")).status_code == 200
            except httpx.HTTPError:
                return False

        sockets = self._fleet.counted
        answers = await asyncio.gather(*map(is_ready, sockets.values()))
        return [name for name, ready in zip(sockets, answers, strict=True) if not ready]

    async def ready(self, request: Request) -> Response:
        """Answer V2's readiness: of all models."""
        unready = await self._unready()
        if unready:
            return JSONResponse({"ready": False, "reason": f"not ready: {', '.join(unready)}"}, 503)
        return JSONResponse({"ready": True})

    async def ping(self, request: Request) -> Response:
        """Answer TorchServe's health check."""
        unready = await self._unready()
        return JSONResponse({"status": "Unhealthy" if unready else "Healthy"}, 503 if unready else 200)

    async def names(self, request: Request) -> Response:
        """List the models as V1 does."""
        return JSONResponse({"models": list(self._fleet.sockets)})

    async def models(self, request: Request) -> Response:
        """List the models as TorchServe does."""
        return JSONResponse({"models": [{"modelName": name, "modelUrl": name} for name in self._fleet.sockets]})

    async def all(self, request: Request) -> Response:
        """List the models, or register one."""
        _refuse_pages(request)
        if request.method == "GET":
            here = [{"modelName": name, "modelUrl": url} for name, url in self._fleet.urls.items()]
            return JSONResponse({"models": here})
        asked = request.query_params
        try:
            launch, why = await self._fleet.register(asked)
        except (FieldError, MachineError) as error:
            raise HTTPException(409 if "is registered" in str(error) else 400, str(error)) from None
        if why:
            raise HTTPException(400, why)
        if asked.get("synchronous", "").lower() != "true":
            return JSONResponse({"status": "Processing worker updates..."}, 202)
        version = launch.settings.get("SHOAL_MODEL_VERSION") or "1"
        told = f'Model "{launch.name}" Version: {version} registered with 1 initial workers'
        return JSONResponse({"status": told})

    async def one(self, request: Request) -> Response:
        """Describe a model, or stop it; there is one worker, whatever PUT asks for."""
        _refuse_pages(request)
        name = request.path_params["m"]
        socket = self._fleet.sockets.get(name)
        if socket is None:
            raise HTTPException(404)
        if request.method == "GET":
            try:
                told = await _ask(socket, request.url.path)
            except httpx.HTTPError:
                raise HTTPException(503, f"{name} is starting") from None
            document = told.json()
            if told.is_success:
                document = [{**each, "modelUrl": self._fleet.urls.get(name, name)} for each in document]
            return JSONResponse(document, told.status_code)
        if request.method == "PUT":
            return JSONResponse({"status": f"Workers scaled to 1 for model: {name}"})
        if not await self._fleet.unregister(name):
            raise HTTPException(403, f"{name} was named when the server was started, and goes with it")
        return JSONResponse({"status": f'Model "{name}" unregistered'})


def _where(path: str) -> str:
    """Return where that is answered which belongs to one model, and is asked for where there are several."""
    if path in NAMELESS:
        return ", as it names no model: serve that model on a port of its own"
    return ELSEWHERE.get(path, "")


def _told(document: Mapping[str, Any]) -> Any:
    async def tell(request: Request) -> Response:
        return JSONResponse(document)

    return tell


def _refuse_pages(request: Request) -> None:
    """Refuse what a page in somebody's browser may have sent: its own name for us, or word of where it comes from."""
    named = request.url.hostname in LOOPBACK_NAMES
    if not named or "origin" in request.headers or request.headers.get("sec-fetch-site", "none") != "none":
        raise HTTPException(403, "this port answers programs of this machine, and no page in a browser")


async def _ask(socket: str, path: str) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=socket), timeout=5) as client:
        return await client.get(f"http://localhost{path}")
