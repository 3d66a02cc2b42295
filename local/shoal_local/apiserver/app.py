"""The HTTP side: bytes in, a call to the pure verbs, bytes out. Watches stream from here."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from shoal_local.apiserver.discovery import documents, openapi
from shoal_local.apiserver.errors import ApiError, method_not_allowed, no_such_path
from shoal_local.apiserver.kinds.resource import Object
from shoal_local.apiserver.printing.negotiation import Form, form_wanted, in_form
from shoal_local.apiserver.verbs.call import Call, Reply, User, parse_path, verb_of
from shoal_local.apiserver.verbs.deleting import delete, delete_collection
from shoal_local.apiserver.verbs.patching import patch
from shoal_local.apiserver.verbs.reading import get, list_objects
from shoal_local.apiserver.verbs.world import World
from shoal_local.apiserver.verbs.writing import create, update
from shoal_local.apiserver.watching import Bell, watch_lines

VERBS: Mapping[str, Callable[[World, Call], Reply]] = {
    "get": get,
    "list": list_objects,
    "create": create,
    "update": update,
    "patch": patch,
    "delete": delete,
    "deletecollection": delete_collection,
}
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


class ApiServer:
    """Answers requests for one world."""

    def __init__(self, world: World, bell: Bell, bookmark_interval_s: float = 60.0) -> None:
        self.world = world
        self.bell = bell
        self.bookmark_interval_s = bookmark_interval_s

    def app(self) -> Starlette:
        """Return the ASGI application."""
        health = [Route(f"/{path}", self.healthy) for path in ("healthz", "livez", "readyz")]
        routes = [
            *health,
            Route("/version", self.version),
            Route("/api", self.discover),
            Route("/apis", self.discover),
            Route("/openapi/v2", self.openapi_v2),
            Route("/openapi/v3", self.openapi_index),
            Route("/openapi/v3/{path:path}", self.openapi_v3),
            Route("/{path:path}", self.resource, methods=METHODS),
        ]
        return Starlette(routes=routes, exception_handlers={ApiError: told})

    async def healthy(self, request: Request) -> Response:
        """Say that the server runs."""
        return PlainTextResponse("ok")

    async def version(self, request: Request) -> Response:
        """Say which Kubernetes this is like."""
        return json_response(documents.VERSION)

    async def discover(self, request: Request) -> Response:
        """List groups, with all their kinds when the client knows the aggregated form."""
        core = request.url.path == "/api"
        registry = self.world.registry
        if "as=APIGroupDiscoveryList" in request.headers.get("accept", ""):
            body = documents.aggregated(registry, core=core)
            return json_response(body, media_type=documents.AGGREGATED)
        return json_response(documents.core_versions() if core else documents.groups(registry))

    async def openapi_index(self, request: Request) -> Response:
        """Say where each group version's OpenAPI document is."""
        return json_response(openapi.index(self.world.registry, self.world.definitions))

    async def openapi_v3(self, request: Request) -> Response:
        """Return one group version's OpenAPI document."""
        prefix, *rest = request.path_params["path"].split("/")
        group, version = (["", *rest] if prefix == "api" else rest)[:2]
        return json_response(
            openapi.document(self.world.registry, self.world.definitions, group, version)
        )

    async def openapi_v2(self, request: Request) -> Response:
        """Return all definitions."""
        return json_response(openapi.version_2(self.world.registry, self.world.definitions))

    async def resource(self, request: Request) -> Response:
        """Answer everything below ``/api`` and ``/apis``."""
        if found := self._discovery(request.url.path.strip("/").split("/")):
            return json_response(found)
        call = await self._call(request)
        form = form_wanted(request.headers.get("accept", ""))
        if call.verb == "watch":
            return self._watch(call, form)
        if call.verb not in VERBS:
            raise method_not_allowed()
        reply = VERBS[call.verb](self.world, call)
        resource = self.world.resource(call.target)
        body = in_form(form, resource, reply.body, now=call.now, query=call.query)
        return json_response(body, reply.code, reply.warnings)

    def _discovery(self, parts: list[str]) -> Object | None:
        registry = self.world.registry
        match parts:
            case ["apis", name] if name in registry.groups:
                return documents.group(registry, name)
            case ["api", version] if version in registry.groups[""]:
                return documents.resources(registry, "", version)
            case ["apis", name, version] if version in registry.groups.get(name, []):
                return documents.resources(registry, name, version)
            case _ if parts[0] not in ("api", "apis"):
                raise no_such_path()
        return None

    async def _call(self, request: Request) -> Call:
        target, query = parse_path(request.url.path), dict(request.query_params)
        return Call(
            verb=verb_of(request.method, target, query),
            target=target,
            user=User("kubernetes-admin", ("system:masters",)),
            now=datetime.now(UTC),
            query=query,
            body=await request.body(),
            content_type=request.headers.get("content-type", "application/json"),
            agent=request.headers.get("user-agent", ""),
        )

    def _watch(self, call: Call, form: Form) -> Response:
        lines = watch_lines(self.world, self.bell, call, form, self.bookmark_interval_s)
        return StreamingResponse(lines, media_type="application/json")


def json_response(
    body: Object,
    code: int = 200,
    warnings: tuple[str, ...] = (),
    media_type: str = "application/json",
) -> Response:
    """Return a JSON answer, with a Warning header for each warning."""
    response = Response(orjson.dumps(body), code, media_type=media_type)
    for warning in warnings:
        response.headers.append("warning", f'299 - "{warning}"'.replace("\n", " "))
    return response


async def told(request: Request, error: Exception) -> Response:
    """Answer a failure with its Status."""
    assert isinstance(error, ApiError)
    return json_response(error.as_status(), error.code)
