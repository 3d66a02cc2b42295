"""Reconciliation of a ``BatchInference`` to a Job or RayJob, created once."""

import datetime
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from shoal_operator.batch.progress import ReportedJob
from shoal_operator.batch.status import (
    BatchEvidence,
    has_ended,
    is_only_progress,
    is_pods_of,
    job_patch,
    make_batch_status,
    name_taken,
    ttl_patch,
    write_rejected,
)
from shoal_operator.children.events import ServiceEvent
from shoal_operator.children.observation import Failure, Key, dig, is_orphan, is_owned
from shoal_operator.children.pods import Problem, runs
from shoal_operator.cluster.interface import Cluster
from shoal_operator.errors import ApiError
from shoal_operator.loop.records import Records
from shoal_operator.loop.workqueue import Outcome, Schedule
from shoal_operator.manifests.containers import BATCH
from shoal_operator.manifests.desired import Child
from shoal_operator.manifests.job import JOB, KINDS, QUEUE_LABEL, batch_target, make_job
from shoal_operator.manifests.labels import BATCH_LABEL, digest
from shoal_operator.manifests.target import Target
from shoal_operator.models.resolution import ModelResolution, is_unresolved
from shoal_operator.ownership.conflicts import WriteLimits
from shoal_operator.policy.allowed import not_allowed
from shoal_operator.reconciliation.planning import ModelResolver
from shoal_operator.reconciliation.reporting import StatusWriter
from shoal_operator.scaling.service_cache import Replica
from shoal_schema.decoding import SpecError, parse_batch_spec
from shoal_schema.fields.declaring import Json
from shoal_schema.interfaces.progress import JobProgress
from shoal_schema.process.settings.operator import OperatorProcess
from shoal_schema.resource.conditions import FAILURES, Reason
from shoal_schema.resource.locations import LocationError
from shoal_schema.resource.offline import BatchInferenceSpec

logger = logging.getLogger(__name__)

_WRITE_EVERY_S = 10.0
"""Minimum interval between statuses that differ in progress alone."""


class _ProgressReader(Protocol):
    def latest(self, key: Key, replicas: list[Replica]) -> dict[str, JobProgress]: ...
    def remaining_s(self, key: Key) -> float | None: ...


@dataclass(slots=True)
class WrittenStatus:
    """Time of the last write of one job's status."""

    at_s: float = -math.inf


