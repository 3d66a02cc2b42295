"""The candidate's pods: discovery, health, signature, and the choice of one for a request.

They are looked up only while a plan names a candidate. A pod gets rows once it has reported the plan's revision, and
its model accepts the stable model's requests.

A pod that hangs gets few requests: it is skipped once it does not report its load, and while its oldest request has
been there for much longer than a batch takes.
"""

import asyncio
import logging
import time
from collections.abc import Collection
from typing import Final

from shoal_proxy.balance.peers import MAX_REPORT_AGE_S, ForwardingOutcome, Peer, choose_peer
from shoal_proxy.batching.batcher import Batcher
from shoal_proxy.batching.pending import BatchKey
from shoal_proxy.certificate import Certificate
from shoal_proxy.dispatch.link import ModelLink
from shoal_proxy.dispatch.remote_requests import RemoteOutcome
from shoal_proxy.dispatch.replicas import RemoteReplicas, ReplicaLink
from shoal_proxy.dispatch.runtime_connection import ResponseMemory
from shoal_proxy.dispatch.upstream import Upstream
from shoal_proxy.errors import ProxyError
from shoal_proxy.model.signature import ModelSignature, SignatureError, parse_metadata
from shoal_proxy.rollout.signatures import input_change, output_change
from shoal_proxy.settings import Settings

logger = logging.getLogger(__name__)

CHECK_S: Final = 0.5
CHECK_FIRST_S: Final = 0.05
"""The intervals of checks for pods whose signature is unknown: normally, and until the first is known."""
METADATA_WITHIN_S: Final = 2.0
CONNECT_WITHIN_S: Final = 1.0
PATIENCE_S: Final = 1.0
PATIENCE_BATCHES: Final = 4
"""A pod gets no further request once its oldest has been there for `PATIENCE_S` and the time of so many batches."""

Credentials = tuple[tuple[bytes, bytes], ...]


