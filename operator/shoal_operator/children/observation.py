"""Observed state of one service."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal_operator.manifests.desired import SERVICE, Child
from shoal_operator.manifests.labels import HASH_ANNOTATION, MANAGED_BY, MANAGED_BY_LABEL, SERVICE_LABEL
from shoal_schema.fields.declaring import Json
from shoal_schema.resource import BATCH_PLURAL, GRAPH_KIND, GRAPH_PLURAL, PLURAL

_PLURALS = (PLURAL, GRAPH_PLURAL, BATCH_PLURAL)


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Identity of a service, a graph or a job in the cluster."""

    namespace: str
    name: str
    plural: str = PLURAL

    @property
    def place(self) -> tuple[str, str]:
        """Namespace and name, which resources of other kinds may share."""
        return self.namespace, self.name

    @property
    def namesakes(self) -> list["Key"]:
        """Keys of resources of the other kinds with the same namespace and name."""
        return [Key(*self.place, plural) for plural in _PLURALS if plural != self.plural]

    def __str__(self) -> str:
        kind = "" if self.plural == PLURAL else f"{self.plural}/"
        return f"{self.namespace}/{kind}{self.name}"


def key_of(resource: Json) -> Key:
    """Return the key of a service or a graph."""
    plural = GRAPH_PLURAL if resource.get("kind") == GRAPH_KIND else PLURAL
    return Key(resource["metadata"]["namespace"], resource["metadata"]["name"], plural)


@dataclass(frozen=True, slots=True)
class Observation:
    """A service's objects in the cluster, as one reconciliation read them."""

    resource: Json
    """The ``InferenceService``."""
    children: Mapping[Child, Json]
    """The objects with the names of the service's children, of any owner."""
    pods: tuple[Json, ...]
    """Pods of the Deployment with the service's name, which clients' requests reach."""
    slices: tuple[Json, ...] | None = None
    """EndpointSlices of the Service; None where they were not read."""
    candidate_pods: tuple[Json, ...] = ()
    """Pods of the candidate's Deployment."""

    @property
    def endpoints(self) -> int | None:
        """Ready endpoints of the Service; None where they were not read."""
        if self.slices is None:
            return None
        uid = dig(self.children.get(SERVICE), "metadata", "uid", default="")
        endpoints = (
            endpoint for each in self.slices if is_owned(each, uid) for endpoint in each.get("endpoints") or ()
        )
        # Unknown readiness counts as ready, as in kube-proxy.
        return sum(dig(endpoint, "conditions", "ready") is not False for endpoint in endpoints)

    def owned(self, kind: Child) -> Json:
        """Return the service's own child of a kind, or an empty object."""
        live = self.children.get(kind)
        return live if live is not None and is_owned(live, self.resource["metadata"]["uid"]) else {}

    def orphaned(self, kind: Child) -> Json:
        """Return the service's child of a kind that lost its owner reference, or an empty object."""
        live = self.children.get(kind)
        name = self.resource["metadata"]["name"]
        return live if live is not None and is_orphan(live, SERVICE_LABEL, name) else {}


@dataclass(frozen=True, slots=True)
class Failure:
    """A write that failed, was changed at admission, or was not attempted."""

    kind: Child
    code: int
    """HTTP status by class, as `ApiError.code`; 0 without a response."""
    message: str
    """The API server's message."""
    undone: bool = False
    """The write was not attempted, as another writer undoes it each time."""
    at_admission: bool = False
    """The write succeeded, but an admission policy changed the object."""


def dig(value: Any, *path: str, default: Any = None) -> Any:
    """Return a nested value; the default where a key is missing or null."""
    for key in path:
        if not isinstance(value, Mapping) or value.get(key) is None:
            return default
        value = value[key]
    return value


def is_owned(child: Json, uid: str) -> bool:
    """Return whether the resource with this uid is the object's controller."""
    owner = controller_of(child)
    return owner is not None and owner.get("uid") == uid


def is_orphan(child: Json, label: str, name: str) -> bool:
    """Return whether the operator's object for ``name`` lost its controller.

    An object loses its controller if its owner reference is removed, by ``kubectl delete --cascade=orphan``, or in a
    restored backup. Such objects are adopted, as by Kubernetes' own controllers.

    Args:
        child: the object.
        label: label that contains the name, for services or for jobs.
        name: name of the service or the job.
    """
    metadata = child["metadata"]
    if controller_of(child) is not None or metadata.get("deletionTimestamp"):
        return False
    labels = {MANAGED_BY_LABEL: MANAGED_BY, label: name}
    written = HASH_ANNOTATION in dig(metadata, "annotations", default={})
    return written and labels.items() <= dig(metadata, "labels", default={}).items()


def replica_set_owner(pod: Json) -> str | None:
    """Return the name of the Deployment of the pod's ReplicaSet, or None.

    Unlike a label, the controller reference of a pod cannot be chosen freely.
    """
    owner = controller_of(pod)
    if owner is None or owner.get("kind") != "ReplicaSet":
        return None
    return str(owner.get("name", "")).rpartition("-")[0] or None


def controller_of(child: Json) -> Json | None:
    """Return the owner reference of the object's controller, or None."""
    references = dig(child, "metadata", "ownerReferences", default=[])
    return next((ref for ref in references if ref.get("controller")), None)
