"""Upgrades of services to this operator's images and pod template, one after another."""

import datetime
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from shoal_operator.children.changes import Changes, plan_changes
from shoal_operator.children.observation import Key, Observation, dig, key_of
from shoal_operator.cluster.api_time import timestamp
from shoal_operator.cluster.interface import Cluster
from shoal_operator.errors import ApiError
from shoal_operator.loop.records import Records
from shoal_operator.manifests.desired import DEPLOYMENT
from shoal_operator.manifests.target import Target
from shoal_operator.rollout.upgrade import (
    Phase,
    Upgrade,
    UpgradeState,
    images_of,
    is_pending,
    keep_pods,
    next_services,
    with_images,
)
from shoal_operator.rollout.window import Window
from shoal_schema.fields.declaring import Json
from shoal_schema.process.settings.operator import OperatorProcess
from shoal_schema.resource.conditions import Status

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Plan:
    """Planned writes for one service, with the state of its upgrade."""

    changes: Changes
    kept: Changes | None = None
    """Alternative writes that leave the pods unchanged until their upgrade may start; None: no upgrade is needed."""
    upgrade: Upgrade | None = None
    """The upgrade in progress."""
    overdue: bool = False
    """The upgrade exceeds the deadline of its rollout."""
    pending: bool = False
    """The upgrade has to wait."""


@dataclass(frozen=True, slots=True)
class Unreconciled:
    """Mark of a service not reconciled since this operator became the leader.

    Such a service may precede others in the order of upgrades.
    """


class Upgrading:
    """Decisions on when a new operator release may replace services' pods.

    Args:
        records: states of all services.
        settings: concurrency and window of upgrades.
        mark: schedules a service's reconciliation after a delay (s).
        utc_now: wall clock, for windows and for start times that survive a restart.
    """

    def __init__(
        self,
        cluster: Cluster,
        records: Records,
        settings: OperatorProcess,
        mark: Callable[[Key, float], object],
        utc_now: Callable[[], datetime.datetime],
    ) -> None:
        self._cluster = cluster
        self._records = records
        self._most = settings.upgrade_unavailable_services
        self._window = Window.parse(settings.upgrade_window)
        self._mark = mark
        self._utc_now = utc_now
        self._started = False
        self._next: list[Key] = []

    def load(self, services: Iterable[Json]) -> None:
        """Replace all states by those in the statuses of services, before the first reconciliation."""
        for kind in (UpgradeState, Unreconciled):
            self._records.remove_all(kind)
        for resource in services:
            key = key_of(resource)
            self.observe(key, resource)
            self._records.put(key, Unreconciled())
            # A service that is deleted before the watches begin must not block upgrades.
            self._mark(key, 0.0)
        self._started = True

    @property
    def settled(self) -> bool:
        """Whether every service has been reconciled since this operator leads."""
        return self._started and next(self._records.of(Unreconciled), None) is None

    def readiness(self) -> list[tuple[str, str]]:
        """Return status and reason of the condition Ready of each service."""
        return [(each.ready, each.reason) for _, each in self._records.of(UpgradeState) if each.ready]

    def counts(self) -> dict[str, int]:
        """Return the numbers of pending, running and failed upgrades."""
        phases = [each.phase for _, each in self._records.of(UpgradeState)]
        return {str(phase): phases.count(phase) for phase in Phase}

    def plan(self, key: Key, observation: Observation, target: Target) -> Plan:
        """Return the planned writes for a service."""
        resource, live = observation.resource, observation.owned(DEPLOYMENT)
        self.observe(key, resource)
        upgrade = Upgrade.stored(resource)
        # Until its upgrade a service keeps the images in its status.
        images = {**images_of(target, live), **dig(resource, "status", "images", default={})}
        changes = plan_changes(target if live else with_images(target, images), observation.children)
        body = changes.deployment
        kept = None
        if body and live and is_pending(body, live, resource):
            kept = keep_pods(target, observation.children, live, images)
        overdue = False
        if upgrade is not None:
            # Pods may be replaced one after another, each within the deadline.
            age = self._utc_now() - datetime.datetime.fromisoformat(upgrade.since)
            overdue = age.total_seconds() > target.spec.rollout.progress_deadline_seconds * max(1, target.replicas)
        return Plan(changes, kept, upgrade, overdue)

    async def decide(self, key: Key, resource: Json, plan: Plan) -> Plan:
        """Start the upgrade of a service's pods if its turn has come.

        Otherwise the returned plan keeps the pods.

        Raises:
            ApiError: the status could not be written.
        """
        if plan.kept is None or plan.upgrade is not None:
            return plan
        state = replace(UpgradeState.of(resource), phase=Phase.PENDING)
        self._records.put(key, state)
        upgrade = await self._begin(key, resource, state) if key in self._due() else None
        # Without a free slot the pods stay.
        return replace(plan, upgrade=upgrade) if upgrade else replace(plan, changes=plan.kept, pending=True)

    def observe(self, key: Key, resource: Json) -> None:
        """Record the upgrade state in a service's status."""
        self._records.put(key, UpgradeState.of(resource))

    def reconciled(self, key: Key) -> None:
        """Record the end of a reconciliation, and reconcile the services whose upgrade may start now."""
        self._records.remove(key, Unreconciled)
        before, self._next = self._next, self._due()
        # The end of one upgrade may start the next.
        for each in self._next:
            if each not in before:
                self._mark(each, 0.0)
        state = self._records.find(key, UpgradeState)
        opens_in_s = self._window.opens_in_s(self._utc_now().timestamp())
        if state and state.phase is Phase.PENDING and opens_in_s:
            self._mark(key, opens_in_s)

    def _due(self) -> list[Key]:
        """Return the services whose upgrade may start now."""
        if not self.settled or self._window.opens_in_s(self._utc_now().timestamp()):
            return []
        return next_services(dict(self._records.of(UpgradeState)), self._most)

    async def _begin(self, key: Key, resource: Json, state: UpgradeState) -> Upgrade | None:
        """Start an upgrade. The status is written first, so that it survives a restart of the operator."""
        # Occupies a slot at once, before the status is written.
        self._records.put(key, replace(state, phase=Phase.RUNNING))
        upgrade = Upgrade(timestamp(self._utc_now()), state.ready == Status.TRUE)
        status = {**dig(resource, "status", default={}), "upgrade": upgrade.as_status()}
        try:
            stored = await self._cluster.apply_status(resource, status)
        except ApiError as error:
            self.observe(key, resource)
            if not (error.forbidden or error.is_invalid_object):
                raise
            return None
        # An API server drops the field if the installed CustomResourceDefinition does not have it.
        if Upgrade.stored(stored) is None:
            logger.error("event=upgrade_unwritten service=%s definition=old: install the CRD of this release", key)
            self.observe(key, resource)
            return None
        logger.info("event=upgrade service=%s ready=%s", key, upgrade.was_ready)
        # The status at the end of the reconciliation is compared with this one.
        resource["status"] = status
        return upgrade