class CandidatePods:
    """The pods of a candidate. All methods must be called in the event loop's thread."""

    def __init__(
        self, settings: Settings, link: ModelLink, batcher: Batcher, instance: bytes, certificate: Certificate | None
    ) -> None:
        memory = ResponseMemory(settings.queue.max_bytes)
        self.replicas = RemoteReplicas(
            settings.process.candidates,
            lambda address: Upstream(
                address,
                settings.name,
                on_lost=lambda: None,
                certificate=certificate,
                room=memory,
                connect_s=CONNECT_WITHIN_S,
            ),
            instance,
            kind="candidates",
        )
        self.most_rows = settings.queue_rows
        """Most rows at one pod: as many as its queue may hold."""
        self._link = link
        self._batcher = batcher
        self._needs_credentials = settings.has_access_control
        self._revision = b""
        self._allow_signature_change = False
        self._active = asyncio.Event()
        self._changed = asyncio.Event()
        self._signatures: dict[ReplicaLink, ModelSignature] = {}
        self._begun_s: dict[Peer, dict[int, float]] = {}
        """By pod, the times at which its present requests were sent, oldest first."""
        self._serial = 0
        self.credentials: Credentials = ()
        """Those of the last client, with which metadata are requested from pods with access control."""
        self.input_change = ""
        self.output_change = ""

    def set_revision(self, revision: str, *, allow_signature_change: bool) -> None:
        """Set the candidate; empty for none."""
        self._allow_signature_change = allow_signature_change
        if revision.encode() == self._revision:
            return
        self._revision = revision.encode()
        self._signatures, self.input_change, self.output_change = {}, "", ""
        self.replicas.drop()
        if revision:
            self._active.set()
        else:
            self._active.clear()
        self._changed.set()

    @property
    def ready(self) -> list[ReplicaLink]:
        """Return the pods of the candidate that respond and are ready."""
        now_s = time.monotonic()
        return [
            link
            for link in self.replicas.links
            if link.ready and now_s - link.peer.polled_s <= MAX_REPORT_AGE_S and link.revision in (b"", self._revision)
        ]

    @property
    def usable(self) -> list[ReplicaLink]:
        """Return the ready pods whose model may get this replica's rows."""
        if self.input_change or (self.output_change and not self._allow_signature_change):
            return []
        return [link for link in self.ready if link in self._signatures]

    def known_signature(self, link: ReplicaLink) -> ModelSignature | None:
        """Return the signature of a pod's model; None if the pod is gone or has not sent it."""
        return self._signatures.get(link)

    def choose(
        self, rows: int, key: BatchKey, deadline_s: float, now_s: float, without: Collection[ReplicaLink] = ()
    ) -> ReplicaLink | None:
        """Return the pod that is expected to finish first; None if there is none.

        Pods in ``without`` are not chosen.
        """
        limits = self._batcher.limits
        patience_s = PATIENCE_S + PATIENCE_BATCHES * self._batcher.tables[key].p95_s(limits.max_rows)
        peers = [
            link.peer
            for link in self.usable
            if link not in without and now_s - self._oldest_s(link.peer, now_s) <= patience_s
        ]
        peer = choose_peer(
            peers,
            rows,
            soft_deadline_s=deadline_s,
            now_s=now_s,
            row_s=self._batcher.row_s(key),
            most_rows=self.most_rows,
        )
        return None if peer is None else self.replicas.link_of.get(peer)

    def _oldest_s(self, peer: Peer, now_s: float) -> float:
        begun_s = self._begun_s.get(peer)
        return next(iter(begun_s.values())) if begun_s else now_s

    def begin(self, link: ReplicaLink, now_s: float) -> int:
        """Record that a request is sent; return a number for `end`."""
        self._serial += 1
        self._begun_s.setdefault(link.peer, {})[self._serial] = now_s
        return self._serial

    def end(self, link: ReplicaLink, number: int) -> None:
        """Record the end of a request."""
        begun_s = self._begun_s[link.peer]
        del begun_s[number]
        if not begun_s:
            del self._begun_s[link.peer]

    def record_outcome(self, link: ReplicaLink, rows: int, ended: RemoteOutcome) -> None:
        """Record how a request ended, which decides whether its pod gets further ones."""
        # A pod that hangs gets one request at a time from now on.
        hung = ended.end is ForwardingOutcome.LATE and not ended.status
        link.peer.record_outcome(rows, ForwardingOutcome.LOST if hung else ended.end, time.monotonic())

    def close(self) -> None:
        """Close the connections to all pods."""
        self.replicas.close()

    async def watch(self) -> None:
        """Look for the candidate's pods while there is a candidate, until cancelled."""
        while True:
            await self._active.wait()
            self._changed.clear()
            watching = asyncio.create_task(self._watch_pods())
            changed = asyncio.create_task(self._changed.wait())
            try:
                await asyncio.wait([watching, changed], return_when=asyncio.FIRST_COMPLETED)
            finally:
                watching.cancel()
                changed.cancel()
            await asyncio.wait([watching])
            if not watching.cancelled():
                watching.result()  # raises an unexpected error, after which this is called again

    async def _watch_pods(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.replicas.watch())
            group.create_task(self._watch_signatures())

    async def _watch_signatures(self) -> None:
        while True:
            known = set(self.replicas.links)
            self._signatures = {link: found for link, found in self._signatures.items() if link in known}
            await asyncio.gather(*[self._read_signature(link) for link in self.ready if link not in self._signatures])
            stable = self._link.signature
            if stable is not None:
                found = list(self._signatures.values())
                self.input_change = next(filter(None, (input_change(stable, each) for each in found)), "")
                self.output_change = next(filter(None, (output_change(stable, each) for each in found)), "")
            await asyncio.sleep(CHECK_S if self._signatures else CHECK_FIRST_S)

    async def _read_signature(self, link: ReplicaLink) -> None:
        if self._needs_credentials and not self.credentials:
            return  # until a client has sent some
        try:
            async with asyncio.timeout(METADATA_WITHIN_S):
                signature = parse_metadata(await link.upstream.metadata(self.credentials))
        except (ProxyError, SignatureError, TimeoutError) as error:
            logger.info("event=candidate_unreadable error=%r", str(error)[:200])
        except Exception:  # a foreign server at that address must not stop the requests to others
            logger.exception("event=replica_not_understood kind=candidates")
        else:
            self._signatures[link] = signature
