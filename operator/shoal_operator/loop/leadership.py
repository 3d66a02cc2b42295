"""Leadership among operators: only the holder of the Lease writes."""

import asyncio
import contextlib
import datetime
import logging
from collections.abc import Callable

from shoal_operator.children.observation import Key, dig
from shoal_operator.cluster.interface import Cluster
from shoal_operator.errors import ApiError, NotLeadingError
from shoal_operator.loop.health import HEARTBEAT_S
from shoal_operator.loop.lease import (
    LEASE_DURATION_S,
    LEASE_NAME,
    RENEW_DEADLINE_S,
    RETRY_PERIOD_S,
    Election,
    LeaseRecord,
)
from shoal_operator.manifests.labels import MANAGED_BY, MANAGED_BY_LABEL
from shoal_schema.fields.declaring import Json

logger = logging.getLogger(__name__)


async def renew_heartbeat(cluster: Cluster, key: Key, utc_now: Callable[[], datetime.datetime]) -> None:
    """Renew the heartbeat Lease until cancelled, so that the watches receive events."""
    while True:
        try:
            await cluster.write_heartbeat(key, _micro_time(utc_now()))
        except (ApiError, NotLeadingError) as error:
            logger.warning("event=heartbeat_failed heartbeat=%s error=%s", key, error)
        await asyncio.sleep(HEARTBEAT_S)


class Leadership:
    """Leadership of this operator, which holds the Lease while it leads.

    Args:
        clock: monotonic seconds.
        utc_now: wall clock, for the times in the Lease.
    """

    def __init__(
        self, election: Election, namespace: str, clock: Callable[[], float], utc_now: Callable[[], datetime.datetime]
    ) -> None:
        self._election = election
        self._key = Key(namespace, LEASE_NAME)
        self._clock = clock
        self._utc_now = utc_now
        self._contact_s = float("-inf")
        self._stored: Json | None = None
        """The Lease as this operator wrote it last; None after a failed request."""

    def is_connected(self) -> bool:
        """Return whether the API server has responded recently."""
        return self._clock() - self._contact_s < LEASE_DURATION_S

    def may_write(self) -> bool:
        """Return whether this operator certainly holds the Lease."""
        return self._election.may_write(self._clock())

    async def lead(self, cluster: Cluster, work: Callable[[], asyncio.Task[None]]) -> None:
        """Renew the Lease until cancelled, and run ``work`` while it is held.

        On cancellation the work stops first. Then the Lease is released, so that a standby takes over at once.
        """
        task: asyncio.Task[None] | None = None
        try:
            while True:
                began_s = self._clock()
                await self._renew(cluster)
                # Start or stop the work as leadership changes.
                if self.may_write() and task is None:
                    logger.info("event=leadership leading=true identity=%s", self._election.identity)
                    task = work()
                elif not self.may_write() and task is not None:
                    logger.warning("event=leadership leading=false identity=%s", self._election.identity)
                    await _stop(task)
                    task = None
                if task is not None and task.done():
                    # Work has no regular end: raise the error that ended it.
                    task.result()
                # A fixed period from start to start, however long the request took.
                await asyncio.sleep(max(0.0, began_s + RETRY_PERIOD_S - self._clock()))
        finally:
            if task is not None:
                await _stop(task)
            # Release the Lease instead of letting it expire.
            if self.may_write():
                self._election.lost()
                with contextlib.suppress(ApiError, TimeoutError):
                    async with asyncio.timeout(RENEW_DEADLINE_S):
                        while not await self._release(cluster):
                            pass

    async def _renew(self, cluster: Cluster) -> None:
        """Try once to acquire or renew the Lease.

        The leader overwrites its last written version without a read, which leaves time for a second attempt on a slow
        network. A standby has no deadline and waits longer, because an abandoned request closes its connection.
        """
        patience_s = RENEW_DEADLINE_S / 2 if self.may_write() else RENEW_DEADLINE_S
        try:
            if self._stored is None:
                async with asyncio.timeout(patience_s):
                    self._stored = await cluster.read_lease(self._key)
                self._record_contact()
                self._election.observe(_record(self._stored), self._clock())
            # Write the Lease, if this operator holds it or may acquire it. The stored copy is unknown until then.
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
        self._contact_s = self._clock()

    async def _release(self, cluster: Cluster) -> bool:
        """Clear the Lease's holder, so that another operator can lead at once.

        Returns: False if the write conflicted with a renewal still in progress; the call must then be repeated.
        """
        stored, self._stored = self._stored or await cluster.read_lease(self._key), None
        # Another operator holds it already.
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
            # A write of another operator in between makes this version stale, and the request a conflict.
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
