"""What the operator keeps in memory between events: whose proxies to read, and which pods are ready.

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


@dataclass(frozen=True, slots=True)
class Watched:
    """A service whose proxies are read.

    Args:
        scaled: None when its replicas do not follow its load.
        has_objective: its spec sets a latency objective.
        addresses: of its ready pods.
    """

    key: Key
    scaled: Scaled | None
    has_objective: bool
    addresses: tuple[str, ...]


@dataclass(slots=True)
class Fleet:
    """Services whose proxies are read, and the addresses of ready pods, as the last events told."""

    _scaled: dict[Key, Scaled] = field(default_factory=dict)
    _objectives: set[Key] = field(default_factory=set)
    _pods: dict[Key, dict[str, str]] = field(default_factory=dict)

    def see_service(self, key: Key, resource: Json) -> None:
        """Take note of a service's objective and scaling; of the latter not from before our own write."""
        if dig(resource, "spec", "batching", "latencyObjectiveMilliseconds") is None:
            self._objectives.discard(key)
        else:
            self._objectives.add(key)
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
        self._objectives.discard(key)

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

    def watched(self) -> Iterator[Watched]:
        """Yield every service that scales or has an objective."""
        for key in self._scaled.keys() | self._objectives:
            addresses = tuple(self._pods.get(key, {}).values())
            yield Watched(key, self._scaled.get(key), key in self._objectives, addresses)


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
