"""Metrics of the proxy and of the operator: their names, what they count, and in what unit (which ends the name)."""

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


def _histogram(name: str, description: str, **labels: str) -> Metric:
    return Metric(f"shoal_proxy_{name}", Kind.HISTOGRAM, description, labels)


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
UNSENT_BYTES = _gauge("unsent_bytes", "Bytes of responses that clients have not read.")
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
CERTIFICATE_EXPIRY = _gauge(
    "certificate_expiry_timestamp_seconds",
    "Until when the certificate in use holds, in seconds since 1970; with TLS alone.",
)
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
ROWS_CHECKED = _counter("rows_checked", "Rows run again to verify that they had a result of their own.")
ROWS_SUSPECTED = _counter("rows_suspected", "Of those, rows whose second result differed; most are ties and noise.")
ROW_VIOLATIONS = _counter("row_violations", "Models found to give rows results that were not their own.")
ROW_CHECK_SECONDS = _counter("row_check_seconds", "Time of the device used to run rows again.")
ROWS_INDEPENDENT = _gauge(
    "rows_independent",
    "0 when results of shared batches were not those of their own rows: each batch holds one request; none where rows"
    " are not checked.",
)
HANDED_OVER = _counter(
    "handed_over",
    "Requests given to a sibling since they would have been late here, by what came of it.",
    outcome="answered, refused, error, failed, broken, late, lost, cancelled",
)
STEP_SECONDS = _histogram(
    "step_seconds", "Time from asking a step's model until its answer came; of graphs alone.", step="of the graph"
)
STEP_FAILURES = _counter(
    "step_failures",
    "Times that a step's model failed, refused or did not answer; of graphs alone.",
    step="of the graph",
)
REQUEST_BYTES = _counter("request_bytes", "Bytes of request bodies.")
RESPONSE_BYTES = _counter("response_bytes", "Bytes of response bodies.")

ALL = tuple(value for value in tuple(globals().values()) if isinstance(value, Metric))
"""Those of the proxy."""


class LookError(StrEnum):
    """Why a look at a service ended before its end: the label of `OPERATOR_LOOK_ERRORS`."""

    UNREACHABLE = "unreachable"
    """The API server did not answer."""
    FORBIDDEN = "forbidden"
    REFUSED = "refused"
    """The object is none that the API server takes."""
    CONFLICT = "conflict"
    """Somebody else wrote in between."""
    SERVER = "server"
    """The API server has trouble of its own, or too much to do."""
    NOT_LEADING = "not_leading"
    UNFORESEEN = "unforeseen"


def _of_operator(kind: Kind, name: str, description: str, **labels: str) -> Metric:
    return Metric(f"shoal_operator_{name}", kind, description, labels)


_OF_SERVICE = {"namespace": "of the service", "service": "its name"}
OPERATOR_LEADER = _of_operator(Kind.GAUGE, "leader", "1 while this operator writes; the others stand by.")
OPERATOR_SERVICES = _of_operator(
    Kind.GAUGE, "services", "Services, by what `Ready` says of them.", ready="True, False", reason="of `Ready`"
)
OPERATOR_UPGRADES = _of_operator(
    Kind.GAUGE, "upgrades", "Services with pods of another operator.", state="pending, running, failed"
)
OPERATOR_LOOKS = _of_operator(
    Kind.COUNTER, "looks", "Looks at services, by how they ended.", outcome="done, waiting, failed, gone"
)
OPERATOR_LOOK_ERRORS = _of_operator(
    Kind.COUNTER, "look_errors", "Looks at services that were cut short.", reason=", ".join(LookError)
)
OPERATOR_LOOK_SECONDS = _of_operator(Kind.HISTOGRAM, "look_seconds", "How long a look at a service took.")
OPERATOR_QUEUE_SERVICES = _of_operator(Kind.GAUGE, "queue_services", "Services that are due for a look.")
OPERATOR_QUEUE_AGE_SECONDS = _of_operator(
    Kind.GAUGE, "queue_age_seconds", "For how long that one of them has been due which has been for longest."
)
OPERATOR_API_REQUESTS = _of_operator(
    Kind.COUNTER,
    "api_requests",
    "Requests to the API server, without those of the watches.",
    method="GET, POST, PUT, PATCH, DELETE",
    status="of HTTP; 0: there was no answer",
)
OPERATOR_SCRAPES = _of_operator(
    Kind.COUNTER,
    "scrapes",
    "Attempts to read a pod's load; refused: it answered what no proxy answers.",
    outcome="read, unreachable, refused",
)
OPERATOR_SCRAPE_AGE_SECONDS = _of_operator(
    Kind.GAUGE, "scrape_age_seconds", "For how long that service has not been read which has not been for longest."
)
OPERATOR_SCALING_DESIRED = _of_operator(Kind.GAUGE, "scaling_desired", "Replicas decided.", **_OF_SERVICE)
OPERATOR_SCALING_READY = _of_operator(Kind.GAUGE, "scaling_ready", "Pods that are ready.", **_OF_SERVICE)
OPERATOR_SCALING_ROWS = _of_operator(
    Kind.GAUGE, "scaling_rows", "Rows waiting and running, mean since the tick before.", **_OF_SERVICE
)
OPERATOR_SCALING_OFFERED = _of_operator(
    Kind.GAUGE, "scaling_offered_rows_per_second", "Rows asked for, refused ones included.", **_OF_SERVICE
)
OPERATOR_SCALING_TARGET = _of_operator(
    Kind.GAUGE,
    "scaling_target",
    "What a replica is for: rows, or rows a second, whichever asked for more replicas.",
    **_OF_SERVICE,
)
OPERATOR_SCALING_PANIC = _of_operator(
    Kind.GAUGE,
    "scaling_panic",
    "1 while nothing is taken away, as the last seconds asked for twice what was ready.",
    **_OF_SERVICE,
)
OPERATOR_SERVICE_CONDITION = _of_operator(
    Kind.GAUGE,
    "service_condition",
    "1 for each condition of a service's status, with its answer and its reason.",
    **_OF_SERVICE,
    condition="docs/how-to/reasons.md",
    status="True, False, Unknown",
    reason="docs/how-to/reasons.md",
)
OPERATOR_SERVICE_REPLICAS = _of_operator(Kind.GAUGE, "service_replicas", "Pods that a service has.", **_OF_SERVICE)
OPERATOR_SERVICE_REPLICAS_READY = _of_operator(
    Kind.GAUGE, "service_replicas_ready", "Pods of a service that answer requests.", **_OF_SERVICE
)

ALL_OF_OPERATOR = tuple(each for each in tuple(globals().values()) if isinstance(each, Metric) and each not in ALL)
