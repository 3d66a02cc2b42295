"""The Lease that decides which of several operators writes."""

import asyncio
import contextlib
import datetime
import logging
from collections.abc import Callable
from typing import Protocol

from shoal_operator.errors import ApiError, NotLeadingError
from shoal_operator.manifests.labels import MANAGED_BY, MANAGED_BY_LABEL
from shoal_operator.planning.health import HEARTBEAT_S
from shoal_operator.planning.lease import (
    LEASE_DURATION_S,
    LEASE_NAME,
    RENEW_DEADLINE_S,
    RETRY_PERIOD_S,
    Election,
    LeaseRecord,
)
from shoal_operator.planning.observation import Key, dig
from shoal_schema.declaring import Json

logger = logging.getLogger(__name__)


class _Cluster(Protocol):
    """Where the Lease lies: see `shoal_operator.cluster.Cluster`."""

    async def read_lease(self, key: Key) -> Json | None: ...
    async def write_lease(self, key: Key, body: Json) -> Json: ...


class _HeartbeatCluster(Protocol):
    async def beat(self, key: Key, wall_time: str) -> None: ...


async def keep_beating(cluster: _HeartbeatCluster, key: Key, utc_now: Callable[[], datetime.datetime]) -> None:
    """Renew a Lease that decides nothing, for the watches to hear, until cancelled."""
    while True:
        try:
            await cluster.beat(key, _micro_time(utc_now()))
        except (ApiError, NotLeadingError) as error:
            logger.warning("event=heartbeat_failed heartbeat=%s error=%s", key, error)
        await asyncio.sleep(HEARTBEAT_S)


class Leadership:
    """Holds the Lease while it can.

    Args:
        clock: monotonic seconds.
        utc_now: the wall clock, for the times that people read.
    """

    def __init__(
        self, election: Election, namespace: str, clock: Callable[[], float], utc_now: Callable[[], datetime.datetime]
    ) -> None:
        self._election = election
        self._key = Key(namespace, LEASE_NAME)
        self._clock = clock
        self._utc_now = utc_now
        self._heard_s = float("-inf")
        # The Lease as we wrote it last, while nothing has cast doubt on that.
        self._stored: Json | None = None

    def in_touch(self) -> bool:
        """Return whether the API server has answered lately."""
        return self._clock() - self._heard_s < LEASE_DURATION_S

    def may_write(self) -> bool:
        """Return whether this operator holds the Lease beyond doubt."""
        return self._election.may_write(self._clock())

    async def lead(self, cluster: _Cluster, work: Callable[[], asyncio.Task[None]]) -> None:
        """Keep the Lease, and ``work`` running while it is held, until cancelled.

        On the way out the work is stopped first and then the Lease let go, so that a standby can
        follow at once.
        """
        task: asyncio.Task[None] | None = None
        try:
            while True:
                began_s = self._clock()
                await self._renew(cluster)
                if self.may_write() and task is None:
                    logger.info("event=leadership leading=true identity=%s", self._election.identity)
                    task = work()
                elif not self.may_write() and task is not None:
                    logger.warning("event=leadership leading=false identity=%s", self._election.identity)
                    await _stop(task)
                    task = None
                if task is not None and task.done():
                    task.result()  # work never ends by itself: this raises what ended it
                await asyncio.sleep(max(0.0, began_s + RETRY_PERIOD_S - self._clock()))
        finally:
            if task is not None:
                await _stop(task)
            if self.may_write():
                self._election.lost()
                with contextlib.suppress(ApiError, TimeoutError):
                    async with asyncio.timeout(RENEW_DEADLINE_S):
                        while not await self._let_go(cluster):
                            pass

    async def _renew(self, cluster: _Cluster) -> None:
        """Try once to take or renew the Lease.

        Who holds it writes over the version that it wrote last, without reading it first: where each answer takes
        seconds, that leaves time for a second try. Who does not has no deadline to keep, and waits longer: a request
        that is given up takes its connection with it, and on a slow network the next one is not quicker.
        """
        patience_s = RENEW_DEADLINE_S / 2 if self.may_write() else RENEW_DEADLINE_S
        try:
            if self._stored is None:
                async with asyncio.timeout(patience_s):
                    self._stored = await cluster.read_lease(self._key)
                self._record_contact()
                self._election.observe(_record(self._stored), self._clock())
            async with asyncio.timeout(patience_s):
                before, self._stored = self._stored, None
                asked_s = self._clock()
                record = self._election.next_record(asked_s, _micro_time(self._utc_now()))
                if record is not None:
                    stored = await cluster.write_lease(self._key, self._body(record, before))
                    self._record_contact()
                    self._election.renewed(record, asked_s)
                    self._stored = stored
        except (ApiError, TimeoutError) as error:
            self._stored = None
            logger.warning("event=lease_failed lease=%s error=%s", self._key, error)

    def _record_contact(self) -> None:
        self._heard_s = self._clock()

    async def _let_go(self, cluster: _Cluster) -> bool:
        """Free the Lease; return whether that is settled. A renewal cut off by the stop may still land in between."""
        stored, self._stored = self._stored or await cluster.read_lease(self._key), None
        record = _record(stored)
        if record is None or record.holder != self._election.identity:
            return True
        free = LeaseRecord("", record.acquired, record.renewed, record.transitions)
        try:
            await cluster.write_lease(self._key, self._body(free, stored))
        except ApiError as error:
            if error.status != 409:
                raise
            return False
        return True

    def _body(self, record: LeaseRecord, stored: Json | None) -> Json:
        metadata: Json = {"name": self._key.name, "namespace": self._key.namespace}
        metadata["labels"] = {MANAGED_BY_LABEL: MANAGED_BY}
        if stored is not None:
            # Another's renewal in between makes this version stale, and the write a conflict.
            metadata["resourceVersion"] = stored["metadata"]["resourceVersion"]
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": {
                "holderIdentity": record.holder,
                "leaseDurationSeconds": int(LEASE_DURATION_S),
                "acquireTime": record.acquired,
                "renewTime": record.renewed,
                "leaseTransitions": record.transitions,
            },
        }


def _record(stored: Json | None) -> LeaseRecord | None:
    if stored is None:
        return None
    spec = dig(stored, "spec", default={})
    return LeaseRecord(
        holder=spec.get("holderIdentity") or "",
        acquired=spec.get("acquireTime") or "",
        renewed=spec.get("renewTime") or "",
        transitions=spec.get("leaseTransitions") or 0,
    )


def _micro_time(now: datetime.datetime) -> str:
    return now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


async def _stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
