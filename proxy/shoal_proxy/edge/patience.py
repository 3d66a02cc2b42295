"""How long a caller may take over what it does. Pure: times are arguments, in monotonic seconds."""

from __future__ import annotations

from typing import NamedTuple


class Patience(NamedTuple):
    """How long each of a connection's doings may last."""

    head_s: float
    """From a connection's start until its first head is here; from any head's first byte until its last."""
    body_s: float
    """For a body that comes more slowly than ``min_bytes_per_s``."""
    write_s: float
    """For an answer that is taken more slowly than that."""
    idle_s: float
    """Between an answer and the next request."""
    min_bytes_per_s: float

    def moved_by_s(self, since_s: float, allowed_s: float, moved_bytes: int) -> float:
        """Return when bytes that have been moving since ``since_s`` must all have moved.

        A total alone would cut off a large body on a slow line, a rate alone one that pauses: each byte that has moved
        earns its own time on top of ``allowed_s``. Who keeps the rate is never late, who does not is soon.
        """
        return since_s + allowed_s + moved_bytes / self.min_bytes_per_s
