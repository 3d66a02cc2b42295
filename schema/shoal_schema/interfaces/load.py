"""The document of ``GET /v1/load`` on a proxy's admin port.

The document holds counters and time integrals since the process started, so that two readings give exact means over any
interval: ``row_seconds`` gained / seconds gained is the mean number of rows in the system.
"""

from typing import Annotated, Final

from msgspec import Meta, Struct

PATH: Final = "/v1/load"
MAX_BYTES: Final = 4096
"""Limit of a document, which has about 700 bytes."""

LATENCY_BOUNDS_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Inclusive upper bounds of the buckets of latencies."""

Count = Annotated[int, Meta(ge=0, le=2**53)]
Seconds = Annotated[float, Meta(ge=0, le=1e12)]
Amount = Annotated[float, Meta(gt=0, le=1e9)]


class RejectedRows(Struct, frozen=True):
    """Rejected rows by reason, which count as demand: more replicas would have served them."""

    queue_rows: Count
    queue_bytes: Count
    late: Count
    """The response would have been later than the latency objective."""
    runtime_away: Count
    """Number of requests, not rows, because they were not parsed."""

    @property
    def rows(self) -> int:
        """Sum over all reasons."""
        return self.queue_rows + self.queue_bytes + self.late + self.runtime_away


class Capacity(Struct, frozen=True):
    """Capacity of a replica within its latency objective, from measured batch times."""

    rows_per_s: Amount
    rows: Amount
    """Mean number of queued and running rows at that rate."""


class GraphState(Struct, frozen=True):
    """Whether a graph's models respond and fit one another."""

    reason: Annotated[str, Meta(max_length=64)]
    """`GraphValid`, a fault of `graphs.faults`, or `StepNotReady` if a model has not reported its inputs."""
    message: Annotated[str, Meta(max_length=1024)]
    """The reason in a sentence, with the field at fault."""


GRAPH_VALID: Final = "GraphValid"
STEP_NOT_READY: Final = "StepNotReady"


class RowsChecked(Struct, frozen=True):
    """Result of verifying that each row of a batch gets its own result."""

    independent: bool
    checked: Count = 0
    """Rows run again."""
    violations: Count = 0
    """Models found to mix rows since the process started."""
    unchecked: Annotated[str, Meta(max_length=64)] = ""
    """Reason that rows of this model are not verified; empty if they are."""


class Load(Struct, frozen=True):
    """Load report of one proxy."""

    # Counters and integrals since the process started.
    time_s: Seconds
    """Reading of the proxy's monotonic clock."""
    queued_rows: Count
    """Rows in the queue, and of asynchronous requests that wait outside of it."""
    running_rows: Count
    """Rows at the runtime."""
    arrived_rows: Count
    """All requested rows, including rejected and forwarded ones."""
    answered_rows: Count
    refused_rows: RejectedRows
    forwarded_rows: Count
    """Rows forwarded to a peer: demand there, not here."""
    row_seconds: Seconds
    """Queued and running rows, integrated over time."""
    queued_row_seconds: Seconds
    busy_s: Seconds
    """Time with a batch at the runtime."""
    # Present state.
    utilization: Annotated[float, Meta(ge=0, le=1)]
    """Arrival rate / capacity over the last second; the share of busy time until capacity is measured."""
    objective_attainable: bool
    """Whether a single request meets the latency objective; true without an objective."""
    draining: bool
    capacity: Capacity | None = None
    """None before the first batch."""
    expected_wait_s: Seconds | None = None
    """Expected time until the response of a request of one row that arrives now; None if none is accepted."""
    # Fields that older proxies do not send.
    batches: Count = 0
    """Batches with a response; 0 from older proxies."""
    graph: GraphState | None = None
    """None unless the proxy runs a graph."""
    rows: RowsChecked | None = None
    """None if rows are not verified."""
    precision: Annotated[str, Meta(pattern="^[A-Za-z0-9]{0,16}\\Z")] = ""
    """The precision that the runtime chose by measurement; empty if it chose none."""
    latency_counts: Annotated[tuple[Count, ...], Meta(max_length=len(LATENCY_BOUNDS_S) + 1)] = ()
    """Requests with a result by the time from arrival to response: of each bucket, and beyond the last bound."""
