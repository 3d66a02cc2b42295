"""Writes of a service's status, with an Event for each change of a condition."""

import datetime
import logging
from collections.abc import Callable
from dataclasses import dataclass

from shoal_operator.children.events import ServiceEvent, make_event
from shoal_operator.children.observation import Key, dig
from shoal_operator.cluster.api_time import timestamp
from shoal_operator.cluster.interface import Cluster
from shoal_operator.errors import ApiError
from shoal_operator.loop.records import Records
from shoal_operator.manifests.labels import digest
from shoal_operator.ownership.conflicts import WriteLimits
from shoal_operator.status.events import transitions, unwritten_status_event
from shoal_operator.status.status import plain_status
from shoal_schema.fields.declaring import Json

logger = logging.getLogger(__name__)

_STATUS = "status"
_NEW_FIELDS = ("images", "upgrade", "precision", "rollout")
"""Fields of the status that an older CustomResourceDefinition does not have; the others are written without them."""


@dataclass(slots=True)
class ReportedStatus:
    """The status of one service."""

    status: Json | None = None
    """The desired status, by the last reconciliation."""
    unwritable: bool = False
    """The operator may not write it."""


class StatusWriter:
    """Write statuses and Events.

    Args:
        utc_now: wall clock, for times in the API.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        cluster: Cluster,
        records: Records,
        utc_now: Callable[[], datetime.datetime],
        clock: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._records = records
        self._utc_now = utc_now
        self._clock = clock

    def now(self) -> str:
        """Return the current time in the API's format."""
        return timestamp(self._utc_now())

    async def write(self, key: Key, resource: Json, status: Json) -> bool:
        """Write the status if it changed.

        Returns: False if the API server has rejected the status or a part of it.

        Raises:
            ApiError: the request may succeed at the next reconciliation.
        """
        reported, limits = self._records.get(key, ReportedStatus), self._records.get(key, WriteLimits)
        reported.status = status
        stored = dig(resource, "status", default={})
        # A changed transition time alone is no new status.
        conditions = [{**condition, "lastTransitionTime": ""} for condition in status["conditions"]]
        text = digest({**status, "conditions": conditions})
        if status == stored:
            return True
        # Another writer may keep changing the status back.
        if not limits.may_write(_STATUS, text, self._clock()):
            return not reported.unwritable
        limits.record_write(_STATUS, text, self._clock())
        try:
            written = await self._apply(key, resource, status)
        except ApiError as error:
            if not error.forbidden or error.is_deletion:
                raise
            if not reported.unwritable:
                reported.unwritable = True
                event = unwritten_status_event(error)
                logger.error("event=status_forbidden service=%s status=old error=%s", key, event.message)
                await self.post_event(key, resource, event)
            return False
        reported.unwritable = False
        for event in transitions(stored.get("conditions", []), written["conditions"]):
            await self.post_event(key, resource, event)
        return written is status

    async def _apply(self, key: Key, resource: Json, status: Json) -> Json:
        """Write the status and return the status that was written.

        If the installed CustomResourceDefinition rejects the status, it is written without new fields, or else
        as a minimal status.
        """
        older = {name: value for name, value in status.items() if name not in _NEW_FIELDS}
        message = ""
        # An API server with an older definition rejects or drops new fields.
        for each in (status, older):
            try:
                await self._cluster.apply_status(resource, each)
                return each
            except ApiError as error:
                if not error.is_invalid_object:
                    raise
                logger.error("event=status_refused service=%s status=refused error=%s", key, error)
                message = error.message
        least = plain_status(resource, message, self.now())
        await self._cluster.apply_status(resource, least)
        return least

    async def post_event(self, key: Key, resource: Json, event: ServiceEvent) -> None:
        """Post an Event about a service; a failure is only logged."""
        logger.info("event=announced service=%s reason=%s message=%s", key, event.reason, event.message)
        try:
            await self._cluster.post_event(make_event(resource, event, self.now()))
        except ApiError as error:
            # The status contains the same, so a lost Event is acceptable.
            level = logging.INFO if error.is_deletion else logging.WARNING
            logger.log(level, "event=announcing_failed service=%s reason=%s error=%s", key, event.reason, error)
