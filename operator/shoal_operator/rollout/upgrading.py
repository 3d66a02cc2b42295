"""Upgrades of services to this operator's images and pod template, one after another."""

import asyncio
import datetime
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from shoal_operator.children.changes import Changes, plan_changes
from shoal_operator.children.observation import Key, Observation, dig, key_of
from shoal_operator.cluster.interface import Cluster
from shoal_operator.errors import ApiError
from shoal_operator.loop.records import Records
from shoal_operator.manifests.desired import DEPLOYMENT
from shoal_operator.manifests.target import Target
from shoal_operator.rollout.upgrade import Upgrade, Upgrades, Window, images_of, is_pending, keep_pods, with_images
from shoal_schema.fields.declaring import Json
from shoal_schema.process.settings.operator import OperatorProcess
from shoal_schema.resource.conditions import Status

logger = logging.getLogger(__name__)

_RETRY_S = 0.5


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

    def keeping_pods(self, deployment: Json, replicas: int) -> "Plan":
        """Return the plan without changes of pods, apart from their number."""
        return replace(self, changes=self.changes.keeping_pods(deployment, replicas), kept=None)

    def scaling_alone(self, deployment: Json, replicas: int) -> "Plan":
        """Return the plan for a spec that is not allowed: only replicas change."""
        return replace(self, changes=self.changes.scaling_alone(deployment, replicas), kept=None)


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
        self._namespaces = settings.watch_namespaces
        self._mark = mark
        self._utc_now = utc_now
        self.upgrades = Upgrades(settings.upgrade_unavailable_services, Window.parse(settings.upgrade_window), records)

    async def start(self) -> None:
        """Read the upgrades in progress from all statuses, before the first reconciliation."""
        while True:
            try:
                services = await self._cluster.list_services(self._namespaces)
                break
            except ApiError as error:
                logger.warning("event=services_unread error=%s", error)
                await asyncio.sleep(_RETRY_S)
        self.upgrades.start({key_of(each): each for each in services})
        for key in self.upgrades.states:
            # A service that is deleted before the watches begin must not block upgrades.
            self._mark(key, 0.0)

    def plan(self, key: Key, observation: Observation, target: Target) -> Plan:
        """Return the planned writes for a service."""
        resource, live = observation.resource, observation.owned(DEPLOYMENT)
        self.upgrades.observe(key, resource)
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
        """Start the upgrade of a plan if allowed, else keep the pods.

        Raises:
            ApiError: the status could not be written.
        """
        if plan.kept is None or plan.upgrade is not None:
            return plan
        # Without a free slot the pods stay.
        upgrade = await self._begun(key, resource)
        return replace(plan, upgrade=upgrade) if upgrade else replace(plan, changes=plan.kept, pending=True)

    def observe(self, key: Key, resource: Json) -> None:
        """Record a service's state after a reconciliation."""
        self.upgrades.observe(key, resource)

    def reconciled(self, key: Key) -> None:
        """Record the end of a reconciliation, and reconcile the services whose upgrade may start now."""
        self.upgrades.reconciled(key)
        now_s = self._utc_now().timestamp()
        # The end of one upgrade may start the next.
        for each in self.upgrades.newly_due(now_s):
            self._mark(each, 0.0)
        standing = self.upgrades.states.get(key)
        if standing and standing.pending and (opens_in_s := self.upgrades.window.opens_in_s(now_s)):
            self._mark(key, opens_in_s)

    async def _begun(self, key: Key, resource: Json) -> Upgrade | None:
        """Start the upgrade if allowed. The status is written first, so that it survives a restart of the operator."""
        standing, now = self.upgrades.states[key], self._utc_now()
        if not self.upgrades.try_start(key, now.timestamp()):
            return None
        upgrade = Upgrade(now.strftime("%Y-%m-%dT%H:%M:%SZ"), standing.ready == Status.TRUE)
        status = {**dig(resource, "status", default={}), "upgrade": upgrade.as_status()}
        try:
            stored = await self._cluster.apply_status(resource, status)
        except ApiError as error:
            self.upgrades.observe(key, resource)
            if not (error.forbidden or error.is_invalid_object):
                raise
            return None
        if Upgrade.stored(stored) is None:
            # The API server dropped the field, as the installed CustomResourceDefinition does not have it.
            logger.error(
                "event=upgrade_unwritten service=%s definition=old: install the CRD of this release",
                key,
            )
            self.upgrades.observe(key, resource)
            return None
        logger.info("event=upgrade service=%s ready=%s", key, upgrade.was_ready)
        # The status at the end of the reconciliation is compared with this one.
        resource["status"] = status
        return upgrade
