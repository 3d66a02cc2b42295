"""What the cluster says about one service, as values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal_operator.manifests.desired import SERVICE, Kind
from shoal_schema.declaring import Json
from shoal_schema.resource import BATCH_PLURAL, GRAPH_KIND, GRAPH_PLURAL, PLURAL

_PLURALS = (PLURAL, GRAPH_PLURAL, BATCH_PLURAL)


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Which service, or which job."""

    namespace: str
    name: str
    plural: str = PLURAL

    @property
    def place(self) -> tuple[str, str]:
        """Return where its objects stand: what is of other kinds and has its name, stands there too."""
        return self.namespace, self.name

    @property
    def namesakes(self) -> list["Key"]:
        """Return the keys of the other kinds that have this name."""
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
    """One look at the cluster.

    Args:
        resource: the ``InferenceService`` itself.
        children: the object of each kind that has the service's name, owned by it or not.
        pods: the pods of its Deployment.
        slices: the EndpointSlices of its Service; None where nobody looked.
    """

    resource: Json
    children: Mapping[Kind, Json]
    pods: tuple[Json, ...]
    slices: tuple[Json, ...] | None = None

    @property
    def endpoints(self) -> int | None:
        """The ready endpoints of pods behind our Service; None where nobody looked."""
        if self.slices is None:
            return None
        uid = dig(self.children.get(SERVICE), "metadata", "uid", default="")
        endpoints = (
            endpoint for each in self.slices if is_owned(each, uid) for endpoint in each.get("endpoints") or ()
        )
        # Callers are sent to those whose state is unknown, too.
        return sum(dig(endpoint, "conditions", "ready") is not False for endpoint in endpoints)

    def ours(self, kind: Kind) -> Json:
        """Return our child of a kind, or an empty object."""
        live = self.children.get(kind)
        return live if live is not None and is_owned(live, self.resource["metadata"]["uid"]) else {}


@dataclass(frozen=True, slots=True)
class Failure:
    """A write that the API server refused, or took as something else.

    Args:
        code: HTTP status, as `ApiError.code` sorts it; 0 when the server could not be reached.
        message: the server's own words.
        undone: it was not refused, but not tried: somebody undoes it each time.
        at_admission: it was taken, but stored with what a policy of the cluster added or changed.
    """

    kind: Kind
    code: int
    message: str
    undone: bool = False
    at_admission: bool = False


def dig(value: Any, *path: str, default: Any = None) -> Any:
    """Return a nested value, or the default where a key is missing or null."""
    for key in path:
        if not isinstance(value, Mapping) or value.get(key) is None:
            return default
        value = value[key]
    return value


def is_owned(child: Json, uid: str) -> bool:
    """Return whether this service is the object's controller."""
    owner = controller_of(child)
    return owner is not None and owner.get("uid") == uid


def replica_set_owner(pod: Json) -> str | None:
    """Return the name of the Deployment that the pod's ReplicaSet belongs to, or None when it has no ReplicaSet.

    A label says whatever somebody wrote there; the controller of a pod is set by who made it.
    """
    owner = controller_of(pod)
    if owner is None or owner.get("kind") != "ReplicaSet":
        return None
    return str(owner.get("name", "")).rpartition("-")[0] or None


def controller_of(child: Json) -> Json | None:
    """Return the owner reference of the object's controller, if it has one."""
    references = dig(child, "metadata", "ownerReferences", default=[])
    return next((ref for ref in references if ref.get("controller")), None)
