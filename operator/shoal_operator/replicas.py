"""How a service's replicas are written: where they are still what was decided upon, with an Event that says why."""

import datetime
import logging
from collections.abc import Callable
from typing import Protocol

from shoal_operator.errors import ApiError, NotLeadingError
from shoal_operator.load.fleet import Fleet, Scaled
from shoal_operator.planning.announcements import make_event, scaled
from shoal_operator.planning.observation import Key
from shoal_schema.declaring import Json

logger = logging.getLogger(__name__)


def _utc_now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)  # noqa: TID251 (an Event says when, to people)


class ScaleCluster(Protocol):
    """What writing needs of `shoal_operator.cluster.Cluster`."""

    async def scale(self, key: Key, replicas: int, *, was: int) -> Json | None:
        """Write the replicas if they are what they were; return the service as it was read, else None."""

    async def announce(self, event: Json) -> None:
        """Post an Event."""


class Replicas:
    """Writes what was decided.

    Args:
        fleet: told what was written.
        changed: called with a service whose replicas somebody else has set since the decision: it is looked at again.
        utc_now: the wall clock, for Events.
    """

    def __init__(
        self,
        fleet: Fleet,
        changed: Callable[[Key], object],
        utc_now: Callable[[], datetime.datetime] = _utc_now,
    ) -> None:
        self._fleet = fleet
        self._changed = changed
        self._utc_now = utc_now

    async def write(self, cluster: ScaleCluster, key: Key, known: Scaled, replicas: int, why: str) -> bool:
        """Write the replicas in the place of those that are known; return whether they were still those."""
        try:
            resource = await cluster.scale(key, replicas, was=known.replicas)
        except (ApiError, NotLeadingError) as error:
            logger.warning("event=scaling_failed service=%s scale=%d error=%s", key, replicas, error)
            return False
        if resource is None:
            # Whoever set them knows what is decided next: nothing is said, and the next look reads them.
            logger.info("event=scaling_overtaken service=%s scale=%d was=%d", key, replicas, known.replicas)
            self._changed(key)
            return False
        logger.info("event=scaled service=%s replicas=%d was=%d why=%s", key, replicas, known.replicas, why)
        self._fleet.wrote_replicas(key, known, replicas)
        news = scaled(known.aim, known.replicas, replicas, why)
        try:
            await cluster.announce(make_event(resource, news, self._utc_now().strftime("%Y-%m-%dT%H:%M:%SZ")))
        except (ApiError, NotLeadingError) as error:
            # The condition says the same; an Event is a courtesy.
            logger.warning("event=announcing_failed service=%s reason=%s error=%s", key, news.reason, error)
        return True
