"""Request forwarding: sends a request that would be late to a peer, once.

The peer is the one that is expected to finish first. The request is sent as V2 with binary tensors and its remaining
time, regardless of its original protocol. The peer's result is encoded for the client like a result of this replica's
runtime. Peers are resolved by DNS every few seconds, and their load is requested periodically, more often while
requests would be late on this replica.
"""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from shoal_proxy.balance.orca import parse_expected_wait_s
from shoal_proxy.balance.peers import ForwardingOutcome, Peer, choose_peer, least_recently_polled
from shoal_proxy.batching.batch import check_rows, make_batch
from shoal_proxy.batching.batcher import Batcher
from shoal_proxy.batching.pending import Outcome, PendingRequest, RequestResult, RequestSlice
from shoal_proxy.certificate import Certificate
from shoal_proxy.codecs.upstream import decode_failure, decode_result, decode_rows_failed, encode_batch
from shoal_proxy.dispatch.runtime_connection import RuntimeResponse
from shoal_proxy.dispatch.upstream import Upstream
from shoal_proxy.errors import ModelFailed, Overloaded, ProxyError
from shoal_proxy.model.signature import ModelSignature
from shoal_proxy.observe.metrics import Metrics
from shoal_proxy.settings import Settings
from shoal_schema.fields.addresses import Address, TcpAddress, parse_tcp_address
from shoal_schema.interfaces.headers import (
    EXECUTED,
    FORWARDED,
    HEADER_LENGTH,
    INSTANCE,
    LOAD,
    LOAD_FORMAT,
    PRIORITY,
    TIMEOUT_MS,
)
from shoal_schema.interfaces.metrics import RejectionReason

logger = logging.getLogger(__name__)

RESOLVE_S: Final = 3.0
"""The interval of DNS lookups."""
ASK_S: Final = 0.5
ASK_PRESSED_S: Final = 0.1
"""The intervals of load requests: normally, and while requests would be late here."""
PRESSED_S: Final = 1.0
"""Duration of the short interval after the last such request."""
ASKED_AT_ONCE: Final = 4
"""Peers whose load is requested at a time: in a large fleet, each replica polls a different subset."""
BATCHES_AT_ONCE: Final = 2
"""Maximum full batches of rows forwarded to one peer: a running and a waiting batch."""
ANSWER_WITHIN_S: Final = 0.25
EARLY_SHARE: Final = 0.5
"""A request that may still be served here is forwarded only to a peer that finishes it within this share of its
remaining time. A slower peer is about as busy, and busy replicas achieve more with larger batches than by exchanging
late requests."""
MIN_LEFT_S: Final = 0.001
"""A request with less time left is not forwarded."""
_ASKING: Final = [(FORWARDED.encode(), b"1"), (LOAD_FORMAT.encode(), b"TEXT")]
_EXECUTED, _HEADER_LENGTH = EXECUTED.encode(), HEADER_LENGTH.encode()
_INSTANCE, _LOAD = INSTANCE.encode(), LOAD.encode()
_TIMEOUT_MS, _PRIORITY = TIMEOUT_MS.encode(), PRIORITY.encode()
_NOT_TAKEN: Final = frozenset({400, 401, 403, 404, 408, 413, 415, 429, 431, 501, 503, 504})
"""Statuses of a peer that did not run the request: it is busy, or of another revision."""
_OWN_WEIGHT: Final = 0.1
"""Weight of the newest batch in the moving average of failures here."""


Body = tuple[bytes, list[bytes | memoryview]]
"""The JSON part of a request, and its binary tensors."""


Given = tuple[ForwardingOutcome, Outcome | None]
"""How a forwarded request ended, and its outcome; None: the one that it would have had here."""


