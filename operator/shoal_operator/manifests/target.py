"""The input of all manifests: an ``InferenceService``, ``InferenceGraph`` or ``BatchInference``."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal_schema.fields.declaring import Json
from shoal_schema.process.settings.operator import OperatorProcess
from shoal_schema.resource import API_VERSION, BATCH_KIND, GRAPH_KIND, KIND
from shoal_schema.resource.asynchronous import AsynchronousSpec
from shoal_schema.resource.graph import GraphSpec
from shoal_schema.resource.network import NetworkPolicyMode
from shoal_schema.resource.offline import BatchInferenceSpec
from shoal_schema.resource.rollout import RolloutStrategy
from shoal_schema.resource.service import InferenceServiceSpec
from shoal_schema.resource.traffic import ScalingMode

PEERS_SUFFIX = "-peers"
CANDIDATE_SUFFIX = "-candidate"
_NAME_MAX_LENGTH = 63


@dataclass(frozen=True, slots=True)
class Hosting:
    """A service's port and endpoints in the activator."""

    port: int
    addresses: tuple[str, ...]
    """Addresses of ready activators."""
    open: bool
    """Activators must be endpoints of the Service now."""
    waking: bool = False
    """The service starts from zero, and no pod is ready yet."""
    held: bool = True
    """Requests are held and reported while no pod runs."""
    problem: str = ""
    """Why requests may not be held, with the remedy; empty where they are."""
    kept: int = 0
    """Pods to keep although ``spec.replicas`` is 0, as no activator would hold requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One service, graph or job, with the operator's defaults."""

    name: str
    namespace: str
    uid: str
    spec: InferenceServiceSpec
    """With the model's URI for the pods (`manifests.origin`)."""
    defaults: OperatorProcess = field(repr=False)
    registry: Mapping[str, str] = field(default_factory=dict)
    """Variables with the registry's address for the init container, unless a Secret has them."""
    hosting: Hosting | None = None
    """Its place in the activator, if any."""
    peers_name_taken: bool = False
    """The headless Service's name has another owner."""
    batch: BatchInferenceSpec | None = None
    """The whole spec of a job; ``spec`` has the part that services share."""
    graph: GraphSpec | None = None
    """The graph that pods run instead of a runtime; ``spec`` has the part that services share."""

    candidate_replicas: int | None = None
    """Pods to run as the candidate; None for the stable pods."""
    candidate: "Target | None" = None
    """The candidate to compare with these pods."""
    held: bool = False
    """The pods keep parts of an older spec, which ``spec`` has."""

    @property
    def is_candidate(self) -> bool:
        """Whether this is a candidate beside the stable pods."""
        return self.candidate_replicas is not None

    @property
    def candidate_name(self) -> str:
        """Name of the candidate's Deployment, Service and NetworkPolicy."""
        return self.name + CANDIDATE_SUFFIX

    @property
    def child_name(self) -> str:
        """Name of the children: the resource's, or that of its candidate."""
        return self.candidate_name if self.is_candidate else self.name

    @property
    def finds_candidates(self) -> bool:
        """Whether proxies can discover a candidate's pods: False if the name is too long, and for graphs."""
        return len(self.candidate_name) <= _NAME_MAX_LENGTH and self.graph is None and self.batch is None

    @property
    def judges(self) -> bool:
        """Whether changes of the model are judged by a candidate."""
        return self.spec.rollout.strategy is not RolloutStrategy.ROLLING and self.graph is None

    @property
    def peers_name(self) -> str:
        """Name of the headless Service by which replicas discover their peers."""
        return self.name + PEERS_SUFFIX

    @property
    def finds_peers(self) -> bool:
        """Whether proxies discover their peers: False if the name is too long, or taken by another owner."""
        fits = len(self.peers_name) <= _NAME_MAX_LENGTH and not self.peers_name_taken
        # A candidate's late requests must not run on stable pods.
        return self.defaults.peers and fits and self.graph is None and not self.is_candidate

    @property
    def asynchronous(self) -> AsynchronousSpec | None:
        """How pods accept asynchronous requests.

        A candidate gets requests from stable pods only, and must not continue those of a stable pod that has stopped.
        """
        return None if self.is_candidate else self.spec.asynchronous

    @property
    def foreign(self) -> bool:
        """Whether the runtime container is a server other than Shoal's runtime."""
        return self.spec.runtime.port is not None

    @property
    def scheme(self) -> str:
        """URL scheme of the pods (http or https), also the name of their port."""
        return "https" if self.spec.tls else "http"

    @property
    def service_port(self) -> int:
        """The Service's port for HTTP."""
        return 443 if self.spec.tls else 80

    @property
    def restricted(self) -> bool:
        """Whether a NetworkPolicy restricts access to the pods."""
        return self.spec.network_policy.mode is NetworkPolicyMode.RESTRICTED

    @property
    def downloads(self) -> bool:
        """Whether an init container downloads the model."""
        return not (self.spec.model.uri or "file:").startswith("file:")

    @property
    def replicas(self) -> int:
        """Number of pods to run, within the bounds if the operator scales."""
        if self.candidate_replicas is not None:
            return self.candidate_replicas
        # An external autoscaler owns spec.replicas.
        scaling = self.spec.scaling
        if scaling is None or scaling.mode is ScalingMode.EXTERNAL:
            return self.spec.replicas
        if self.hosting is not None and self.hosting.kept:
            return min(self.hosting.kept, scaling.max_replicas)
        return max(scaling.min_replicas, min(self.spec.replicas, scaling.max_replicas))

    @property
    def kind(self) -> str:
        """Kind of the resource that owns the children."""
        return BATCH_KIND if self.batch else GRAPH_KIND if self.graph else KIND

    @property
    def owner_reference(self) -> Json:
        """The reference by which Kubernetes deletes the children with their owner."""
        return {
            "apiVersion": API_VERSION,
            "kind": self.kind,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }
