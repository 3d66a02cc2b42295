"""Discovery of other replicas by DNS, their connections and their load.

Host names are resolved every few seconds. The load of the found replicas is requested periodically, more often while
requests are to be forwarded.
"""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable, Sequence
from typing import Final

from shoal_proxy.balance.orca import parse_expected_wait_s
from shoal_proxy.balance.peers import Peer, least_recently_polled
from shoal_proxy.dispatch.runtime_connection import RuntimeResponse
from shoal_proxy.dispatch.upstream import Upstream
from shoal_proxy.errors import ProxyError
from shoal_schema.fields.addresses import TcpAddress, parse_tcp_address
from shoal_schema.interfaces.headers import FORWARDED, INSTANCE, LOAD, LOAD_FORMAT, REVISION

logger = logging.getLogger(__name__)

RESOLVE_S: Final = 3.0
"""The interval of DNS lookups."""
ASK_S: Final = 0.5
ASK_PRESSED_S: Final = 0.1
"""The intervals of load requests: normally, and while requests would be late here."""
PRESSED_S: Final = 1.0
"""Duration of the short interval after the last such request."""
ASKED_AT_ONCE: Final = 4
"""Replicas whose load is requested at a time: in a large fleet, each replica polls a different subset."""
ANSWER_WITHIN_S: Final = 0.25
REPORTS_LOAD: Final = ((FORWARDED.encode(), b"1"), (LOAD_FORMAT.encode(), b"TEXT"))
"""Headers with which a replica reports its load."""
_INSTANCE, _LOAD, _REVISION = INSTANCE.encode(), LOAD.encode(), REVISION.encode()


class ReplicaLink:
    """Another replica, its measured load, and the connections to it."""

    def __init__(self, upstream: Upstream) -> None:
        self.peer = Peer()
        self.upstream = upstream
        self.ready = False
        """Whether it reported at the last poll that it is ready."""
        self.instance = b""
        """Name that it reported; empty until then."""
        self.revision = b""
        """Revision that it reported; empty if it reported none."""


class RemoteReplicas:
    """The replicas behind some addresses.

    Args:
        addresses: ``HOST:PORT`` each; a host name stands for all of its addresses.
        make_upstream: returns the connections to a replica.
        instance: name of this replica itself, which DNS may also return.
        kind: what the replicas are, for log lines.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        make_upstream: Callable[[TcpAddress], Upstream],
        instance: bytes,
        kind: str = "peers",
    ) -> None:
        self._targets: list[TcpAddress] = [parse_tcp_address(each) for each in addresses]
        self._make_upstream = make_upstream
        self._instance = instance
        self._kind = kind
        self._links: dict[str, ReplicaLink] = {}
        self._unknown: set[TcpAddress] = set()
        self._pressed_until_s = 0.0
        self._pressed = asyncio.Event()
        self.link_of: dict[Peer, ReplicaLink] = {}

    @property
    def links(self) -> list[ReplicaLink]:
        """Return the replicas found, without this replica itself."""
        return [link for link in self._links.values() if not link.peer.is_self]

    def press(self, now_s: float) -> None:
        """Request loads more often for a while: a request is to be forwarded."""
        self._pressed_until_s = now_s + PRESSED_S
        self._pressed.set()

    def note_load(self, link: ReplicaLink, response: RuntimeResponse, travel_s: float | None = None) -> None:
        """Update a replica's expected wait from the headers of a response."""
        peer = link.peer
        instance = response.headers.get(_INSTANCE)
        # DNS also returns the address of this replica.
        peer.is_self = instance is not None and instance == self._instance
        link.instance = instance or link.instance
        expected_wait_s = parse_expected_wait_s(response.headers.get(_LOAD)) if instance is not None else None
        peer.record_expected_wait(expected_wait_s, time.monotonic(), travel_s)
        link.revision = response.headers.get(_REVISION, link.revision)

    def drop(self) -> None:
        """Forget all replicas, and close their connections as soon as they are idle."""
        for link in self._links.values():
            link.upstream.close_idle()
        self._links, self.link_of = {}, {}

    def close(self) -> None:
        """Close the connections to all replicas."""
        for link in self._links.values():
            link.upstream.close()

    async def watch(self) -> None:
        """Resolve the replicas and request their load, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._resolve())
            group.create_task(self._request_loads())

    async def _request_loads(self) -> None:
        while True:
            now_s = time.monotonic()
            stale = least_recently_polled(list(self.link_of), ASKED_AT_ONCE, now_s)
            await asyncio.gather(*[self._request_load(self.link_of[each]) for each in stale])
            if time.monotonic() < self._pressed_until_s:
                await asyncio.sleep(ASK_PRESSED_S)
                continue
            self._pressed.clear()
            # Woken early when a request would be late.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ASK_S):
                    await self._pressed.wait()

    async def _request_load(self, link: ReplicaLink) -> None:
        begun_s = time.monotonic()
        link_ready = False
        try:
            response = await link.upstream.model_ready(REPORTS_LOAD, begun_s + ANSWER_WITHIN_S)
        except (ProxyError, TimeoutError):
            link.peer.record_no_report(time.monotonic())
        except Exception:  # a foreign server at that address must not stop the requests to others
            logger.exception("event=replica_not_understood kind=%s", self._kind)
            link.peer.record_no_report(time.monotonic())
        else:
            link_ready = response.status == 200
            self.note_load(link, response, time.monotonic() - begun_s)
        link.ready = link_ready

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
                        logger.info("event=%s_unknown name=%s error=%s", self._kind, target, error)
            for address in sorted(found - self._links.keys()):
                self._links[address] = ReplicaLink(self._make_upstream(parse_tcp_address(address)))
            # Addresses that are gone are removed, unless a lookup failed.
            for address in () if failed else (self._links.keys() - found):
                self._links.pop(address).upstream.close_idle()
            self.link_of = {link.peer: link for link in self._links.values()}
            await asyncio.sleep(RESOLVE_S)
