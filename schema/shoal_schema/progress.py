"""What the batch program tells of its progress: the document of ``GET /v1/progress``, and a pod's last words."""

from collections.abc import Sequence
from typing import Annotated, Final

from msgspec import Meta, Struct
from msgspec.structs import astuple

PATH: Final = "/v1/progress"
MAX_BYTES: Final = 4096
"""A document has about 200 bytes, and a message of at most 2000 characters at the end."""

Count = Annotated[int, Meta(ge=0, le=2**53)]


class Done(Struct, frozen=True, rename="camel"):
    """A part of a job that is done."""

    shards: Count = 0
    rows: Count = 0
    failed_rows: Count = 0
    bytes: Count = 0

    def __add__(self, other: "Done") -> "Done":
        """Return both."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Done(*(one + another for one, another in pairs))


class Progress(Struct, frozen=True, rename="camel"):
    """How far one worker of a job is.

    Args:
        shards_total: of the job.
        bytes_total: of its input.
        before: what other jobs had done with the same output, as this worker found it.
        own: what it has done itself, in this process or in one before; of its siblings nothing.
        rows_per_second: its pace.
        message: how it ended.
    """

    shards_total: Count
    bytes_total: Count
    before: Done
    own: Done
    rows_per_second: Annotated[float, Meta(ge=0, le=1e12)]
    message: Annotated[str, Meta(max_length=4096)] = ""


def together(told: Sequence[Progress]) -> Done:
    """Return what all workers of a job have done, and what was done before: that each of them tells."""
    before = max((each.before for each in told), key=lambda each: each.shards, default=Done())
    return sum((each.own for each in told), start=before)


def share(told: Sequence[Progress]) -> float:
    """Return how much of the input is done, 0 to 1."""
    total = max((each.bytes_total for each in told), default=0)
    return min(1.0, together(told).bytes / total) if total else 0.0
