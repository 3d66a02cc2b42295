"""Reconciliation of one service: observe, plan, write, report.

Level-triggered and idempotent: it does not depend on the event that caused it, and writes nothing to a cluster that is
in the desired state.
"""

import datetime
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from shoal_operator.children.changes import Conflict, release_slice
from shoal_operator.children.observation import Failure, Key, Observation, dig
from shoal_operator.children.pods import deployed_hash
from shoal_operator.cluster.interface import Cluster
from shoal_operator.errors import ApiError
from shoal_operator.loop.records import Records
from shoal_operator.loop.workqueue import Outcome, Schedule
from shoal_operator.manifests.desired import CANDIDATE, DEPLOYMENT, ENDPOINT_SLICE, PEERS, SERVICE, Role
from shoal_operator.manifests.labels import OPERATOR_ANNOTATION
from shoal_operator.models.resolution import ModelResolution, is_unresolved, stored_version
from shoal_operator.ownership.conflicts import REPLICAS, WriteLimits, replicas_request, replicas_writer
from shoal_operator.ownership.installs import CLAIM_ANNOTATION, Ownership, OwnershipStep, decide
from shoal_operator.reconciliation.planning import Hosts, Judge, ModelResolver, Planner
from shoal_operator.reconciliation.reporting import StatusWriter
from shoal_operator.reconciliation.retries import Retries
from shoal_operator.reconciliation.writing import ChildWriter
from shoal_operator.rollout.progress import RolloutProgress
from shoal_operator.rollout.stays import StayRequest, plan_stays
from shoal_operator.rollout.upgrading import Upgrading
from shoal_operator.scaling.load_state import LoadState
from shoal_operator.scaling.service_cache import CachedService, Replica, running_replicas
from shoal_operator.status.events import other_owner_event
from shoal_operator.status.evidence import Evidence
from shoal_operator.status.status import make_status, unread_status
from shoal_operator.zero.activator import NoActivatorError
from shoal_schema.decoding import GraphSpecError, SpecError
from shoal_schema.fields.declaring import Json
from shoal_schema.interfaces.load import GraphState
from shoal_schema.process.settings.operator import OperatorProcess
from shoal_schema.resource.conditions import Reason
from shoal_schema.resource.locations import LocationError

logger = logging.getLogger(__name__)


class Graphs(Protocol):
    """The part of `shoal_operator.reconciliation.graph_states.GraphStates` that the reconciler uses."""

    def latest(self, key: Key, replicas: Sequence[Replica]) -> Mapping[str, GraphState]:
        """Return the last state of these pods by uid."""


class Stays(Protocol):
    """The part of `shoal_operator.rollout.staying.StaySender` that the reconciler uses."""

    def send(self, key: Key, stays: Iterable[StayRequest]) -> None:
        """Request each stopping pod of a service to keep serving, or to stop."""


