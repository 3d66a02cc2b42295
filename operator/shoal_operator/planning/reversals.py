"""Replicas of a Deployment that another writer sets back, such as an HPA: after the second time they are left to it.

Each reversal makes and kills pods, without end if the operator continues. Other fields that are contested: `contest`.
"""

from dataclasses import dataclass, field, replace

from shoal_operator.manifests.desired import DEPLOYMENT
from shoal_operator.manifests.labels import FIELD_MANAGER
from shoal_operator.planning.changes import Action, Delete, Merge
from shoal_operator.planning.conflicts import CONFLICT_PAUSE_S, CONFLICT_WINDOW_S, CONFLICT_WRITES, writer_of
from shoal_operator.planning.drift import holds
from shoal_operator.planning.exact import removal
from shoal_operator.planning.observation import Key, dig
from shoal_schema.declaring import Json


@dataclass(frozen=True, slots=True)
class Reversals:
    """What is remembered of one Deployment, in monotonic seconds.

    Args:
        ours: the replicas that were written last, until they are set back.
        writer: the field manager that set them back last.
        times_s: when.
    """

    ours: int | None = None
    writer: str = ""
    times_s: tuple[float, ...] = ()

    def wrote(self, replicas: int) -> "Reversals":
        """Return what to remember after a write of ours."""
        return replace(self, ours=replicas)

    def saw(self, replicas: int, writer: str, now_s: float) -> "Reversals":
        """Return what to remember of the replicas that are stored, and of who wrote them beside us."""
        if self.ours in (None, replicas) or not writer:
            return self
        known = [each for each in self.times_s if now_s - each < CONFLICT_WINDOW_S]
        return Reversals(None, writer, (*known, now_s)[-CONFLICT_WRITES:])

    def left_to(self, now_s: float) -> str:
        """Return to whom replicas are left now; empty where they are not."""
        left = len(self.times_s) == CONFLICT_WRITES and now_s - self.times_s[-1] < CONFLICT_PAUSE_S
        return self.writer if left else ""


@dataclass(slots=True)
class ConflictingReplicas:
    """The replicas of all Deployments: which were written, and which are left to another writer."""

    _known: dict[Key, Reversals] = field(default_factory=dict)

    def adjusted(self, key: Key, action: Action, live: Json | None, now_s: float) -> Action | None:
        """Return the action with the replicas of a writer that sets ours back.

        Args:
            key: of the service.
            action: planned, on any object.
            live: the Deployment, if there is one.
            now_s: monotonic time (s).

        Returns:
            The action to take; None where nothing is left to write.
        """
        if action.kind != DEPLOYMENT or isinstance(action, Delete) or live is None:
            return action
        stored = dig(live, "spec", "replicas")
        writer = writer_of(live, FIELD_MANAGER, "f:spec", "f:replicas")
        known = self._known[key] = self._known.get(key, Reversals()).saw(stored, writer, now_s)
        # 0 is left to no other writer: nothing would be served.
        if dig(action.body, "spec", "replicas") in (None, stored) or not stored or not known.left_to(now_s):
            return action
        body = {**action.body, "spec": {**action.body["spec"], "replicas": stored}}
        exact = isinstance(action, Merge) or not removal(action.kind, body, live)
        return None if exact and holds(body, live) else replace(action, body=body)

    def wrote(self, key: Key, action: Action, planned: Action) -> None:
        """Record a write, unless its replicas are another writer's."""
        if action.kind != DEPLOYMENT or isinstance(action, Delete) or isinstance(planned, Delete):
            return
        replicas = dig(action.body, "spec", "replicas")
        if replicas is not None and replicas == dig(planned.body, "spec", "replicas"):
            self._known[key] = self._known.get(key, Reversals()).wrote(replicas)

    def left_to(self, key: Key, now_s: float) -> str:
        """Return the field manager that replicas are left to; empty where there is none."""
        return self._known.get(key, Reversals()).left_to(now_s)

    def forget(self, key: Key) -> None:
        """Forget a service that is gone."""
        self._known.pop(key, None)
