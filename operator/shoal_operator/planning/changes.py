"""What to write: desired objects against observed ones."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from shoal_operator.manifests.desired import (
    DEPLOYMENT,
    ENDPOINT_SLICE,
    SERVICE,
    SERVICE_ACCOUNT,
    SIBLINGS,
    WRITTEN_KINDS,
    Kind,
    desired_objects,
)
from shoal_operator.manifests.target import Target
from shoal_operator.planning.drift import holds
from shoal_operator.planning.exact import removal
from shoal_operator.planning.observation import controller_of, dig, is_owned
from shoal_schema.declaring import Json
from shoal_schema.resource import KIND

_NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Apply:
    """Write an object by server-side apply.

    Args:
        uid: the object must still be this one; None when it must not exist yet.
    """

    kind: Kind
    body: Json
    uid: str | None


@dataclass(frozen=True, slots=True)
class Merge:
    """Write some fields of an object of ours, and leave all others as they are."""

    kind: Kind
    body: Json


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete an object of ours, if it is still this one."""

    kind: Kind
    name: str
    uid: str


Action = Apply | Merge | Delete


@dataclass(frozen=True, slots=True)
class Conflict:
    """An object that has our name and is not ours; it is never touched.

    Args:
        stale: it belongs to a deleted service of the same name, and will go by itself.
        uncontrolled: it names our service as an owner, but not as its controller.
    """

    kind: Kind
    name: str
    stale: bool
    uncontrolled: bool = False


@dataclass(frozen=True, slots=True)
class Changes:
    """The writes that bring the cluster to what the spec asks, and what stands in the way."""

    actions: tuple[Action, ...]
    conflicts: tuple[Conflict, ...]

    @property
    def deployment(self) -> Json | None:
        """The Deployment that is to be written, if one is."""
        return next((each.body for each in self.actions if isinstance(each, Apply) and each.kind == DEPLOYMENT), None)

    def keeping_pods(self, deployment: Json, replicas: int, annotations: Mapping[str, str] = _NOTHING) -> "Changes":
        """Return the same, with the Deployment, if there is one, left as it is but for its replicas and annotations."""
        others = tuple(action for action in self.actions if action.kind != DEPLOYMENT)
        patch: Json = {}
        if dig(deployment, "spec", "replicas") != replicas:
            patch["spec"] = {"replicas": replicas}
        if not annotations.items() <= dig(deployment, "metadata", "annotations", default={}).items():
            patch["metadata"] = {"annotations": dict(annotations)}
        return replace(self, actions=(*others, Merge(DEPLOYMENT, patch)) if deployment and patch else others)

    def scaling_alone(self, deployment: Json, replicas: int) -> "Changes":
        """Return what keeps the pods that there are as many as wanted, and the waiting room in the know."""
        rooms = tuple(action for action in self.actions if action.kind == ENDPOINT_SLICE and deployment)
        return replace(self, actions=rooms).keeping_pods(deployment, replicas)

    @property
    def account_taken(self) -> bool:
        """Whether the ServiceAccount that pods would run as is somebody else's: with it they would have its rights."""
        return any(conflict.kind == SERVICE_ACCOUNT for conflict in self.conflicts)


def plan_changes(target: Target, children: Mapping[Kind, Json]) -> Changes:
    """Return what to write; for a cluster that is as it should be, nothing."""
    taken = _siblings_taken(target, children.get(SIBLINGS))
    desired = desired_objects(replace(target, siblings_taken=bool(taken)))
    actions: list[Action] = []
    conflicts = [*taken]
    for kind in WRITTEN_KINDS:
        live = children.get(kind)
        owner, name = controller_of(live or {}) or {}, dig(live, "metadata", "name")
        peers_of = f"{owner.get('name')}{SIBLINGS.suffix}"
        if kind == SERVICE and live is not None and (owner.get("kind"), peers_of) == (KIND, name):
            # The headless Service of "cat" is called as the service "cat-siblings": the latter has precedence.
            actions += [Delete(kind, name, live["metadata"]["uid"]), Apply(kind, desired[kind], None)]
        elif live is not None and not is_owned(live, target.uid):
            # That one cannot sleep is told before it is to.
            needed = kind in desired or (kind == ENDPOINT_SLICE and target.hosting is not None)
            conflicts += [_conflict(kind, live, target)] if needed else []
        elif action := _action(kind, desired.get(kind), live):
            actions.append(action)
    return Changes(tuple(actions), tuple(conflicts))


def leave_room(ours: Json) -> Changes:
    """Return what takes a service out of a waiting room where it has no place: whoever has the address is not for it.

    Args:
        ours: the service's own EndpointSlice; empty where there is none.
    """
    leaving = _action(ENDPOINT_SLICE, None, ours or None)
    return Changes((leaving,) if leaving else (), ())


def _siblings_taken(target: Target, live: Json | None) -> tuple[Conflict, ...]:
    """Return what has the name by which proxies would find one another, and will keep it."""
    if live is None or not target.finds_siblings or is_owned(live, target.uid):
        return ()
    conflict = _conflict(SIBLINGS, live, target)
    return () if conflict.stale else (conflict,)


def _action(kind: Kind, desired: Json | None, live: Json | None) -> Apply | Delete | None:
    uid = dig(live, "metadata", "uid")
    if desired is None:
        deleting = dig(live, "metadata", "deletionTimestamp")
        return Delete(kind, live["metadata"]["name"], uid) if live and not deleting else None
    if live is not None and holds(desired, live) and not removal(kind, desired, live):
        return None
    return Apply(kind, desired, uid)


def _conflict(kind: Kind, live: Json, target: Target) -> Conflict:
    owner = controller_of(live)
    name = live["metadata"]["name"]
    before = target.kind, name.removesuffix(kind.suffix)
    stale = owner is not None and (owner.get("kind"), owner.get("name")) == before
    references = dig(live, "metadata", "ownerReferences", default=[])
    uncontrolled = owner is None and any(reference.get("uid") == target.uid for reference in references)
    return Conflict(kind, name, stale, uncontrolled)
