"""Reconciliation of one service: observe, plan, apply, report.

A reconciliation is level-triggered and idempotent: it does not depend on the event that caused it, and writes nothing
to a cluster that is in the desired state.
"""

import datetime
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from shoal_operator.errors import ApiError
from shoal_operator.load.service_cache import Replica, ServiceCache, running_replicas
from shoal_operator.manifests.desired import DEPLOYMENT, ENDPOINT_SLICE, PEERS, SERVICE, Kind
from shoal_operator.manifests.labels import FIELD_MANAGER, digest
from shoal_operator.manifests.origin import with_source
from shoal_operator.manifests.specs import graph_of, service_spec
from shoal_operator.manifests.target import Hosting, Target
from shoal_operator.planning.activator import NoActivatorError
from shoal_operator.planning.admission import changed_text, is_changed
from shoal_operator.planning.allowed import not_allowed
from shoal_operator.planning.changes import Action, Apply, Changes, Conflict, Delete, Merge, release_slice
from shoal_operator.planning.conflicts import Conflicts, conflicting_writer, last_writer
from shoal_operator.planning.events import ServiceEvent, make_event
from shoal_operator.planning.evidence import Evidence, Scaling
from shoal_operator.planning.exact import removal, removed_settings, replacement
from shoal_operator.planning.fractions import named_fractions
from shoal_operator.planning.model_resolution import ModelResolution, stored_version
from shoal_operator.planning.observation import Failure, Key, Observation, dig
from shoal_operator.planning.ownership import CLAIM_ANNOTATION, Ownerships, OwnershipStep
from shoal_operator.planning.pods import template_hash
from shoal_operator.planning.reversals import ConflictingReplicas
from shoal_operator.planning.status import (
    make_status,
    other_owner_event,
    plain_status,
    removed_settings_event,
    transitions,
    unread_status,
    unwritten_status_event,
)
from shoal_operator.planning.stays import StayRequest, plan_stays
from shoal_operator.planning.workqueue import Outcome
from shoal_operator.upgrading import Plan
from shoal_schema.conditions import Reason
from shoal_schema.declaring import Json
from shoal_schema.decoding import GraphSpecError, SpecError
from shoal_schema.load import GraphState
from shoal_schema.processes.operator import OperatorProcess
from shoal_schema.resource.locations import LocationError
from shoal_schema.resource.model import Follow
from shoal_schema.resource.service import InferenceServiceSpec

logger = logging.getLogger(__name__)

_STATUS = "status"
_MAX_RETRIES = 3
"""Failed reconciliations in a row after which the status reports the outage."""

_NEW_FIELDS = ("images", "upgrade")
"""Fields of the status that an older CustomResourceDefinition does not have; the others are written without them."""


class _Cluster(Protocol):
    async def read_service(self, key: Key) -> Json | None: ...
    async def observe(self, key: Key, resource: Json) -> Observation: ...
    async def apply(self, kind: Kind, body: Json, uid: str | None) -> Json: ...
    async def merge(self, kind: Kind, stored: Json, patch: Json) -> Json: ...
    async def annotate(self, kind: Kind, key: Key, uid: str, annotations: Mapping[str, str | None]) -> None: ...
    async def delete(self, kind: Kind, key: Key, uid: str) -> None: ...
    async def apply_status(self, resource: Json, status: Json) -> Json: ...
    async def post_event(self, event: Json) -> None: ...


class _AutoscalerReports(Protocol):
    def scaling(self, key: Key) -> Scaling | None: ...
    def attainable(self, key: Key) -> Mapping[str, bool] | None: ...
    def independent(self, key: Key) -> Mapping[str, bool] | None: ...


class _ModelResolver(Protocol):
    def resolution(self, key: Key, resource: Json, uri: str | None, *, follows: bool) -> ModelResolution | None: ...
    def registry(self, uri: str) -> Mapping[str, str]: ...
    def forget(self, key: Key) -> None: ...


class _Graphs(Protocol):
    def latest(self, key: Key, replicas: Sequence[Replica]) -> Mapping[str, GraphState]: ...
    def forget(self, key: Key) -> None: ...


