"""Everything that a service's conditions are judged by."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from shoal_operator.autoscaler.decision import Limit
from shoal_operator.manifests.desired import DEPLOYMENT
from shoal_operator.manifests.target import Target
from shoal_operator.planning.changes import Conflict
from shoal_operator.planning.naming import Naming
from shoal_operator.planning.observation import Failure, Observation, dig
from shoal_operator.planning.pods import Problem, find_problem, is_leaving, template_hash
from shoal_operator.planning.upgrade import Upgrade
from shoal_schema.conditions import Reason, ScalingReason
from shoal_schema.declaring import Json
from shoal_schema.load import GraphState
from shoal_schema.resource import KIND


class Unread(StrEnum):
    """Why nothing is known of a service's load."""

    NO_READY_POD = "no ready pod"
    UNREACHABLE = "unreachable"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Scaling:
    """What the law of scaling says of a service.

    Args:
        unread: why it has no data; None where it has.
        sentence: why the count is what it is.
        limit: what keeps replicas from being as many as the load asks for.
        conflicting_writer: who sets them beside the law, empty where that has no name; None where nobody does.
    """

    reason: ScalingReason
    unread: Unread | None = None
    sentence: str = ""
    limit: Limit | None = None
    conflicting_writer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that the conditions are judged by.

    Args:
        target: None when the spec cannot be read.
        spec_error: why the spec is not followed: it cannot be read, or asks for what it may not have. What runs stays.
        spec_reason: the same in one word.
        scaling: None when the autoscaler has not looked yet.
        attainable: by uid, whether the pods that said so lately can meet their latency
            objective; None when it is too early to tell.
        independent: by uid, whether the pods that checked it found rows to have results of their own; None when none
            could be read yet.
        naming: what is known of the model's name, where it is one that moves.
        graph_states: by uid, what the newest pods of a graph say of it.
        other_operator: another install of the operator that wants this service; empty when none does.
        scaler: the field manager that the Deployment's replicas are left to, as it sets them back; empty: none.
        upgrade: what brings its pods to this operator's images and template, since it has begun.
        overdue: that takes longer than the deadline of its rollout.
        pending: its pods are to be replaced, in their turn, and are left as they are.
        alone: why replicas do not find one another, though they should: no other answer depends on it.
    """

    observation: Observation
    target: Target | None
    spec_error: str = ""
    spec_reason: Reason = Reason.INVALID_SPEC
    conflicts: tuple[Conflict, ...] = ()
    failures: tuple[Failure, ...] = ()
    scaling: Scaling | None = None
    attainable: Mapping[str, bool] | None = None
    independent: Mapping[str, bool] | None = None
    naming: Naming | None = None
    graph_states: Mapping[str, GraphState] = field(default_factory=dict)
    other_operator: str = ""
    scaler: str = ""
    alone: Conflict | Failure | None = None
    upgrade: Upgrade | None = None
    overdue: bool = False
    pending: bool = False

    @property
    def followed(self) -> bool:
        """Whether objects are made of the newest spec."""
        return self.target is not None and not self.spec_error

    @property
    def kind(self) -> str:
        """The service's kind: it may be a graph."""
        kind: str = self.observation.resource.get("kind", KIND)
        return kind

    @property
    def name(self) -> str:
        """The service's name, and its objects'."""
        name: str = self.observation.resource["metadata"]["name"]
        return name

    @property
    def namespace(self) -> str:
        """The service's namespace."""
        namespace: str = self.observation.resource["metadata"]["namespace"]
        return namespace

    @property
    def deployment(self) -> Json:
        """Our Deployment, or an empty object."""
        return self.observation.ours(DEPLOYMENT)

    @property
    def new_pods(self) -> list[Json]:
        """Pods of the newest template that are not leaving."""
        newest = template_hash(dig(self.deployment, "spec", "template", default={}))
        pods = self.observation.pods
        return [pod for pod in pods if template_hash(pod) == newest and not is_leaving(pod)]

    @property
    def objective_ms(self) -> float | None:
        """The latency objective of the spec."""
        return self.target.spec.batching.latency_objective_milliseconds if self.target else None

    @property
    def meets_objective(self) -> list[bool]:
        """Whether each of the newest pods that said so lately can meet the objective."""
        return self._said(self.attainable)

    @property
    def has_independent_rows(self) -> list[bool]:
        """Whether each of the newest pods that checked it found rows to have results of their own."""
        return self._said(self.independent)

    def _said(self, known: Mapping[str, bool] | None) -> list[bool]:
        uids = (dig(pod, "metadata", "uid") for pod in self.new_pods)
        return [known[uid] for uid in uids if uid in known] if known else []

    @property
    def problem(self) -> Problem | None:
        """What keeps the newest pods from serving."""
        return find_problem(self.new_pods)

    def count(self, field: str) -> int:
        """Return a number of the Deployment's status."""
        number: int = dig(self.deployment, "status", field, default=0)
        return number

    @property
    def endpoints(self) -> int | None:
        """The ready endpoints behind our Service; None where nobody looked."""
        return self.observation.endpoints

    @property
    def wanted(self) -> int:
        """The pods that should run."""
        number: int = dig(self.deployment, "spec", "replicas", default=0)
        return number

    @property
    def seen(self) -> bool:
        """Whether what the Deployment reports is about its newest spec."""
        generation = dig(self.deployment, "metadata", "generation", default=0)
        return bool(self.deployment) and self.count("observedGeneration") >= generation

    @property
    def rolled_out(self) -> bool:
        """Whether every pod that exists is of the newest template.

        What a Deployment has not seen yet may be another number of replicas alone; then its pods are the newest.
        """
        # Pods that are stopping do not count.
        staying = [pod for pod in self.observation.pods if not is_leaving(pod)]
        newest_alone = bool(staying) and len(self.new_pods) == len(staying)
        return (self.seen or newest_alone) and self.count("updatedReplicas") == self.count("replicas")

    @property
    def served(self) -> bool:
        """Whether the newest spec is served, perhaps by fewer pods than wanted."""
        return self.rolled_out and self.count("availableReplicas") > 0
