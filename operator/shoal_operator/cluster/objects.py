"""Requests to the Kubernetes API: reads, server-side apply, status, scale, Events and the Lease."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from shoal_operator.children.observation import Key, Observation, dig, replica_set_owner
from shoal_operator.cluster.api_server import APPLY, JSON, MERGE, ApiServer
from shoal_operator.errors import ApiError, NotLeadingError
from shoal_operator.manifests.desired import CANDIDATE, DEPLOYMENT, ENDPOINT_SLICE, Child, read_children
from shoal_operator.manifests.labels import (
    FIELD_MANAGER,
    MANAGED_BY,
    MANAGED_BY_LABEL,
    SERVICE_NAME_LABEL,
    batch_selector_text,
    candidate_selector_text,
    selector_text,
)
from shoal_operator.manifests.specs import SERVED
from shoal_schema.fields.declaring import Json
from shoal_schema.resource import API_VERSION, BATCH_KIND, BATCH_PLURAL, GRAPH_PLURAL

logger = logging.getLogger(__name__)

_SCALE_TRIES = 3
_PLURALS = {**SERVED, BATCH_KIND: BATCH_PLURAL}
_DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"


class KubernetesCluster:
    """The cluster of an API server.

    `shoal_operator.cluster.interface` describes the methods.

    Args:
        server: the API server.
        may_write: called before each write, but not for the Lease. If it returns False, `NotLeadingError` is raised.
        on_write: called with each object as the API server stored it.
    """

    def __init__(
        self, server: ApiServer, may_write: Callable[[], bool], on_write: Callable[[Json], None] = lambda _: None
    ) -> None:
        self._server = server
        self._may_write = may_write
        self._on_write = on_write

    async def read_service(self, key: Key) -> Json | None:
        return await self._get(object_path(API_VERSION, key.plural, key.namespace, key.name))

    async def observe(self, key: Key, resource: Json) -> Observation:
        # Pods and slices by label, children by name, all concurrently.
        pods_path = object_path("v1", "pods", key.namespace)
        slices_path = object_path(ENDPOINT_SLICE.api_version, ENDPOINT_SLICE.plural, key.namespace)
        kinds = read_children(resource)
        pods, slices, children = await asyncio.gather(
            self._list(pods_path, labelSelector=selector_text(key.name)),
            self._list(slices_path, labelSelector=f"{SERVICE_NAME_LABEL}={key.name}"),
            asyncio.gather(*(self._get(child_path(kind, key)) for kind in kinds)),
        )
        found = zip(kinds, children, strict=True)
        present = {kind: child for kind, child in found if child is not None}
        own = next((each for each in slices if each["metadata"]["name"] == key.name), None)
        if own is None and dig(resource, "spec", "scaling", "minReplicas") == 0:
            # A slice of this name without the label is another owner's: it must not be overwritten.
            own = next(iter(await self._list(slices_path, fieldSelector=f"metadata.name={key.name}")), None)
        if own is not None:
            present[ENDPOINT_SLICE] = own
        candidates: tuple[Json, ...] = ()
        if CANDIDATE in present:
            candidates = await self._list(pods_path, labelSelector=candidate_selector_text(key.name))
        # Labels can be set by any client; the owner reference cannot.
        stable, judged = (
            tuple(pod for pod in each if replica_set_owner(pod) == child.named(key.name))
            for each, child in ((pods, DEPLOYMENT), (candidates, CANDIDATE))
        )
        return Observation(resource, present, stable, slices, judged)

    async def observe_batch(self, key: Key, kind: Child) -> tuple[Json | None, tuple[Json, ...]]:
        pods = self._list(object_path("v1", "pods", key.namespace), labelSelector=batch_selector_text(key.name))
        return await asyncio.gather(self._get(child_path(kind, key)), pods)

    async def apply(self, kind: Child, body: Json, uid: str | None) -> Json:
        # The uid is a precondition: the API server rejects the write for another object of this name.
        metadata = {**body["metadata"], **({"uid": uid} if uid else {})}
        key = Key(metadata["namespace"], kind.resource_name(metadata["name"]))
        query = {"force": "true" if uid else "false", "fieldValidation": "Strict"}
        body = {**body, "metadata": metadata}
        stored = await self._write("PATCH", child_path(kind, key), body, query=query, kind=APPLY)
        self._on_write(stored)
        return stored

    async def merge(self, kind: Child, stored: Json, patch: Json) -> Json:
        metadata = stored["metadata"]
        key = Key(metadata["namespace"], kind.resource_name(metadata["name"]))
        # The version is a precondition, as lists in the patch replace whole lists.
        version = {"resourceVersion": metadata["resourceVersion"]}
        body = {**patch, "metadata": {**patch.get("metadata", {}), **version}}
        stored = await self._write(
            "PATCH", child_path(kind, key), body, query={"fieldValidation": "Strict"}, kind=MERGE
        )
        self._on_write(stored)
        return stored

    async def annotate(self, kind: Child, key: Key, uid: str, annotations: Mapping[str, str | None]) -> None:
        body: Json = {"metadata": {"uid": uid, "annotations": dict(annotations)}}
        self._on_write(await self._write("PATCH", child_path(kind, key), body, kind=MERGE))

    async def delete(self, kind: Child, key: Key, uid: str) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": "Background",
        }
        try:
            await self._write("DELETE", child_path(kind, key), body)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    async def apply_status(self, resource: Json, status: Json) -> Json:
        metadata = resource["metadata"]
        body = {
            "apiVersion": API_VERSION,
            "kind": resource["kind"],
            "metadata": {key: metadata[key] for key in ("name", "namespace", "uid")},
            "status": status,
        }
        plural = _PLURALS[resource["kind"]]
        path = object_path(API_VERSION, plural, metadata["namespace"], metadata["name"], "status")
        stored = await self._write("PATCH", path, body, query={"force": "true"}, kind=APPLY)
        # The response shows a spec that changed in between: its event must not be dropped as an echo.
        if dig(stored, "metadata", "generation") == metadata.get("generation"):
            self._on_write(stored)
        return stored

    async def scale(self, key: Key, replicas: int, *, was: int) -> Json | None:
        path = object_path(API_VERSION, key.plural, key.namespace, key.name, "scale")
        for tries_left in reversed(range(_SCALE_TRIES)):
            resource = await self.read_service(key)
            if resource is None or dig(resource, "spec", "replicas") != was:
                return None
            version = {"resourceVersion": resource["metadata"]["resourceVersion"]}
            try:
                await self._write("PATCH", path, {"metadata": version, "spec": {"replicas": replicas}}, kind=MERGE)
                return resource
            except ApiError as error:
                # Most conflicts come from a new status alone, so read and retry.
                if error.status != 409 or not tries_left:
                    raise
        return None

    async def set_deletion_cost(self, key: Key, uid: str, cost: int) -> None:
        body: Json = {"metadata": {"uid": uid, "annotations": {_DELETION_COST: str(cost)}}}
        await self._write("PATCH", object_path("v1", "pods", key.namespace, key.name), body, kind=MERGE)

    async def post_event(self, event: Json) -> None:
        path = object_path("v1", "events", event["metadata"]["namespace"])
        await self._write("POST", path, event)

    async def list_services(self, namespaces: Sequence[str]) -> list[Json]:
        found = await asyncio.gather(*(self._list_of(plural, namespaces) for plural in SERVED.values()))
        return [item for each in found for item in each]

    async def _list_of(self, plural: str, namespaces: Sequence[str]) -> list[Json]:
        paths = [object_path(API_VERSION, plural, each) for each in namespaces] or [f"/apis/{API_VERSION}/{plural}"]
        try:
            return [item for path in paths for item in _items(await self._get(path) or {})]
        except ApiError as error:
            # The role of an older chart does not include graphs.
            if error.forbidden and plural == GRAPH_PLURAL:
                return []
            raise

    async def list_pods(self, namespace: str, selector: str) -> tuple[Json, ...]:
        return await self._list(object_path("v1", "pods", namespace), labelSelector=selector)

    async def read_kinds(self, api_version: str) -> list[Json]:
        found = await self._get(f"/apis/{api_version}")
        return list((found or {}).get("resources", []))

    async def read_lease(self, key: Key) -> Json | None:
        return await self._get(_lease_path(key))

    async def write_lease(self, key: Key, body: Json) -> Json:
        # A conflict shows that another operator was faster.
        if "resourceVersion" in body["metadata"]:
            return await self._server.request("PUT", _lease_path(key), body)
        return await self._server.request("POST", _lease_path(Key(key.namespace, "")), body)

    async def write_heartbeat(self, key: Key, wall_time: str) -> None:
        metadata = {"name": key.name, "namespace": key.namespace, "labels": {MANAGED_BY_LABEL: MANAGED_BY}}
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}
        body["spec"] = {"renewTime": wall_time}
        await self._write("PATCH", _lease_path(key), body, query={"force": "true"}, kind=APPLY)

    async def _write(
        self, method: str, path: str, body: Json, *, query: Mapping[str, str] | None = None, kind: str = JSON
    ) -> Json:
        def check() -> None:
            if not self._may_write():
                raise NotLeadingError(f"{method} {path} was not sent: this operator does not hold the Lease")

        # Checked again before each retry: the Lease may expire meanwhile.
        logger.debug("event=write write=%s path=%s", method, path)
        query = {**(query or {}), "fieldManager": FIELD_MANAGER}
        return await self._server.request(method, path, body, query=query, kind=kind, check=check)

    async def _get(self, path: str, query: Mapping[str, str] | None = None) -> Json | None:
        try:
            return await self._server.request("GET", path, query=query)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def _list(self, path: str, **selectors: str) -> tuple[Json, ...]:
        return tuple(_items(await self._get(path, selectors) or {}))


def _items(listed: Json) -> list[Json]:
    """Return a list's objects with ``apiVersion`` and ``kind``, which items of built-in kinds do not have."""
    head = {"apiVersion": listed.get("apiVersion"), "kind": str(listed.get("kind", "")).removesuffix("List")}
    return [{**head, **item} for item in listed.get("items") or ()]


def object_path(api_version: str, plural: str, namespace: str, *rest: str) -> str:
    """Return the URL path of a namespaced object or of a list of objects.

    Args:
        api_version: such as ``v1`` or ``apps/v1``.
        plural: plural of the kind.
        namespace: the namespace.
        rest: name of the object and of its subresource; none for the list.
    """
    root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
    parts = [root, "namespaces", namespace, plural, *rest]
    return "/".join(part for part in parts if part)


def child_path(kind: Child, key: Key) -> str:
    """Return the API server's URL path of a service's child."""
    return object_path(kind.api_version, kind.plural, key.namespace, kind.named(key.name))


def _lease_path(key: Key) -> str:
    return object_path("coordination.k8s.io/v1", "leases", key.namespace, key.name)
