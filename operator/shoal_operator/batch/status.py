"""Status of a ``BatchInference``, and patches of its job."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shoal_operator.children.conditions import Condition, shortened, stamped
from shoal_operator.children.observation import Failure, controller_of, dig
from shoal_operator.children.pods import Problem, batch_problem, download_problem, find_problem, last_progress
from shoal_operator.manifests.desired import Child
from shoal_operator.manifests.job import JOB, QUEUE_LABEL, RAY_JOB
from shoal_operator.models.resolution import ModelResolution
from shoal_operator.status.blocked import failure_text
from shoal_schema.fields.declaring import Json
from shoal_schema.fields.redaction import redacted, visible
from shoal_schema.interfaces.progress import JobProgress, combined_work
from shoal_schema.resource.conditions import BatchConditionType, Reason, Status
from shoal_schema.resource.offline import BatchInferenceSpec

_ENDED = (Reason.COMPLETE, Reason.JOB_FAILED, Reason.JOB_GONE)
_NUMBERS = ("shards", "rows", "failedRows", "rowsPerSecond", "estimatedEnd")
_KEPT = ("jobName", "model", "startTime", "completionTime", *_NUMBERS)
_INDEX = "batch.kubernetes.io/job-completion-index"
_NOT_FOUND = 404
_RECREATE = "delete the BatchInference and create it again; with the same output, finished shards are kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchEvidence:
    """Input of a ``BatchInference``'s status, from one reconciliation."""

    resource: Json
    """The ``BatchInference``."""
    kind: Child = JOB
    job: Json
    """Its Job or RayJob; empty where it owns none."""
    pods: tuple[Json, ...] = ()
    """Pods of the job."""
    progress: dict[str, JobProgress]
    """The last progress of running pods, by uid."""
    blocked: Problem | None = None
    """Why the job does not exist, or differs from the spec."""
    resolution: ModelResolution | None = None
    estimated_end: str = ""
    """Estimated completion time; empty while unknown."""


def write_rejected(failure: Failure) -> Problem:
    """Return the problem to report for a job that the API server rejected."""
    if failure.kind == RAY_JOB and failure.code == _NOT_FOUND:
        text = "engine: Ray requires KubeRay, which is not installed. Install the helm chart kuberay-operator, or set"
        return Problem(Reason.KUBERAY_MISSING, f"{text} engine: Job")
    reason = Reason.INVALID_SPEC if failure.code in (400, 422) else Reason.APPLY_FAILED
    return Problem(reason, failure_text(failure))


def name_taken(kind: Child, live: Json, name: str) -> Problem:
    """Return the problem to report for a job name that another owner uses."""
    owner = controller_of(live) or {}
    if (owner.get("kind"), owner.get("name")) == ("BatchInference", name):
        text = f"waiting for the deletion of the {kind.kind} of a deleted BatchInference of this name"
        return Problem(Reason.WAITING_FOR_CLEANUP, text)
    text = (
        f"{kind.kind} {name} exists, and this BatchInference does not own it. Delete it, or rename the BatchInference"
    )
    return Problem(Reason.NAME_TAKEN, text)


def is_pods_of(pod: Json, job: Json) -> bool:
    """Return whether a job, or the cluster of a RayJob, owns a pod.

    The pod's owner reference decides, not its labels.
    """
    owner = controller_of(pod) or {}
    return owner.get("uid") == dig(job, "metadata", "uid") or owner.get("kind") == "RayCluster"


def has_ended(status: Json) -> bool:
    """Return whether a status is final, so that the job is never run again."""
    return status.get("reason") in _ENDED


def job_patch(kind: Child, spec: BatchInferenceSpec, job: Json, queue: str) -> Json:
    """Return the merge patch by which a running job follows the spec.

    The patch is empty if the job already matches the spec. Kueue writes ``suspend`` of the jobs in its queues: for
    these the operator only sets ``suspend`` to true.
    """
    live = job.get("spec", {})
    wanted: Json = {}
    if spec.suspend or not queue:
        wanted["suspend"] = spec.suspend
    if kind == JOB and not queue:
        wanted["parallelism"] = spec.parallelism
    if kind == JOB:
        wanted["activeDeadlineSeconds"] = spec.active_deadline_seconds
    changed = {name: value for name, value in wanted.items() if value != live.get(name, _UNSET.get(name))}
    # Kueue admits a job that joins a queue only while it is suspended.
    joins = queue and live.get("suspend") and dig(job, "metadata", "labels", QUEUE_LABEL) != queue
    label = {"metadata": {"labels": {QUEUE_LABEL: queue}}} if joins else {}
    return {**label, **({"spec": changed} if changed else {})}


