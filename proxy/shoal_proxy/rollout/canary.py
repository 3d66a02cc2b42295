"""The share of requests that a candidate serves.

A request that the candidate has certainly not run is served here. If it may have run, its client gets an error, as a
row never runs twice, unless the model is declared idempotent.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Final

from shoal_proxy.balance.peers import ForwardingOutcome
from shoal_proxy.batching.batcher import Batcher
from shoal_proxy.batching.pending import PendingRequest, RequestResult
from shoal_proxy.dispatch.remote_requests import (
    MIN_LEFT_S,
    NO_HEADERS,
    RemoteCall,
    RemoteOutcome,
    RemoteRequests,
    is_forwardable,
)
from shoal_proxy.dispatch.replicas import ReplicaLink
from shoal_proxy.errors import DeadlineExceeded, Draining, ModelFailed, ProxyError, RuntimeLost
from shoal_proxy.model.signature import ModelSignature
from shoal_proxy.rollout.candidates import CandidatePods
from shoal_proxy.rollout.counts import RolloutCounts, failed_rows
from shoal_proxy.rollout.share import ExactShare, is_in_share
from shoal_proxy.settings import Settings
from shoal_schema.interfaces.headers import RETURN_MS
from shoal_schema.interfaces.rollout import RolloutPlan

_IDEMPOTENT_SHARE: Final = 0.5
"""Share of its time that an idempotent request may wait for the candidate: the rest is enough to run it here."""
_RESERVE_SHARE: Final = 0.5
_RESERVE_WAITS: Final = 2.0
_RESERVE_PART: Final = 0.1
"""A request that has not begun at the candidate returns before its deadline: by so many times the wait expected here,
plus a part of its time for what no wait predicts, such as a busy machine; at most by `_RESERVE_SHARE` of its time."""
_RETURN_MS: Final = RETURN_MS.encode()
INVALID_ROWS: Final = frozenset({400, 404, 413, 415, 501})
"""Statuses with which a candidate rejects rows that this revision accepts: a failure, and not overload."""


class CanaryTraffic:
    """Forwards requests of clients to the candidate, and delivers their outcomes."""

    def __init__(self, settings: Settings, pods: CandidatePods, batcher: Batcher) -> None:
        self._batcher = batcher
        self.requests = RemoteRequests(settings, pods.replicas)
        self._pods = pods
        self._idempotent = settings.batching.idempotent
        self._share = ExactShare()
        self.on_returned: Callable[[PendingRequest], None] = lambda _: None
        self.on_served: Callable[[PendingRequest], None] = lambda _: None
        self.on_ended: Callable[[], None] = lambda: None

    def forward(
        self, pending: PendingRequest, signature: ModelSignature, plan: RolloutPlan, counts: RolloutCounts
    ) -> bool:
        """Send a request to the candidate if it is in the plan's share; return whether it was sent."""
        if pending.shadow or not is_forwardable(pending, signature):
            return False
        if pending.sticky:
            chosen = is_in_share(pending.sticky, plan.candidate, plan.weight)
        else:
            chosen = self._share.takes(plan.weight)
        if not chosen:
            return False
        now_s = time.monotonic()
        self._pods.replicas.press(now_s)
        link = self._pods.choose(pending.rows, pending.key, pending.deadline_s, now_s)
        candidate = None if link is None else self._pods.known_signature(link)
        if link is None or candidate is None or pending.deadline_s - now_s < MIN_LEFT_S:
            counts.returned_requests += 1
            return False
        pending.queued_s = now_s - pending.arrived_s
        left_s = pending.deadline_s - now_s
        deadline_s = now_s + (_IDEMPOTENT_SHARE if self._idempotent else 1.0) * left_s
        extra = NO_HEADERS
        if not self._idempotent:
            wait_s = self._batcher.expected_wait_s(pending.key, now_s) + pending.rows * self._batcher.row_s(pending.key)
            extra = {_RETURN_MS: b"%.3f" % (1000 * reserve_s(left_s, wait_s))}
        number = self._pods.begin(link, now_s)
        ended = partial(self._ended, link, pending, plan.candidate.encode(), counts, number)
        try:
            self.requests.send(RemoteCall(link, pending, candidate, deadline_s, ended, extra))
        except Exception:  # it cannot be encoded for the candidate's signature
            self._pods.end(link, number)
            counts.returned_requests += 1
            return False
        return True

    def _ended(
        self,
        link: ReplicaLink,
        pending: PendingRequest,
        revision: bytes,
        counts: RolloutCounts,
        number: int,
        ended: RemoteOutcome,
    ) -> None:
        self._pods.end(link, number)
        self._pods.record_outcome(link, pending.rows, ended)
        end = ended.end
        if end is ForwardingOutcome.CANCELLED and not pending.may_have_run:
            self.on_ended()  # its client has disconnected
            return
        outcome = ended.outcome or _error(end, ended.status)
        may_have_run = ended.outcome is not None or pending.may_have_run
        if may_have_run:
            counts.record_candidate(pending.rows, outcome)
        elif ended.status in INVALID_ROWS:
            counts.record_candidate(pending.rows, ModelFailed("rejected"))
        failed = not isinstance(outcome, RequestResult) and failed_rows(outcome, pending.rows) > 0
        if pending.resolved:
            pass  # its client has disconnected
        elif not may_have_run or (failed and self._idempotent and end is not ForwardingOutcome.CANCELLED):
            counts.returned_requests += 1
            self.on_returned(pending)
        else:
            pending.revision = revision
            self.on_served(pending)
            pending.resolve(outcome)
            pending.deliver_outcome(outcome)
        self.on_ended()


def reserve_s(left_s: float, wait_s: float) -> float:
    """Return how long before its deadline a request that has not begun at the candidate returns.

    Args:
        left_s: time until its deadline.
        wait_s: time that it would take here.
    """
    return min(_RESERVE_SHARE * left_s, _RESERVE_WAITS * wait_s + _RESERVE_PART * left_s)


def _error(end: ForwardingOutcome, status: int) -> ProxyError:
    """Return the client's error for a request that the candidate may have run, without a usable response.

    ``status`` is that of the candidate's response; 0 without one.
    """
    error: ProxyError
    if status == RuntimeLost.status:
        error = RuntimeLost("the candidate's runtime, or its pod, stopped before the result was ready")
    elif end is ForwardingOutcome.LATE:
        error = DeadlineExceeded("the candidate did not respond before the deadline")
    elif end is ForwardingOutcome.BROKEN:
        error = ModelFailed("the candidate's response is invalid")
    elif end is ForwardingOutcome.CANCELLED:
        error = Draining("this replica stopped before the result was ready")
    else:
        error = RuntimeLost("the connection to the candidate was lost")
    error.may_have_run = True
    return error
