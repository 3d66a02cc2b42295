"""What the operator keeps in memory between events: who scales, and which pods are ready.

A few numbers for each service and pod, not their objects: a reconcile reads the cluster itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from shoal_operator.api.fields import Json
from shoal_operator.autoscaler.law import Law
from shoal_operator.planning.observation import Key, dig
from shoal_operator.planning.pods import is_leaving, is_ready

_DEFAULT_BATCH = 32


@dataclass(frozen=True, slots=True)
class Scaled:
    """A service whose replicas follow its load.

    Args:
        generation: of the spec that these numbers come from; it never goes back.
    """

    law: Law
    replicas: int
    generation: int
    uid: str


@dataclass(slots=True)
class Fleet:
    """Scaled services and the addresses of ready pods, as the last events told."""

    _scaled: dict[Key, Scaled] = field(default_factory=dict)
    _pods: dict[Key, dict[str, str]] = field(default_factory=dict)

    def see_service(self, key: Key, resource: Json) -> None:
        """Take note of a service's scaling; an event that is older than our own write is ignored."""
        scaled = scaled_from(resource)
        if scaled is None:
            self._scaled.pop(key, None)
            return
        known = self._scaled.get(key)
        if known is None or known.uid != scaled.uid or known.generation <= scaled.generation:
            self._scaled[key] = scaled

    def wrote_replicas(self, key: Key, before: Scaled, replicas: int) -> None:
        """Take note of our own write: it made a new generation, so older events say nothing."""
        if self._scaled.get(key) is before:
            self._scaled[key] = replace(before, replicas=replicas, generation=before.generation + 1)

    def drop_service(self, key: Key) -> None:
        """Forget a deleted service."""
        self._scaled.pop(key, None)

    def see_pod(self, key: Key, pod: Json) -> None:
        """Take note of a pod: kept while it is ready and not leaving."""
        name, address = pod["metadata"]["name"], dig(pod, "status", "podIP")
        if address and is_ready(pod) and not is_leaving(pod):
            self._pods.setdefault(key, {})[name] = address
        else:
            self.drop_pod(key, name)

    def drop_pod(self, key: Key, name: str) -> None:
        """Forget a pod."""
        pods = self._pods.get(key, {})
        pods.pop(name, None)
        if not pods:
            self._pods.pop(key, None)

    def scaled(self) -> Iterator[tuple[Key, Scaled, list[str]]]:
        """Yield every service that scales, with the addresses of its ready pods."""
        for key, scaled in list(self._scaled.items()):
            yield key, scaled, list(self._pods.get(key, {}).values())


def scaled_from(resource: Json) -> Scaled | None:
    """Return the scaling of a service, or None when it has none (or a broken spec)."""
    scaling = dig(resource, "spec", "scaling")
    if not isinstance(scaling, dict):
        return None
    batch = dig(resource, "spec", "batching", "maxBatchSize", default=_DEFAULT_BATCH)
    try:
        law = Law(
            minimum=scaling.get("minReplicas", 1),
            maximum=scaling["maxReplicas"],
            target_rows=scaling.get("targetQueueDepth") or 2 * batch,
        )
        metadata = resource["metadata"]
        replicas = dig(resource, "spec", "replicas", default=1)
        return Scaled(law, replicas, metadata["generation"], metadata["uid"])
    except (KeyError, TypeError, ValueError):
        return None
