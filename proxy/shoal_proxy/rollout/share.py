"""The share of requests and batches that go to a candidate.

Requests are counted, so that the share is exact: after any number of requests, at most one more or less than the share
has been chosen. The place within each interval varies (by the golden ratio), so that traffic with a period, such as two
clients in turn, is sampled evenly.

With a sticky header, a hash of its value decides. A client that is chosen at a small share stays chosen at a larger
one. Each candidate revision chooses other clients.
"""

import hashlib
from typing import Final

_GOLDEN: Final = 0.6180339887498949
_FULL: Final = float(1 << 64)


class ExactShare:
    """Chooses an exact share of consecutive events."""

    __slots__ = ("_credit", "_turn")

    def __init__(self) -> None:
        self._credit = 0.0
        self._turn = 0.5
        """The credit at which the next event is chosen, 0 to 1."""

    def takes(self, share: float) -> bool:
        """Count an event, and return whether it is chosen."""
        if share <= 0.0:
            return False
        if share >= 1.0:
            return True
        self._credit += share
        if self._credit <= self._turn:
            return False
        self._credit -= 1.0
        self._turn = (self._turn + _GOLDEN) % 1.0
        return True


def is_in_share(value: bytes, revision: str, share: float) -> bool:
    """Return whether the client with this header value is in the share of a candidate revision."""
    digest = hashlib.blake2b(value, digest_size=8, key=revision.encode()).digest()
    return int.from_bytes(digest) / _FULL < share
