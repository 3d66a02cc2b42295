"""Leases of replicas in a store: which replicas have stopped, and whose requests others must continue.

Each replica renews its lease periodically. A lease counts as ended once it has not changed for `LEASE_S` of the
observer's own clock, so that the clocks of replicas and store need not agree.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

RENEW_S: Final = 5.0
"""Interval at which a replica renews its lease, and looks for requests of stopped replicas."""
LEASE_S: Final = 30.0


class _Observed(NamedTuple):
    version: str
    since_s: float


class Leases:
    """The leases of all replicas, as one replica observes them.

    Args:
        own: name of this process, ``INSTANCE.RANDOM``.
    """

    def __init__(self, own: str) -> None:
        self._own = own
        self._instance = own.rpartition(".")[0]
        self._observed: dict[str, _Observed] = {}

    def observe(self, versions: Mapping[str, str], now_s: float) -> None:
        """Record the leases in the store.

        Args:
            versions: by name of a process, a text that changes with each renewal.
            now_s: monotonic time.
        """
        for name, version in versions.items():
            before = self._observed.get(name)
            if before is None or before.version != version:
                self._observed[name] = _Observed(version, now_s)
        for name in self._observed.keys() - versions.keys():
            del self._observed[name]

    def is_alive(self, name: str, now_s: float) -> bool:
        """Return whether a process may still run; one without a lease has stopped."""
        if name == self._own:
            return True
        if name.rpartition(".")[0] == self._instance:
            return False  # an earlier process of this replica
        lease = self._observed.get(name)
        return lease is not None and now_s - lease.since_s < LEASE_S
