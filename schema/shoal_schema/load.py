"""What a proxy tells of its load: the document of ``GET /v1/load`` on its admin port.

Counters and integrals of time since the process began, so that whoever reads twice has exact means over the time
between, however long that was: ``row_seconds`` gained by the seconds gained is the mean number of rows in the system.
"""

from typing import Annotated, Final

from msgspec import Meta, Struct

PATH: Final = "/v1/load"
MAX_BYTES: Final = 4096
"""A document has about 700 bytes; whoever sends more is no proxy."""

Count = Annotated[int, Meta(ge=0, le=2**53)]
Seconds = Annotated[float, Meta(ge=0, le=1e12)]
Amount = Annotated[float, Meta(gt=0, le=1e9)]


class Refused(Struct, frozen=True):
    """Rows that were refused, by reason. They are demand: so many more would have been served by more replicas."""

    queue_rows: Count
    queue_bytes: Count
    late: Count
    """The answer would have come after the latency objective."""
    runtime_away: Count
    """Requests, not rows: they were not read."""

    @property
    def rows(self) -> int:
        """All of them."""
        return self.queue_rows + self.queue_bytes + self.late + self.runtime_away


class Capacity(Struct, frozen=True):
    """What one replica can serve with its objective kept, learned from what batches took."""

    rows_per_s: Amount
    rows: Amount
    """In the system then, waiting and running, mean."""


class GraphState(Struct, frozen=True):
    """Whether a graph's models can be asked and fit one another."""

    reason: Annotated[str, Meta(max_length=64)]
    """`GraphValid`, a fault of `graphs.faults`, or `StepNotReady` where a model does not say yet what it takes."""
    message: Annotated[str, Meta(max_length=1024)]
    """The same in a sentence, with the field at fault."""


GRAPH_VALID: Final = "GraphValid"
STEP_NOT_READY: Final = "StepNotReady"


class RowsChecked(Struct, frozen=True):
    """Whether each row gets a result of its own, as far as rows that were run again tell."""

    independent: bool
    checked: Count = 0
    """Rows run again."""
    violations: Count = 0
    """Models found to mix rows since the process began."""
    unchecked: Annotated[str, Meta(max_length=64)] = ""
    """Why rows of this model are not checked; empty where they are."""


class Load(Struct, frozen=True):
    """What one proxy holds, has done and can do."""

    time_s: Seconds
    """Of the proxy's own monotonic clock."""
    queued_rows: Count
    running_rows: Count
    """At the runtime."""
    arrived_rows: Count
    """All that callers asked for, refused and handed over ones included."""
    answered_rows: Count
    refused_rows: Refused
    handed_over_rows: Count
    """That were given to a sibling: demand there, not here."""
    row_seconds: Seconds
    """Rows waiting and running, integrated over time."""
    queued_row_seconds: Seconds
    busy_s: Seconds
    """With a batch at the runtime."""
    utilization: Annotated[float, Meta(ge=0, le=1)]
    """Of the last second or so: what arrived by what can be served; until that is learned, the share that was busy."""
    objective_attainable: bool
    """Whether a request alone would meet the latency objective; true where there is none."""
    draining: bool
    capacity: Capacity | None = None
    """None before the first batch."""
    expected_wait_s: Seconds | None = None
    """Until the answer, of a request of one row that arrived now; None where none is taken."""
    batches: Count = 0
    """That were answered. Older proxies do not say."""
    graph: GraphState | None = None
    """Of a proxy that runs a graph."""
    rows: RowsChecked | None = None
    """None of a proxy that checks none."""
