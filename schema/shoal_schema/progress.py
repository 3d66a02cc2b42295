"""What the batch program tells of its progress: the document of ``GET /v1/progress``, and a pod's last words."""

from typing import Annotated, Final

from msgspec import Meta, Struct

PATH: Final = "/v1/progress"
MAX_BYTES: Final = 4096
"""A document has about 200 bytes, and a message of at most 2000 characters at the end."""

Count = Annotated[int, Meta(ge=0, le=2**53)]


class Progress(Struct, frozen=True, rename="camel"):
    """How far one worker sees a job: what was written down before it began, and what it did itself."""

    shards_done: Count
    shards_total: Count
    rows: Count
    failed_rows: Count
    rows_per_second: Annotated[float, Meta(ge=0, le=1e12)]
    bytes_done: Count = 0
    bytes_total: Count = 0
    message: Annotated[str, Meta(max_length=4096)] = ""

    @property
    def share(self) -> float:
        """How much of the input is done, 0 to 1."""
        done, total = (self.bytes_done, self.bytes_total) if self.bytes_total else (self.shards_done, self.shards_total)
        return min(1.0, done / total) if total else 0.0