_UNSET = {"suspend": False}


def ttl_patch(kind: Child, spec: BatchInferenceSpec, job: Json) -> Json:
    """Return the merge patch that sets an ended job's time to live."""
    ttl = spec.ttl_seconds_after_finished
    if kind != JOB or dig(job, "spec", "ttlSecondsAfterFinished") == ttl:
        return {}
    return {"spec": {"ttlSecondsAfterFinished": ttl}}


def make_batch_status(evidence: BatchEvidence, at: str) -> Json:
    """Return the status of a ``BatchInference``; ``at`` is the current time."""
    stored = dig(evidence.resource, "status", default={})
    reason, message = verdict(evidence)
    suspended = bool(dig(evidence.job, "spec", "suspend"))
    # All conditions share reason and message; they differ in which of them is true.
    true = {
        BatchConditionType.COMPLETE: reason is Reason.COMPLETE,
        BatchConditionType.FAILED: reason in (Reason.JOB_FAILED, Reason.JOB_GONE),
        BatchConditionType.SUSPENDED: reason not in _ENDED and suspended,
        BatchConditionType.RUNNING: reason is Reason.RUNNING,
    }
    conditions = [
        Condition(kind, Status.TRUE if holds else Status.FALSE, reason, message) for kind, holds in true.items()
    ]
    generation = evidence.resource["metadata"].get("generation", 0)
    previous: list[Json] = stored.get("conditions", [])
    # The job's own times, or those stored before its deletion.
    numbers = _numbers(evidence, reason, stored)
    resolution = evidence.resolution.as_status() if evidence.resolution else {}
    status = evidence.job.get("status", {})
    began = status.get("startTime") or stored.get("startTime")
    ended = status.get("completionTime") or status.get("endTime") or stored.get("completionTime") or at
    times = {"startTime": began} if began else {}
    return {
        **{name: stored[name] for name in _KEPT if name in stored and name != "estimatedEnd"},
        "observedGeneration": generation,
        "reason": str(reason),
        "message": shortened(visible(redacted(message))),
        **({"model": resolution} if resolution else {}),
        **({"jobName": evidence.job["metadata"]["name"]} if evidence.job else {}),
        **({**times, "completionTime": ended} if reason in _ENDED else times),
        **numbers,
        "conditions": [stamped(each, previous, generation, at) for each in conditions],
    }


def is_only_progress(before: Json, after: Json) -> bool:
    """Return whether two statuses differ only in their progress numbers."""
    plain = ({name: value for name, value in each.items() if name not in _NUMBERS} for each in (before, after))
    return next(plain) == next(plain)


def verdict(evidence: BatchEvidence) -> tuple[Reason, str]:
    """Return a ``BatchInference``'s state, as a reason and a message."""
    job = evidence.job
    stored = dig(evidence.resource, "status", default={})
    # The final status stays after the job's deletion.
    if has_ended(stored) and not job:
        return Reason(stored["reason"]), str(stored.get("message", ""))
    if job and (ended := _ended(evidence)):
        return ended
    if evidence.blocked:
        return evidence.blocked.reason, evidence.blocked.message
    if not job:
        text = f"its {evidence.kind.kind} was deleted before it ended, and is not created again. To continue,"
        return Reason.JOB_GONE, f"{text} {_RECREATE}"
    return _unfinished(evidence)


def _ended(evidence: BatchEvidence) -> tuple[Reason, str] | None:
    complete, message = _end_of(evidence.kind, evidence.job)
    if complete is Status.TRUE:
        failed = combined_work(_by_index(evidence)).failed_rows
        share = f"; {failed} rows have an error, in shoal_error or in output.errors" if failed else ""
        return Reason.COMPLETE, f"all rows are scored{share}"
    if complete is None:
        return None
    # The container's error is more helpful than the failure rule that it triggered.
    if problem := next(_problems(evidence.pods), None):
        rule = message.startswith("PodFailurePolicy")
        message = problem.message if rule else f"{problem.message} ({message})"
    return Reason.JOB_FAILED, f"{message}. Correct this, then {_RECREATE}"


