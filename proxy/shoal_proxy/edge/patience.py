"""How long a caller may take over what it does. Pure: times are arguments, in monotonic seconds."""

from typing import NamedTuple


class Patience(NamedTuple):
    """How long each of a connection's doings may last."""

    head_s: float
    """From a connection's start until its first head is here; from any head's first byte until its last."""
    body_s: float
    """How long a body may come more slowly than ``min_bytes_per_s``."""
    write_s: float
    """How long an answer may be taken more slowly than that."""
    idle_s: float
    """Between an answer and the next request."""
    min_bytes_per_s: float

    def keeps_up(self, moved_bytes: int, elapsed_s: float) -> bool:
        """Tell whether so many bytes in such a time are enough to go on.

        A total alone would cut off a large body on a slow line. A rate from its beginning would let one that came
        quickly stall for as long as it has earned. So each stretch of time has to keep the rate.
        """
        return moved_bytes >= self.min_bytes_per_s * elapsed_s
