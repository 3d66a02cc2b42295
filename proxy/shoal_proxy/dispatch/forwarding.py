"""Request forwarding: sends a request that would be late to a peer, once.

The peer is the one that is expected to finish first. Its result is encoded for the client like a result of this
replica's runtime.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Final

from shoal_proxy.balance.peers import choose_peer
from shoal_proxy.batching.batcher import Batcher
from shoal_proxy.batching.pending import PendingRequest
from shoal_proxy.certificate import Certificate
from shoal_proxy.dispatch.remote_requests import MIN_LEFT_S, RemoteCall, RemoteOutcome, RemoteRequests, is_forwardable
from shoal_proxy.dispatch.replicas import RemoteReplicas, ReplicaLink
from shoal_proxy.dispatch.upstream import Upstream
from shoal_proxy.errors import Overloaded, ProxyError
from shoal_proxy.model.signature import ModelSignature
from shoal_proxy.observe.metrics import Metrics
from shoal_proxy.settings import Settings
from shoal_schema.interfaces.metrics import RejectionReason

BATCHES_AT_ONCE: Final = 2
"""Maximum full batches of rows forwarded to one peer: a running and a waiting batch."""
EARLY_SHARE: Final = 0.5
"""A request that may still be served here is forwarded only to a peer that finishes it within this share of its
remaining time. A slower peer is about as busy, and busy replicas achieve more with larger batches than by exchanging
late requests."""
_OWN_WEIGHT: Final = 0.1
"""Weight of the newest batch in the moving average of failures here."""


class RequestForwarder:
    """Forwards requests to peers, and delivers the peers' results.

    All methods must be called in the event loop's thread.
    """

    def __init__(
        self,
        settings: Settings,
        batcher: Batcher,
        metrics: Metrics,
        instance: bytes,
        certificate: Certificate | None = None,
    ) -> None:
        self.replicas = RemoteReplicas(
            settings.process.peers,
            lambda address: Upstream(address, settings.name, on_lost=lambda: None, certificate=certificate),
            instance,
        )
        self.requests = RemoteRequests(settings, self.replicas)
        self._batcher = batcher
        self._metrics = metrics
        self._own_failures = 0.0
        """Share of this replica's last batches in which the model failed."""
        self.on_ended: Callable[[], None] = lambda: None
        self.on_returned: Callable[[PendingRequest], None] = lambda _: None

    def record_local_batch(self, *, failed: bool) -> None:
        """Record whether a batch failed on this replica.

        Failures at a peer count against the peer only while the model does not fail on this replica too.
        """
        self._own_failures += _OWN_WEIGHT * (failed - self._own_failures)

    def forward(self, pending: PendingRequest, rejection: ProxyError | None, signature: ModelSignature | None) -> bool:
        """Forward a request; return False if no peer is expected to finish it in time.

        The request's outcome is delivered once: the peer's result, or ``rejection``. Without ``rejection`` this replica
        may still serve the request, and admits it again if the peer did not run it.
        """
        if signature is None or not is_forwardable(pending, signature):
            return False
        now_s = time.monotonic()
        self.replicas.press(now_s)
        soft_deadline_s = self._batcher.soft_deadline_for(pending)
        if soft_deadline_s - now_s < MIN_LEFT_S:
            return False
        peer = choose_peer(
            list(self.replicas.link_of),
            pending.rows,
            soft_deadline_s=soft_deadline_s
            if rejection is not None
            else now_s + EARLY_SHARE * (soft_deadline_s - now_s),
            now_s=now_s,
            row_s=self._batcher.row_s(pending.key),
            most_rows=BATCHES_AT_ONCE * self._batcher.limits.max_rows,
        )
        if peer is None:
            return False
        pending.queued_s = now_s - pending.arrived_s
        link = self.replicas.link_of[peer]
        ended = partial(self._ended, link, pending, rejection)
        self.requests.send(RemoteCall(link, pending, signature, soft_deadline_s, ended))
        if rejection is not None:
            pending.resolve(rejection)  # removes it from the queue and its deadlines
        return True

    def close(self) -> None:
        """Close the connections to all peers."""
        self.replicas.close()

    async def watch(self) -> None:
        """Resolve the peers and request their load, until cancelled."""
        await self.replicas.watch()

    def _ended(
        self, link: ReplicaLink, pending: PendingRequest, rejection: ProxyError | None, ended: RemoteOutcome
    ) -> None:
        end, outcome = ended.end, ended.outcome
        link.peer.record_outcome(pending.rows, end, time.monotonic(), self._own_failures)
        self._metrics.forwarded[end] += 1
        if rejection is None and pending.resolved:
            pass  # its client has disconnected
        elif outcome is None and rejection is None and not pending.may_have_run:
            self.on_returned(pending)
        else:
            late = Overloaded("the request would miss its deadline", reason=RejectionReason.LATE, retry_after_s=1)
            pending.resolve(outcome := outcome or rejection or late)
            pending.deliver_outcome(outcome)
        self.on_ended()
