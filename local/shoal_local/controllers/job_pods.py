"""Which pods a Job starts and stops now, and when it may retry."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from shoal_local.controllers.changes import Action, Changes, Create, Delete, Patch, Tell, seconds_since
from shoal_local.controllers.indexes import INDEX, annotated, index_of
from shoal_local.controllers.job_counts import FAILURES, TRACKING, Counts, fits, has_own_limits, is_held, is_indexed
from shoal_local.controllers.replica_sets import MAX_CREATED_AT_ONCE, make_pod, rank
from shoal_local.objects import Object, has_ended, is_going

RETRY_S, MAX_RETRY_S = 10.0, 600.0
MAX_PREFIX = 58
"""Letters of ``generateName`` that a real server keeps."""


def plan_pods(job: Object, pods: Sequence[Object], counts: Counts, now: datetime, retry_s: float) -> Changes:
    """Return what brings a Job that is not over to its number of pods."""
    changes = Changes()
    wanted = 0 if job["spec"].get("suspend") else _wanted(job["spec"], counts)
    surplus = _surplus(job, counts, wanted, now)
    for pod in surplus:
        changes.add(*release([pod]), *end(job, pod))
    taken = [pod for pod in counts.active if pod not in surplus]
    if job["spec"]["podReplacementPolicy"] == "Failed":
        taken += [pod for pod in pods if is_going(pod) and not has_ended(pod)]
    missing = min(wanted - len(taken), MAX_CREATED_AT_ONCE)
    for index in _free_indexes(job, taken, counts)[: max(0, missing)] if is_indexed(job) else [-1] * missing:
        tried = [pod for pod in pods if index_of(pod) == index] if has_own_limits(job) else pods
        wait_s = retry_in_s(tried, now, retry_s)
        if wait_s > 0:
            changes.look_again(wait_s)
        else:
            changes.add(Create(make_job_pod(job, index, _failures(tried))))
    return changes


def _wanted(spec: Object, counts: Counts) -> int:
    if spec.get("completions") is None:
        return len(counts.active) if counts.succeeded else int(spec["parallelism"])
    left = spec["completions"] - counts.succeeded - len(counts.failed_indexes)
    return max(0, min(int(spec["parallelism"]), int(left)))


def _surplus(job: Object, counts: Counts, wanted: int, now: datetime) -> list[Object]:
    """Return the pods that are too many: those of no use, then those with least to lose.

    One that was let go of before somebody stopped us is not counted any more.
    """
    ranked = sorted(counts.active, key=lambda pod: rank(pod, now))
    kept: dict[int, Object] = {}
    needless = counts.completed | counts.failed_indexes
    for number, pod in enumerate(reversed(ranked)):
        index = index_of(pod) if is_indexed(job) else number
        if is_held(pod) and fits(job, pod) and not (is_indexed(job) and index in needless):
            kept.setdefault(index, pod)
    best = list(kept.values())[:wanted]
    return [pod for pod in ranked if not any(pod is other for other in best)]


def _free_indexes(job: Object, taken: Iterable[Object], counts: Counts) -> list[int]:
    """Return the indexes that need a pod, from 0."""
    needless = counts.completed | counts.failed_indexes | {index_of(pod) for pod in taken}
    return [index for index in range(job["spec"]["completions"]) if index not in needless]


def retry_in_s(pods: Iterable[Object], now: datetime, retry_s: float) -> float:
    """Return how long to wait before the next try: nothing, or twice as long for each failure since a success."""
    ends = [(_ended_at(pod), pod["status"]["phase"]) for pod in pods if has_ended(pod) and not is_going(pod)]
    last_success = max((at for at, phase in ends if phase == "Succeeded"), default="")
    failures = [at for at, phase in ends if phase == "Failed" and at > last_success]
    if not failures:
        return 0.0
    delay_s = min(retry_s * 2.0 ** min(len(failures) - 1, 20), MAX_RETRY_S)
    return max(0.0, delay_s - seconds_since(max(failures), now))


def _ended_at(pod: Object) -> str:
    states = [status.get("state", {}) for status in pod["status"].get("containerStatuses") or []]
    ends = [state["terminated"]["finishedAt"] for state in states if state.get("terminated", {}).get("finishedAt")]
    return max(ends, default=str(pod["metadata"]["creationTimestamp"]))


def _failures(tried: Iterable[Object]) -> int:
    """Return how many pods of an index failed before the next one. One that its Job took back did not."""
    counted = [annotated(pod, FAILURES, 0) + 1 for pod in tried if is_held(pod) or not is_going(pod)]
    return max(counted, default=0)


def make_job_pod(job: Object, index: int, failures: int) -> Object:
    """Return a pod from the Job's template. It knows its index, unless that is negative."""
    pod = make_pod(job)
    pod["metadata"]["finalizers"] = [TRACKING]
    if index < 0:
        return pod
    meta, suffix = pod["metadata"], f"-{index}-"
    marks = {INDEX: str(index), **({FAILURES: str(failures)} if has_own_limits(job) else {})}
    meta["labels"] = {**meta.get("labels", {}), INDEX: str(index)}
    meta["annotations"] = {**meta.get("annotations", {}), **marks}
    meta["generateName"] = job["metadata"]["name"][: MAX_PREFIX - len(suffix)] + suffix
    told = {
        part: [_told(c) for c in pod["spec"][part]] for part in ("initContainers", "containers") if part in pod["spec"]
    }
    pod["spec"] = {**pod["spec"], **told, "hostname": f"{job['metadata']['name']}-{index}"}
    return pod


def _told(container: Object) -> Object:
    env = container.get("env") or []
    if any(variable["name"] == "JOB_COMPLETION_INDEX" for variable in env):
        return container
    source = {"fieldRef": {"fieldPath": f"metadata.labels['{INDEX}']"}}
    return {**container, "env": [*env, {"name": "JOB_COMPLETION_INDEX", "valueFrom": source}]}


def release(pods: Iterable[Object]) -> list[Action]:
    """Return what lets pods go that are counted, or need not be."""
    return [Patch(pod, {"metadata": {"finalizers": _others(pod)}}) for pod in pods if is_held(pod)]


def _others(pod: Object) -> list[str] | None:
    return [name for name in pod["metadata"]["finalizers"] if name != TRACKING] or None


def end(job: Object, pod: Object) -> list[Action]:
    """Return what ends a pod."""
    return [Delete(pod), Tell(job, "Normal", "SuccessfulDelete", f"Deleted pod: {pod['metadata']['name']}")]