class Reconciler:
    """Reconciler of services and graphs.

    Args:
        utc_now: wall clock, for the times in a status.
        clock: monotonic seconds.
        records: states of all objects.
        names: resolves model names, and returns addresses of registries.
        scale_to_zero: assigns ports of the activator to services that scale to zero.
        upgrading: decides when a new operator release may replace pods.
        graphs: states of the pods of graphs.
        stays: requests stopping pods to keep serving until a replacement is ready.
        judging: compares candidates with stable pods.
    """

    def __init__(  # noqa: PLR0913 (its seams)
        self,
        cluster: Cluster,
        defaults: OperatorProcess,
        utc_now: Callable[[], datetime.datetime],
        *,
        clock: Callable[[], float],
        records: Records,
        names: ModelResolver,
        scale_to_zero: Hosts,
        upgrading: Upgrading,
        graphs: Graphs,
        stays: Stays,
        judging: Judge,
    ) -> None:
        self._cluster = cluster
        self._install = defaults.namespace
        self._utc_now = utc_now
        self._clock = clock
        self._records = records
        self._hosts = scale_to_zero
        self._upgrading = upgrading
        self._graphs = graphs
        self._stays = stays
        self._judging = judging
        self._planner = Planner(defaults, names, scale_to_zero, upgrading, judging, utc_now)
        self._status = StatusWriter(cluster, records, utc_now, clock)
        self._children = ChildWriter(cluster, records, self._status, clock)

    async def reconcile(self, key: Key) -> Outcome:
        """Reconcile a service once, and write its status if it changed.

        Raises:
            ApiError: the cluster could not be read or written.
        """
        try:
            return await self._reconcile(key)
        finally:
            self._upgrading.reconciled(key)

    async def _reconcile(self, key: Key) -> Outcome:
        resource = await self._cluster.read_service(key)
        # Kubernetes deletes the children with their owner.
        if resource is None or dig(resource, "metadata", "deletionTimestamp"):
            self._records.drop(key, keep=(Schedule,))
            return Outcome.GONE
        self._records.identify(key, resource["metadata"]["uid"], keep=(Schedule,))
        observation = await self._observe(key, resource)
        if observation is None:
            return Outcome.FAILED
        step = await self._claim(key, observation)
        # Another install's service: write nothing, and drop all state but that of ownership and of conflicts.
        if step in (OwnershipStep.CLAIM, OwnershipStep.LEAVE):
            self._records.drop(key, keep=(Schedule, Ownership, WriteLimits, Retries))
            return Outcome.FAILED
        # The service is this install's.
        judged = observation.owned(DEPLOYMENT) if RolloutProgress.stored(resource) else None
        self._records.get(key, CachedService).observe(
            resource,
            observation.pods,
            self._clock(),
            compares=bool(observation.owned(CANDIDATE)),
            candidates=observation.candidate_pods,
            deployment=judged,
        )
        evidence = await self._apply(key, observation)
        status = make_status(evidence, self._status.now())
        written = await self._status.write(key, resource, status)
        self._upgrading.observe(key, {**resource, "status": status} if written else resource)
        # Anything incomplete is retried with backoff.
        obstacles = evidence.conflicts or evidence.peers_obstacle or evidence.candidate_obstacle
        complete = written and not (evidence.failures or obstacles)
        outcome = Outcome.DONE if complete else Outcome.FAILED
        if outcome is Outcome.DONE:
            self._records.put(key, Retries())
        logger.debug("event=reconciled service=%s outcome=%s", key, outcome)
        return Outcome.WAITING if step is OwnershipStep.WAIT else outcome

    async def _observe(self, key: Key, resource: Json) -> Observation | None:
        """Read a service's children, or report a lasting failure and return None.

        Raises:
            ApiError: the request may succeed at the next reconciliation.
        """
        try:
            return await self._cluster.observe(key, resource)
        except ApiError as error:
            self._records.get(key, Retries).check(error)
            logger.warning("event=read_failed service=%s error=%s", key, error)
            # Another install's service has the status of that install.
            if not self._records.get(key, Ownership).keeper:
                await self._status.write(key, resource, unread_status(resource, error, self._status.now()))
            return None

    async def _claim(self, key: Key, observation: Observation) -> OwnershipStep:
        """Determine which install of the operator owns the service.

        If this step of the ownership requires it, claim the service or remove another install's claim.
        """
        child = observation.owned(SERVICE) or observation.orphaned(SERVICE)
        annotations, before = dig(child, "metadata", "annotations", default={}), self._records.get(key, Ownership)
        keeper, claim = (annotations.get(name, "") for name in (OPERATOR_ANNOTATION, CLAIM_ANNOTATION))
        step, now = decide(self._install, keeper, claim, before, self._clock())
        self._records.put(key, now)
        if step in (OwnershipStep.REJECT, OwnershipStep.CLAIM):
            value = self._install if step is OwnershipStep.CLAIM else None
            await self._cluster.annotate(SERVICE, key, child["metadata"]["uid"], {CLAIM_ANNOTATION: value})
        if step in (OwnershipStep.CLAIM, OwnershipStep.LEAVE) and not before.keeper:
            event = other_owner_event(now.keeper, self._install)
            await self._status.post_event(key, observation.resource, event)
        return step

    async def _apply(self, key: Key, observation: Observation) -> Evidence:
        # Plan. A spec that cannot be followed leaves the children unchanged and becomes a condition.
        try:
            planned = self._planner.plan(key, observation)
        except NoActivatorError as error:
            release = release_slice(observation.owned(ENDPOINT_SLICE))
            observation, failures = await self._children.execute(key, release, observation)
            return Evidence(observation=observation, target=None, spec_error=str(error), failures=tuple(failures))
        except GraphSpecError as error:
            reason = Reason(error.fault)
            return Evidence(observation=observation, target=None, spec_error=str(error), spec_reason=reason)
        except (SpecError, LocationError) as error:
            return Evidence(observation=observation, target=None, spec_error=str(error))
        except Exception as error:  # a bug: the author of the spec must see it too, not the log alone
            logger.exception("event=planning_failed service=%s", key)
            text = f"the operator failed on this spec: {error!r}. Please report this bug"
            return Evidence(observation=observation, target=None, spec_error=text)
        target, resource = planned.target, observation.resource
        # Stopping pods keep serving while no other pod is ready.
        self._stays.send(key, plan_stays(target, observation.pods, observation.owned(DEPLOYMENT), self._until_s))
        plan = await self._upgrading.decide(key, resource, planned.plan)
        await self._store_version(resource, planned.resolution)
        # Write.
        observation, failures = await self._children.execute(key, plan.changes, observation)
        self._hosts.observe(key, observation)
        # After the writes: a candidate is removed only after the proxies have accepted that none is left.
        rollout = planned.rollout
        if not planned.refused and not is_unresolved(planned.resolution):
            self._judging.follow(key, rollout.assignment(observation) if rollout else None)
        obstacles: list[Conflict | Failure] = [*plan.changes.conflicts, *failures]
        graph_states: Mapping[str, GraphState] = {}
        if target.graph is not None:
            running = running_replicas(observation.pods, deployed_hash(observation.owned(DEPLOYMENT)))
            graph_states = self._graphs.latest(key, running)
        load = self._records.find(key, LoadState) or LoadState()
        left = self._records.get(key, WriteLimits).is_paused(REPLICAS, replicas_request(resource), self._clock())
        return Evidence(
            observation=observation,
            target=target,
            spec_error=planned.refused,
            spec_reason=Reason.NOT_ALLOWED,
            newest=planned.newest,
            conflicts=tuple(each for each in plan.changes.conflicts if not _is_apart(each)),
            failures=tuple(each for each in failures if not _is_apart(each)),
            peers_obstacle=next((each for each in obstacles if _is_apart(each) and each.kind == PEERS), None),
            candidate_obstacle=next((each for each in obstacles if _is_apart(each) and each.kind != PEERS), None),
            rollout=rollout.decision if rollout else None,
            upgrade=plan.upgrade,
            overdue=plan.overdue,
            pending=plan.pending,
            scaling=load.reported,
            attainable=load.attainable,
            independent=load.independent,
            precisions=load.precisions,
            resolution=planned.resolution,
            graph_states=graph_states,
            other_operator=self._records.get(key, Ownership).recent_claimant(self._clock()),
            scaler=replicas_writer(observation.owned(DEPLOYMENT)) if left else "",
        )

    def _until_s(self, time: str) -> float:
        return (datetime.datetime.fromisoformat(time) - self._utc_now()).total_seconds()

    async def _store_version(self, resource: Json, resolution: ModelResolution | None) -> None:
        """Write the resolved version to the status before pods use it, so that a restart does not choose another.

        Raises:
            ApiError: the status could not be written.
        """
        if resolution is None or not resolution.resolved:
            return
        if stored_version(resource, resolution.uri) == resolution.resolved:
            return
        stored = dig(resource, "status", default={})
        try:
            await self._cluster.apply_status(resource, {**stored, "model": resolution.as_status()})
        except ApiError as error:
            if error.is_deletion or not (error.forbidden or error.is_invalid_object):
                raise
            # A status that cannot be written is reported at the end of the reconciliation; pods serve anyway.


def _is_apart(obstacle: Conflict | Failure) -> bool:
    """Return whether a conflict or failure affects only request forwarding, or only a candidate."""
    apart = obstacle.kind == PEERS or obstacle.kind.role is Role.CANDIDATE
    return apart and not (isinstance(obstacle, Conflict) and obstacle.stale)