class BatchReconciler:
    """Reconciler of ``BatchInference`` objects.

    Args:
        records: states of all jobs.
        names: resolves model names, and returns addresses of registries.
        job_progress: returns the progress of running pods.
        utc_now: wall clock, for times in a status.
        clock: monotonic seconds.
    """

    def __init__(  # noqa: PLR0913, PLR0917 (its seams)
        self,
        cluster: Cluster,
        records: Records,
        defaults: OperatorProcess,
        names: ModelResolver,
        job_progress: _ProgressReader,
        utc_now: Callable[[], datetime.datetime],
        clock: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._records = records
        self._defaults = defaults
        self._names = names
        self._progresses = job_progress
        self._status = StatusWriter(cluster, records, utc_now, clock)
        self._utc_now = utc_now
        self._clock = clock

    async def reconcile(self, key: Key) -> Outcome:
        """Reconcile one ``BatchInference`` and write its status if it changed.

        Raises:
            ApiError: the cluster could not be read or written.
        """
        resource = await self._cluster.read_service(key)
        if resource is None or dig(resource, "metadata", "deletionTimestamp"):
            self._records.drop(key, keep=(Schedule,))
            return Outcome.GONE
        self._records.identify(key, resource["metadata"]["uid"], keep=(Schedule,))
        kind = RAY_OR_JOB.get(str(dig(resource, "spec", "engine")), JOB)
        evidence, spec = await self._apply(key, kind, resource)
        status = make_batch_status(evidence, self._status.now())
        changed = await self._report(key, resource, status)
        # The end is stored: set the time to live.
        if has_ended(status):
            self._records.remove(key, ReportedJob)
            if spec and evidence.job and (patch := ttl_patch(kind, spec, evidence.job)):
                await self._cluster.merge(kind, evidence.job, patch)
            return Outcome.DONE
        if evidence.job and not dig(evidence.job, "spec", "suspend"):
            # A pod that waits for a node or an image may wait long; an event of the Job ends that, so back off.
            moves = changed or any(runs(pod, BATCH) for pod in evidence.pods)
            return Outcome.WAITING if moves else Outcome.FAILED
        waits = status["reason"] == Reason.MODEL_RESOLVING or not evidence.blocked
        return Outcome.DONE if waits else Outcome.FAILED

    async def _apply(self, key: Key, kind: Child, resource: Json) -> tuple[BatchEvidence, BatchInferenceSpec | None]:
        spec, target, resolution, blocked = self._plan(key, resource)
        job: Json = {}
        pods: tuple[Json, ...] = ()
        failed = None
        try:
            live, found = await self._cluster.observe_batch(key, kind)
            live = await self._adopted(kind, live, resource, target) if live and target else live
            if live is not None and not is_owned(live, resource["metadata"]["uid"]):
                blocked = blocked or name_taken(kind, live, key.name)
            elif live is not None or (target and not blocked and not dig(resource, "status", "jobName")):
                job = live or {}
                job = await self._write(key, kind, job, resource, target) if target and not blocked else job
            pods = tuple(pod for pod in found if job and is_pods_of(pod, job))
        except ApiError as error:
            if error.is_transient or (error.is_deletion and error.status == 403):
                raise
            logger.warning("event=write_failed service=%s kind=%s error=%s", key, kind.kind, error)
            failed = write_rejected(Failure(kind, error.code, error.message))
        replicas = [Replica.of(pod) for pod in pods if runs(pod, BATCH) and dig(pod, "status", "podIP")]
        # Pods of a RayJob serve no progress.
        read = replicas if kind == JOB else []
        left_s = self._progresses.remaining_s(key)
        estimated_end = ""
        if left_s is not None:
            # Rounded up to a whole minute, so that the status does not change each second.
            end = self._utc_now() + datetime.timedelta(seconds=left_s, minutes=1)
            estimated_end = end.strftime("%Y-%m-%dT%H:%M:00Z")
        evidence = BatchEvidence(
            resource=resource,
            kind=kind,
            job=job,
            pods=pods,
            progress=self._progresses.latest(key, read),
            blocked=blocked or failed,
            resolution=resolution,
            estimated_end=estimated_end,
        )
        return evidence, spec

    def _plan(
        self, key: Key, resource: Json
    ) -> tuple[BatchInferenceSpec | None, Target | None, ModelResolution | None, Problem | None]:
        """Parse the spec of a ``BatchInference`` and resolve its model's version.

        Returns: The spec; the input of the job's manifest; the model version, None for a fixed one; the problem that
        prevents the creation of the job. Each is None where it is missing.
        """
        resolution = None
        try:
            spec = parse_batch_spec(resource)
            resolution = self._names.resolution(key, resource, spec.model.uri, follows=False)
            resolved = resolution.resolved if resolution else ""
            registry = dict(self._names.registry(spec.model.uri or ""))
            target = batch_target(resource, spec, self._defaults, resolved, registry)
            if words := not_allowed(target):
                return spec, None, resolution, Problem(Reason.NOT_ALLOWED, words)
        except (SpecError, LocationError) as error:
            return None, None, resolution, Problem(Reason.INVALID_SPEC, str(error))
        except Exception as error:  # a bug: the author of the spec must see it too, not the log alone
            logger.exception("event=planning_failed service=%s", key)
            text = f"the operator failed on this spec: {error!r}. Please report this bug"
            return None, None, resolution, Problem(Reason.INVALID_SPEC, text)
        if is_unresolved(resolution):
            text = resolution.problem or f"waiting for the registry's response to {resolution.uri}"
            reason = Reason.MODEL_UNRESOLVED if resolution.problem else Reason.MODEL_RESOLVING
            return spec, target, resolution, Problem(reason, text)
        return spec, target, resolution, None

    async def _adopted(self, kind: Child, live: Json, resource: Json, target: Target) -> Json:
        """Restore the owner reference of an orphaned job; return the job."""
        # The job of a deleted BatchInference of this name has another run's results.
        created = dig(resource, "status", "jobName") == live["metadata"]["name"]
        if not created or not is_orphan(live, BATCH_LABEL, target.name):
            return live
        references = dig(live, "metadata", "ownerReferences", default=[])
        others = [each for each in references if each.get("uid") != target.uid]
        return await self._cluster.merge(
            kind, live, {"metadata": {"ownerReferences": [*others, target.owner_reference]}}
        )

    async def _write(self, key: Key, kind: Child, job: Json, resource: Json, target: Target) -> Json:
        """Create the job, or patch the mutable fields of an existing job."""
        queue = dig(resource, "metadata", "labels", QUEUE_LABEL, default="")
        assert target.batch is not None
        # Created once, and never again after its deletion.
        if not job:
            logger.info("event=wrote service=%s action=apply kind=%s", key, kind.kind)
            return await self._cluster.apply(kind, make_job(target, target.batch, queue), None)
        ended = has_ended(dig(resource, "status", default={}))
        patch = {} if ended else job_patch(kind, target.batch, job, queue)
        text, limits = digest(patch), self._records.get(key, WriteLimits)
        if not patch or not limits.may_write(kind.label, text, self._clock()):
            return job
        limits.record_write(kind.label, text, self._clock())
        logger.info("event=wrote service=%s action=merge kind=%s", key, kind.kind)
        return await self._cluster.merge(kind, job, patch)

    async def _report(self, key: Key, resource: Json, status: Json) -> bool:
        """Write a changed status; return whether the status changed."""
        stored = dig(resource, "status", default={})
        if status == stored:
            return False
        # Limit the rate of writes that only update progress.
        now_s, last = self._clock(), self._records.get(key, WrittenStatus)
        if is_only_progress(stored, status) and now_s - last.at_s < _WRITE_EVERY_S:
            return True
        last.at_s = now_s
        await self._cluster.apply_status(resource, status)
        if stored.get("reason") != status["reason"]:
            warning = status["reason"] in FAILURES
            news = ServiceEvent(warning, Reason(status["reason"]), status["message"])
            await self._status.post_event(key, resource, news)
        return True


RAY_OR_JOB = {str(engine): kind for engine, kind in KINDS.items()}
