"""The HTTP side: bytes in, a call to the pure verbs, bytes out. Watches and logs stream from here."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from shoal_local.apiserver.access.rbac import Action, User
from shoal_local.apiserver.discovery.documents import page
from shoal_local.apiserver.errors import ApiError, internal
from shoal_local.apiserver.printing.tables import in_table, table_wanted
from shoal_local.apiserver.relays import forward, log_response
from shoal_local.apiserver.storage.store import Change, Verb
from shoal_local.apiserver.verbs import access
from shoal_local.apiserver.verbs.call import Call, parse_path, verb_of
from shoal_local.apiserver.verbs.collecting import Pass
from shoal_local.apiserver.verbs.dispatch import answer, check_call
from shoal_local.apiserver.verbs.streaming import forward_address, log_url
from shoal_local.apiserver.verbs.subresources import SCALE
from shoal_local.apiserver.verbs.world import World
from shoal_local.apiserver.watching import Bell, check_watch, watch_lines

logger = logging.getLogger(__name__)
PAUSE_S = 0.02
"""Between two passes, so that a burst of changes costs few of them."""
MAX_REST_S = 60.0
"""A pass is made after this time even if nothing asked for one: events grow old."""

METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


class Housekeeping:
    """Notices what may leave garbage, and collects it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._needed = asyncio.Event()
        self._needed.set()

    def notice(self, change: Change) -> None:
        """Remember that a pass is needed, if the change asks for one."""
        meta = change.object["metadata"]
        if change.verb is Verb.DELETED or meta.get("deletionTimestamp") or meta.get("ownerReferences"):
            self._needed.set()

    async def run(self) -> None:
        """Make passes until cancelled."""
        while True:
            try:
                async with asyncio.timeout(MAX_REST_S):
                    await self._needed.wait()
            except TimeoutError:
                pass
            await asyncio.sleep(PAUSE_S)
            self._needed.clear()
            try:
                Pass(self._world, datetime.now(UTC)).run()
            except Exception:
                # One object that nobody foresaw must not end the collection of all others.
                logger.exception("a pass of the garbage collector failed; it is tried again")


class ApiServer:
    """Answers requests for one world."""

    def __init__(self, world: World, bell: Bell, bookmark_interval_s: float = 60.0) -> None:
        self.world = world
        self.bell = bell
        self.housekeeping = Housekeeping(world)
        self.bookmark_interval_s = bookmark_interval_s

    def app(self) -> Starlette:
        """Return the ASGI application."""
        path = "/{path:path}"
        routes = [Route(path, self.answer, methods=METHODS), WebSocketRoute(path, self.stream)]
        return Starlette(routes=routes, exception_handlers={ApiError: told, Exception: broken}, lifespan=self._lifespan)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        keeper = asyncio.create_task(self.housekeeping.run(), name="housekeeping")
        yield
        keeper.cancel()

    def notice(self, change: Change) -> None:
        """Tell watchers and the garbage collector of a change."""
        self.bell.ring()
        self.housekeeping.notice(change)

    async def answer(self, request: Request) -> Response:
        """Answer one request."""
        user = self._user(request)
        path = request.url.path
        registry, accept = self.world.registry, request.headers.get("accept", "")
        if found := page(registry, self.world.definitions, path, accept):
            access.check(self.world, user, Action(request.method.lower(), path=path))
            return _response(found.body, media_type=found.media_type)
        call = await _call(request, user)
        check_call(self.world, call)
        if call.target.subresource == "log":
            return await log_response(log_url(self.world, call))
        as_table = table_wanted(accept)
        if call.verb == "watch":
            # What is wrong with the options must be told before the answer starts.
            check_watch(self.world, call)
            now = partial(datetime.now, UTC)
            lines = watch_lines(self.world, self.bell, call, self.bookmark_interval_s, as_table=as_table, now=now)
            return StreamingResponse(lines, media_type="application/json")
        reply = answer(self.world, call)
        body = reply.body
        if as_table:
            resource = SCALE if body.get("kind") == "Scale" else self.world.resource(call.target)
            body = in_table(resource, body, now=call.now, query=call.query)
        return _response(body, reply.code, warnings=reply.warnings)

    async def stream(self, websocket: WebSocket) -> None:
        """Serve one connection of many streams: a port-forward."""
        try:
            target = parse_path(websocket.url.path)
            address = forward_address(self.world, self._user(websocket), target)
        except ApiError as error:
            await websocket.send_denial_response(_response(error.as_status(), error.code))
            return
        await forward(websocket, address)

    def _user(self, connection: HTTPConnection) -> User:
        headers, now = connection.headers, datetime.now(UTC)
        user = access.authenticate(self.world, headers.get("authorization", ""), now)
        name, groups = headers.get("impersonate-user", ""), headers.getlist("impersonate-group")
        return access.impersonated(self.world, user, name, groups)


async def _call(request: Request, user: User) -> Call:
    target, query = parse_path(request.url.path), dict(request.query_params)
    return Call(
        verb=verb_of(request.method, target, query),
        target=target,
        user=user,
        now=datetime.now(UTC),
        query=query,
        body=await request.body(),
        content_type=request.headers.get("content-type", "application/json"),
        agent=request.headers.get("user-agent", ""),
    )


def _response(
    body: Any, code: int = 200, *, warnings: tuple[str, ...] = (), media_type: str = "application/json"
) -> Response:
    content = body if isinstance(body, str | bytes) else orjson.dumps(body)
    response = Response(content, code, media_type=media_type)
    for warning in warnings:
        # A quoted-string as HTTP defines it.
        escaped = warning.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
        response.headers.append("warning", f'299 - "{escaped}"')
    return response


async def told(request: Request, error: Exception) -> Response:
    """Answer a failure with its Status."""
    assert isinstance(error, ApiError)
    return _response(error.as_status(), error.code)


async def broken(request: Request, error: Exception) -> Response:
    """Answer what nobody foresaw; the server's log has the traceback."""
    return _response(internal(repr(error)).as_status(), 500)