class PeerLink:
    """A peer, its measured load, and the connections to it."""

    def __init__(self, address: Address, model_name: str, certificate: Certificate | None) -> None:
        self.peer = Peer()
        self.upstream = Upstream(address, model_name, on_lost=lambda: None, certificate=certificate)


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
        self._targets: list[TcpAddress] = [parse_tcp_address(each) for each in settings.process.peers]
        self._model_name = settings.name
        self._fair_share_header = settings.fair_share_header
        self._batcher = batcher
        self._metrics = metrics
        self._instance = instance
        self._certificate = certificate
        self._links: dict[str, PeerLink] = {}
        self._link_of: dict[Peer, PeerLink] = {}
        self._tasks: dict[PendingRequest, asyncio.Task[Given]] = {}
        self._unknown: set[TcpAddress] = set()
        self._given = 0
        """Number of forwarded requests; the source of their ids."""
        self._own_failures = 0.0
        """Share of this replica's last batches in which the model failed."""
        self._pressed_until_s = 0.0
        self._pressed = asyncio.Event()
        self.on_ended: Callable[[], None] = lambda: None
        self.on_returned: Callable[[PendingRequest], None] = lambda _: None

    @property
    def has_forwarded(self) -> bool:
        """Return whether peers still have requests from this replica."""
        return bool(self._tasks)

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
        if pending.must_not_forward or signature is None:
            return False
        for name, own in pending.lengths.items():
            # V2 has no form for rows of different lengths.
            axis = signature.inputs[name].pad_axis
            if axis is not None and min(own, default=0) != pending.inputs[name].shape[axis]:
                return False
        now_s = time.monotonic()
        self._pressed_until_s = now_s + PRESSED_S
        self._pressed.set()
        soft_deadline_s = self._batcher.soft_deadline_for(pending)
        if soft_deadline_s - now_s < MIN_LEFT_S:
            return False
        peer = choose_peer(
            list(self._link_of),
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
        link = self._link_of[peer]
        peer.record_forwarded(pending.rows)
        self._given += 1
        mark = b'"id":"%d"' % self._given
        alone = pending.copy_without_client()
        alone.trace = None  # sent as headers, as this is a request and not a batch
        batch = make_batch([RequestSlice(alone, 0, alone.rows, alone.inputs)])
        header, tensors = encode_batch(batch, alone.inputs, signature, binary=True)
        # The mark is the first member of the JSON object, {"id":"N",...}.
        body = b"{%b,%b" % (mark, header[1:]), tensors
        pending.queued_s = now_s - pending.arrived_s
        if rejection is not None:
            pending.resolve(rejection)  # removes it from the queue and its deadlines
        task = asyncio.get_running_loop().create_task(
            self._start_forwarding(link, pending, body, mark, signature, soft_deadline_s)
        )
        self._tasks[pending] = task
        task.add_done_callback(partial(self._ended, link, pending, rejection, now_s))
        return True

    def cancel(self, pending: PendingRequest) -> bool:
        """Cancel the forwarded request of a disconnected client.

        Returns: False if no peer has the request.
        """
        task = self._tasks.get(pending)
        if task is None:
            return False
        pending.abandon()
        task.cancel()
        return True

    def fail_all(self) -> None:
        """Fail all forwarded requests, because the drain has timed out."""
        for pending, task in list(self._tasks.items()):
            pending.may_have_run = True
            task.cancel()

    def close(self) -> None:
        """Close the connections to all peers."""
        for link in self._links.values():
            link.upstream.close()

    async def watch(self) -> None:
        """Resolve the peers and request their load, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._resolve())
            group.create_task(self._request_loads())

    # Forwarding.

    async def _start_forwarding(
        self,
        link: PeerLink,
        pending: PendingRequest,
        body: Body,
        mark: bytes,
        signature: ModelSignature,
        soft_deadline_s: float,
    ) -> tuple[ForwardingOutcome, Outcome | None]:
        try:
            # The peer must finish early enough for the response to travel back.
            left_s = soft_deadline_s - time.monotonic() - link.peer.travel_s
            response = await link.upstream.infer(
                *body, self._headers(pending, max(MIN_LEFT_S, left_s)), soft_deadline_s
            )
            self._note_load(link, response)
            given = _decoded(response, pending, mark, signature)
            if given[0] is ForwardingOutcome.BROKEN:
                link.upstream.drop_idle()  # the next response on them may be that of this request
            return given
        except TimeoutError:
            pending.may_have_run = True
            return ForwardingOutcome.LATE, None
        except ProxyError as error:
            pending.may_have_run = error.may_have_run
            return ForwardingOutcome.LOST, None
        except Exception:  # the client must get an outcome in any case
            logger.exception("event=hand_over_failed")
            pending.may_have_run = True
            return ForwardingOutcome.LOST, None

    def _ended(
        self,
        link: PeerLink,
        pending: PendingRequest,
        rejection: ProxyError | None,
        given_s: float,
        task: "asyncio.Task[Given]",
    ) -> None:
        del self._tasks[pending]
        now_s = time.monotonic()
        end, outcome = (ForwardingOutcome.CANCELLED, None) if task.cancelled() else task.result()
        link.peer.record_outcome(pending.rows, end, now_s, self._own_failures)
        self._metrics.forwarded[end] += 1
        pending.timing = b"peer;dur=%.2f" % (1000 * (now_s - given_s))
        if rejection is None and pending.resolved:
            pass  # its client has disconnected
        elif outcome is None and rejection is None and not pending.may_have_run:
            self.on_returned(pending)
        else:
            late = Overloaded("the request would miss its deadline", reason=RejectionReason.LATE, retry_after_s=1)
            pending.resolve(outcome := outcome or rejection or late)
            pending.deliver_outcome(outcome)
        self.on_ended()

    def _headers(self, pending: PendingRequest, left_s: float) -> list[tuple[bytes, bytes]]:
        # Each name once: a forwarded or fair-share header may also be the client's credential.
        extra = dict([*_ASKING, *pending.key.headers, (_TIMEOUT_MS, b"%.3f" % (1000 * left_s))])
        # The peer queues the request with the client's priority and share.
        if pending.lane.level:
            extra[_PRIORITY] = b"%d" % pending.lane.level
        if self._fair_share_header and pending.lane.share:
            extra[self._fair_share_header] = pending.lane.share
        if pending.client is not None:  # peers authenticate the client themselves
            extra.update(pending.client.credentials)
        for name, value in (pending.trace or {}).items():
            extra[name.encode("latin-1")] = value.encode("latin-1")
        return list(extra.items())

    # Tracking peers.

    def _note_load(self, link: PeerLink, response: RuntimeResponse, travel_s: float | None = None) -> None:
        """Update a peer's expected wait from the headers of a response.

        The response may come from this replica itself, because DNS also returns its address.
        """
        peer = link.peer
        instance = response.headers.get(_INSTANCE)
        # DNS also returns the address of this replica.
        peer.is_self = instance is not None and instance == self._instance
        expected_wait_s = parse_expected_wait_s(response.headers.get(_LOAD)) if instance is not None else None
        peer.record_expected_wait(expected_wait_s, time.monotonic(), travel_s)

    async def _request_loads(self) -> None:
        while True:
            now_s = time.monotonic()
            stale = least_recently_polled(list(self._link_of), ASKED_AT_ONCE, now_s)
            await asyncio.gather(*[self._request_load(self._link_of[each]) for each in stale])
            if time.monotonic() < self._pressed_until_s:
                await asyncio.sleep(ASK_PRESSED_S)
                continue
            self._pressed.clear()
            # Woken early when a request would be late.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ASK_S):
                    await self._pressed.wait()

    async def _request_load(self, link: PeerLink) -> None:
        begun_s = time.monotonic()
        try:
            response = await link.upstream.model_ready(_ASKING, begun_s + ANSWER_WITHIN_S)
        except (ProxyError, TimeoutError):
            link.peer.record_no_report(time.monotonic())
        except Exception:  # a foreign server at that address must not stop the requests to others
            logger.exception("event=peer_not_understood")
            link.peer.record_no_report(time.monotonic())
        else:
            self._note_load(link, response, time.monotonic() - begun_s)

    async def _resolve(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            found: set[str] = set()
            failed = False
            for target in self._targets:
                try:
                    infos = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
                    found.update(str(TcpAddress(str(info[4][0]), target.port)) for info in infos)
                    self._unknown.discard(target)
                except (OSError, UnicodeError) as error:  # a UnicodeError: the name cannot be encoded for DNS
                    failed = True
                    # Logged once until the name resolves, as there may be no DNS at all.
                    if target not in self._unknown:
                        self._unknown.add(target)
                        logger.info("event=peers_unknown name=%s error=%s", target, error)
            for address in sorted(found - self._links.keys()):
                self._links[address] = PeerLink(parse_tcp_address(address), self._model_name, self._certificate)
            # Addresses that are gone are removed, unless a lookup failed.
            for address in () if failed else (self._links.keys() - found):
                self._links.pop(address).upstream.close_idle()
            self._link_of = {link.peer: link for link in self._links.values()}
            await asyncio.sleep(RESOLVE_S)


def _decoded(response: RuntimeResponse, pending: PendingRequest, mark: bytes, signature: ModelSignature) -> Given:
    """Decode a peer's response to the outcome of a forwarded request.

    ``mark`` is a value that only the response to this request contains.
    """
    executed = response.headers.get(_EXECUTED)
    status = response.status
    if status != 200:
        # Rejections and timeouts leave the decision to this replica; errors of the model go to the client.
        if status in _NOT_TAKEN and executed == b"no":
            return ForwardingOutcome.REFUSED, None
        if status in (503, 504):
            pending.may_have_run = True
            return ForwardingOutcome.LATE, None
        if rows_failed := decode_rows_failed(response.body):
            return ForwardingOutcome.ERROR, rows_failed
        if executed is None or not 400 <= status < 600 or status in _NOT_TAKEN:
            return _broken(executed, pending)
        error = decode_failure(status, response.body, executed)
        return (ForwardingOutcome.FAILED if status >= 500 else ForwardingOutcome.ERROR), error
    try:
        length = response.headers.get(_HEADER_LENGTH)
        if mark not in bytes(response.body[: len(response.body) if length is None else int(length)]):
            raise ModelFailed("the response belongs to another request")
        result = decode_result(response.body, length, signature)
        check_rows(make_batch([RequestSlice(pending, 0, pending.rows, {})]), result, signature)
    except (ProxyError, ValueError):
        return _broken(executed, pending)
    return ForwardingOutcome.ANSWERED, RequestResult(result.outputs, pending.lengths)


def _broken(executed: bytes | None, pending: PendingRequest) -> Given:
    """Return the outcome of a request whose response from a peer is invalid.

    The client receives the error that this replica would have returned.
    """
    pending.may_have_run = executed != b"no"
    return ForwardingOutcome.BROKEN, None
