"""The input of a service's conditions."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from shoal_operator.children.changes import Conflict
from shoal_operator.children.observation import Failure, Observation, dig
from shoal_operator.children.pods import Problem, deployed_hash, find_problem, is_leaving, template_hash
from shoal_operator.manifests.desired import DEPLOYMENT
from shoal_operator.manifests.target import Target
from shoal_operator.models.resolution import ModelResolution
from shoal_operator.rollout.situation import Decision
from shoal_operator.rollout.upgrade import Upgrade
from shoal_operator.scaling.report import ScalingReport
from shoal_schema.fields.declaring import Json
from shoal_schema.interfaces.load import GraphState
from shoal_schema.resource import KIND
from shoal_schema.resource.conditions import Reason

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Input of a service's conditions: observed objects and failed writes."""

    observation: Observation
    target: Target | None
    """The stable pods; None if the spec is invalid."""
    newest: Target | None = None
    """The pods of the newest spec, which may be a candidate's; None: those of ``target``."""
    spec_error: str = ""
    """Error of a spec that is invalid or not allowed; existing objects are kept."""
    spec_reason: Reason = Reason.INVALID_SPEC
    """The reason for ``spec_error``."""
    conflicts: tuple[Conflict, ...] = ()
    failures: tuple[Failure, ...] = ()
    scaling: ScalingReport | None = None
    """None before the autoscaler's first report."""
    attainable: Mapping[str, bool] | None = None
    """By uid, whether pods can meet their latency objective; None while unknown."""
    independent: Mapping[str, bool] | None = None
    """By uid, the results of the pods' row checks; None before the first reading."""
    precisions: Mapping[str, str] | None = None
    """By uid, the precisions that the pods' runtimes chose by measurement; None before the first reading."""
    resolution: ModelResolution | None = None
    """Resolution of a mutable model name."""
    graph_states: Mapping[str, GraphState] = field(default_factory=dict)
    """By uid, the states that the newest pods of a graph reported."""
    other_operator: str = ""
    """Another install of the operator that claims this service; empty if there is none."""
    scaler: str = ""
    """Field manager that resets the Deployment's replicas, so that they are left to it; empty without any."""
    peers_obstacle: Conflict | Failure | None = None
    """Why replicas cannot discover their peers. No other condition depends on it."""
    candidate_obstacle: Conflict | Failure | None = None
    """Why a candidate cannot run. Only the condition about candidates depends on it."""
    rollout: Decision | None = None
    """The rollout of a service whose changes are judged; None also for an invalid spec."""
    upgrade: Upgrade | None = None
    """The upgrade in progress to this operator's images and template."""
    overdue: bool = False
    """The upgrade exceeds the deadline of its rollout."""
    pending: bool = False
    """Pods wait for their upgrade and stay unchanged."""

    @property
    def followed(self) -> bool:
        """Whether the newest spec is valid and allowed, so that it is applied."""
        return self.target is not None and not self.spec_error

    @property
    def held(self) -> bool:
        """Whether the stable pods keep an older revision than the newest spec."""
        return self.rollout is not None and not self.rollout.applied

    @property
    def kind(self) -> str:
        """Kind of the resource: ``InferenceService`` or ``InferenceGraph``."""
        kind: str = self.observation.resource.get("kind", KIND)
        return kind

    @property
    def name(self) -> str:
        """The name of the service and its children."""
        name: str = self.observation.resource["metadata"]["name"]
        return name

    @property
    def namespace(self) -> str:
        """The service's namespace."""
        namespace: str = self.observation.resource["metadata"]["namespace"]
        return namespace

    @property
    def deployment(self) -> Json:
        """The service's Deployment, or an empty object."""
        return self.observation.owned(DEPLOYMENT)

    @property
    def new_pods(self) -> list[Json]:
        """Pods of the newest template that are not stopping."""
        # The hash distinguishes pods of the newest template from older ones.
        newest = deployed_hash(self.deployment)
        pods = self.observation.pods
        return [pod for pod in pods if template_hash(pod) == newest and not is_leaving(pod)]

    @property
    def objective_ms(self) -> float | None:
        """The latency objective of the spec (ms), or None."""
        return self.target.spec.batching.latency_objective_milliseconds if self.target else None

    @property
    def meets_objective(self) -> list[bool]:
        """For each new pod with a recent report, whether it meets the objective."""
        return self._of_new_pods(self.attainable)

    @property
    def has_independent_rows(self) -> list[bool]:
        """For each new pod with a row check: whether rows are independent.

        A row is independent if its result does not depend on other rows of the batch.
        """
        return self._of_new_pods(self.independent)

    @property
    def chosen_precisions(self) -> Mapping[str, int]:
        """Number of new pods by the precision that their runtime chose, the most common first."""
        return dict(Counter(sorted(self._of_new_pods(self.precisions))).most_common())

    def _of_new_pods(self, known: Mapping[str, T] | None) -> list[T]:
        uids = (dig(pod, "metadata", "uid") for pod in self.new_pods)
        return [known[uid] for uid in uids if uid in known] if known else []

    @property
    def problem(self) -> Problem | None:
        """Problem that prevents the newest pods from serving."""
        return find_problem(self.new_pods)

    def count(self, field: str) -> int:
        """Return a number in the Deployment's status; 0 if missing."""
        number: int = dig(self.deployment, "status", field, default=0)
        return number

    @property
    def endpoints(self) -> int | None:
        """Ready endpoints of the Service; None if they were not read."""
        return self.observation.endpoints

    @property
    def wanted(self) -> int:
        """The Deployment's desired replicas."""
        number: int = dig(self.deployment, "spec", "replicas", default=0)
        return number

    @property
    def seen(self) -> bool:
        """Whether the Deployment's status is about its newest spec."""
        generation = dig(self.deployment, "metadata", "generation", default=0)
        return bool(self.deployment) and self.count("observedGeneration") >= generation

    @property
    def rolled_out(self) -> bool:
        """Whether every pod has the newest template."""
        # A change that the Deployment has not observed may be one of replicas alone: then all pods, but for those that
        # are stopping, have the newest template.
        staying = [pod for pod in self.observation.pods if not is_leaving(pod)]
        newest_alone = bool(staying) and len(self.new_pods) == len(staying)
        return (self.seen or newest_alone) and self.count("updatedReplicas") == self.count("replicas")

    @property
    def served(self) -> bool:
        """Whether pods of the newest spec serve requests, perhaps fewer than desired."""
        return self.rolled_out and self.count("availableReplicas") > 0
