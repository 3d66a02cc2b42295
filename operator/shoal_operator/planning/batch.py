"""What the job of a ``BatchInference`` is progress next, and what is true of it: conditions, numbers and one sentence."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shoal_operator.manifests.desired import Kind
from shoal_operator.manifests.job import JOB, QUEUE_LABEL, RAY_JOB
from shoal_operator.planning.blocked import failure_text
from shoal_operator.planning.conditions import Condition, shortened, stamped
from shoal_operator.planning.naming import Naming
from shoal_operator.planning.observation import Failure, controller_of, dig
from shoal_operator.planning.pods import Problem, batch_problem, download_problem, find_problem, last_progress
from shoal_schema.conditions import BatchConditionType, Reason, Status
from shoal_schema.declaring import Json
from shoal_schema.progress import Progress, together
from shoal_schema.redaction import redacted, visible
from shoal_schema.resource.offline import BatchInferenceSpec

_ENDED = (Reason.COMPLETE, Reason.JOB_FAILED, Reason.JOB_GONE)
_NUMBERS = ("shards", "rows", "failedRows", "rowsPerSecond", "estimatedEnd")
_KEPT = ("jobName", "model", "startTime", "completionTime", *_NUMBERS)
_INDEX = "batch.kubernetes.io/job-completion-index"
_NOT_FOUND = 404
_ANEW = "delete the BatchInference and create it anew: with the same output, shards that are done stay done"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchEvidence:
    """What one look found.

    Args:
        resource: the ``BatchInference``.
        job: its Job or RayJob; empty where there is none of its own.
        pods: the pods of that.
        progress: what running pods said, by uid.
        blocked: why there is no job, or it is not as it should be.
        estimated_end: when all is done, at the pace so far; empty where that is not known.
    """

    resource: Json
    kind: Kind = JOB
    job: Json
    pods: tuple[Json, ...] = ()
    progress: dict[str, Progress]
    blocked: Problem | None = None
    naming: Naming | None = None
    estimated_end: str = ""


def refused(failure: Failure) -> Problem:
    """Return why a job is not there, or not as it should be."""
    if failure.kind == RAY_JOB and failure.code == _NOT_FOUND:
        text = "engine: Ray needs KubeRay: install its operator with its CRDs (helm chart kuberay-operator), or use"
        return Problem(Reason.KUBERAY_MISSING, f"{text} engine: Job")
    reason = Reason.INVALID_SPEC if failure.code in (400, 422) else Reason.APPLY_FAILED
    return Problem(reason, failure_text(failure))


def taken(kind: Kind, live: Json, name: str) -> Problem:
    """Return why an object that is there is not the job: somebody else's, or that of a deleted one of this name."""
    owner = controller_of(live) or {}
    if (owner.get("kind"), owner.get("name")) == ("BatchInference", name):
        text = f"waiting until the {kind.kind} of a deleted BatchInference of this name is gone"
        return Problem(Reason.WAITING_FOR_CLEANUP, text)
    text = f"{kind.kind} {name} exists and does not belong to this BatchInference; it is left alone. Delete it, or give"
    return Problem(Reason.NAME_TAKEN, f"{text} the BatchInference another name")


def is_pods_of(pod: Json, job: Json) -> bool:
    """Return whether a pod is a job's own, whatever its labels say; those of a RayJob belong to its cluster."""
    owner = controller_of(pod) or {}
    return owner.get("uid") == dig(job, "metadata", "uid") or owner.get("kind") == "RayCluster"


def has_ended(status: Json) -> bool:
    """Return whether a status says that a job has ended, so that nothing is run again."""
    return status.get("reason") in _ENDED


