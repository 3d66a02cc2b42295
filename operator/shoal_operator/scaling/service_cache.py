"""A service whose proxies are read, and its ready pods: the state between reconciliations.

It holds several values per service and pod instead of whole objects. Only reconciliations update it, because they read
the cluster: events may be late, and a broken watch may never report a deleted pod.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from shoal_operator.children.observation import dig
from shoal_operator.children.pods import is_leaving, is_ready, runs, scheduling_problem, template_hash
from shoal_operator.manifests.containers import PROXY
from shoal_operator.manifests.environment import runtime_concurrency
from shoal_operator.manifests.revisions import spec_of_pods
from shoal_operator.manifests.specs import service_spec
from shoal_operator.ownership.conflicts import replicas_writer
from shoal_operator.scaling.decision import ScalingContext
from shoal_operator.scaling.start_times import StartTimes
from shoal_operator.scaling.targets import ScalingTargets, ZeroPolicy
from shoal_schema.decoding import SpecError
from shoal_schema.fields.declaring import Json
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

    @classmethod
    def of(cls, pod: Json) -> "Replica":
        """Return a pod that has an address."""
        return cls(pod["metadata"]["uid"], pod["status"]["podIP"], pod["metadata"]["name"])


@dataclass(slots=True)
class CachedService:
    """One service and its ready pods, as of its last reconciliation."""

    scaled: ScaledService | None = None
    """None where its replicas do not follow its load."""
    has_objective: bool = False
    """The spec has a latency objective."""
    replicas: tuple[Replica, ...] = ()
    """Its ready pods."""
    candidates: tuple[Replica, ...] = ()
    """The ready pods of its candidate, which are read for the fleet report alone."""
    context: ScalingContext = field(default_factory=ScalingContext)
    """Other state for decisions on replicas."""
    _start_times: StartTimes = field(default_factory=StartTimes)

    @property
    def follows_load(self) -> bool:
        """Whether the service needs the load of its pods: it scales, or has an objective."""
        return self.scaled is not None or self.has_objective

    def observe(
        self,
        resource: Json,
        pods: Iterable[Json],
        now_s: float = 0.0,
        *,
        compares: bool = False,
        candidates: Iterable[Json] = (),
        deployment: Json | None = None,
    ) -> None:
        """Replace the cached service and pods by those of a reconciliation.

        Replicas that the operator wrote after the reconciliation's read stay.

        Args:
            resource: the service.
            pods: all pods of its Deployment, without those of a candidate, which do not scale.
            now_s: monotonic time (s).
            compares: the service has a candidate.
            candidates: pods of the candidate.
            deployment: Deployment of a service whose changes are judged, as its pods may have an older spec.
        """
        pods = [pod for pod in pods if not is_leaving(pod)]
        # An invalid spec changes nothing: existing pods continue to scale by the previous spec.
        with suppress(SpecError):
            spec = service_spec(resource)
            spec = spec if deployment is None else spec_of_pods(spec, deployment)
            self.has_objective = spec.batching.latency_objective_milliseconds is not None
            scaled, known = scaled_service(spec, resource["metadata"]), self.scaled
            if scaled is None or known is None or known.uid != scaled.uid or known.generation <= scaled.generation:
                self.scaled = scaled if scaled != known else known
        self.replicas = _ready_replicas(pods)
        self.candidates = _ready_replicas(pod for pod in candidates if not is_leaving(pod))
        self._start_times.observe({dig(pod, "metadata", "uid", default=""): is_ready(pod) for pod in pods}, now_s)
        self.context = ScalingContext(
            start_s=self._start_times.start_s,
            rolling=len({template_hash(pod) for pod in pods}) > 1 or compares,
            unschedulable=sum(scheduling_problem(pod) is not None for pod in pods if not is_ready(pod)),
        )

    def record_write(self, before: ScaledService, replicas: int) -> None:
        """Record the replicas that the operator wrote for a service."""
        # A reconciliation may have replaced it since.
        if self.scaled is before:
            self.scaled = replace(before, replicas=replicas, generation=before.generation + 1)


def _ready_replicas(pods: Iterable[Json]) -> tuple[Replica, ...]:
    return tuple(
        Replica(uid, address, dig(pod, "metadata", "name", default=""))
        for pod in pods
        if (uid := dig(pod, "metadata", "uid")) and (address := dig(pod, "status", "podIP")) and is_ready(pod)
    )


def running_replicas(pods: Iterable[Json], newest: str | None) -> tuple[Replica, ...]:
    """Return the running pods of the template with the hash ``newest``."""
    found = (pod for pod in pods if template_hash(pod) == newest and not is_leaving(pod) and runs(pod, PROXY))
    return tuple(Replica.of(pod) for pod in found if dig(pod, "status", "podIP"))


def scaled_service(spec: InferenceServiceSpec, metadata: Json) -> ScaledService | None:
    """Return a service's scaling; None if the operator does not scale it."""
    scaling = spec.scaling
    if scaling is None or scaling.mode is ScalingMode.EXTERNAL or scaling.min_replicas > scaling.max_replicas:
        return None
    batching = spec.batching
    concurrency = runtime_concurrency(spec)
    full_batch_rows = concurrency * batching.max_batch_size
    objective_ms = batching.latency_objective_milliseconds
    targets = ScalingTargets(
        scaling.min_replicas,
        scaling.max_replicas,
        scaling.target_queue_depth,
        full_batch_rows=full_batch_rows,
        objective_s=None if objective_ms is None else objective_ms / 1000,
        most_rows=queue_rows(spec.queue, batching) + (concurrency + 1) * batching.max_batch_size,
    )
    policy = None
    if not scaling.min_replicas:
        per_replica = scaling.target_queue_depth or 2 * full_batch_rows
        policy = ZeroPolicy(scale_to_zero_delay_s(scaling), scaling.max_replicas, per_replica)
    writer = replicas_writer({"metadata": metadata})
    return ScaledService(targets, spec.replicas, metadata["generation"], metadata["uid"], policy, writer)
