"""The second chance: who would be late here is given, once, to the sibling that promises to finish soonest.

A request goes out as V2 with binary tensors, whatever protocol it came in, with what is left of its time; the sibling's
answer is encoded for the caller like one of the own runtime. Siblings are looked up again every few seconds and asked
for their load: now and then, and often while somebody would be late here.
"""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from shoal_proxy.balance.orca import promised_wait_s
from shoal_proxy.balance.siblings import Ended, Sibling, choose, stalest
from shoal_proxy.batching.batch import check_rows, make_batch
from shoal_proxy.batching.batcher import Batcher
from shoal_proxy.batching.pending import Answer, Outcome, Pending, Slice
from shoal_proxy.certificate import Certificate
from shoal_proxy.codecs.upstream import decode_answer, decode_failure, decode_rows_failed, encode_batch
from shoal_proxy.connection import Response
from shoal_proxy.errors import ModelFailed, Overloaded, ProxyError
from shoal_proxy.metrics import Metrics
from shoal_proxy.model.signature import ModelSignature
from shoal_proxy.settings import Settings
from shoal_proxy.upstream import Upstream
from shoal_schema.addresses import Address, TcpAddress, parse_tcp_address
from shoal_schema.headers import EXECUTED, HANDED_OVER, HEADER_LENGTH, INSTANCE, LOAD, LOAD_FORMAT, PRIORITY, TIMEOUT_MS
from shoal_schema.metrics import Rejection

logger = logging.getLogger(__name__)

RESOLVE_S: Final = 3.0
"""Between two lookups of names."""
ASK_S: Final = 0.5
ASK_PRESSED_S: Final = 0.1
"""Between two questions for load, while nobody is late here and while somebody is."""
PRESSED_S: Final = 1.0
"""How long that lasts after the last one."""
ASKED_AT_ONCE: Final = 4
"""Siblings that are asked at a time: in a large fleet each knows a few, and not all the same."""
BATCHES_AT_ONCE: Final = 2
"""Full batches of rows that one sibling may have of us: one that runs, and one that waits."""
ANSWER_WITHIN_S: Final = 0.25
EARLY_SHARE: Final = 0.5
"""Of the time that is left: who may be served here goes only to a sibling that is done by then. One that needs longer
is about as busy, and full replicas serve more by larger batches than by sparing one another's oldest."""
LEAST_LEFT_S: Final = 0.001
"""With less time left than that nobody is asked."""
_ASKING: Final = [(HANDED_OVER.encode(), b"1"), (LOAD_FORMAT.encode(), b"TEXT")]
_EXECUTED, _HEADER_LENGTH = EXECUTED.encode(), HEADER_LENGTH.encode()
_INSTANCE, _LOAD = INSTANCE.encode(), LOAD.encode()
_TIMEOUT_MS, _PRIORITY = TIMEOUT_MS.encode(), PRIORITY.encode()
_NOT_TAKEN: Final = frozenset({400, 401, 403, 404, 408, 413, 415, 429, 431, 501, 503, 504})
"""What a sibling answers that would not, or could not in time, run the request; of another revision perhaps."""
_OWN_WEIGHT: Final = 0.1
"""Of the newest batch in the share of those that fail here."""


Body = tuple[bytes, list[bytes | memoryview]]
"""The JSON part of a request, and its binary tensors."""


Given = tuple[Ended, Outcome | None]
"""What came of a hand-over, and what the caller gets; None: what it would have got here."""


class Peer:
    """A sibling and the connections to it."""

    def __init__(self, address: Address, model_name: str, certificate: Certificate | None) -> None:
        self.sibling = Sibling()
        self.upstream = Upstream(address, model_name, on_lost=_not_alarmed, certificate=certificate)


def _not_alarmed() -> None:
    """Stand in for who wants to know that the last connection broke."""


