"""Requests that made their batch fail: whoever does it again travels alone for a while.

A payload is told by a fingerprint of its bytes. Nothing is computed for a request unless there are suspects, and then
only of those that look like one: the same rows, bytes and first values.
"""

import hashlib
from collections import Counter, OrderedDict
from typing import NamedTuple

from shoal_proxy.batching.pending import Pending

OFFENCES = 2
"""Failures after which a payload travels alone."""
ALONE_S = 300.0
"""How long it does, from its last failure."""
_MAX_RECORDS = 1024
_FIRST_VALUES = 8
_Look = tuple[int, int, object]
"""What can be told of a payload at no cost."""


class _Record(NamedTuple):
    look: _Look
    times: int
    last_s: float


def digest(pending: Pending) -> bytes:
    """Return a fingerprint of all that a request's rows hold, and how much of it is padding."""
    digester = hashlib.blake2b(digest_size=16)
    for name, array in pending.inputs.items():
        digester.update(f"{name} {array.dtype} {array.shape} {list(pending.lengths.get(name, ()))} ".encode())
        if array.dtype.hasobject:
            for element in array.ravel().tolist():
                digester.update(len(element).to_bytes(8, "little"))
                digester.update(element)
        else:
            digester.update(array.tobytes())
    return digester.digest()


class Suspects:
    """The payloads that failed alone, with how often and when last; the oldest are forgotten first."""

    def __init__(self) -> None:
        self._failed: OrderedDict[bytes, _Record] = OrderedDict()
        self._looks: Counter[_Look] = Counter()

    def failed(self, pending: Pending, now_s: float) -> None:
        """Remember that ``pending`` failed alone."""
        mark, look = digest(pending), _look(pending)
        before = self._failed.pop(mark, None)
        self._failed[mark] = _Record(look, 1 if before is None else before.times + 1, now_s)
        if before is None:
            self._looks[look] += 1
        if len(self._failed) > _MAX_RECORDS:
            self._forget(next(iter(self._failed)))

    def must_go_alone(self, pending: Pending, now_s: float) -> bool:
        """Return whether ``pending`` has offended so often, so lately, that nobody should share a batch with it."""
        if not self._looks or _look(pending) not in self._looks:
            return False
        record = self._failed.get(digest(pending))
        return record is not None and record.times >= OFFENCES and now_s - record.last_s < ALONE_S

    def forget_old(self, now_s: float) -> None:
        """Forget those whose time is over."""
        while self._failed and now_s - next(iter(self._failed.values())).last_s >= ALONE_S:
            self._forget(next(iter(self._failed)))

    def _forget(self, mark: bytes) -> None:
        look = self._failed.pop(mark).look
        self._looks[look] -= 1
        if not self._looks[look]:
            del self._looks[look]


def _look(pending: Pending) -> _Look:
    first = next(iter(pending.inputs.values())).flat[:_FIRST_VALUES]
    if first.dtype.hasobject:  # a picture, perhaps: its first bytes will do
        return pending.rows, pending.size_bytes, tuple(element[:_FIRST_VALUES] for element in first)
    return pending.rows, pending.size_bytes, first.tobytes()
