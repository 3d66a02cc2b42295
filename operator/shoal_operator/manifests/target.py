"""The ``InferenceService``, ``InferenceGraph`` or ``BatchInference`` that objects are made for."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal_schema.declaring import Json
from shoal_schema.processes import OperatorProcess
from shoal_schema.resource import API_VERSION, BATCH_KIND, GRAPH_KIND, KIND
from shoal_schema.resource.graph import GraphSpec
from shoal_schema.resource.network import NetworkPolicyMode
from shoal_schema.resource.offline import BatchInferenceSpec
from shoal_schema.resource.service import InferenceServiceSpec
from shoal_schema.resource.traffic import ScalingMode

SIBLINGS_SUFFIX = "-siblings"
_NAME_MAX_LENGTH = 63


@dataclass(frozen=True, slots=True)
class Hosting:
    """A service's place in the waiting room.

    Args:
        port: its own.
        rooms: addresses of the rooms that are ready.
        open: the rooms are to be among the Service's endpoints now.
        waking: it slept, and no pod is ready yet.
        held: somebody holds what comes while no pod runs, and tells the operator.
        shortcoming: why not every request would be held and heard, and what to do.
        kept: pods that stay though ``spec.replicas`` is 0, as nobody would hold what comes.
    """

    port: int
    rooms: tuple[str, ...]
    open: bool
    waking: bool = False
    held: bool = True
    shortcoming: str = ""
    kept: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One service, or job: who it is, what its user asks for, and the operator's defaults.

    Args:
        spec: what its user asks for, with the model's URI as pods are told it (`manifests.origin`).
        registry: variables that tell the init container where the model's registry is, unless a Secret does.
        hosting: its place in the waiting room, where it has one.
        siblings_taken: the name by which proxies would find one another is somebody else's.
        batch: of a job, all that its user asks for; ``spec`` holds what it has in common with a service.
        graph: of a graph, what its pods run in the place of a runtime; likewise.
    """

    name: str
    namespace: str
    uid: str
    spec: InferenceServiceSpec
    defaults: OperatorProcess = field(repr=False)
    registry: Mapping[str, str] = field(default_factory=dict)
    hosting: Hosting | None = None
    siblings_taken: bool = False
    batch: BatchInferenceSpec | None = None
    graph: GraphSpec | None = None

    @property
    def siblings_name(self) -> str:
        """The name by which proxies find one another."""
        return self.name + SIBLINGS_SUFFIX

    @property
    def finds_siblings(self) -> bool:
        """Whether they do: a Service's name has its limits, and what a stranger's leads to gets no request."""
        fits = len(self.siblings_name) <= _NAME_MAX_LENGTH and not self.siblings_taken
        return self.defaults.siblings and fits and self.graph is None

    @property
    def foreign(self) -> bool:
        """Whether the runtime container is somebody else's server."""
        return self.spec.runtime.port is not None

    @property
    def scheme(self) -> str:
        """What callers speak to the pods; also the name of the port."""
        return "https" if self.spec.tls else "http"

    @property
    def service_port(self) -> int:
        """The Service's port for HTTP."""
        return 443 if self.spec.tls else 80

    @property
    def restricted(self) -> bool:
        """Whether a NetworkPolicy says who reaches the pods."""
        return self.spec.network_policy.mode is NetworkPolicyMode.RESTRICTED

    @property
    def downloads(self) -> bool:
        """Whether the pod fetches the model before it starts."""
        return not (self.spec.model.uri or "file:").startswith("file:")

    @property
    def replicas(self) -> int:
        """The pods to run: ``spec.replicas``; where the operator scales, kept within the bounds of ``spec.scaling``."""
        scaling = self.spec.scaling
        if scaling is None or scaling.mode is ScalingMode.EXTERNAL:
            return self.spec.replicas
        if self.hosting is not None and self.hosting.kept:
            return min(self.hosting.kept, scaling.max_replicas)
        return max(scaling.min_replicas, min(self.spec.replicas, scaling.max_replicas))

    @property
    def kind(self) -> str:
        """What its user applied."""
        return BATCH_KIND if self.batch else GRAPH_KIND if self.graph else KIND

    @property
    def owner_reference(self) -> Json:
        """The reference that lets the cluster delete the objects with the service."""
        return {
            "apiVersion": API_VERSION,
            "kind": self.kind,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }
