"""Checks of a graph's validity, by the spec and by reports of the pods."""

from shoal_operator.children.pods import is_ready
from shoal_operator.status.blocked import Verdict
from shoal_operator.status.evidence import Evidence
from shoal_schema.graphs.errors import GraphFault
from shoal_schema.interfaces.load import STEP_NOT_READY
from shoal_schema.resource.conditions import FAILURES, Reason, Status

_FAULTS = frozenset(Reason(fault) for fault in GraphFault)


def invalid(evidence: Evidence) -> Verdict | None:
    """Report that the spec of the graph is invalid or not applied."""
    if evidence.followed:
        return None
    status = Status.FALSE if evidence.spec_reason in _FAULTS else Status.UNKNOWN
    return status, evidence.spec_reason, evidence.spec_error


def step_invalid(evidence: Evidence) -> Verdict | None:
    """Report that a step's model is missing or does not fit, as a pod found."""
    for state in evidence.graph_states.values():
        if state.reason in _FAULTS & FAILURES:
            return Status.FALSE, Reason(state.reason), state.message
    return None


def step_not_ready(evidence: Evidence) -> Verdict | None:
    """Report that a pod waits for the metadata of a step's model."""
    for state in evidence.graph_states.values():
        if state.reason == STEP_NOT_READY:
            return Status.UNKNOWN, Reason.STEP_NOT_READY, state.message
    return None


def step_blocks(evidence: Evidence) -> Verdict | None:
    """Report a step for which pods cannot serve: invalid or not ready."""
    verdict = step_invalid(evidence) or step_not_ready(evidence)
    return verdict and (Status.FALSE, *verdict[1:])


def valid(evidence: Evidence) -> Verdict | None:
    """Report that a pod is ready, so the models of all steps are compatible."""
    if any(is_ready(pod) for pod in evidence.new_pods):
        return Status.TRUE, Reason.GRAPH_VALID, "every step's model accepts its inputs"
    return None


def unreported(_: Evidence) -> Verdict:
    """Report that no pod has reported yet on the steps' models."""
    return Status.UNKNOWN, Reason.STEP_NOT_READY, "no pod has reported yet whether the steps' models are compatible"
