"""Requests that made their batch fail: a payload that fails repeatedly runs alone for a while.

A payload is recognized by a digest of its bytes. Digests are computed only while there are suspects, and only of
requests that look like one: the same rows, bytes and first values.
"""

import hashlib
from collections import Counter, OrderedDict
from typing import NamedTuple

from shoal_proxy.batching.pending import PendingRequest

OFFENCES = 2
"""Failures after which a payload runs alone."""
ALONE_S = 300.0
"""Time to remember a payload after its last failure."""
_MAX_RECORDS = 1024
_FIRST_VALUES = 8
_Traits = tuple[int, int, object]
"""Features of a payload that cost nothing to read."""


class _Record(NamedTuple):
    traits: _Traits
    times: int
    last_s: float


def payload_digest(pending: PendingRequest) -> bytes:
    """Return a digest of a request's rows and lengths."""
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


class SuspectPayloads:
    """Payloads that failed alone, with the number and time of failures; the oldest are dropped first."""

    def __init__(self) -> None:
        self._failed: OrderedDict[bytes, _Record] = OrderedDict()
        self._traits: Counter[_Traits] = Counter()

    def failed(self, pending: PendingRequest, now_s: float) -> None:
        """Record that ``pending`` failed alone."""
        mark, traits = payload_digest(pending), _traits_of(pending)
        before = self._failed.pop(mark, None)
        self._failed[mark] = _Record(traits, 1 if before is None else before.times + 1, now_s)
        if before is None:
            self._traits[traits] += 1
        if len(self._failed) > _MAX_RECORDS:
            self._forget(next(iter(self._failed)))

    def must_run_alone(self, pending: PendingRequest, now_s: float) -> bool:
        """Return whether ``pending`` failed repeatedly in the last minutes."""
        # The digest is computed only of requests that look like a suspect.
        if not self._traits or _traits_of(pending) not in self._traits:
            return False
        record = self._failed.get(payload_digest(pending))
        return record is not None and record.times >= OFFENCES and now_s - record.last_s < ALONE_S

    def forget_old(self, now_s: float) -> None:
        """Drop expired payloads."""
        while self._failed and now_s - next(iter(self._failed.values())).last_s >= ALONE_S:
            self._forget(next(iter(self._failed)))

    def _forget(self, mark: bytes) -> None:
        traits = self._failed.pop(mark).traits
        self._traits[traits] -= 1
        if not self._traits[traits]:
            del self._traits[traits]


def _traits_of(pending: PendingRequest) -> _Traits:
    first = next(iter(pending.inputs.values())).flat[:_FIRST_VALUES]
    if first.dtype.hasobject:  # elements may be large, such as pictures: compare their first bytes
        return pending.rows, pending.size_bytes, tuple(element[:_FIRST_VALUES] for element in first)
    return pending.rows, pending.size_bytes, first.tobytes()
