"""Resets of the operator's replica count by a writer such as an HPA.

After the second reset the operator accepts the writer's count, or both writers would create and delete pods forever.
`conflicts` handles other fields.
"""

from dataclasses import dataclass, field, replace

from shoal_operator.autoscaler.conflicts import HPA
from shoal_operator.manifests.desired import DEPLOYMENT
from shoal_operator.manifests.labels import FIELD_MANAGER
from shoal_operator.planning.changes import Action, Delete, Merge
from shoal_operator.planning.conflicts import CONFLICT_PAUSE_S, CONFLICT_WINDOW_S, CONFLICT_WRITES, writer_of
from shoal_operator.planning.drift import holds
from shoal_operator.planning.exact import removal
from shoal_operator.planning.observation import Key, dig
from shoal_schema.declaring import Json
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
        # A user's new number is tried at once.
        return Reversals(requested=replicas)

    def left_to(self, now_s: float) -> str:
        """Return the writer to which the replicas are left for now, or ""."""
        left = len(self.times_s) == CONFLICT_WRITES and now_s - self.times_s[-1] < CONFLICT_PAUSE_S
        return self.writer if left else ""


@dataclass(slots=True)
class ConflictingReplicas:
    """Resets of all Deployments' replicas."""

    _known: dict[Key, Reversals] = field(default_factory=dict)

    def observe_request(self, key: Key, resource: Json) -> None:
        """Record ``spec.replicas``, which a user, the autoscaler or an HPA sets."""
        replicas, writer = dig(resource, "spec", "replicas", default=1), writer_of(resource, FIELD_MANAGER, *_REPLICAS)
        if dig(resource, "spec", "scaling", "mode") == ScalingMode.EXTERNAL:
            writer = ""
        self._known[key] = self._known.get(key, Reversals()).observe_request(replicas, writer)

    def adjusted(self, key: Key, action: Action, live: Json | None, now_s: float) -> Action | None:
        """Return the action, with the stored replicas if left to a writer.

        Args:
            key: key of the service.
            action: planned write of any object.
            live: the Deployment, or None.
            now_s: monotonic time (s).

        Returns: The action to take; None if there is nothing to write.
        """
        if action.kind != DEPLOYMENT or isinstance(action, Delete) or live is None:
            return action
        stored = dig(live, "spec", "replicas")
        writer = writer_of(live, FIELD_MANAGER, *_REPLICAS)
        known = self._known[key] = self._known.get(key, Reversals()).observe(stored, writer, now_s)
        if dig(action.body, "spec", "replicas") in (None, stored) or not stored or not known.left_to(now_s):
            return action
        body = {**action.body, "spec": {**action.body["spec"], "replicas": stored}}
        exact = isinstance(action, Merge) or not removal(action.kind, body, live)
        return None if exact and holds(body, live) else replace(action, body=body)

    def record_write(self, key: Key, action: Action, planned: Action) -> None:
        """Record a write of replicas, unless `adjusted` replaced the planned number."""
        if action.kind != DEPLOYMENT or isinstance(action, Delete) or isinstance(planned, Delete):
            return
        replicas = dig(action.body, "spec", "replicas")
        if replicas is not None and replicas == dig(planned.body, "spec", "replicas"):
            self._known[key] = self._known.get(key, Reversals()).record_write(replicas)

    def left_to(self, key: Key, now_s: float) -> str:
        """Return the writer to which a service's replicas are left, or ""."""
        return self._known.get(key, Reversals()).left_to(now_s)

    def forget(self, key: Key) -> None:
        """Drop the recorded resets of a deleted service's replicas."""
        self._known.pop(key, None)
