"""Services whose proxies are read, and their ready pods: the state between reconciliations.

It holds several values per service and pod instead of their objects. Only reconciliations update it, because they read
the cluster: events may be late, and a broken watch may never report a deleted pod.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

from shoal_operator.autoscaler.aim import Aim
from shoal_operator.autoscaler.decision import Surroundings
from shoal_operator.autoscaler.zero import Rule
from shoal_operator.load.starting import Starts
from shoal_operator.manifests.containers import PROXY
from shoal_operator.manifests.labels import FIELD_MANAGER
from shoal_operator.manifests.specs import asked_of
from shoal_operator.planning.conflicts import writer_of
from shoal_operator.planning.observation import Key, dig
from shoal_operator.planning.pods import is_leaving, is_ready, runs, scheduling_problem, template_hash
from shoal_schema.declaring import Json
from shoal_schema.decoding import SpecError
from shoal_schema.resource.service import InferenceServiceSpec
from shoal_schema.resource.traffic import ScalingMode, queue_rows, scale_to_zero_delay_s


@dataclass(frozen=True, slots=True)
class Scaled:
    """A service whose replicas follow its load."""

    aim: Aim
    replicas: int
    generation: int
    """Generation of the spec with these values; it never decreases."""
    uid: str
    zero: Rule | None = None
    """When to scale to zero; None: never."""
    writer: str = ""
    """The last other field manager of ``replicas``; empty where it is unknown."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A ready pod."""

    uid: str
    """Identifies the pod, as addresses are reused by other pods."""
    address: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Watched:
    """A service whose proxies are read."""

    key: Key
    scaled: Scaled | None
    """None if its replicas do not follow its load."""
    has_objective: bool
    """The spec has a latency objective."""
    replicas: tuple[Replica, ...]
    """Its ready pods."""
    around: Surroundings = field(default_factory=Surroundings)
    """Other state for decisions on replicas."""


@dataclass(slots=True)
class Fleet:
    """Services whose proxies are read, and their ready pods, as of each last reconciliation."""

    _scaled: dict[Key, Scaled] = field(default_factory=dict)
    _objectives: set[Key] = field(default_factory=set)
    _replicas: dict[Key, tuple[Replica, ...]] = field(default_factory=dict)
    _starts: dict[Key, Starts] = field(default_factory=dict)
    _around: dict[Key, Surroundings] = field(default_factory=dict)

    def see(self, key: Key, resource: Json, pods: Iterable[Json], now_s: float = 0.0) -> None:
        """Replace a service's state by the objects that a reconciliation read, except for later writes of the operator.

        Args:
            key: of the service.
            resource: the service.
            pods: all pods of its Deployment.
            now_s: monotonic time (s).
        """
        pods = [pod for pod in pods if not is_leaving(pod)]
        # An invalid spec changes nothing: existing pods continue to scale by the previous spec.
        with suppress(SpecError):
            spec = asked_of(resource)
            if spec.batching.latency_objective_milliseconds is None:
                self._objectives.discard(key)
            else:
                self._objectives.add(key)
            scaled, known = scaled_from(spec, resource["metadata"]), self._scaled.get(key)
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
        starts = self._starts.setdefault(key, Starts())
        starts.see({dig(pod, "metadata", "uid", default=""): is_ready(pod) for pod in pods}, now_s)
        self._around[key] = Surroundings(
            start_s=starts.start_s,
            rolling=len({template_hash(pod) for pod in pods}) > 1,
            unschedulable=sum(scheduling_problem(pod) is not None for pod in pods if not is_ready(pod)),
        )

    def wrote_replicas(self, key: Key, before: Scaled, replicas: int) -> None:
        """Record a write of the operator. It increments the generation, so older reads do not apply."""
        # A reconciliation may have replaced it since.
        if self._scaled.get(key) is before:
            self._scaled[key] = replace(before, replicas=replicas, generation=before.generation + 1)

    def drop(self, key: Key) -> None:
        """Forget a deleted service."""
        self._scaled.pop(key, None)
        self._objectives.discard(key)
        self._replicas.pop(key, None)
        self._starts.pop(key, None)
        self._around.pop(key, None)

    def scaled(self, key: Key) -> Scaled | None:
        """Return a service's scaling, or None."""
        return self._scaled.get(key)

    def replicas(self, key: Key) -> tuple[Replica, ...]:
        """Return a service's ready pods."""
        return self._replicas.get(key, ())

    def start_s(self, key: Key) -> float | None:
        """Return the start time of a service's pods (s); None before the first start."""
        return self._around[key].start_s if key in self._around else None

    def watched(self, *, everyone: bool = False) -> Iterator[Watched]:
        """Yield the services that scale or have an objective; with ``everyone`` all services."""
        for key in self._replicas.keys() if everyone else self._scaled.keys() | self._objectives:
            yield Watched(
                key,
                self._scaled.get(key),
                key in self._objectives,
                self._replicas.get(key, ()),
                self._around.get(key, Surroundings()),
            )


def running_replicas(pods: Iterable[Json], newest: str | None) -> tuple[Replica, ...]:
    """Return the running pods of a template that are not stopping, ready or not."""
    found = (pod for pod in pods if template_hash(pod) == newest and not is_leaving(pod) and runs(pod, PROXY))
    return tuple(
        Replica(pod["metadata"]["uid"], pod["status"]["podIP"], pod["metadata"]["name"])
        for pod in found
        if dig(pod, "status", "podIP")
    )


def scaled_from(spec: InferenceServiceSpec, metadata: Json) -> Scaled | None:
    """Return a service's scaling; None without one, with an external autoscaler, or with contradictory bounds."""
    scaling = spec.scaling
    if scaling is None or scaling.mode is ScalingMode.EXTERNAL or scaling.min_replicas > scaling.max_replicas:
        return None
    batching = spec.batching
    objective_ms = batching.latency_objective_milliseconds
    aim = Aim(
        scaling.min_replicas,
        scaling.max_replicas,
        scaling.target_queue_depth,
        full_batch_rows=batching.max_batch_size,
        objective_s=None if objective_ms is None else objective_ms / 1000,
        most_rows=queue_rows(spec.queue, batching) + (batching.in_flight + 1) * batching.max_batch_size,
    )
    rule = None
    if not scaling.min_replicas:
        per_replica = scaling.target_queue_depth or 2 * batching.max_batch_size
        rule = Rule(scale_to_zero_delay_s(scaling), scaling.max_replicas, per_replica)
    writer = writer_of({"metadata": metadata}, FIELD_MANAGER, "f:spec", "f:replicas")
    return Scaled(aim, spec.replicas, metadata["generation"], metadata["uid"], rule, writer)
