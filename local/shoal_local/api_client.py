"""A small client of the Kubernetes API: what the controllers and the kubelet ask for."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Self

import httpx
import orjson

from shoal_local.kubeconfig import Connection
from shoal_local.objects import Object, key_of

MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
MAX_SILENCE_S = 90.0
"""A watch that brings nothing for this long, not even a bookmark, is dead."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind as the API addresses it."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the path of an object, or of the list when ``name`` is empty."""
        prefix = "/apis" if "/" in self.api_version else "/api"
        space = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        tail = "".join(f"/{part}" for part in (name, subresource) if part)
        return f"{prefix}/{self.api_version}{space}/{self.plural}{tail}"


CONFIG_MAPS = Resource("v1", "ConfigMap", "configmaps")
DEPLOYMENTS = Resource("apps/v1", "Deployment", "deployments")
ENDPOINT_SLICES = Resource("discovery.k8s.io/v1", "EndpointSlice", "endpointslices")
EVENTS = Resource("v1", "Event", "events")
JOBS = Resource("batch/v1", "Job", "jobs")
LEASES = Resource("coordination.k8s.io/v1", "Lease", "leases")
NODES = Resource("v1", "Node", "nodes", namespaced=False)
PODS = Resource("v1", "Pod", "pods")
REPLICA_SETS = Resource("apps/v1", "ReplicaSet", "replicasets")
SECRETS = Resource("v1", "Secret", "secrets")
SERVICE_ACCOUNTS = Resource("v1", "ServiceAccount", "serviceaccounts")
SERVICES = Resource("v1", "Service", "services")


class ApiError(Exception):
    """The API server refused."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message


class UnreachableError(Exception):
    """The API server did not answer."""


class ApiClient:
    """Talks to one API server."""

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
            timeout=httpx.Timeout(10.0, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=8),
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def get(self, resource: Resource, namespace: str, name: str) -> Object:
        """Return an object."""
        return await self._ask("GET", resource.path(namespace, name))

    async def find(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """Return an object, or None when there is none."""
        try:
            return await self.get(resource, namespace, name)
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    async def list(self, resource: Resource, **query: str) -> Object:
        """Return the list of all objects of a kind that the query selects."""
        return await self._ask("GET", resource.path(), query=query)

    async def create(self, resource: Resource, obj: Object, subresource: str = "") -> Object:
        """Create an object, or post to a subresource of the object that ``obj`` names."""
        meta = obj["metadata"]
        path = resource.path(meta.get("namespace", ""), meta["name"] if subresource else "", subresource)
        return await self._ask("POST", path, body=obj)

    async def patch(
        self, resource: Resource, obj: Object, patch: Object, *, subresource: str = "", content_type: str = MERGE_PATCH
    ) -> Object:
        """Patch the object that ``obj`` names."""
        path = resource.path(*key_of(obj), subresource)
        return await self._ask("PATCH", path, body=patch, content_type=content_type)

    async def apply(self, resource: Resource, obj: Object, manager: str) -> Object:
        """Apply the object server-side, whoever owned its fields."""
        query = {"fieldManager": manager, "force": "true"}
        return await self._ask("PATCH", resource.path(*key_of(obj)), body=obj, query=query, content_type=APPLY_PATCH)

    async def delete(self, resource: Resource, obj: Object, *, grace_s: int | None = None) -> Object | None:
        """Delete this very object; return what is left of it, or None when it was gone already."""
        body: Object = {"preconditions": {"uid": obj["metadata"]["uid"]}}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        try:
            return await self._ask("DELETE", resource.path(*key_of(obj)), body=body)
        except ApiError as error:
            if error.code in (404, 409):
                return None
            raise

    async def watch(self, resource: Resource, version: str, **query: str) -> AsyncIterator[tuple[str, Object]]:
        """Yield event types and objects after a version, until the server ends the watch.

        Raises ApiError: 410, the version is too old: list again. Raises UnreachableError: the connection broke.
        """
        query |= {"watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true"}
        query["timeoutSeconds"] = "600"
        timeout = httpx.Timeout(10.0, read=MAX_SILENCE_S, pool=None)
        try:
            async with self._http.stream("GET", resource.path(), params=query, timeout=timeout) as answer:
                if answer.status_code != 200:
                    raise _refusal(answer.status_code, await answer.aread())
                async for line in lines(answer.aiter_bytes()):
                    event = orjson.loads(line)
                    if event["type"] == "ERROR":
                        raise _refusal(event["object"].get("code", 500), line)
                    yield event["type"], event["object"]
        except httpx.HTTPError as error:
            raise UnreachableError(f"{self.url}: {error!r}") from error

    async def _ask(
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
            answer = await self._http.request(
                method, path, params=query, content=content, headers={"content-type": content_type} if content else None
            )
        except httpx.HTTPError as error:
            raise UnreachableError(f"{self.url}: {error!r}") from error
        if answer.status_code >= 400:
            raise _refusal(answer.status_code, answer.content)
        told: Object = orjson.loads(answer.content)
        return told


async def lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield what newlines end, and they alone: a string in JSON may hold whatever else ends a line elsewhere."""
    rest = b""
    async for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line
    if rest:
        yield rest


def _refusal(code: int, content: bytes) -> ApiError:
    try:
        status = orjson.loads(content)
        status = status.get("object", status)
        return ApiError(code, status.get("reason", ""), status.get("message", ""))
    except (orjson.JSONDecodeError, AttributeError):
        return ApiError(code, "", content.decode(errors="replace")[:500])
