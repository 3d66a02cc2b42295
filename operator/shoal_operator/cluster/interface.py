"""The cluster as all parts of the operator use it; `shoal_operator.cluster.objects` implements it.

Each method raises `ApiError` if a request fails. Methods that write raise `NotLeadingError`, without a request, while
this operator does not hold the Lease.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from shoal_operator.children.observation import Key, Observation
from shoal_operator.manifests.desired import Child
from shoal_schema.fields.declaring import Json


class Cluster(Protocol):
    """Reads and writes of the objects of services, graphs and jobs."""

    async def read_service(self, key: Key) -> Json | None:
        """Return the ``InferenceService``, graph or job of a key; None where it does not exist."""

    async def observe(self, key: Key, resource: Json) -> Observation:
        """Read a service's children, pods and EndpointSlices."""

    async def observe_batch(self, key: Key, kind: Child) -> tuple[Json | None, tuple[Json, ...]]:
        """Read the job and the labeled pods of a ``BatchInference``."""

    async def apply(self, kind: Child, body: Json, uid: str | None) -> Json:
        """Write an object by server-side apply; return the stored object.

        Args:
            kind: kind of the object.
            body: every field that the operator declares, and no other.
            uid: uid of the object to overwrite. None creates an object; if one exists already, the write fails with a
                conflict where another field manager owns a field of ``body``.
        """

    async def merge(self, kind: Child, stored: Json, patch: Json) -> Json:
        """Patch an object and return the result; fail if it changed meanwhile.

        Args:
            kind: kind of the object.
            stored: the object as it was read; its ``resourceVersion`` must still be current.
            patch: a JSON merge patch.
        """

    async def annotate(self, kind: Child, key: Key, uid: str, annotations: Mapping[str, str | None]) -> None:
        """Set or remove (None) annotations of the object with this uid."""

    async def delete(self, kind: Child, key: Key, uid: str) -> None:
        """Delete the object with this uid; a missing or different object is not an error."""

    async def apply_status(self, resource: Json, status: Json) -> Json:
        """Write a service's status; return the service as stored."""

    async def scale(self, key: Key, replicas: int, *, was: int) -> Json | None:
        """Write a service's ``spec.replicas`` through its scale subresource, if the count is still ``was``.

        Returns: The service as read; None, without a write, if another writer has changed the count.
        """

    async def set_deletion_cost(self, key: Key, uid: str, cost: int) -> None:
        """Set a pod's deletion cost: a Deployment removes ready pods with the lowest cost first."""

    async def post_event(self, event: Json) -> None:
        """Post an Event to the API server."""

    async def list_services(self, namespaces: Sequence[str]) -> list[Json]:
        """Return the services and graphs of the namespaces (if empty: of all)."""

    async def list_pods(self, namespace: str, selector: str) -> tuple[Json, ...]:
        """Return the pods of a namespace that match a label selector."""

    async def read_kinds(self, api_version: str) -> list[Json]:
        """Return the resources of an API version; empty if it is not served."""

    async def read_lease(self, key: Key) -> Json | None:
        """Return the Lease; None where it does not exist."""

    async def write_lease(self, key: Key, body: Json) -> Json:
        """Create the Lease, or replace the stored one.

        Args:
            key: name and namespace of the Lease.
            body: the Lease. With a ``resourceVersion`` it replaces exactly this version; without, it is created.
        """

    async def write_heartbeat(self, key: Key, wall_time: str) -> None:
        """Renew the heartbeat Lease, whose events show that watches work."""