def _unfinished(evidence: BatchEvidence) -> tuple[Reason, str]:
    if dig(evidence.job, "spec", "suspend"):
        if dig(evidence.resource, "spec", "suspend"):
            return Reason.SUSPENDED, "spec.suspend is true: no pods run, and finished shards are kept"
        queue = dig(evidence.resource, "metadata", "labels", QUEUE_LABEL, default="")
        text = f"waiting for Kueue to admit the job to queue {queue}. kubectl get workloads shows why it waits"
        return Reason.QUEUED, text
    # Problems of pods that still exist, then of those that ended.
    alive, ended = find_problem(evidence.pods), next(_problems(evidence.pods), None)
    if evidence.progress:
        problem = ended or alive
        return Reason.RUNNING, f"rows are being scored{f', but {problem.message}' if problem else ''}"
    if problem := alive or ended:
        return problem.reason, problem.message
    phases = {dig(pod, "status", "phase") for pod in evidence.pods}
    if "Running" in phases:
        text = "pods run and have not reported progress yet (port 9090, /v1/progress)"
        ray = "pods run. The log of the RayJob shows their progress"
        return Reason.RUNNING, text if evidence.kind == JOB else ray
    if "Succeeded" in phases:
        return Reason.RUNNING, "all pods have ended; waiting for the job's result"
    if not phases:
        text = "no pods exist yet. If this persists, read the Events of the job: kubectl describe"
        return Reason.STARTING, f"{text} {evidence.kind.kind.lower()} {evidence.job['metadata']['name']}"
    return Reason.STARTING, "pods start or download the model"


def _end_of(kind: Child, job: Json) -> tuple[Status | None, str]:
    """Return whether a job succeeded, with a message.

    TRUE after success, FALSE after failure, None while the job runs.
    """
    status = job.get("status", {})
    if kind == RAY_JOB:
        phase, outcome = status.get("jobDeploymentStatus"), status.get("jobStatus")
        text = " ".join(str(status[name]) for name in ("reason", "message") if status.get(name)) or "the RayJob failed"
        if phase == "Complete" and outcome == "SUCCEEDED":
            return Status.TRUE, ""
        failed = phase in ("Failed", "ValidationFailed") or (phase == "Complete" and outcome in ("FAILED", "STOPPED"))
        return (Status.FALSE, text) if failed else (None, "")
    for each in status.get("conditions") or ():
        if each.get("status") == "True" and each.get("type") in ("Complete", "Failed"):
            done = each["type"] == "Complete"
            return Status.TRUE if done else Status.FALSE, f"{each.get('reason', '')}: {each.get('message', '')}"
    return None, ""


def _problems(pods: Sequence[Json]) -> Iterator[Problem]:
    """Yield the problems of failed pods: download problems first, then the newest pod."""
    ended = [pod for pod in pods if dig(pod, "status", "phase") == "Failed"]
    for check in (download_problem, batch_problem):
        yield from (problem for pod in reversed(ended) if (problem := check(pod)))


def _by_index(evidence: BatchEvidence) -> list[JobProgress]:
    """Return the last progress of each worker, from the worker's newest pod."""
    found: dict[str, JobProgress] = {}
    for pod in sorted(evidence.pods, key=lambda pod: str(dig(pod, "metadata", "creationTimestamp", default=""))):
        uid = dig(pod, "metadata", "uid", default="")
        if progress := evidence.progress.get(uid) or last_progress(pod):
            found[dig(pod, "metadata", "annotations", _INDEX, default=uid)] = progress
    return list(found.values())


def _numbers(evidence: BatchEvidence, reason: Reason, stored: Json) -> Json:
    """Return the progress in numbers: shards, rows and rows per second.

    The numbers of finished shards and rows are never lower than the stored ones.
    """
    pace = {"rowsPerSecond": round(sum(each.rows_per_second for each in evidence.progress.values()))}
    progress = _by_index(evidence)
    if not progress:
        return pace if "rowsPerSecond" in stored else {}
    total, all_done = max(each.shards_total for each in progress), combined_work(progress)
    # Shards of a completed job are all done, even if a worker did not report its last one.
    known = dig(stored, "shards", "done", default=0)
    done = total if reason is Reason.COMPLETE else min(total, max(known, all_done.shards))
    numbers: Json = {
        "shards": {"done": done, "total": total, "text": f"{done}/{total}"},
        "rows": max(all_done.rows, stored.get("rows", 0)),
        "failedRows": max(all_done.failed_rows, stored.get("failedRows", 0)),
        **pace,
    }
    if reason is Reason.RUNNING and evidence.estimated_end:
        numbers["estimatedEnd"] = evidence.estimated_end
    return numbers
