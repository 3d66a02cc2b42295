"""The document of ``GET /v1/progress`` of a batch process.

At its end the process also writes the document as the termination message of its container.
"""

from collections.abc import Sequence
from typing import Annotated, Final

from msgspec import Meta, Struct
from msgspec.structs import astuple

PATH: Final = "/v1/progress"
MAX_BYTES: Final = 4096
"""Limit of a document, which has about 200 bytes, and at the end a message of up to 2000 characters."""

Count = Annotated[int, Meta(ge=0, le=2**53)]


class WorkDone(Struct, frozen=True, rename="camel"):
    """Finished work of a job."""

    shards: Count = 0
    rows: Count = 0
    failed_rows: Count = 0
    bytes: Count = 0

    def __add__(self, other: "WorkDone") -> "WorkDone":
        """Return the sum of two amounts of work."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return WorkDone(*(one + another for one, another in pairs))


class JobProgress(Struct, frozen=True, rename="camel"):
    """Progress of one worker of a job."""

    shards_total: Count
    """Of the job."""
    bytes_total: Count
    """Of the job's input."""
    before: WorkDone
    """Work of other jobs with the same output, as this worker found it."""
    own: WorkDone
    """Work of this worker, in this process and earlier ones."""
    rows_per_second: Annotated[float, Meta(ge=0, le=1e12)]
    """The present rate."""
    message: Annotated[str, Meta(max_length=4096)] = ""
    """The result, at the end."""


def combined_work(reports: Sequence[JobProgress]) -> WorkDone:
    """Return the finished work of all workers and of earlier jobs.

    Each worker reports the same work of earlier jobs; it is counted once.
    """
    # Every worker reports the same earlier work, or less if it read it earlier.
    before = max((each.before for each in reports), key=lambda each: each.shards, default=WorkDone())
    return sum((each.own for each in reports), start=before)


def share(reports: Sequence[JobProgress]) -> float:
    """Return the finished share of the input, 0 to 1."""
    total = max((each.bytes_total for each in reports), default=0)
    return min(1.0, combined_work(reports).bytes / total) if total else 0.0
