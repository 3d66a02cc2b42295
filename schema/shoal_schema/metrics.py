"""Metrics of the proxy: their names, what they count, and in what unit (which ends the name)."""

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
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    LIMIT = "limit"
    """The caller asks for more than its own limits allow."""


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
CALLER_REQUESTS = _counter(
    "caller_requests",
    "Requests answered, by who called, where `access` asks who does.",
    caller="names of keys and limits; a gateway's key or (jwt) for others",
    status="of HTTP",
)
CALLER_ROWS = _counter("caller_rows", "Rows let in, by who called.", caller="as above")
QUEUE_ROWS = _gauge("queue_rows", "Rows waiting.")
QUEUE_REQUESTS = _gauge("queue_requests", "Requests waiting.")
QUEUE_BYTES = _gauge("queue_bytes", "Bytes of waiting inputs.")
IN_FLIGHT_ROWS = _gauge("in_flight_rows", "Rows at the runtime.")
IN_FLIGHT_BATCHES = _gauge("in_flight_batches", "Batches at the runtime.")
CONNECTIONS = _gauge("connections", "Callers' connections.")
RUNTIME_READY = _gauge("runtime_ready", "1 when the runtime is connected and warm.")
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
QUEUE_SECONDS = _histogram("queue_seconds", "Time from arrival until a batch took the request.")
BATCH_SECONDS = _histogram("batch_seconds", "Time from closing a batch until its answers were split.")
RUNTIME_SECONDS = _histogram("runtime_seconds", "Time from sending a batch until its answer came.")
ROWS = _counter("rows", "Rows sent to the runtime.")
ELEMENTS = _counter("elements", "Elements sent, padding included.")
PADDED_ELEMENTS = _counter("padded_elements", "Elements that were padding.")
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
