"""Metrics of proxy and operator: their names, what they count, and in what unit (which ends the name)."""

from dataclasses import dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    """How Prometheus reads a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Rejection(StrEnum):
    """Why a request was refused or given up: the label of `REJECTIONS`, and what ``/v1/explain`` counts."""

    QUEUE_ROWS = "queue_rows"
    QUEUE_BYTES = "queue_bytes"
    LATE = "late"
    """The answer would come after the latency objective."""
    DRAINING = "draining"
    RUNTIME_AWAY = "runtime_away"
    DEADLINE = "deadline"
    """The caller's own time is over."""
    CANCELLED = "cancelled"
    """The caller has gone."""
    BODY_TOO_LARGE = "body_too_large"
    CONNECTIONS = "connections"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Args:
        family: its name; a counter's samples end in ``_total`` besides.
        labels: each with the values that it may have, where they are few.
    """

    family: str
    kind: Kind
    description: str
    labels: dict[str, str] = field(default_factory=dict, hash=False)

    @property
    def name(self) -> str:
        """Its name as it is scraped."""
        return f"{self.family}_total" if self.kind is Kind.COUNTER else self.family


def _counter(name: str, description: str, **labels: str) -> Metric:
    return Metric(f"shoal_proxy_{name}", Kind.COUNTER, description, labels)


def _gauge(name: str, description: str) -> Metric:
    return Metric(f"shoal_proxy_{name}", Kind.GAUGE, description)


def _histogram(name: str, description: str) -> Metric:
    return Metric(f"shoal_proxy_{name}", Kind.HISTOGRAM, description)


REQUESTS = _counter(
    "requests",
    "Requests answered.",
    protocol="v1, v2, torchserve, embeddings, rerank, invocations, grpc",
    status="of HTTP",
)
REJECTIONS = _counter("rejections", "Requests refused or given up.", reason=", ".join(Rejection))
QUEUE_ROWS = _gauge("queue_rows", "Rows waiting.")
QUEUE_REQUESTS = _gauge("queue_requests", "Requests waiting.")
QUEUE_BYTES = _gauge("queue_bytes", "Bytes of waiting inputs.")
IN_FLIGHT_ROWS = _gauge("in_flight_rows", "Rows at the runtime.")
IN_FLIGHT_BATCHES = _gauge("in_flight_batches", "Batches at the runtime.")
CONNECTIONS = _gauge("connections", "Callers' connections.")
RUNTIME_READY = _gauge("runtime_ready", "1 when the runtime is connected and warm.")
DEVICE_MEMORY = "device_memory"
"""Where a ready runtime says what the two below show: bytes in use and all of them, in its answer about readiness."""
DEVICE_MEMORY_USED_BYTES = _gauge(
    "device_memory_used_bytes", "Bytes of the device's memory in use, whoever uses them; none without such a device."
)
DEVICE_MEMORY_BYTES = _gauge("device_memory_bytes", "Bytes of the device's memory.")
RUNTIME_LOSSES = _counter("runtime_losses", "Times that the runtime went away after it had been ready.")
BATCH_ROWS_LIMIT = _gauge("batch_rows_limit", "Rows that a batch may have, after what the model and its memory allow.")
OBJECTIVE_ATTAINABLE = _gauge(
    "objective_attainable", "0 when even a request alone takes longer than the latency objective."
)
UTILIZATION = _gauge(
    "utilization",
    "Rows asked for by rows that could be served, 0 to 1; until that is learned, the share that was busy.",
)
DEMAND = _gauge(
    "demand",
    "Rows asked for and not handed to a sibling, by rows that could be served: more than 1 where there are too few"
    " replicas; until that is learned, the share that was busy.",
)
EXPECTED_WAIT_SECONDS = _gauge(
    "expected_wait_seconds", "Until the answer, of a request of one row that arrived now, 95th percentile."
)
DRAINING = _gauge("draining", "1 from the start of the drain.")
BATCH_ROWS = _histogram("batch_rows", "Rows per batch sent.")
REQUEST_SECONDS = _histogram(
    "request_seconds", "Time from arrival until the answer left the batch, of requests that the model answered."
)
QUEUE_SECONDS = _histogram("queue_seconds", "Time from arrival until a batch took the request.")
BATCH_SECONDS = _histogram("batch_seconds", "Time from closing a batch until its answers were split.")
RUNTIME_SECONDS = _histogram("runtime_seconds", "Time from sending a batch until its answer came.")
ROWS = _counter("rows", "Rows sent to the runtime.")
ELEMENTS = _counter("elements", "Elements sent, padding included.")
PADDED_ELEMENTS = _counter("padded_elements", "Elements that were padding.")
LATE_ANSWERS = _counter(
    "late_answers", "Answers that came later than the caller asked, or than the latency objective allows."
)
FAILED_ROWS = _counter("failed_rows", "Rows that the model failed: alone, or all of a request that failed alone.")
COALESCED_ROWS = _counter("coalesced_rows", "Rows answered by an identical request's.")
RETRIES = _counter("retries", "Batches sent again after a failure.")
HANDED_OVER = _counter(
    "handed_over",
    "Requests given to a sibling since they would have been late here, by what came of it.",
    outcome="answered, refused, error, failed, broken, late, lost, cancelled",
)
REQUEST_BYTES = _counter("request_bytes", "Bytes of request bodies.")
RESPONSE_BYTES = _counter("response_bytes", "Bytes of response bodies.")

ALL = tuple(value for value in tuple(globals().values()) if isinstance(value, Metric))
"""Of the proxy."""

_SERVICE = {"namespace": "", "service": ""}
SERVICE_CONDITION = Metric(
    "shoal_operator_service_condition",
    Kind.GAUGE,
    "1 for each condition of a service's status, with its answer and its reason.",
    {**_SERVICE, "condition": "docs/operations.md", "status": "True, False, Unknown", "reason": "docs/operations.md"},
)
SERVICE_REPLICAS = Metric("shoal_operator_service_replicas", Kind.GAUGE, "Pods that a service has.", _SERVICE)
SERVICE_REPLICAS_READY = Metric(
    "shoal_operator_service_replicas_ready", Kind.GAUGE, "Pods of a service that answer requests.", _SERVICE
)
SCRAPES = Metric(
    "shoal_operator_scrapes",
    Kind.COUNTER,
    "Attempts to read a pod's load; refused: it answered what no proxy answers.",
    {"outcome": "read, unreachable, refused"},
)


def _scaling(name: str, description: str) -> Metric:
    return Metric(f"shoal_operator_scaling_{name}", Kind.GAUGE, description, _SERVICE)


SCALING_DESIRED = _scaling("desired", "Replicas decided.")
SCALING_READY = _scaling("ready", "Pods that are ready.")
SCALING_ROWS = _scaling("rows", "Rows waiting and running, mean since the tick before.")
SCALING_OFFERED = _scaling("offered_rows_per_second", "Rows asked for, refused ones included.")
SCALING_TARGET = _scaling("target", "What a replica is for: rows, or rows a second, whichever asked for more replicas.")
SCALING_PANIC = _scaling("panic", "1 while nothing is taken away, as the last seconds asked for twice what was ready.")

OPERATOR = tuple(value for value in tuple(globals().values()) if isinstance(value, Metric) and value not in ALL)
"""Of the operator."""