def patch_of(kind: Kind, spec: BatchInferenceSpec, job: Json, queue: str) -> Json:
    """Return what a running job is to be progress, as a merge patch; empty where it is as it should be.

    Where Kueue admits it, Kueue writes ``suspend``: only who asks for a pause is heard beside it.
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
    # Kueue takes a job that has come into a queue as long as it does not run.
    joins = queue and live.get("suspend") and dig(job, "metadata", "labels", QUEUE_LABEL) != queue
    label = {"metadata": {"labels": {QUEUE_LABEL: queue}}} if joins else {}
    return {**label, **({"spec": changed} if changed else {})}


_UNSET = {"suspend": False}


def stay_of(kind: Kind, spec: BatchInferenceSpec, job: Json) -> Json:
    """Return what a job is progress once its end is in the status: how long it stays."""
    ttl = spec.ttl_seconds_after_finished
    if kind != JOB or dig(job, "spec", "ttlSecondsAfterFinished") == ttl:
        return {}
    return {"spec": {"ttlSecondsAfterFinished": ttl}}


def make_batch_status(evidence: BatchEvidence, at: str) -> Json:
    """Return the whole status; ``at`` is now, as the API writes times."""
    stored = dig(evidence.resource, "status", default={})
    reason, message = verdict(evidence)
    generation = evidence.resource["metadata"].get("generation", 0)
    previous: list[Json] = stored.get("conditions", [])
    numbers = _numbers(evidence, reason, stored)
    naming = evidence.naming.as_status() if evidence.naming else {}
    status = evidence.job.get("status", {})
    began = status.get("startTime") or stored.get("startTime")
    ended = status.get("completionTime") or status.get("endTime") or stored.get("completionTime") or at
    times = {"startTime": began} if began else {}
    return {
        **{name: stored[name] for name in _KEPT if name in stored and name != "estimatedEnd"},
        "observedGeneration": generation,
        "reason": str(reason),
        "message": shortened(visible(redacted(message))),
        **({"model": naming} if naming else {}),
        **({"jobName": evidence.job["metadata"]["name"]} if evidence.job else {}),
        **({**times, "completionTime": ended} if reason in _ENDED else times),
        **numbers,
        "conditions": [stamped(each, previous, generation, at) for each in _conditions(evidence, reason, message)],
    }


def is_only_progress(before: Json, after: Json) -> bool:
    """Return whether nothing but numbers differ between two statuses."""
    plain = ({name: value for name, value in each.items() if name not in _NUMBERS} for each in (before, after))
    return next(plain) == next(plain)


def verdict(evidence: BatchEvidence) -> tuple[Reason, str]:
    """Return the state in one word, and in a sentence that says what to do."""
    job = evidence.job
    stored = dig(evidence.resource, "status", default={})
    if has_ended(stored) and not job:
        return Reason(stored["reason"]), str(stored.get("message", ""))
    if job and (ended := _ended(evidence)):
        return ended
    if evidence.blocked:
        return evidence.blocked.reason, evidence.blocked.message
    if not job:
        text = f"its {evidence.kind.kind} was deleted before it had progress its end; it is not run again. To go on,"
        return Reason.JOB_GONE, f"{text} {_ANEW}"
    spec = evidence.job.get("spec", {})
    queue = dig(evidence.resource, "metadata", "labels", QUEUE_LABEL, default="")
    if spec.get("suspend"):
        if dig(evidence.resource, "spec", "suspend"):
            return Reason.SUSPENDED, "spec.suspend is true: no pods run, and what was done stays done"
        text = f"the job waits for Kueue to admit it to the queue {queue}: kubectl get workloads tells why it waits"
        return Reason.QUEUED, text
    alive = find_problem(evidence.pods)
    if evidence.progress:
        trouble = next(_problems(evidence.pods), None) or alive
        return Reason.RUNNING, f"rows are scored{f'; but {trouble.message}' if trouble else ''}"
    if problem := alive or next(_problems(evidence.pods), None):
        return problem.reason, problem.message
    phases = {dig(pod, "status", "phase") for pod in evidence.pods}
    if "Running" in phases:
        text = "pods run; how far they are is progress once they answer at port 9090 (/v1/progress)"
        ray = "pods run; the log of the RayJob tells how far they are"
        return Reason.RUNNING, text if evidence.kind == JOB else ray
    if "Succeeded" in phases:
        return Reason.RUNNING, "pods have ended; what comes of the job is progress in a moment"
    if not phases:
        text = "there are no pods yet; should that last, the Events tell who refuses them: kubectl describe"
        return Reason.STARTING, f"{text} {evidence.kind.kind.lower()} {evidence.job['metadata']['name']}"
    return Reason.STARTING, "pods are being started, or fetch the model"


def _ended(evidence: BatchEvidence) -> tuple[Reason, str] | None:
    how, words = _end_of(evidence.kind, evidence.job)
    if how is Status.TRUE:
        failed = together(_by_index(evidence)).failed_rows
        share = f"; {failed} of them an error, in shoal_error or where output.errors says" if failed else ""
        return Reason.COMPLETE, f"all rows have an answer or an error{share}"
    if how is None:
        return None
    problem = next(_problems(evidence.pods), None)
    # That a rule of ours ended the job is no news beside why its container did.
    rule = words.startswith("PodFailurePolicy")
    said = words if problem is None else problem.message if rule else f"{problem.message} ({words})"
    return Reason.JOB_FAILED, f"{said}. Once that is mended, {_ANEW}"


def _end_of(kind: Kind, job: Json) -> tuple[Status | None, str]:
    """Return whether a job is complete (True), has failed (False), or goes on (None); and its own words."""
    status = job.get("status", {})
    if kind == RAY_JOB:
        phase, outcome = status.get("jobDeploymentStatus"), status.get("jobStatus")
        words = " ".join(str(status[name]) for name in ("reason", "message") if status.get(name)) or "the RayJob failed"
        if phase == "Complete" and outcome == "SUCCEEDED":
            return Status.TRUE, ""
        failed = phase in ("Failed", "ValidationFailed") or (phase == "Complete" and outcome in ("FAILED", "STOPPED"))
        return (Status.FALSE, words) if failed else (None, "")
    for each in status.get("conditions") or ():
        if each.get("status") == "True" and each.get("type") in ("Complete", "Failed"):
            done = each["type"] == "Complete"
            return Status.TRUE if done else Status.FALSE, f"{each.get('reason', '')}: {each.get('message', '')}"
    return None, ""


def _problems(pods: Sequence[Json]) -> Iterator[Problem]:
    """Yield why pods of a job have ended, the model's first."""
    ended = [pod for pod in pods if dig(pod, "status", "phase") == "Failed"]
    for check in (download_problem, batch_problem):
        yield from (problem for pod in reversed(ended) if (problem := check(pod)))


