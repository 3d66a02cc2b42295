"""Requests that made their batch fail: whoever does it again travels alone for a while.

A payload is told by a fingerprint of its bytes. Nothing is computed for a request unless there are suspects, and then
only of those that look like one: the same rows, bytes and first values.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping

from shoal_proxy.batching.pending import Pending
from shoal_proxy.model.datatypes import Array

OFFENCES = 2
"""Failures after which a payload travels alone."""
ALONE_S = 300.0
"""How long it does, from its last failure."""
_MOST = 1024


def digest(inputs: Mapping[str, Array]) -> bytes:
    """Return a fingerprint of all that a request holds."""
    digester = hashlib.blake2b(digest_size=16)
    for name, array in inputs.items():
        digester.update(f"{name} {array.dtype} {array.shape} ".encode())
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
        self._failed: OrderedDict[bytes, tuple[int, float]] = OrderedDict()
        self._looks: dict[tuple[int, int], int] = {}

    def failed(self, pending: Pending, now_s: float) -> None:
        """Remember that ``pending`` made a batch fail, and failed alone too."""
        mark = digest(pending.inputs)
        count, _ = self._failed.pop(mark, (0, 0.0))
        self._failed[mark] = (count + 1, now_s)
        look = (pending.rows, pending.size_bytes)
        if not count:
            self._looks[look] = self._looks.get(look, 0) + 1
        if len(self._failed) > _MOST:
            self._failed.popitem(last=False)

    def must_go_alone(self, pending: Pending, now_s: float) -> bool:
        """Tell whether ``pending`` has offended so often, so lately, that nobody should share a batch with it."""
        if (pending.rows, pending.size_bytes) not in self._looks:
            return False
        count, last_s = self._failed.get(digest(pending.inputs), (0, 0.0))
        return count >= OFFENCES and now_s - last_s < ALONE_S

    def forget_old(self, now_s: float) -> None:
        """Forget those whose time is over."""
        self._failed = OrderedDict(item for item in self._failed.items() if now_s - item[1][1] < ALONE_S)
        if not self._failed:
            self._looks.clear()
