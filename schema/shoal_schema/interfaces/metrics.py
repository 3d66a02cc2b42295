"""Metrics of the proxy and the operator; each name ends with its unit."""

from dataclasses import dataclass, field
from enum import StrEnum

from shoal_schema.interfaces.protocols import GRPC, HTTP


class MetricKind(StrEnum):
    """Prometheus types of metrics."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class RejectionReason(StrEnum):
    """Reasons of rejected and abandoned requests: the label of `REJECTIONS`, also counted in ``/v1/explain``."""

    QUEUE_ROWS = "queue_rows"
    QUEUE_BYTES = "queue_bytes"
    LATE = "late"
    """The response would be later than the latency objective."""
    DRAINING = "draining"
    RUNTIME_AWAY = "runtime_away"
    DEADLINE = "deadline"
    """The client's timeout has passed."""
    CANCELLED = "cancelled"
    """The client has disconnected."""
    BODY_TOO_LARGE = "body_too_large"
    CONNECTIONS = "connections"
    INVALID = "invalid"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    LIMIT = "limit"
    """The request exceeds the client's limits."""


class AsyncOutcome(StrEnum):
    """How asynchronous requests ended: the label of `ASYNC_REQUESTS`."""

    FINISHED = "finished"
    """With a response, which may be an error."""
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    """By the client."""
    LOST = "lost"
    """The replica stopped."""


class WebhookOutcome(StrEnum):
    """Ends of webhooks: the label of `WEBHOOKS`."""

    DELIVERED = "delivered"
    FAILED = "failed"
    """The last try failed."""
    GONE = "gone"
    """The receiver responded with 410."""
    REFUSED = "refused"
    """The callback's host is not listed any more, or its addresses receive no webhooks."""
    OVERFLOW = "overflow"
    """The limit of held webhooks was reached."""
    STOPPED = "stopped"
    """The proxy stopped before the delivery."""


@dataclass(frozen=True, slots=True)
class Metric:
    """Declaration of a Prometheus metric."""

    family: str
    """Its name without the suffix ``_total`` of a counter's samples."""
    kind: MetricKind
    description: str
    labels: dict[str, str] = field(default_factory=dict, hash=False)
    """Name -> values, or a description of them."""

    @property
    def name(self) -> str:
        """Name of the metric's samples."""
        return f"{self.family}_total" if self.kind is MetricKind.COUNTER else self.family


def _counter(name: str, description: str, **labels: str) -> Metric:
    return Metric(f"shoal_proxy_{name}", MetricKind.COUNTER, description, labels)


def _gauge(name: str, description: str) -> Metric:
    return Metric(f"shoal_proxy_{name}", MetricKind.GAUGE, description)


def _histogram(name: str, description: str, **labels: str) -> Metric:
    return Metric(f"shoal_proxy_{name}", MetricKind.HISTOGRAM, description, labels)