class SecondChance:
    """Gives requests away and brings their answers back. All methods belong to the event loop's thread."""

    def __init__(
        self,
        settings: Settings,
        batcher: Batcher,
        metrics: Metrics,
        instance: bytes,
        certificate: Certificate | None = None,
    ) -> None:
        self._targets: Sequence[TcpAddress] = [parse_tcp_address(each) for each in settings.process.siblings]
        self._model_name = settings.name
        self._fair_share_header = settings.fair_share_header
        self._batcher = batcher
        self._metrics = metrics
        self._instance = instance
        self._certificate = certificate
        self._peers: dict[str, Peer] = {}
        self._peer_of: dict[Sibling, Peer] = {}
        self._tasks: dict[Pending, asyncio.Task[Given]] = {}
        self._unknown: set[TcpAddress] = set()
        self._given = 0
        """Requests that were given away: their ids."""
        self._own_failures = 0.0
        """Share of the last batches here of which the model failed."""
        self._pressed_until_s = 0.0
        self._pressed = asyncio.Event()
        self.on_ended: Callable[[], None] = lambda: None
        self.on_sent_back: Callable[[Pending], None] = lambda _: None

    @property
    def under_way(self) -> bool:
        """Return whether any request is with a sibling."""
        return bool(self._tasks)

    def served_here(self, *, failed: bool) -> None:
        """Note what came of a batch here: a model that fails here too is not the siblings' fault."""
        self._own_failures += _OWN_WEIGHT * (failed - self._own_failures)

    def take(self, pending: Pending, refusal: ProxyError | None, signature: ModelSignature | None) -> bool:
        """Give ``pending`` away, and return whether there was anybody to give it to.

        If so, its outcome is delivered once: the sibling's answer, or ``refusal``. Without a refusal it may be served
        here all the same, so what did not run there is sent back.
        """
        if pending.stays or signature is None or not _rectangular(pending, signature):
            return False
        now_s = time.monotonic()
        self._press(now_s)
        due_s = self._batcher.wanted_s(pending)
        if due_s - now_s < LEAST_LEFT_S:
            return False
        sibling = choose(
            list(self._peer_of),
            pending.rows,
            due_s=due_s if refusal is not None else now_s + EARLY_SHARE * (due_s - now_s),
            now_s=now_s,
            row_s=self._batcher.row_s(pending.key),
            most_rows=BATCHES_AT_ONCE * self._batcher.limits.max_rows,
        )
        if sibling is None:
            return False
        peer = self._peer_of[sibling]
        sibling.given(pending.rows)
        self._given += 1
        mark = b'"id":"%d"' % self._given
        body = _encoded(pending, signature, mark)
        pending.queued_s = now_s - pending.arrived_s
        if refusal is not None:
            pending.resolve(refusal)  # the queue, and its deadlines, know it no more
        task = asyncio.get_running_loop().create_task(self._give(peer, pending, body, mark, signature, due_s))
        self._tasks[pending] = task
        task.add_done_callback(partial(self._ended, peer, pending, refusal, now_s))
        return True

    def cancel(self, pending: Pending) -> bool:
        """Forget a request whose caller has gone; return whether it was with a sibling."""
        task = self._tasks.get(pending)
        if task is None:
            return False
        pending.abandon()
        task.cancel()
        return True

    def give_up(self) -> None:
        """Answer everybody who waits for a sibling: there is no more time."""
        for pending, task in list(self._tasks.items()):
            pending.may_have_run = True
            task.cancel()

    def close(self) -> None:
        """Close the connections."""
        for peer in self._peers.values():
            peer.upstream.close()

    async def watch(self) -> None:
        """Look siblings up, and ask them for their load, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look_up())
            group.create_task(self._ask())

    # Giving away.

    async def _give(
        self, peer: Peer, pending: Pending, body: Body, mark: bytes, signature: ModelSignature, due_s: float
    ) -> tuple[Ended, Outcome | None]:
        try:
            left_s = due_s - time.monotonic() - peer.sibling.travel_s
            response = await peer.upstream.infer(*body, self._headers(pending, max(LEAST_LEFT_S, left_s)), due_s)
            self._hear(peer, response)
            given = _understood(response, pending, mark, signature)
            if given[0] is Ended.BROKEN:
                peer.upstream.drop_idle()  # what comes on them next may be the answer to this
            return given
        except TimeoutError:
            pending.may_have_run = True
            return Ended.LATE, None
        except ProxyError as error:
            pending.may_have_run = error.may_have_run
            return Ended.LOST, None
        except Exception:  # the caller must have an outcome whatever happens here
            logger.exception("event=hand_over_failed")
            pending.may_have_run = True
            return Ended.LOST, None

    def _ended(
        self, peer: Peer, pending: Pending, refusal: ProxyError | None, given_s: float, task: "asyncio.Task[Given]"
    ) -> None:
        del self._tasks[pending]
        now_s = time.monotonic()
        end, outcome = (Ended.CANCELLED, None) if task.cancelled() else task.result()
        peer.sibling.ended(pending.rows, end, now_s, self._own_failures)
        self._metrics.handed_over[end] += 1
        pending.timing = b"sibling;dur=%.2f" % (1000 * (now_s - given_s))
        if refusal is None and pending.resolved:
            pass  # its caller has gone
        elif outcome is None and refusal is None and not pending.may_have_run:
            self.on_sent_back(pending)
        else:
            pending.resolve(outcome := outcome or refusal or _too_late())
            pending.hand_over(outcome)
        self.on_ended()

    def _headers(self, pending: Pending, left_s: float) -> list[tuple[bytes, bytes]]:
        # Each once: what is forwarded, or shares fairly, may be what proves who calls, too.
        extra = dict([*_ASKING, *pending.key.headers, (_TIMEOUT_MS, b"%.3f" % (1000 * left_s))])
        if pending.lane.level:
            extra[_PRIORITY] = b"%d" % pending.lane.level
        if self._fair_share_header and pending.lane.share:
            extra[self._fair_share_header] = pending.lane.share
        if pending.caller is not None:  # a sibling asks for the same keys, and lets nobody in on our word
            extra.update(pending.caller.credentials)
        for name, value in (pending.trace or {}).items():
            extra[name.encode("latin-1")] = value.encode("latin-1")
        return list(extra.items())

    # Knowing siblings.

    def _press(self, now_s: float) -> None:
        self._pressed_until_s = now_s + PRESSED_S
        self._pressed.set()

    def _hear(self, peer: Peer, response: Response, travel_s: float | None = None) -> None:
        """Learn from an answer: who that is, and how long it would take."""
        sibling = peer.sibling
        instance = response.headers.get(_INSTANCE)
        sibling.is_self = instance is not None and instance == self._instance
        promise = promised_wait_s(response.headers.get(_LOAD)) if instance is not None else None
        sibling.told(promise, time.monotonic(), travel_s)

    async def _ask(self) -> None:
        while True:
            now_s = time.monotonic()
            asked = stalest(list(self._peer_of), ASKED_AT_ONCE, now_s)
            await asyncio.gather(*[self._ask_one(self._peer_of[each]) for each in asked])
            if time.monotonic() < self._pressed_until_s:
                await asyncio.sleep(ASK_PRESSED_S)
                continue
            self._pressed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ASK_S):
                    await self._pressed.wait()

    async def _ask_one(self, peer: Peer) -> None:
        begun_s = time.monotonic()
        try:
            response = await peer.upstream.model_ready(_ASKING, begun_s + ANSWER_WITHIN_S)
        except (ProxyError, TimeoutError):
            peer.sibling.silent(time.monotonic())
        except Exception:  # whatever a stranger at that address does, asking the others goes on
            logger.exception("event=sibling_not_understood")
            peer.sibling.silent(time.monotonic())
        else:
            self._hear(peer, response, time.monotonic() - begun_s)

    async def _look_up(self) -> None:
        while True:
            found: set[str] = set()
            failed = False
            for target in self._targets:
                try:
                    found.update(await _addresses(target))
                    self._unknown.discard(target)
                except (OSError, UnicodeError) as error:  # the second of what can be no name
                    failed = True
                    self._tell_unknown(target, error)
            self._now_known(found, forget=not failed)
            await asyncio.sleep(RESOLVE_S)

    def _tell_unknown(self, target: TcpAddress, error: Exception) -> None:
        """Log once that a name has no address, until it has one: there may be no names at all here."""
        if target not in self._unknown:
            self._unknown.add(target)
            logger.info("event=siblings_unknown name=%s error=%s", target, error)

    def _now_known(self, found: set[str], *, forget: bool) -> None:
        """Take in new ones; those that have gone are forgotten, unless a name could not be looked up."""
        for address in sorted(found - self._peers.keys()):
            self._peers[address] = Peer(parse_tcp_address(address), self._model_name, self._certificate)
        for address in (self._peers.keys() - found) if forget else ():
            self._peers.pop(address).upstream.close_idle()
        self._peer_of = {peer.sibling: peer for peer in self._peers.values()}


async def _addresses(target: TcpAddress) -> set[str]:
    loop = asyncio.get_running_loop()
    infos = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    return {str(TcpAddress(str(info[4][0]), target.port)) for info in infos}


def _rectangular(pending: Pending, signature: ModelSignature) -> bool:
    """Return whether V2 has a form for the rows: those of a padded input must be of one length."""
    for name, own in pending.lengths.items():
        axis = signature.inputs[name].pad_axis
        if axis is not None and min(own, default=0) != pending.inputs[name].shape[axis]:
            return False
    return True


def _encoded(pending: Pending, signature: ModelSignature, mark: bytes) -> Body:
    alone = pending.stand_in()
    alone.trace = None  # told in headers: this is a call, not a batch
    batch = make_batch([Slice(alone, 0, alone.rows, alone.inputs)])
    header, tensors = encode_batch(batch, alone.inputs, signature, binary=True)
    return b"{%b,%b" % (mark, header[1:]), tensors


def _too_late() -> Overloaded:
    return Overloaded("the answer would come too late", reason=Rejection.LATE, retry_after_s=1)


def _understood(response: Response, pending: Pending, mark: bytes, signature: ModelSignature) -> Given:
    """Return what a sibling's answer means for the caller; ``mark`` is in the answer to this request, and no other."""
    executed = response.headers.get(_EXECUTED)
    if response.status != 200:
        return _error_understood(response, executed, pending)
    try:
        length = response.headers.get(_HEADER_LENGTH)
        if mark not in bytes(response.body[: len(response.body) if length is None else int(length)]):
            raise ModelFailed("the answer is to another request")
        result = decode_answer(response.body, length, signature)
        check_rows(make_batch([Slice(pending, 0, pending.rows, {})]), result, signature)
    except (ProxyError, ValueError):
        return _broken(executed, pending)
    return Ended.ANSWERED, Answer(result.outputs, pending.lengths)


def _error_understood(response: Response, executed: bytes | None, pending: Pending) -> Given:
    status = response.status
    if status in _NOT_TAKEN and executed == b"no":
        return Ended.REFUSED, None
    if status in (503, 504):
        pending.may_have_run = True
        return Ended.LATE, None
    if rows_failed := decode_rows_failed(response.body):
        return Ended.ERROR, rows_failed
    if executed is None or not 400 <= status < 600 or status in _NOT_TAKEN:
        return _broken(executed, pending)
    error = decode_failure(status, response.body, executed)
    return (Ended.FAILED if status >= 500 else Ended.ERROR), error


def _broken(executed: bytes | None, pending: Pending) -> Given:
    """Take what is no answer of a replica for none: the caller gets what it would have got here."""
    pending.may_have_run = executed != b"no"
    return Ended.BROKEN, None