def _conditions(evidence: BatchEvidence, reason: Reason, message: str) -> Iterator[Condition]:
    suspended = bool(dig(evidence.job, "spec", "suspend"))
    true = {
        BatchConditionType.COMPLETE: reason is Reason.COMPLETE,
        BatchConditionType.FAILED: reason in (Reason.JOB_FAILED, Reason.JOB_GONE),
        BatchConditionType.SUSPENDED: reason not in _ENDED and suspended,
        BatchConditionType.RUNNING: reason is Reason.RUNNING,
    }
    for kind, holds in true.items():
        yield Condition(kind, Status.TRUE if holds else Status.FALSE, reason, message)


def _by_index(evidence: BatchEvidence) -> list[Progress]:
    """Return the last that each worker progress, by its pod or the one before: of a retry, the newest."""
    found: dict[str, Progress] = {}
    for pod in sorted(evidence.pods, key=lambda pod: str(dig(pod, "metadata", "creationTimestamp", default=""))):
        uid = dig(pod, "metadata", "uid", default="")
        if said := evidence.progress.get(uid) or last_progress(pod):
            found[dig(pod, "metadata", "annotations", _INDEX, default=uid)] = said
    return list(found.values())


def _numbers(evidence: BatchEvidence, reason: Reason, stored: Json) -> Json:
    """Return what is done; never less than was progress, for a worker that has just begun anew has progress nothing yet."""
    pace = {"rowsPerSecond": round(sum(each.rows_per_second for each in evidence.progress.values()))}
    progress = _by_index(evidence)
    if not progress:
        return pace if "rowsPerSecond" in stored else {}
    total, all_done = max(each.shards_total for each in progress), together(progress)
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
