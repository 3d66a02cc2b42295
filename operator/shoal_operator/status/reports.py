"""Status checks of what pods report: latency objective, independence of rows, and precision."""

from shoal_operator.children.conditions import find, stored_condition
from shoal_operator.children.observation import dig
from shoal_operator.status.blocked import Verdict
from shoal_operator.status.evidence import Evidence
from shoal_schema.resource.conditions import ConditionType, Reason, Status


def objective_as_stored(evidence: Evidence) -> Verdict | None:
    """Report the stored condition until the restarted operator reads a pod."""
    return None if evidence.attainable is not None else _as_stored(evidence, ConditionType.OBJECTIVE_ATTAINABLE)


def objective_missed(evidence: Evidence) -> Verdict | None:
    """Report a pod on which even one request exceeds the latency objective."""
    if all(evidence.meets_objective):
        return None
    text = (
        "even a batch of one request takes longer than batching.latencyObjectiveMilliseconds"
        f" ({evidence.objective_ms:g}), so responses are late. Raise the objective, or use a faster device or model."
        " kubectl port-forward POD 9090 and curl localhost:9090/v1/explain show the latency of a single request"
    )
    return Status.FALSE, Reason.OBJECTIVE_UNATTAINABLE, text


def objective_met(evidence: Evidence) -> Verdict | None:
    """Report that pods can meet the latency objective."""
    if evidence.meets_objective:
        text = "a single request takes no longer than batching.latencyObjectiveMilliseconds"
        return Status.TRUE, Reason.OBJECTIVE_ATTAINABLE, text
    return None


def objective_unknown(_: Evidence) -> Verdict:
    """Report that no new pod reported recently on the latency objective."""
    text = "no ready pod of the newest spec has recently reported whether it can meet the objective"
    return Status.UNKNOWN, Reason.NO_LATENCY_DATA, text


def rows_as_stored(evidence: Evidence) -> Verdict | None:
    """Report the stored condition until the restarted operator reads a pod."""
    return None if evidence.independent is not None else _as_stored(evidence, ConditionType.ROWS_INDEPENDENT)


def rows_mixed(evidence: Evidence) -> Verdict | None:
    """Report that results of a row depend on other rows of the batch."""
    if all(evidence.has_independent_rows):
        return None
    text = (
        "the model's results for a row depend on the other rows of its batch, so a response may have contained another"
        " client's result. Until the model is replaced, each batch contains one request. Make the model return one"
        " result per row, in order and independent of other rows, or set batching.policy: None. If results depend on"
        " more than the inputs, set batching.rowChecks: Off"
    )
    return Status.FALSE, Reason.ROWS_MIXED, text


def rows_independent(evidence: Evidence) -> Verdict | None:
    """Report that rows that were run again had the same results."""
    if evidence.has_independent_rows:
        text = "rows of shared batches had the same results when they were run again"
        return Status.TRUE, Reason.ROWS_INDEPENDENT, text
    return None


def rows_unknown(evidence: Evidence) -> Verdict | None:
    """Report that no new pod has checked rows yet.

    None if the status has no earlier condition about rows.
    """
    conditions = dig(evidence.observation.resource, "status", "conditions", default=[])
    if find(conditions, ConditionType.ROWS_INDEPENDENT) is None:
        return None
    text = "no ready pod of the newest spec has checked rows of shared batches yet"
    return Status.UNKNOWN, Reason.ROWS_NOT_CHECKED, text


def precision_as_stored(evidence: Evidence) -> Verdict | None:
    """Report the stored condition until the restarted operator reads a pod."""
    return None if evidence.precisions is not None else _as_stored(evidence, ConditionType.SAME_PRECISION)


def precisions_differ(evidence: Evidence) -> Verdict | None:
    """Report that runtimes of one service chose different precisions."""
    counts = evidence.chosen_precisions
    if len(counts) < 2:
        return None
    each = ", ".join(f"{precision} by {count}" for precision, count in counts.items())
    text = (
        f"the pods' runtimes chose different precisions ({each}), so equal requests may have different results."
        " If clients do not tolerate that, set runtime.dtype to one precision, and remove runtime.precision"
    )
    return Status.FALSE, Reason.PRECISIONS_DIFFER, text


def precision_chosen(evidence: Evidence) -> Verdict | None:
    """Report the precision that all runtimes chose."""
    for precision in evidence.chosen_precisions:
        return Status.TRUE, Reason.PRECISION_CHOSEN, f"the runtime chose {precision} by measurement at its start"
    return None


def _as_stored(evidence: Evidence, kind: ConditionType) -> Verdict | None:
    resource = evidence.observation.resource
    conditions = dig(resource, "status", "conditions", default=[])
    raw = find(conditions, kind)
    known = stored_condition(conditions, kind)
    if raw is None or known is None or raw.get("observedGeneration") != resource["metadata"].get("generation"):
        return None
    return known.status, known.reason, known.message