# Requests and clients.
REQUESTS = _counter(
    "requests",
    "Responses sent.",
    protocol=", ".join([*(each.label for each in (*HTTP.protocols, GRPC)), "shadow (a rollout's copies of batches)"]),
    status="of HTTP",
)
REJECTIONS = _counter("rejections", "Requests rejected or abandoned.", reason=", ".join(RejectionReason))
CALLER_REQUESTS = _counter(
    "caller_requests",
    "Responses sent, by client; only for services with the field `access`.",
    caller="names of clients in API keys and limits; for other clients the gateway's key, or `(jwt)`",
    status="of HTTP",
)
CALLER_ROWS = _counter(
    "caller_rows", "Rows admitted to the queue, by client.", caller="as in `shoal_proxy_caller_requests_total`"
)
# Queue and connections: the present state.
QUEUE_ROWS = _gauge("queue_rows", "Rows queued.")
QUEUE_REQUESTS = _gauge("queue_requests", "Requests queued.")
QUEUE_BYTES = _gauge("queue_bytes", "Bytes of queued inputs.")
IN_FLIGHT_ROWS = _gauge("in_flight_rows", "Rows at the runtime.")
IN_FLIGHT_BATCHES = _gauge("in_flight_batches", "Batches at the runtime.")
CONNECTIONS = _gauge("connections", "Client connections.")
UNSENT_BYTES = _gauge("unsent_bytes", "Bytes of responses that clients have not read.")
# The runtime and its device.
RUNTIME_READY = _gauge("runtime_ready", "1 when the runtime is connected and warm.")
DEVICE_MEMORY = "device_memory"
"""The object in a runtime's readiness response with the values of the two gauges below."""
PEAK_MEMORY = "peak_memory_bytes"
"""The number in a runtime's readiness response with the largest memory that its process has used."""
DEVICE_MEMORY_USED_BYTES = _gauge(
    "device_memory_used_bytes",
    "Bytes of device memory in use by all processes; absent if the device has no memory of its own.",
)
DEVICE_MEMORY_BYTES = _gauge("device_memory_bytes", "Total bytes of device memory.")
RUNTIME_LOSSES = _counter("runtime_losses", "Times that a ready runtime became unavailable.")
BATCH_ROWS_LIMIT = _gauge("batch_rows_limit", "Maximum rows of a batch, as limited by the model and its memory.")
# Load and capacity.
OBJECTIVE_ATTAINABLE = _gauge("objective_attainable", "0 if a single request takes longer than the latency objective.")
UTILIZATION = _gauge(
    "utilization",
    "Requested rows divided by capacity in rows, 0 to 1; until capacity is measured, the share of busy time.",
)
DEMAND = _gauge(
    "demand",
    "Requested rows, without forwarded ones, divided by capacity in rows; above 1, more replicas are needed. The "
    "share of busy time until capacity is measured.",
)
EXPECTED_WAIT_SECONDS = _gauge(
    "expected_wait_seconds",
    "95th percentile of the expected response time of a one-row request that arrives now.",
)
# Asynchronous requests.
ASYNC_WAITING = _gauge("async_waiting_requests", "Asynchronous requests that wait for their turn.")
ASYNC_WAITING_ROWS = _gauge("async_waiting_rows", "Rows of asynchronous requests that wait for their turn.")
ASYNC_HELD = _gauge("async_held_requests", "Asynchronous requests that wait, run, or have a result in memory.")
ASYNC_BYTES = _gauge("async_held_bytes", "Bytes of the bodies and results of asynchronous requests in memory.")
ASYNC_REQUESTS = _counter(
    "async_requests",
    "Asynchronous requests that ended.",
    outcome="finished (also with an error of the model), timed_out, cancelled (by the client), lost (the replica"
    " stopped)",
)
ASYNC_RESULTS_EXPIRED = _counter("async_results_expired", "Results that were deleted because their time was over.")
WEBHOOKS = _counter(
    "webhooks",
    "Webhooks of asynchronous requests, delivered or given up; only for services with the field"
    " `asynchronous.webhooks`.",
    outcome=", ".join(WebhookOutcome),
)
WEBHOOKS_HELD = _gauge("webhooks_held", "Webhooks that are not delivered yet.")
ASYNC_WAIT_SECONDS = _histogram("async_wait_seconds", "Time from acceptance until an asynchronous request was queued.")
# Lifecycle and certificate.
DRAINING = _gauge("draining", "1 from the start of the drain.")
CERTIFICATE_EXPIRY = _gauge(
    "certificate_expiry_timestamp_seconds",
    "Expiry of the certificate in use, in seconds since 1970; absent without TLS.",
)
# Batches and latency.
BATCH_ROWS = _histogram("batch_rows", "Rows per batch.")
REQUEST_SECONDS = _histogram(
    "request_seconds", "For executed requests: time from arrival until the result was split from its batch."
)
QUEUE_SECONDS = _histogram("queue_seconds", "Time from arrival until the request joined a batch.")
BATCH_SECONDS = _histogram("batch_seconds", "Time from closing a batch until its results were split.")
RUNTIME_SECONDS = _histogram("runtime_seconds", "Time from sending a batch until the runtime's response.")
# Work sent to the runtime.
ROWS = _counter("rows", "Rows sent to the runtime.")
ELEMENTS = _counter("elements", "Tensor elements sent to the runtime, padding included.")
PADDED_ELEMENTS = _counter("padded_elements", "Tensor elements sent to the runtime that were padding.")
# Failures and retries.
LATE_ANSWERS = _counter("late_answers", "Responses later than the client's timeout or the latency objective.")
FAILED_ROWS = _counter("failed_rows", "Rows that failed in the model, alone or with their whole request.")
COALESCED_ROWS = _counter("coalesced_rows", "Rows that received the result of an identical request.")
RETRIES = _counter("retries", "Batches sent again after a failure.")
# Verification of rows.
ROWS_CHECKED = _counter("rows_checked", "Rows run again to verify that they got their own result.")
ROWS_SUSPECTED = _counter(
    "rows_suspected", "Verified rows whose second result differed; usually because of ties or rounding."
)
ROW_VIOLATIONS = _counter("row_violations", "Models found to mix up the results of rows.")
ROW_CHECK_SECONDS = _counter("row_check_seconds", "Device time used to run rows again.")
ROWS_INDEPENDENT = _gauge(
    "rows_independent",
    "0 if rows of a shared batch got results of other rows: each batch then holds one request. Absent if rows are"
    " not verified.",
)
# Request forwarding between peers.
FORWARDED = _counter(
    "forwarded",
    "Requests forwarded to a peer because this replica would have missed their deadline, by outcome.",
    outcome="answered, refused, error, failed, broken, late, lost, cancelled",
)
# Rollouts by candidate.
_ROLE = "stable, candidate, or shadow: copies of batches that the candidate runs for comparison"
ROLLOUT_ROWS = _counter(
    "rollout_rows", "While the service has a candidate: rows, by the role of the revision that ran them.", role=_ROLE
)
ROLLOUT_FAILED_ROWS = _counter(
    "rollout_failed_rows",
    "Those of `shoal_proxy_rollout_rows_total` without a result, also those that the model rejects as invalid.",
    role=_ROLE,
)
_OUTPUT = "its name in the model"
ROLLOUT_COMPARED_ROWS = _counter(
    "rollout_compared_rows", "Rows of which candidate and stable revision were compared.", output=_OUTPUT
)
ROLLOUT_DISAGREEING_ROWS = _counter(
    "rollout_disagreeing_rows",
    "Those of `shoal_proxy_rollout_compared_rows_total` that differ beyond the tolerance.",
    output=_OUTPUT,
)
# Graphs.
STEP_SECONDS = _histogram(
    "step_seconds", "Graphs only: time from calling a step's model until its response.", step="its name in the graph"
)
STEP_FAILURES = _counter(
    "step_failures",
    "Graphs only: calls of a step's model that failed, were rejected or got no response.",
    step="its name in the graph",
)
# Traffic.
REQUEST_BYTES = _counter("request_bytes", "Bytes of request bodies.")
RESPONSE_BYTES = _counter("response_bytes", "Bytes of response bodies.")

