"""Cache of services and their ready pods, for reads of the pods' load.

It holds several values per service and pod instead of whole objects. Only reconciliations update it, because they read
the cluster: events may be late, and a broken watch may never report a deleted pod.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

from shoal_operator.autoscaler.decision import ScalingContext
from shoal_operator.autoscaler.targets import ScalingTargets
from shoal_operator.autoscaler.zero import ZeroPolicy
from shoal_operator.load.start_times import StartTimes
from shoal_operator.manifests.containers import PROXY
from shoal_operator.manifests.labels import FIELD_MANAGER
from shoal_operator.manifests.specs import service_spec
from shoal_operator.planning.conflicts import writer_of
from shoal_operator.planning.observation import Key, dig
from shoal_operator.planning.pods import is_leaving, is_ready, runs, scheduling_problem, template_hash
from shoal_schema.declaring import Json
from shoal_schema.decoding import SpecError
from shoal_schema.resource.service import InferenceServiceSpec
from shoal_schema.resource.traffic import ScalingMode, queue_rows, scale_to_zero_delay_s


@dataclass(frozen=True, slots=True)
class ScaledService:
    """A service whose replicas follow its load."""

    targets: ScalingTargets
    replicas: int
    generation: int
    """Generation of the spec with these values; it never decreases."""
    uid: str
    zero: ZeroPolicy | None = None
    """When to scale to zero; None: never."""
    writer: str = ""
    """The last other field manager of ``replicas``; empty where it is unknown."""


@dataclass(frozen=True, slots=True)
class Replica:
    """Identity and address of a running pod."""

    uid: str
    """Identifies the pod, as addresses are reused by other pods."""
    address: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class WatchedService:
    """A service whose pods' load is read, with its ready pods."""

    key: Key
    scaled: ScaledService | None
    """None where its replicas do not follow its load."""
    has_objective: bool
    """The spec has a latency objective."""
    replicas: tuple[Replica, ...]
    """Its ready pods."""
    context: ScalingContext = field(default_factory=ScalingContext)
    """Other state for decisions on replicas."""


@dataclass(slots=True)
class ServiceCache:
    """Cache of services and ready pods, which each reconciliation updates."""

    _scaled: dict[Key, ScaledService] = field(default_factory=dict)
    _objectives: set[Key] = field(default_factory=set)
    _replicas: dict[Key, tuple[Replica, ...]] = field(default_factory=dict)
    _start_times: dict[Key, StartTimes] = field(default_factory=dict)
    _contexts: dict[Key, ScalingContext] = field(default_factory=dict)

    def observe(self, key: Key, resource: Json, pods: Iterable[Json], now_s: float = 0.0) -> None:
        """Store a service as a reconciliation read it; keep newer replicas.

        Args:
            key: key of the service.
            resource: the service or graph.
            pods: all pods of its Deployment.
            now_s: monotonic time (s).
        """
        pods = [pod for pod in pods if not is_leaving(pod)]
        # An invalid spec changes nothing: existing pods continue to scale by the previous spec.
        with suppress(SpecError):
            spec = service_spec(resource)
            if spec.batching.latency_objective_milliseconds is None:
                self._objectives.discard(key)
            else:
                self._objectives.add(key)
            scaled, known = scaled_service(spec, resource["metadata"]), self._scaled.get(key)
            if scaled is None:
                self._scaled.pop(key, None)
            elif (
                known is None or known.uid != scaled.uid or (known.generation <= scaled.generation and known != scaled)
            ):
                self._scaled[key] = scaled
        self._replicas[key] = tuple(
            Replica(uid, address, dig(pod, "metadata", "name", default=""))
            for pod in pods
            if (uid := dig(pod, "metadata", "uid")) and (address := dig(pod, "status", "podIP")) and is_ready(pod)
        )
        start_times = self._start_times.setdefault(key, StartTimes())
        start_times.observe({dig(pod, "metadata", "uid", default=""): is_ready(pod) for pod in pods}, now_s)
        self._contexts[key] = ScalingContext(
            start_s=start_times.start_s,
            rolling=len({template_hash(pod) for pod in pods}) > 1,
            unschedulable=sum(scheduling_problem(pod) is not None for pod in pods if not is_ready(pod)),
        )

    def record_write(self, key: Key, before: ScaledService, replicas: int) -> None:
        """Record the replicas that the operator wrote for a service."""
        # A reconciliation may have replaced it since. The incremented generation makes older reads stale.
        if self._scaled.get(key) is before:
            self._scaled[key] = replace(before, replicas=replicas, generation=before.generation + 1)

    def drop(self, key: Key) -> None:
        """Remove a deleted service from the cache."""
        self._scaled.pop(key, None)
        self._objectives.discard(key)
        self._replicas.pop(key, None)
        self._start_times.pop(key, None)
        self._contexts.pop(key, None)

    def scaled(self, key: Key) -> ScaledService | None:
        """Return a service's scaling; None if replicas do not follow the load."""
        return self._scaled.get(key)

    def replicas(self, key: Key) -> tuple[Replica, ...]:
        """Return a service's ready pods."""
        return self._replicas.get(key, ())

    def start_s(self, key: Key) -> float | None:
        """Return how long a service's pods take to start (s); None if unknown."""
        return self._contexts[key].start_s if key in self._contexts else None

    def watched(self, *, all_services: bool = False) -> Iterator[WatchedService]:
        """Yield the services that scale or have an objective, or all services."""
        for key in self._replicas.keys() if all_services else self._scaled.keys() | self._objectives:
            yield WatchedService(
                key,
                self._scaled.get(key),
                key in self._objectives,
                self._replicas.get(key, ()),
                self._contexts.get(key, ScalingContext()),
            )


def running_replicas(pods: Iterable[Json], newest: str | None) -> tuple[Replica, ...]:
    """Return the running pods of the template with the hash ``newest``."""
    found = (pod for pod in pods if template_hash(pod) == newest and not is_leaving(pod) and runs(pod, PROXY))
    return tuple(
        Replica(pod["metadata"]["uid"], pod["status"]["podIP"], pod["metadata"]["name"])
        for pod in found
        if dig(pod, "status", "podIP")
    )


def scaled_service(spec: InferenceServiceSpec, metadata: Json) -> ScaledService | None:
    """Return a service's scaling; None if the operator does not scale it."""
    scaling = spec.scaling
    if scaling is None or scaling.mode is ScalingMode.EXTERNAL or scaling.min_replicas > scaling.max_replicas:
        return None
    batching = spec.batching
    objective_ms = batching.latency_objective_milliseconds
    targets = ScalingTargets(
        scaling.min_replicas,
        scaling.max_replicas,
        scaling.target_queue_depth,
        full_batch_rows=batching.max_batch_size,
        objective_s=None if objective_ms is None else objective_ms / 1000,
        most_rows=queue_rows(spec.queue, batching) + (batching.in_flight + 1) * batching.max_batch_size,
    )
    policy = None
    if not scaling.min_replicas:
        per_replica = scaling.target_queue_depth or 2 * batching.max_batch_size
        policy = ZeroPolicy(scale_to_zero_delay_s(scaling), scaling.max_replicas, per_replica)
    writer = writer_of({"metadata": metadata}, FIELD_MANAGER, "f:spec", "f:replicas")
    return ScaledService(targets, spec.replicas, metadata["generation"], metadata["uid"], policy, writer)
