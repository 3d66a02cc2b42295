"""Resets of the operator's replica count by a writer such as an HPA.

After the second reset the operator accepts the writer's count, or both writers would create and delete pods forever.
`conflicts` handles other fields.
"""

from dataclasses import dataclass, replace

from shoal_operator.children.changes import Action, Delete, Merge
from shoal_operator.children.drift import holds
from shoal_operator.children.exact import removal
from shoal_operator.children.observation import dig
from shoal_operator.manifests.desired import DEPLOYMENT
from shoal_operator.manifests.labels import FIELD_MANAGER
from shoal_operator.ownership.conflicts import CONFLICT_PAUSE_S, CONFLICT_WINDOW_S, CONFLICT_WRITES, writer_of
from shoal_operator.scaling.replica_conflicts import HPA
from shoal_schema.fields.declaring import Json
from shoal_schema.resource.traffic import ScalingMode

_REPLICAS = ("f:spec", "f:replicas")


@dataclass(frozen=True, slots=True)
class Reversals:
    """Resets of one Deployment's replicas; times in monotonic seconds."""

    last_write: int | None = None
    """The replicas that the operator wrote last, until they are reset."""
    writer: str = ""
    """Field manager of the last reset."""
    times_s: tuple[float, ...] = ()
    """Times of recent resets."""
    requested: int | None = None
    """``spec.replicas`` of the resource."""

    def record_write(self, replicas: int) -> "Reversals":
        """Return the state after a write of the operator."""
        return replace(self, last_write=replicas)

    def observe(self, replicas: int, writer: str, now_s: float) -> "Reversals":
        """Return the state after a read of the Deployment's replicas and writer."""
        # 0 replicas are never left to another writer, as no request would be served: `conflicts` handles them.
        if self.last_write in (None, replicas) or not writer or not replicas:
            return self
        # The stored count differs from the operator's, and another manager owns it: a reset.
        known = [each for each in self.times_s if now_s - each < CONFLICT_WINDOW_S]
        return replace(self, last_write=None, writer=writer, times_s=(*known, now_s)[-CONFLICT_WRITES:])

    def observe_request(self, replicas: int | None, writer: str) -> "Reversals":
        """Return the state after a read of ``spec.replicas`` and its other writer."""
        if self.requested in (None, replicas) or writer in ("", HPA):
            return replace(self, requested=replicas)
        return Reversals(requested=replicas)

    def left_to(self, now_s: float) -> str:
        """Return the writer to which the replicas are left for now, or ""."""
        left = len(self.times_s) == CONFLICT_WRITES and now_s - self.times_s[-1] < CONFLICT_PAUSE_S
        return self.writer if left else ""


def observed_request(known: Reversals, resource: Json) -> Reversals:
    """Return the state after observing ``spec.replicas``, which a user, the autoscaler or an HPA sets."""
    replicas, writer = dig(resource, "spec", "replicas", default=1), writer_of(resource, FIELD_MANAGER, *_REPLICAS)
    if dig(resource, "spec", "scaling", "mode") == ScalingMode.EXTERNAL:
        writer = ""
    return known.observe_request(replicas, writer)


def observed_deployment(known: Reversals, live: Json | None, now_s: float) -> Reversals:
    """Return the state after observing the Deployment; None where there is none."""
    if live is None:
        return known
    return known.observe(dig(live, "spec", "replicas"), writer_of(live, FIELD_MANAGER, *_REPLICAS), now_s)


def adjusted(known: Reversals, action: Action, live: Json | None, now_s: float) -> Action | None:
    """Return the action with the stored replicas, if a conflicting writer sets them; None if nothing is left to write.

    Args:
        known: the state, with the Deployment observed.
        action: planned, on any object.
        live: the Deployment, or None.
        now_s: monotonic time (s).
    """
    if action.kind != DEPLOYMENT or isinstance(action, Delete) or live is None:
        return action
    stored = dig(live, "spec", "replicas")
    if dig(action.body, "spec", "replicas") in (None, stored) or not stored or not known.left_to(now_s):
        return action
    body = {**action.body, "spec": {**action.body["spec"], "replicas": stored}}
    exact = isinstance(action, Merge) or not removal(action.kind, body, live)
    return None if exact and holds(body, live) else replace(action, body=body)


def written(known: Reversals, action: Action, planned: Action) -> Reversals:
    """Return the state after a write of replicas, unless `adjusted` replaced the planned number."""
    if action.kind != DEPLOYMENT or isinstance(action, Delete) or isinstance(planned, Delete):
        return known
    replicas = dig(action.body, "spec", "replicas")
    return (
        known.record_write(replicas)
        if replicas is not None and replicas == dig(planned.body, "spec", "replicas")
        else known
    )