ALL = tuple(value for value in tuple(globals().values()) if isinstance(value, Metric))
"""Metrics of the proxy."""


class ReconcileError(StrEnum):
    """Reasons of failed reconciliations: the label of `OPERATOR_RECONCILE_ERRORS`."""

    UNREACHABLE = "unreachable"
    """The API server did not respond."""
    FORBIDDEN = "forbidden"
    REFUSED = "refused"
    """The API server rejected the object as invalid."""
    CONFLICT = "conflict"
    """Another writer changed the object in between."""
    SERVER = "server"
    """The API server failed or is overloaded."""
    NOT_LEADING = "not_leading"
    UNFORESEEN = "unforeseen"


def _of_operator(kind: MetricKind, name: str, description: str, **labels: str) -> Metric:
    return Metric(f"shoal_operator_{name}", kind, description, labels)


_OF_SERVICE = {"namespace": "of the service", "service": "its name"}
# Leadership and services.
OPERATOR_LEADER = _of_operator(MetricKind.GAUGE, "leader", "1 while this operator is the leader.")
OPERATOR_SERVICES = _of_operator(
    MetricKind.GAUGE, "services", "Services, by their condition `Ready`.", ready="True, False", reason="of `Ready`"
)
OPERATOR_UPGRADES = _of_operator(
    MetricKind.GAUGE, "upgrades", "Services with pods of another operator version.", state="pending, running, failed"
)
# Reconciliation.
OPERATOR_RECONCILES = _of_operator(
    MetricKind.COUNTER, "looks", "Reconciliations of services, by outcome.", outcome="done, waiting, failed, gone"
)
OPERATOR_RECONCILE_ERRORS = _of_operator(
    MetricKind.COUNTER, "look_errors", "Reconciliations that were aborted.", reason=", ".join(ReconcileError)
)
OPERATOR_RECONCILE_SECONDS = _of_operator(MetricKind.HISTOGRAM, "look_seconds", "Duration of a reconciliation.")
OPERATOR_QUEUE_SERVICES = _of_operator(MetricKind.GAUGE, "queue_services", "Services queued for reconciliation.")
OPERATOR_QUEUE_AGE_SECONDS = _of_operator(
    MetricKind.GAUGE, "queue_age_seconds", "Time since the oldest queued service was queued."
)
# Requests of the operator.
OPERATOR_API_REQUESTS = _of_operator(
    MetricKind.COUNTER,
    "api_requests",
    "Requests to the API server, except watches.",
    method="GET, POST, PUT, PATCH, DELETE",
    status="of HTTP; 0: no response",
)
OPERATOR_SCRAPES = _of_operator(
    MetricKind.COUNTER,
    "scrapes",
    "Scrapes of pods; `refused`: the response is not from a proxy.",
    outcome="read, unreachable, refused",
)
OPERATOR_SCRAPE_AGE_SECONDS = _of_operator(
    MetricKind.GAUGE, "scrape_age_seconds", "Longest time that a service has not been scraped."
)
# Autoscaling, per service.
OPERATOR_SCALING_DESIRED = _of_operator(MetricKind.GAUGE, "scaling_desired", "Desired replicas.", **_OF_SERVICE)
OPERATOR_SCALING_READY = _of_operator(MetricKind.GAUGE, "scaling_ready", "Ready pods.", **_OF_SERVICE)
OPERATOR_SCALING_ROWS = _of_operator(
    MetricKind.GAUGE, "scaling_rows", "Rows queued and running, mean since the previous decision.", **_OF_SERVICE
)
OPERATOR_SCALING_OFFERED = _of_operator(
    MetricKind.GAUGE,
    "scaling_offered_rows_per_second",
    "Requested rows per second, including rejected ones.",
    **_OF_SERVICE,
)
OPERATOR_SCALING_TARGET = _of_operator(
    MetricKind.GAUGE,
    "scaling_target",
    "Target per replica: rows or rows per second, whichever requires more replicas.",
    **_OF_SERVICE,
)
OPERATOR_SCALING_PANIC = _of_operator(
    MetricKind.GAUGE,
    "scaling_panic",
    "1 while replicas are not reduced because the recent load was twice the ready capacity.",
    **_OF_SERVICE,
)
# Status, per service.
OPERATOR_SERVICE_CONDITION = _of_operator(
    MetricKind.GAUGE,
    "service_condition",
    "1 for each condition of a service, by status and reason.",
    **_OF_SERVICE,
    condition="of [Reasons](../how-to/reasons.md)",
    status="True, False, Unknown",
    reason="of [Reasons](../how-to/reasons.md)",
)
OPERATOR_SERVICE_REPLICAS = _of_operator(MetricKind.GAUGE, "service_replicas", "Pods of a service.", **_OF_SERVICE)
OPERATOR_SERVICE_REPLICAS_READY = _of_operator(
    MetricKind.GAUGE, "service_replicas_ready", "Ready pods of a service.", **_OF_SERVICE
)

ALL_OF_OPERATOR = tuple(each for each in tuple(globals().values()) if isinstance(each, Metric) and each not in ALL)
