"""Writes of a service's children: no write that another writer undoes each time, and repairs of rejected ones."""

import logging
from collections.abc import Callable
from dataclasses import replace

from shoal_operator.children.changes import Action, Apply, Changes, Delete, Merge
from shoal_operator.children.exact import removal, removed_settings, replacement
from shoal_operator.children.observation import Failure, Key, Observation, dig
from shoal_operator.cluster.interface import Cluster
from shoal_operator.errors import ApiError
from shoal_operator.loop.records import Records
from shoal_operator.manifests.desired import DEPLOYMENT, SERVICE
from shoal_operator.manifests.labels import FIELD_MANAGER, digest
from shoal_operator.ownership.admission import changed_text, is_changed
from shoal_operator.ownership.conflicts import WriteLimits, conflicting_writer, last_writer
from shoal_operator.reconciliation.reporting import StatusWriter
from shoal_operator.reconciliation.retries import Retries
from shoal_operator.scaling.reversals import Reversals, adjusted, observed_deployment, observed_request, written
from shoal_operator.status.fractions import named_fractions
from shoal_operator.status.status import removed_settings_event
from shoal_schema.fields.declaring import Json

logger = logging.getLogger(__name__)


class ChildWriter:
    """Write the children of services.

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
        limits, retries = self._records.get(key, WriteLimits), self._records.get(key, Retries)
        failures = []
        self._records.put(key, observed_request(self._records.get(key, Reversals), observation.resource))
        for planned in changes.actions:
            if planned.kind == DEPLOYMENT and not isinstance(planned, Delete):
                reversals = observed_deployment(
                    self._records.get(key, Reversals), children.get(DEPLOYMENT), self._clock()
                )
                self._records.put(key, reversals)
            action = adjusted(self._records.get(key, Reversals), planned, children.get(DEPLOYMENT), self._clock())
            # Replicas are left to another writer, and nothing else changed.
            if action is None:
                continue
            # Writes that an admission policy or another writer would revert are not repeated.
            live = children.get(action.kind)
            urgent = _is_urgent(action, observation)
            if reverted := self._reverted_at_admission(limits, action, live) or self._undone(
                limits, action, live, urgent=urgent
            ):
                failures.append(reverted)
                continue
            try:
                stored = await self._perform(key, action, live)
                # Later steps see the cluster as it is after the write.
                if stored is None or isinstance(action, Delete):
                    del children[action.kind]
                else:
                    children[action.kind] = stored
                    limits.record_write(action.kind.label, digest(action.body), self._clock())
                if stored is not None and isinstance(action, Apply):
                    if live is not None and (settings := removed_settings(action.body, live, stored)):
                        await self._status.post_event(key, observation.resource, removed_settings_event(settings))
                    # The response differs from the request: an admission policy changed the object.
                    if is_changed(action.kind, action.body, stored):
                        request, response = digest(action.body), digest(stored.get("spec", {}))
                        limits.admit(action.kind.label, request, response, self._clock())
                        text = changed_text(action.body, stored)
                        failures.append(Failure(action.kind, 200, text, at_admission=True))
                self._records.put(key, written(self._records.get(key, Reversals), action, planned))
                logger.info(
                    "event=wrote service=%s action=%s kind=%s", key, type(action).__name__.lower(), action.kind.kind
                )
            except ApiError as error:
                retries.check(error)
                logger.warning("event=write_failed service=%s kind=%s error=%s", key, action.kind.label, error)
                message = named_fractions(error.message, observation.resource["spec"])
                failures.append(Failure(action.kind, error.code, message))
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

    def _reverted_at_admission(self, limits: WriteLimits, action: Action, live: Json | None) -> Failure | None:
        """Return the failure of a write that admission would change again."""
        if not isinstance(action, Apply) or live is None:
            return None
        request, stored = digest(action.body), digest(live.get("spec", {}))
        if not limits.is_admitted(action.kind.label, request, stored, self._clock()):
            return None
        return Failure(action.kind, 200, changed_text(action.body, live), at_admission=True)

    def _undone(self, limits: WriteLimits, action: Action, live: Json | None, *, urgent: bool) -> Failure | None:
        """Return the failure of a write that another writer has repeatedly undone."""
        if isinstance(action, Delete) or live is None:
            return None
        writer, field = conflicting_writer(action.body, live, FIELD_MANAGER)
        text = digest(action.body)
        if limits.may_write(action.kind.label, text, self._clock(), conflicting=bool(writer), urgent=urgent):
            return None
        what, pause = (f"field {field}" if writer else "fields"), "hour" if writer and not urgent else "few minutes"
        message = (
            f"{writer or last_writer(live, FIELD_MANAGER)!r} changes {what} back after each write, so the operator"
            f" writes only every {pause}. Check whether another install of the operator or a controller owns the object"
        )
        return Failure(action.kind, 409, message, undone=True)


def _is_urgent(action: Action, observation: Observation) -> bool:
    """Return whether the service serves no request until an object is restored."""
    live = observation.owned(action.kind)
    if isinstance(action, Delete) or not live:
        return False
    if action.kind == DEPLOYMENT:
        return dig(live, "spec", "replicas") == 0 and bool(dig(action.body, "spec", "replicas"))
    # A write of the Service replaces no pod.
    pods = dig(observation.owned(DEPLOYMENT), "status", "availableReplicas", default=0)
    return action.kind == SERVICE and bool(pods) and observation.endpoints == 0
