"""The API's HTTP server: requests, responses, streamed watches and logs."""

import asyncio
import contextlib
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
from shoal_local.apiserver.verbs.collecting import GarbageCollection
from shoal_local.apiserver.verbs.dispatch import check_call, respond
from shoal_local.apiserver.verbs.state import ClusterState
from shoal_local.apiserver.verbs.subresources import SCALE, forward_address, log_url
from shoal_local.apiserver.watching import Notifier, open_watch, watch_lines

logger = logging.getLogger(__name__)
PAUSE_S = 0.02
"""Delay between two passes, so that a burst of changes costs few of them."""
MAX_REST_S = 60.0
"""Longest delay between two passes: events expire without a change."""

METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


class GarbageCollectionLoop:
    """A loop that runs the garbage collector after changes of the store."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._needed = asyncio.Event()
        self._needed.set()

    def on_change(self, change: Change) -> None:
        """Schedule a garbage collection if the change may leave garbage."""
        meta = change.object["metadata"]
        if change.verb is Verb.DELETED or meta.get("deletionTimestamp") or meta.get("ownerReferences"):
            self._needed.set()

    async def run(self) -> None:
        """Collect garbage whenever a collection is scheduled, until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(MAX_REST_S):
                    await self._needed.wait()
            await asyncio.sleep(PAUSE_S)
            # Before the pass: a change during it schedules the next one.
            self._needed.clear()
            try:
                GarbageCollection(self._state, datetime.now(UTC)).run()
            except Exception:
                # One unexpected object must not stop the collection of all others.
                logger.exception("event=garbage_collection_failed")


class ApiServer:
    """The HTTP server of one cluster's Kubernetes API."""

    def __init__(self, state: ClusterState, notifier: Notifier, bookmark_interval_s: float = 60.0) -> None:
        self.state = state
        self.notifier = notifier
        self.housekeeping = GarbageCollectionLoop(state)
        self.bookmark_interval_s = bookmark_interval_s

    def app(self) -> Starlette:
        """Return the ASGI application."""
        path = "/{path:path}"
        routes = [Route(path, self.respond, methods=METHODS), WebSocketRoute(path, self.stream)]

        @asynccontextmanager
        async def lifespan(app: Starlette) -> AsyncIterator[None]:
            task = asyncio.create_task(self.housekeeping.run(), name="housekeeping")
            yield
            task.cancel()

        handlers = dict.fromkeys((ApiError, Exception), on_error)
        return Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan)

    def on_change(self, change: Change) -> None:
        """Notify watchers and the garbage collector of a change."""
        self.notifier.notify()
        self.housekeeping.on_change(change)

    async def respond(self, request: Request) -> Response:
        """Serve one HTTP request."""
        user = self._user(request)
        path = request.url.path
        registry, accept = self.state.registry, request.headers.get("accept", "")
        # For RBAC these documents are paths, not resources.
        if found := page(registry, self.state.definitions, path, accept):
            access.check(self.state, user, Action(request.method.lower(), path=path))
            return _response(found[0], media_type=found[1])
        target, query = parse_path(path), dict(request.query_params)
        call = Call(
            verb=verb_of(request.method, target, query),
            target=target,
            user=user,
            now=datetime.now(UTC),
            query=query,
            body=await request.body(),
            content_type=request.headers.get("content-type", "application/json"),
            agent=request.headers.get("user-agent", ""),
        )
        check_call(self.state, call)
        if call.target.subresource == "log":
            return await log_response(log_url(self.state, call))
        as_table = table_wanted(accept)
        if call.verb == "watch":
            # Invalid options must be reported before the response starts.
            watch = open_watch(self.state, call, as_table=as_table, now=partial(datetime.now, UTC))
            lines = watch_lines(watch, self.notifier, self.bookmark_interval_s)
            return StreamingResponse(lines, media_type="application/json")
        response = respond(self.state, call)
        body = response.body
        if as_table:
            # A Scale has columns of its own.
            resource = SCALE if body.get("kind") == "Scale" else self.state.resource(call.target)
            body = in_table(resource, body, now=call.now, query=call.query)
        return _response(body, response.code, warnings=response.warnings)

    async def stream(self, websocket: WebSocket) -> None:
        """Serve a port-forward: many streams on one WebSocket connection."""
        try:
            target = parse_path(websocket.url.path)
            address = forward_address(self.state, self._user(websocket), target)
        except ApiError as error:
            await websocket.send_denial_response(_response(error.as_status(), error.code))
            return
        await forward(websocket, address)

    def _user(self, connection: HTTPConnection) -> User:
        headers, now = connection.headers, datetime.now(UTC)
        user = access.authenticate(self.state, headers.get("authorization", ""), now)
        name, groups = headers.get("impersonate-user", ""), headers.getlist("impersonate-group")
        return access.impersonated(self.state, user, name, groups)


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


async def on_error(request: Request, error: Exception) -> Response:
    """Return the response to an error: a ``Status``; the server's log has the traceback of an unexpected one."""
    known = error if isinstance(error, ApiError) else internal(repr(error))
    return _response(known.as_status(), known.code)
