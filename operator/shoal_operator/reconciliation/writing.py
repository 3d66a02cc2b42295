"""Writes of a service's children.

A write that another writer undoes each time is not repeated; a write that the API server rejects is repaired.
"""

import logging
from collections.abc import Callable
from dataclasses import replace

from shoal_operator.children.changes import Action, Apply, Changes, Delete, Merge, leaving_replicas
from shoal_operator.children.exact import is_stored, removal, removed_settings, replacement
from shoal_operator.children.observation import Failure, Key, Observation, dig
from shoal_operator.cluster.interface import Cluster
from shoal_operator.errors import ApiError
from shoal_operator.loop.records import Records
from shoal_operator.manifests.desired import DEPLOYMENT, SERVICE
from shoal_operator.manifests.labels import FIELD_MANAGER, digest
from shoal_operator.ownership.conflicts import (
    KNOWN_WRITER,
    REPLICAS,
    REPLICAS_WRITER,
    UNKNOWN_WRITER,
    URGENT,
    WriteLimits,
    conflicting_writer,
    replicas_request,
    replicas_writer,
    writer_of,
)
from shoal_operator.reconciliation.reporting import StatusWriter
from shoal_operator.reconciliation.retries import Retries
from shoal_operator.status.blocked import changed_text
from shoal_operator.status.events import removed_settings_event
from shoal_operator.status.fractions import named_fractions
from shoal_schema.fields.declaring import Json

logger = logging.getLogger(__name__)

_AT_ADMISSION = "admission of "


class ChildWriter:
    """Writer of the children of services.

    Args:
        status: posts Events.
        clock: monotonic seconds.
    """

    def __init__(self, cluster: Cluster, records: Records, status: StatusWriter, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._records = records
        self._status = status
        self._clock = clock

    async def execute(self, key: Key, changes: Changes, observation: Observation) -> tuple[Observation, list[Failure]]:
        """Make the changes; a rejected write does not stop the others.

        Returns: The observation with the children as stored, and the failures.

        Raises:
            ApiError: the request may succeed at the next reconciliation.
        """
        children = dict(observation.children)
        limits, failures = self._records.get(key, WriteLimits), list[Failure]()
        for planned in changes.actions:
            live = children.get(planned.kind)
            action = self._without_left_replicas(limits, planned, live, observation.resource)
            # Only the replicas differ, which are left to another writer.
            if action is None:
                continue
            # Writes that an admission policy or another writer would revert are not repeated.
            urgent = _is_urgent(action, observation)
            if reverted := self._reverted(limits, action, live, urgent=urgent):
                failures.append(reverted)
                continue
            what, now_s = action.kind.label, self._clock()
            try:
                stored = await self._perform(key, action, live)
            except ApiError as error:
                self._records.get(key, Retries).check(error)
                logger.warning("event=write_failed service=%s kind=%s error=%s", key, what, error)
                message = named_fractions(error.message, observation.resource["spec"])
                failures.append(Failure(action.kind, error.code, message))
                continue
            verb = type(action).__name__.lower()
            logger.info("event=wrote service=%s action=%s kind=%s", key, verb, action.kind.kind)
            # Later steps see the cluster as it is after the write.
            if stored is None or isinstance(action, Delete):
                del children[action.kind]
                continue
            children[action.kind] = stored
            limits.record_write(what, digest(action.body), now_s)
            if isinstance(action, Merge):
                continue
            if live is not None and (settings := removed_settings(action.body, live, stored)):
                await self._status.post_event(key, observation.resource, removed_settings_event(settings))
            # The response differs from the request: an admission policy changed the object.
            if not is_stored(action.kind, action.body, stored):
                limits.pause(_AT_ADMISSION + what, _outcome(action, stored), now_s + UNKNOWN_WRITER.max_pause_s)
                text = changed_text(action.body, stored)
                failures.append(Failure(action.kind, 200, text, at_admission=True))
        return replace(observation, children=children), failures

    async def _perform(self, key: Key, action: Action, live: Json | None) -> Json | None:
        """Make one change; return the object as stored, or None after a deletion."""
        if isinstance(action, Delete):
            await self._cluster.delete(action.kind, key, action.uid)
            return None
        if isinstance(action, Merge):
            assert live is not None
            return await self._cluster.merge(action.kind, live, action.body)
        try:
            stored = await self._cluster.apply(action.kind, action.body, action.uid)
        except ApiError as error:
            # Only an invalid combination with existing fields can be solved.
            if live is None or error.status != 422 or error.forbidden:
                raise
            # Others' fields beside ours may be the cause: remove them and retry. If the object without them is
            # rejected too, the first error is the one to report.
            try:
                await self._cluster.merge(action.kind, live, replacement(action.body, live))
            except ApiError as again:
                raise (error if again.is_invalid_object else again) from again
            stored = await self._cluster.apply(action.kind, action.body, action.uid)
        if patch := removal(action.kind, action.body, stored):
            return await self._cluster.merge(action.kind, stored, patch)
        return stored

    def _without_left_replicas(
        self, limits: WriteLimits, action: Action, live: Json | None, resource: Json
    ) -> Action | None:
        """Return a write of a Deployment, perhaps without its replicas.

        The replicas are left out after another writer has reset them repeatedly. None if nothing else would change.
        """
        stored = dig(live, "spec", "replicas")
        # 0 replicas are left to no other writer, as no request would be served.
        if action.kind != DEPLOYMENT or isinstance(action, Delete) or live is None or not stored:
            return action
        if dig(action.body, "spec", "replicas") in (None, stored) or not replicas_writer(live):
            return action
        may = limits.may_write(REPLICAS, replicas_request(resource), self._clock(), REPLICAS_WRITER)
        return action if may else leaving_replicas(action, live)

    def _reverted(self, limits: WriteLimits, action: Action, live: Json | None, *, urgent: bool) -> Failure | None:
        """Return the failure of a write that admission or another writer would revert."""
        if isinstance(action, Delete) or live is None:
            return None
        what, now_s = action.kind.label, self._clock()
        if isinstance(action, Apply) and limits.is_paused(_AT_ADMISSION + what, _outcome(action, live), now_s):
            return Failure(action.kind, 200, changed_text(action.body, live), at_admission=True)
        writer, field = conflicting_writer(action.body, live)
        known = (URGENT if urgent else KNOWN_WRITER) if writer else None
        if limits.may_write(what, digest(action.body), now_s, known):
            return None
        fields, pause = (f"field {field}" if writer else "fields"), "hour" if known is KNOWN_WRITER else "few minutes"
        message = (
            f"{writer or writer_of(live) or FIELD_MANAGER!r} changes {fields} back after each write, so the operator"
            f" writes only every {pause}. Check whether another install of the operator or a controller owns the object"
        )
        return Failure(action.kind, 409, message, undone=True)


def _outcome(action: Apply, stored: Json) -> str:
    """Return a digest of a write and of the object that the API server stored for it."""
    return digest([action.body, stored.get("spec", {})])


def _is_urgent(action: Action, observation: Observation) -> bool:
    """Return whether the service needs this write to serve any request."""
    live = observation.owned(action.kind)
    if isinstance(action, Delete) or not live:
        return False
    if action.kind == DEPLOYMENT:
        return dig(live, "spec", "replicas") == 0 and bool(dig(action.body, "spec", "replicas"))
    # A write of the Service replaces no pod.
    pods = dig(observation.owned(DEPLOYMENT), "status", "availableReplicas", default=0)
    return action.kind == SERVICE and bool(pods) and observation.endpoints == 0