class _ScaleToZero(Protocol):
    def host(self, key: Key, spec: InferenceServiceSpec, observation: Observation) -> Hosting | None: ...
    def observe(self, key: Key, observation: Observation) -> None: ...
    def forget(self, key: Key) -> None: ...


class _StaySender(Protocol):
    def send(self, key: Key, stays: Iterable[StayRequest]) -> None: ...
    def forget(self, key: Key) -> None: ...


class _Upgrading(Protocol):
    def plan(self, key: Key, observation: Observation, target: Target) -> Plan: ...
    async def decide(self, key: Key, resource: Json, plan: Plan) -> Plan: ...
    def observe(self, key: Key, resource: Json | None) -> None: ...
    def reconciled(self, key: Key) -> None: ...


class Reconciler:
    """Reconciler of services and graphs.

    Args:
        known: the autoscaler's reports on services and their pods.
        utc_now: wall clock, for the times in a status.
        cache: records each observation, so that the autoscaler reads the pods that exist.
        clock: monotonic seconds.
        names: resolves model names, and returns addresses of registries.
        scale_to_zero: places services that scale to zero in the activator.
        graphs: validity of graphs, as their pods report it.
        upgrading: decides when a new operator release may replace pods.
        stays: requests stopping pods to keep serving until a replacement is ready.
    """

    def __init__(  # noqa: PLR0913 (its seams)
        self,
        cluster: _Cluster,
        defaults: OperatorProcess,
        known: _AutoscalerReports,
        utc_now: Callable[[], datetime.datetime],
        *,
        cache: ServiceCache,
        clock: Callable[[], float],
        names: _ModelResolver,
        scale_to_zero: _ScaleToZero,
        upgrading: _Upgrading,
        graphs: _Graphs,
        stays: _StaySender,
    ) -> None:
        self._cluster = cluster
        self._defaults = defaults
        self._known = known
        self._utc_now = utc_now
        self._cache = cache
        self._clock = clock
        self._names = names
        self._scale_to_zero = scale_to_zero
        self._upgrading = upgrading
        self._graphs = graphs
        self._stays = stays
        self._ownerships = Ownerships(defaults.namespace)
        self._conflicts = Conflicts()
        self._replicas = ConflictingReplicas()
        self._cut_short: Counter[Key] = Counter()
        self._unwritable: set[Key] = set()
        """Services whose status the operator may not write."""
        self.statuses: dict[Key, Json] = {}
        """The desired status of each service, by its last reconciliation."""

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
        # Kubernetes deletes the children with their owner; only cached state remains.
        if resource is None or dig(resource, "metadata", "deletionTimestamp"):
            self._cut_short.pop(key, None)
            self._unwritable.discard(key)
            self.statuses.pop(key, None)
            self._cache.drop(key)
            self._scale_to_zero.forget(key)
            self._upgrading.observe(key, None)
            self._names.forget(key)
            self._graphs.forget(key)
            self._stays.forget(key)
            self._ownerships.forget(key)
            self._conflicts.forget(key)
            self._replicas.forget(key)
            return Outcome.GONE
        observation = await self._observe(key, resource)
        if observation is None:
            return Outcome.FAILED
        # Determine which install owns the service, and write or remove a claim where it is time.
        child = observation.owned(SERVICE) or observation.orphaned(SERVICE)
        owner_before = self._ownerships.keeper(key)
        step = self._ownerships.decide(key, child, self._clock())
        if step in (OwnershipStep.REJECT, OwnershipStep.CLAIM):
            value = self._ownerships.me if step is OwnershipStep.CLAIM else None
            await self._cluster.annotate(SERVICE, key, child["metadata"]["uid"], {CLAIM_ANNOTATION: value})
        if step in (OwnershipStep.CLAIM, OwnershipStep.LEAVE) and not owner_before:
            event = other_owner_event(self._ownerships.keeper(key), self._ownerships.me)
            await self._post_event(key, observation.resource, event, self._utc_now())
        # Another install's service: write nothing, and drop cached state.
        if step in (OwnershipStep.CLAIM, OwnershipStep.LEAVE):
            self.statuses.pop(key, None)
            self._cache.drop(key)
            self._scale_to_zero.forget(key)
            self._upgrading.observe(key, None)
            return Outcome.FAILED
        # The service is this install's.
        self._cache.observe(key, resource, observation.pods, self._clock())
        evidence = await self._apply(key, observation)
        now = self._utc_now()
        status = make_status(evidence, _seconds(now))
        written = await self._report(key, resource, status, now)
        self._upgrading.observe(key, {**resource, "status": status} if written else resource)
        # Anything incomplete is retried with backoff.
        complete = written and not (evidence.failures or evidence.conflicts or evidence.peers_obstacle)
        outcome = Outcome.DONE if complete else Outcome.FAILED
        if outcome is Outcome.DONE:
            self._cut_short.pop(key, None)
        logger.debug("event=look service=%s look=%s", key, outcome)
        return Outcome.WAITING if step is OwnershipStep.WAIT else outcome

    async def _observe(self, key: Key, resource: Json) -> Observation | None:
        """Read a service's children, or report a lasting failure and return None.

        Raises:
            ApiError: the request may succeed at the next reconciliation.
        """
        try:
            return await self._cluster.observe(key, resource)
        except ApiError as error:
            self._check_transient(key, error)
            logger.warning("event=read_failed service=%s error=%s", key, error)
            # Another install's service has the status of that install.
            if not self._ownerships.keeper(key):
                now = self._utc_now()
                await self._report(key, resource, unread_status(resource, error, _seconds(now)), now)
            return None

    async def _apply(self, key: Key, observation: Observation) -> Evidence:
        # Plan. A spec that cannot be followed leaves the children unchanged and becomes a condition.
        try:
            spec = service_spec(observation.resource)
            follows = spec.model.follow is Follow.ROLLOUT
            resolution = self._names.resolution(key, observation.resource, spec.model.uri, follows=follows)
            hosting = self._scale_to_zero.host(key, spec, observation)
            target = self._target(key, observation.resource, spec, resolution, hosting)
            plan = self._upgrading.plan(key, observation, target)
            refused = not_allowed(target)
            if refused:
                plan, resolution = plan.scaling_alone(observation.owned(DEPLOYMENT), target.replicas), None
            elif plan.changes.account_taken or (resolution and not resolution.resolved):
                # Without a version, or with another owner's account, no new pods.
                plan = plan.keeping_pods(observation.owned(DEPLOYMENT), target.replicas)
        except NoActivatorError as error:
            observation, failures = await self._execute(
                key, release_slice(observation.owned(ENDPOINT_SLICE)), observation
            )
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
        # Stopping pods keep serving while no other pod is ready.
        stays = plan_stays(
            target,
            observation.pods,
            observation.owned(DEPLOYMENT),
            lambda time: (datetime.datetime.fromisoformat(time) - self._utc_now()).total_seconds(),
        )
        self._stays.send(key, stays)
        plan = await self._upgrading.decide(key, observation.resource, plan)
        await self._store_version(observation.resource, resolution)
        # Apply.
        observation, failures = await self._execute(key, plan.changes, observation)
        self._scale_to_zero.observe(key, observation)
        obstacles: list[Conflict | Failure] = [*plan.changes.conflicts, *failures]
        graph_states: Mapping[str, GraphState] = {}
        if target.graph is not None:
            newest = template_hash(dig(observation.owned(DEPLOYMENT), "spec", "template", default={}))
            graph_states = self._graphs.latest(key, running_replicas(observation.pods, newest))
        return Evidence(
            observation=observation,
            target=target,
            spec_error=refused,
            spec_reason=Reason.NOT_ALLOWED,
            conflicts=tuple(each for each in plan.changes.conflicts if not _is_of_peers(each)),
            failures=tuple(each for each in failures if not _is_of_peers(each)),
            peers_obstacle=next(filter(_is_of_peers, obstacles), None),
            upgrade=plan.upgrade,
            overdue=plan.overdue,
            pending=plan.pending,
            scaling=self._known.scaling(key),
            attainable=self._known.attainable(key),
            independent=self._known.independent(key),
            resolution=resolution,
            graph_states=graph_states,
            other_operator=self._ownerships.claimant(key, self._clock()),
            scaler=self._replicas.left_to(key, self._clock()),
        )

    def _target(
        self,
        key: Key,
        resource: Json,
        spec: InferenceServiceSpec,
        resolution: ModelResolution | None,
        hosting: Hosting | None,
    ) -> Target:
        return Target(
            name=key.name,
            namespace=key.namespace,
            uid=resource["metadata"]["uid"],
            spec=with_source(spec, resolution.resolved if resolution else ""),
            defaults=self._defaults,
            registry=self._names.registry(spec.model.uri or ""),
            graph=graph_of(resource, self._defaults.service_url),
            hosting=hosting,
        )

    async def _store_version(self, resource: Json, resolution: ModelResolution | None) -> None:
        """Write the resolved version to the status before pods use it, so that a restart does not choose another.

        Raises:
            ApiError: the status could not be written.
        """
        stored = dig(resource, "status", default={})
        if (
            resolution is None
            or not resolution.resolved
            or stored_version(resource, resolution.uri) == resolution.resolved
        ):
            return
        try:
            await self._cluster.apply_status(resource, {**stored, "model": resolution.as_status()})
        except ApiError as error:
            if error.is_deletion or not (error.forbidden or error.is_invalid_object):
                raise
            # A status that cannot be written is reported at the end of the reconciliation; pods serve anyway.

    async def _execute(self, key: Key, changes: Changes, observation: Observation) -> tuple[Observation, list[Failure]]:
        """Apply the changes; a rejected write does not stop the others.

        Raises:
            ApiError: the request may succeed at the next reconciliation.
        """
        children = dict(observation.children)
        failures = []
        self._replicas.observe_request(key, observation.resource)
        for planned in changes.actions:
            action = self._replicas.adjusted(key, planned, children.get(DEPLOYMENT), self._clock())
            # Replicas are left to another writer, and nothing else changed.
            if action is None:
                continue
            # Writes that an admission policy or another writer would revert are not repeated.
            urgent = _is_urgent(action, observation)
            if reverted := self._reverted_at_admission(key, action, children) or self._undone(
                key, action, children, urgent=urgent
            ):
                failures.append(reverted)
                continue
            try:
                if isinstance(action, Delete):
                    await self._cluster.delete(action.kind, key, action.uid)
                    # Later steps see the cluster as it is after the write.
                    del children[action.kind]
                elif isinstance(action, Merge):
                    children[action.kind] = await self._cluster.merge(action.kind, children[action.kind], action.body)
                    self._conflicts.record_write(key, action.kind.kind, digest(action.body), self._clock())
                else:
                    live = children.get(action.kind)
                    children[action.kind] = stored = await self._write(action, live)
                    self._conflicts.record_write(key, action.kind.label, digest(action.body), self._clock())
                    if live is not None and (settings := removed_settings(action.body, live, stored)):
                        await self._post_event(
                            key, observation.resource, removed_settings_event(settings), self._utc_now()
                        )
                    # The response differs from the request: an admission policy changed the object.
                    if is_changed(action.kind, action.body, stored):
                        request, response = digest(action.body), digest(stored.get("spec", {}))
                        self._conflicts.admit(key, action.kind.label, request, response, self._clock())
                        text = changed_text(action.body, stored)
                        failures.append(Failure(action.kind, 200, text, at_admission=True))
                self._replicas.record_write(key, action, planned)
                logger.info(
                    "event=wrote service=%s action=%s kind=%s", key, type(action).__name__.lower(), action.kind.kind
                )
            except ApiError as error:
                self._check_transient(key, error)
                logger.warning("event=write_failed service=%s kind=%s error=%s", key, action.kind.label, error)
                message = named_fractions(error.message, observation.resource["spec"])
                failures.append(Failure(action.kind, error.code, message))
        return replace(observation, children=children), failures

    def _reverted_at_admission(self, key: Key, action: Action, children: Mapping[Kind, Json]) -> Failure | None:
        """Return the failure of a write that admission would change again."""
        live = children.get(action.kind)
        if not isinstance(action, Apply) or live is None:
            return None
        request, stored = digest(action.body), digest(live.get("spec", {}))
        if not self._conflicts.is_admitted(key, action.kind.label, request, stored, self._clock()):
            return None
        return Failure(action.kind, 200, changed_text(action.body, live), at_admission=True)

    def _undone(self, key: Key, action: Action, children: Mapping[Kind, Json], *, urgent: bool) -> Failure | None:
        """Return the failure of a write that another writer has repeatedly undone."""
        live = children.get(action.kind)
        if isinstance(action, Delete) or live is None:
            return None
        writer, field = conflicting_writer(action.body, live, FIELD_MANAGER)
        if self._conflicts.may_write(
            key, action.kind.label, digest(action.body), self._clock(), conflicting=bool(writer), urgent=urgent
        ):
            return None
        what, pause = (f"field {field}" if writer else "fields"), "hour" if writer and not urgent else "few minutes"
        text = (
            f"{writer or last_writer(live, FIELD_MANAGER)!r} changes {what} back after each write, so the operator"
            f" writes only every {pause}. Check whether another install of the operator or a controller owns the object"
        )
        return Failure(action.kind, 409, text, undone=True)

    def _check_transient(self, key: Key, error: ApiError) -> None:
        """Raise ``error`` in a namespace in deletion, or if a retry may succeed.

        After `_MAX_RETRIES` failures in a row, transient errors are reported instead of raised.
        """
        if error.is_deletion and error.status == 403:
            raise error
        if not error.is_transient:
            return
        self._cut_short[key] += 1
        if self._cut_short[key] < _MAX_RETRIES:
            raise error

    async def _write(self, action: Apply, live: Json | None) -> Json:
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

    async def _report(self, key: Key, resource: Json, status: Json, now: datetime.datetime) -> bool:
        """Write the status if it changed; return whether it could be written completely."""
        self.statuses[key] = status
        stored = dig(resource, "status", default={})
        # A changed transition time alone is no new status.
        conditions = [{**condition, "lastTransitionTime": ""} for condition in status["conditions"]]
        text = digest({**status, "conditions": conditions})
        if status == stored:
            return True
        # Another writer may keep changing the status back.
        if not self._conflicts.may_write(key, _STATUS, text, self._clock()):
            return key not in self._unwritable
        self._conflicts.record_write(key, _STATUS, text, self._clock())
        try:
            written = await self._write_status(key, resource, status, now)
        except ApiError as error:
            if not error.forbidden or error.is_deletion:
                raise
            if key not in self._unwritable:
                self._unwritable.add(key)
                event = unwritten_status_event(error)
                logger.error("event=status_forbidden service=%s status=old error=%s", key, event.message)
                await self._post_event(key, resource, event, now)
            return False
        self._unwritable.discard(key)
        for event in transitions(stored.get("conditions", []), written["conditions"]):
            await self._post_event(key, resource, event, now)
        return written is status

    async def _write_status(self, key: Key, resource: Json, status: Json, now: datetime.datetime) -> Json:
        """Write the status without fields that the CRD rejects; return the result."""
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
        least = plain_status(resource, message, _seconds(now))
        await self._cluster.apply_status(resource, least)
        return least

    async def _post_event(self, key: Key, resource: Json, event: ServiceEvent, now: datetime.datetime) -> None:
        logger.info("event=announced service=%s reason=%s message=%s", key, event.reason, event.message)
        try:
            await self._cluster.post_event(make_event(resource, event, _seconds(now)))
        except ApiError as error:
            # The status contains the same, so a lost Event is acceptable.
            level = logging.INFO if error.is_deletion else logging.WARNING
            logger.log(level, "event=announcing_failed service=%s reason=%s error=%s", key, event.reason, error)


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


def _is_of_peers(obstacle: Conflict | Failure) -> bool:
    """Return whether an obstacle affects request forwarding alone."""
    return obstacle.kind == PEERS and not (isinstance(obstacle, Conflict) and obstacle.stale)


def _seconds(now: datetime.datetime) -> str:
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")
