"""The checks of whether a graph can work: what its spec says alone, and what its pods say of the steps' models."""

from shoal_operator.planning.blocked import Verdict
from shoal_operator.planning.evidence import Evidence
from shoal_operator.planning.pods import is_ready
from shoal_schema.conditions import FAILURES, Reason, Status
from shoal_schema.graphs.faults import Fault
from shoal_schema.load import STEP_NOT_READY

_FAULTS = frozenset(Reason(fault) for fault in Fault)


def refused(evidence: Evidence) -> Verdict | None:
    """The steps cannot work together, whatever their models are; or the spec is not followed for another reason."""
    if evidence.followed:
        return None
    status = Status.FALSE if evidence.spec_reason in _FAULTS else Status.UNKNOWN
    return status, evidence.spec_reason, evidence.spec_error


def faulty(evidence: Evidence) -> Verdict | None:
    """A newest pod says that a model is missing, or takes something else."""
    for state in evidence.graph_states.values():
        if state.reason in _FAULTS & FAILURES:
            return Status.FALSE, Reason(state.reason), state.message
    return None


def step_not_ready(evidence: Evidence) -> Verdict | None:
    """A newest pod waits for a model that does not say yet what it takes."""
    for state in evidence.graph_states.values():
        if state.reason == STEP_NOT_READY:
            return Status.UNKNOWN, Reason.STEP_NOT_READY, state.message
    return None


def held_up(evidence: Evidence) -> Verdict | None:
    """No newest pod can serve, for what `faulty` or `waits` says."""
    verdict = faulty(evidence) or step_not_ready(evidence)
    return verdict and (Status.FALSE, *verdict[1:])


def valid(evidence: Evidence) -> Verdict | None:
    """A newest pod is ready, as it is only once all models take what they are given; what was said before is old."""
    if any(is_ready(pod) for pod in evidence.new_pods):
        return Status.TRUE, Reason.GRAPH_VALID, "every step's model takes what it is given"
    return None


def unreported(_: Evidence) -> Verdict:
    """No pod has said anything yet."""
    return Status.UNKNOWN, Reason.STEP_NOT_READY, "no pod has said yet whether the steps' models fit one another"
