"""Writer of a service's number of replicas, with an Event that states the reason."""

import datetime
import logging
from collections.abc import Callable

from shoal_operator.children.events import make_event
from shoal_operator.children.observation import Key
from shoal_operator.cluster.api_time import timestamp
from shoal_operator.cluster.interface import Cluster
from shoal_operator.errors import ApiError, NotLeadingError
from shoal_operator.loop.records import Records
from shoal_operator.scaling.report import scaling_event
from shoal_operator.scaling.service_cache import CachedService, ScaledService

logger = logging.getLogger(__name__)


def _utc_now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)  # noqa: TID251 (the time of an Event)


class ReplicaWriter:
    """Writer of services' replicas, which posts an Event for each change.

    Args:
        records: receives the written count.
        changed: schedules a reconciliation of a service whose replicas another writer has changed since the decision.
        utc_now: wall clock, for Events.
    """

    def __init__(
        self,
        records: Records,
        changed: Callable[[Key], object],
        utc_now: Callable[[], datetime.datetime] = _utc_now,
    ) -> None:
        self._records = records
        self._changed = changed
        self._utc_now = utc_now

    async def write(self, cluster: Cluster, key: Key, known: ScaledService, replicas: int, why: str) -> bool:
        """Write a service's replicas; return whether the write succeeded."""
        try:
            resource = await cluster.scale(key, replicas, was=known.replicas)
        except (ApiError, NotLeadingError) as error:
            logger.warning("event=scaling_failed service=%s scale=%d error=%s", key, replicas, error)
            return False
        if resource is None:
            # Another writer was faster: the next reconciliation reads its count.
            logger.info("event=scaling_overtaken service=%s scale=%d was=%d", key, replicas, known.replicas)
            self._changed(key)
            return False
        logger.info("event=scaled service=%s replicas=%d was=%d why=%s", key, replicas, known.replicas, why)
        # The next decision uses the written count, even before the event of the write.
        if (service := self._records.find(key, CachedService)) is not None:
            service.record_write(known, replicas)
        news = scaling_event(known.targets, known.replicas, replicas, why)
        try:
            await cluster.post_event(make_event(resource, news, timestamp(self._utc_now())))
        except (ApiError, NotLeadingError) as error:
            # The condition contains the same, so a lost Event is acceptable.
            logger.warning("event=announcing_failed service=%s reason=%s error=%s", key, news.reason, error)
        return True
