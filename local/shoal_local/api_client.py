"""A small asynchronous client of the Kubernetes API for the controllers, the kubelet and the forwarder.

A kubeconfig names the server's URL, its certificate authority and the client's token.
"""

import base64
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import httpx
import orjson
import yaml

from shoal_local.apiserver.errors import ApiError
from shoal_local.apiserver.kinds.registry import BY_KIND
from shoal_local.objects import Object, key_of


@dataclass(frozen=True, slots=True)
class Connection:
    """Address and credentials of one API server."""

    url: str
    tls: ssl.SSLContext
    token: str


def make_kubeconfig(url: str, authority: dict[str, str], token: str, namespace: str = "default") -> Object:
    """Return a kubeconfig for a server and a bearer token; ``authority`` is a field with the server's authority."""
    context = {"cluster": "shoal-local", "user": "shoal-local", "namespace": namespace}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "shoal-local", "cluster": {"server": url, **authority}}],
        "users": [{"name": "shoal-local", "user": {"token": token}}],
        "contexts": [{"name": "shoal-local", "context": context}],
        "current-context": "shoal-local",
    }


def read_kubeconfig(path: Path) -> Connection:
    """Return the connection of the file's current context.

    Raises ValueError: a part is missing, or the user has no token. Raises OSError: the file, or a file that it
    names, cannot be read.
    """
    document = yaml.safe_load(path.read_text())
    try:
        # By name: each entry of the list "users" has a field "user".
        contexts, clusters, users = (
            {entry["name"]: entry[part[:-1]] for entry in document[part]} for part in ("contexts", "clusters", "users")
        )
        context = contexts[document["current-context"]]
        cluster, token = clusters[context["cluster"]], users[context["user"]]["token"]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a kubeconfig with a token: {error!r}") from None
    # Inline data takes precedence over a file, as in kubectl.
    if data := cluster.get("certificate-authority-data"):
        authority = base64.b64decode(data).decode()
    else:
        authority = (path.parent / cluster.get("certificate-authority", "")).read_text()
    return Connection(cluster["server"], ssl.create_default_context(cadata=authority), token)


MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
MAX_SILENCE_S = 90.0
"""A watch is closed after this long without any line, bookmarks included."""


class UnreachableError(Exception):
    """The request failed without a response: refused, timed out or cut off."""


class ApiClient:
    """An HTTP client of one API server, for built-in kinds."""

    def __init__(self, connection: Connection, agent: str) -> None:
        self.url = connection.url
        headers = {"user-agent": agent, "accept": "application/json"}
        if connection.token:
            headers["authorization"] = f"Bearer {connection.token}"
        # trust_env: loopback must not go through a proxy that the environment names.
        self._http = httpx.AsyncClient(
            base_url=connection.url,
            verify=connection.tls,
            headers=headers,
            # Seconds to connect, write and read. Without a limit on connections nothing waits for the pool.
            timeout=httpx.Timeout(10.0, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=8),
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def get(self, kind: str, namespace: str, name: str) -> Object:
        """Return an object."""
        return await self._request("GET", BY_KIND[kind].path(namespace, name))

    async def find(self, kind: str, namespace: str, name: str) -> Object | None:
        """Return an object, or None when there is none."""
        try:
            return await self.get(kind, namespace, name)
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    async def list(self, kind: str, **query: str) -> Object:
        """Return the list of all objects of a kind that match the query."""
        return await self._request("GET", BY_KIND[kind].path(), query=query)

    async def create(self, obj: Object) -> Object:
        """Create an object."""
        path = BY_KIND[obj["kind"]].path(obj["metadata"].get("namespace", ""))
        return await self._request("POST", path, body=obj)

    async def post(self, kind: str, obj: Object, subresource: str) -> Object:
        """Post ``obj`` to a subresource of the object of this kind with the same name."""
        return await self._request("POST", BY_KIND[kind].path(*key_of(obj), subresource), body=obj)

    async def patch(
        self, obj: Object, patch: Object, *, subresource: str = "", content_type: str = MERGE_PATCH
    ) -> Object:
        """Patch the object that ``obj`` names."""
        path = BY_KIND[obj["kind"]].path(*key_of(obj), subresource)
        return await self._request("PATCH", path, body=patch, content_type=content_type)

    async def apply(self, obj: Object, manager: str) -> Object:
        """Apply an object server-side; take over conflicting fields."""
        path, query = BY_KIND[obj["kind"]].path(*key_of(obj)), {"fieldManager": manager, "force": "true"}
        return await self._request("PATCH", path, body=obj, query=query, content_type=APPLY_PATCH)

    async def delete(self, obj: Object, *, grace_s: int | None = None) -> Object | None:
        """Delete the object ``obj``; return the response, or None if it is gone."""
        body: Object = {"preconditions": {"uid": obj["metadata"]["uid"]}}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        try:
            return await self._request("DELETE", BY_KIND[obj["kind"]].path(*key_of(obj)), body=body)
        except ApiError as error:
            # 404: deleted. 409: the uid differs, another object has the name now.
            if error.code in (404, 409):
                return None
            raise

    async def watch(self, kind: str, version: str, **query: str) -> AsyncIterator[tuple[str, Object]]:
        """Yield the type and object of each event after a resource version.

        Raises ApiError: code 410, the version is too old and a new list is needed. Raises UnreachableError: the
        connection broke.
        """
        query |= {"watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true"}
        # The server ends the watch after ten minutes; the caller opens the next one.
        query["timeoutSeconds"] = "600"
        timeout = httpx.Timeout(10.0, read=MAX_SILENCE_S, pool=None)
        try:
            async with self._http.stream("GET", BY_KIND[kind].path(), params=query, timeout=timeout) as response:
                if response.status_code != 200:
                    raise _error_of(response.status_code, await response.aread())
                async for line in lines(response.aiter_bytes()):
                    event = orjson.loads(line)
                    if event["type"] == "ERROR":
                        raise _error_of(event["object"].get("code", 500), line)
                    yield event["type"], event["object"]
        except httpx.HTTPError as error:
            raise UnreachableError(f"{self.url}: {error!r}") from error

    async def _request(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        body: Object | None = None,
        content_type: str = "application/json",
    ) -> Object:
        content = None if body is None else orjson.dumps(body)
        try:
            response = await self._http.request(
                method, path, params=query, content=content, headers={"content-type": content_type} if content else None
            )
        except httpx.HTTPError as error:
            raise UnreachableError(f"{self.url}: {error!r}") from error
        if response.status_code >= 400:
            raise _error_of(response.status_code, response.content)
        obj: Object = orjson.loads(response.content)
        return obj


async def lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Split the stream at newlines only: JSON strings may hold other line separators, such as U+2028."""
    rest = b""
    async for piece in pieces:
        # The last part has no newline yet.
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line
    if rest:
        yield rest


def _error_of(code: int, content: bytes) -> ApiError:
    try:
        status = orjson.loads(content)
        # In a watch the Status is the object of an ERROR event.
        status = status.get("object", status)
        return ApiError(code, status.get("reason", ""), status.get("message", ""))
    except (orjson.JSONDecodeError, AttributeError):
        # A proxy or load balancer in between returns text or HTML.
        return ApiError(code, "", content.decode(errors="replace")[:500])
