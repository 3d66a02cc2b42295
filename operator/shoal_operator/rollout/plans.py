"""Plans that the operator sends to the proxies of a rollout."""

from dataclasses import dataclass

from shoal_operator.rollout.situation import Decision, Reports, Situation
from shoal_operator.scaling.service_cache import Replica
from shoal_schema.interfaces.rollout import OutputTolerance, RolloutPlan
from shoal_schema.resource.rollout import RolloutSpec


@dataclass(frozen=True, slots=True)
class RolloutPod:
    """One pod of a rollout, with its plan."""

    replica: Replica
    plan: RolloutPlan
    is_candidate: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """What the judging loop found of one service."""

    responds: bool = False
    """A stable pod has accepted the plan that names the candidate."""
    unsupported: bool = False
    """The proxy of a stable pod cannot compare a candidate."""
    quiet: bool = False
    """No stable pod sends anything to a candidate."""
    reports: Reports | None = None
    """None before all pods were requested once."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What the judging loop does for one service."""

    pods: tuple[RolloutPod, ...]
    revision: str
    """Candidate that the proxies count for; empty to end the last rollout."""
    situation: Situation
    """Of the last reconciliation."""
    decision: Decision


def make_plan(rollout: RolloutSpec, revision: str, weight: int, shadow: int) -> RolloutPlan:
    """Return the plan for stable pods.

    Args:
        rollout: of the newest spec.
        revision: revision of the candidate.
        weight: percentage of requests that it serves.
        shadow: percentage of batches that it runs again.
    """
    compare = rollout.compare
    return RolloutPlan(
        candidate=revision,
        shadow=shadow / 100,
        weight=weight / 100,
        sticky_header=rollout.sticky.header if rollout.sticky else "",
        tolerances={
            name: OutputTolerance(float(each.max_abs_error), float(each.max_rel_error), each.top_k)
            for name, each in compare.outputs.items()
        },
        allow_signature_change=compare.allow_signature_change,
    )
