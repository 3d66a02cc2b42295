"""Writes that turn the observed objects into the desired ones."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from shoal_operator.children.exact import is_stored
from shoal_operator.children.observation import controller_of, dig, is_orphan, is_owned
from shoal_operator.manifests.desired import (
    CANDIDATE,
    DEPLOYMENT,
    ENDPOINT_SLICE,
    PEERS,
    READ_CHILDREN,
    SERVICE_ACCOUNT,
    WRITTEN_CHILDREN,
    Child,
    Role,
    desired_objects,
)
from shoal_operator.manifests.labels import SERVICE_LABEL
from shoal_operator.manifests.target import Target
from shoal_schema.fields.declaring import Json
from shoal_schema.resource import KIND

_NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Apply:
    """A write of an object by server-side apply."""

    kind: Child
    body: Json
    uid: str | None
    """The existing object's uid; None if it must not exist."""


@dataclass(frozen=True, slots=True)
class Merge:
    """A write of several fields of a child by a JSON merge patch."""

    kind: Child
    body: Json


@dataclass(frozen=True, slots=True)
class Delete:
    """A deletion of the child with this uid."""

    kind: Child
    name: str
    uid: str


Action = Apply | Merge | Delete


def leaving_replicas(action: Apply | Merge, live: Json) -> Apply | Merge | None:
    """Change a Deployment's write so that it keeps the stored replicas.

    Returns: The changed write; None if the write would change nothing.
    """
    body = {**action.body, "spec": {**action.body["spec"], "replicas": live["spec"]["replicas"]}}
    return None if is_stored(action.kind, body, live) else replace(action, body=body)


@dataclass(frozen=True, slots=True)
class Conflict:
    """An object that has the name of a child, but another owner.

    The operator never writes such an object.
    """

    kind: Child
    name: str
    stale: bool
    """A deleted service of the same name owned it, so Kubernetes will delete it."""
    uncontrolled: bool = False
    """The service is an owner of the object, but not its controller."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Planned writes for a service, and conflicts that prevent other writes."""

    actions: tuple[Action, ...]
    conflicts: tuple[Conflict, ...]

    @property
    def deployment(self) -> Json | None:
        """The Deployment of the stable pods to write, or None."""
        return next((each.body for each in self.actions if isinstance(each, Apply) and each.kind == DEPLOYMENT), None)

    def keeping_pods(self, deployment: Json, replicas: int, annotations: Mapping[str, str] = _NOTHING) -> "Changes":
        """Return the changes without those that would replace pods.

        Of the stable pods' Deployment, only the replicas and annotations are written, and of the candidate's nothing;
        writes of other objects stay.
        """
        others = tuple(a for a in self.actions if isinstance(a, Delete) or a.kind not in (DEPLOYMENT, CANDIDATE))
        patch: Json = {}
        if dig(deployment, "spec", "replicas") != replicas:
            patch["spec"] = {"replicas": replicas}
        if not annotations.items() <= dig(deployment, "metadata", "annotations", default={}).items():
            patch["metadata"] = {"annotations": dict(annotations)}
        return replace(self, actions=(*others, Merge(DEPLOYMENT, patch)) if deployment and patch else others)

    def scaling_alone(self, deployment: Json, replicas: int) -> "Changes":
        """Return only the changes that scale the service.

        These are the Deployment's replicas and the activator's EndpointSlice.
        """
        slices = tuple(action for action in self.actions if action.kind == ENDPOINT_SLICE and deployment)
        return replace(self, actions=slices).keeping_pods(deployment, replicas)

    @property
    def account_taken(self) -> bool:
        """Whether the pods' ServiceAccount has another owner.

        Pods with this account would gain the owner's permissions.
        """
        return any(conflict.kind == SERVICE_ACCOUNT for conflict in self.conflicts)


def plan_changes(target: Target, children: Mapping[Child, Json]) -> Changes:
    """Return the writes for a service; none for a cluster in the desired state."""
    # Without the name of the headless Service, the pods must not be configured to use it.
    taken: list[Conflict] = []
    headless = children.get(PEERS)
    if headless is not None and target.finds_peers and not is_own(headless, target):
        conflict = _conflict(PEERS, headless, target)
        taken = [] if conflict.stale else [conflict]
    desired = desired_objects(replace(target, peers_name_taken=bool(taken)))
    actions: list[Action] = []
    conflicts = [*taken]
    for kind in WRITTEN_CHILDREN:
        live = children.get(kind)
        if live is not None and kind in desired and _yields(kind, live):
            # The headless Service of "cat" is called as the service "cat-peers": the latter has precedence.
            name = live["metadata"]["name"]
            actions += [Delete(kind, name, live["metadata"]["uid"]), Apply(kind, desired[kind], None)]
        # An orphan is adopted by the write of its owner reference; only the activator's endpoints are ever deleted.
        elif live is not None and not (
            is_own(live, target) if kind in desired or kind == ENDPOINT_SLICE else is_owned(live, target.uid)
        ):
            # Report a taken EndpointSlice before the service needs it to scale to zero.
            needed = kind in desired or (kind == ENDPOINT_SLICE and target.hosting is not None)
            conflicts += [_conflict(kind, live, target)] if needed else []
        elif action := _action(kind, desired.get(kind), live):
            actions.append(action)
    return Changes(tuple(actions), tuple(conflicts))


def release_slice(ours: Json) -> Changes:
    """Return the deletion of a service's EndpointSlice for the activator.

    Args:
        ours: the EndpointSlice that the service owns; empty where there is none.
    """
    leaving = _action(ENDPOINT_SLICE, None, ours or None)
    return Changes((leaving,) if leaving else (), ())


def _yields(kind: Child, live: Json) -> bool:
    """Return whether another service's peers or candidate have the name of a service's own child."""
    owner = controller_of(live) or {}
    others = (child for child in READ_CHILDREN if child.kind == kind.kind and child.suffix)
    names = {child.named(str(owner.get("name"))) for child in others}
    return kind.role is Role.STABLE and owner.get("kind") == KIND and live["metadata"]["name"] in names


def is_own(live: Json, target: Target) -> bool:
    """Return whether the service owns an object, or may adopt it."""
    return is_owned(live, target.uid) or is_orphan(live, SERVICE_LABEL, target.name)


def _action(kind: Child, desired: Json | None, live: Json | None) -> Apply | Delete | None:
    uid = dig(live, "metadata", "uid")
    # An object that is already being deleted needs no second request.
    if desired is None:
        deleting = dig(live, "metadata", "deletionTimestamp")
        return Delete(kind, live["metadata"]["name"], uid) if live and not deleting else None
    if live is not None and is_stored(kind, desired, live):
        return None
    return Apply(kind, desired, uid)


def _conflict(kind: Child, live: Json, target: Target) -> Conflict:
    owner = controller_of(live)
    name = live["metadata"]["name"]
    # A controller with the service's kind and name but another uid is a deleted predecessor.
    before = target.kind, kind.resource_name(name)
    stale = owner is not None and (owner.get("kind"), owner.get("name")) == before
    references = dig(live, "metadata", "ownerReferences", default=[])
    uncontrolled = owner is None and any(reference.get("uid") == target.uid for reference in references)
    return Conflict(kind, name, stale, uncontrolled)
