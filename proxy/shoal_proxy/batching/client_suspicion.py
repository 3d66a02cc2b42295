"""Clients whose requests were lost with a runtime: whose requests run alone, and whose are rejected for a time.

A client that sends other rows in each request evades the isolation of payloads (`quarantine`): none of its payloads is
recognized. So losses are also counted by client:

    a batch is lost         its clients are on trial: their requests run alone until `trials` of them have succeeded.
                            Each loss doubles that number, up to `MAX_TRIALS`
    a trial is lost         its payload certainly crashes the runtime: an offence of its client
    `CLIENT_OFFENCES` lost  the client is paused: its requests are rejected for `FIRST_PAUSE_S`, then it is on trial.
                            Each further offence doubles the pause, up to `MAX_PAUSE_S`

One offence does not pause a client, since a single payload among many may crash the runtime by a fault of the model.
The offence of a payload counts once, for the first client whose trial it ends: many clients may send the same rows.
The pause of a client protects the others, so it has no effect while no other client has sent a request for `OTHERS_S`.
A runtime that ends by itself often does so soon after its start. So where trials of several clients are lost without a
success between them, only the first one counts.

Clients that share a name are one client. Requests without a name may come from any number of clients, so they are never
on trial.
"""

import hashlib
from collections import OrderedDict

from shoal_proxy.batching.pending import NEVER_S
from shoal_proxy.batching.recovery import ALONE_S

CLIENT_OFFENCES = 2
"""Different payloads of a client that were lost alone, after which it is paused."""
FIRST_PAUSE_S = 120.0
"""Long enough for the kubelet to restart a container that has ended some times within a minute."""
MAX_PAUSE_S = 3600.0
MAX_TRIALS = 8
"""Few, as clients of a model that ends without any fault of theirs are on trial after each of its losses."""
FORGET_S = 2 * MAX_PAUSE_S
"""Time to remember an offender after its last loss: longer than any pause. Other clients: `ALONE_S`."""
OTHERS_S = 300.0
MAX_CLIENTS = 1024


class _Record:
    """Losses of one client."""

    __slots__ = ("last_s", "losses", "offences", "paused_until_s", "trials")

    def __init__(self, now_s: float) -> None:
        self.losses = 0
        self.offences = 0
        self.trials = 0
        """Requests that must still succeed alone."""
        self.paused_until_s = -1.0
        self.last_s = now_s
        """Time of the last loss."""

    @property
    def pause_s(self) -> float:
        """Return the time without requests after the last offence; 0 below `CLIENT_OFFENCES`."""
        if self.offences < CLIENT_OFFENCES:
            return 0.0
        return min(MAX_PAUSE_S, FIRST_PAUSE_S * (1 << min(self.offences - CLIENT_OFFENCES, 30)))


class SuspectClients:
    """Clients with lost requests, by name."""

    def __init__(self) -> None:
        self._records: OrderedDict[bytes, _Record] = OrderedDict()
        """By digest of the name, which may be a credential; the client with the latest loss is last."""
        self._blamed: set[bytes] = set()
        """Up to two clients whose trials were lost since a batch has succeeded."""
        self._latest, self._latest_s = b"", -NEVER_S
        """The client of the latest request, and its time."""
        self._before_s = -NEVER_S
        """Time of the latest request of any other client."""

    @property
    def is_empty(self) -> bool:
        """Return whether no client is recorded."""
        return not self._records

    def record_arrival(self, name: str, now_s: float) -> None:
        """Record that a request of a client has arrived; drop the oldest record if its time is over."""
        if self._records:
            self._find(next(iter(self._records)), now_s)
        if (key := _digest(name)) != self._latest:
            self._latest, self._before_s = key, self._latest_s
        self._latest_s = now_s

    def is_on_trial(self, name: str, now_s: float) -> bool:
        """Return whether each request of the client must run alone."""
        record = self._find(_digest(name), now_s)
        return record is not None and (record.trials > 0 or now_s < record.paused_until_s)

    def is_offender(self, name: str, now_s: float) -> bool:
        """Return whether a trial of the client was lost."""
        record = self._find(_digest(name), now_s)
        return record is not None and record.offences > 0

    def pause_left_s(self, name: str, now_s: float) -> float:
        """Return for how long (s) further requests of the client are rejected; 0 if they are not."""
        record = self._find(_digest(name), now_s)
        if record is None or now_s >= record.paused_until_s:
            return 0.0
        other_s = self._before_s if _digest(name) == self._latest else self._latest_s
        return 0.0 if now_s - other_s >= OTHERS_S else record.paused_until_s - now_s

    def record_loss(self, name: str, now_s: float, *, sent_s: float, offends: bool = False) -> float:
        """Record that a batch with a request of the client was lost; return its new pause (s), or 0.

        Args:
            name: name of the client; without a name, nothing is recorded.
            now_s: monotonic time (s).
            sent_s: time at which the batch was sent. Losses of batches that ran at the same time have one cause.
            offends: whether the request ran alone, and its payload was not lost so before.
        """
        if not name:
            return 0.0
        key = _digest(name)
        record = self._find(key, now_s)
        if record is None:
            record = _Record(now_s)
        elif sent_s < record.last_s:
            return 0.0
        is_first = not self._records
        self._records[key] = record
        self._records.move_to_end(key)
        record.last_s = now_s
        record.losses += 1
        record.trials = min(MAX_TRIALS, 1 << min(record.losses - 1, 30))
        if len(self._records) > MAX_CLIENTS:
            self._records.popitem(last=False)
        self.record_arrival(name, now_s)
        if is_first:
            # Arrivals before were not recorded: other clients may have sent requests.
            self._before_s = now_s
        if not offends:
            return 0.0
        if len(self._blamed) < 2:
            self._blamed.add(key)
        if len(self._blamed) > 1:
            return 0.0
        record.offences += 1
        record.paused_until_s = now_s + record.pause_s
        return record.pause_s

    def record_completion(self) -> None:
        """Record that a batch of any clients has succeeded."""
        self._blamed.clear()

    def record_success(self, name: str) -> None:
        """Record that the runtime has executed a request of the client alone, and has not ended."""
        record = self._records.get(_digest(name))
        if record is not None and record.trials:
            record.trials -= 1
            if not record.trials and record.offences < CLIENT_OFFENCES:
                record.offences = 0  # a runtime that ends at random loses some trials of any client

    def _find(self, key: bytes, now_s: float) -> _Record | None:
        """Return a client's record; drop it if it is too old."""
        record = self._records.get(key)
        if record is None:
            return None
        if now_s - record.last_s < (FORGET_S if record.offences >= CLIENT_OFFENCES else ALONE_S):
            return record
        del self._records[key]
        return None


def _digest(name: str) -> bytes:
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()
