"""Pods that a Job must create or delete, and the delay of retries."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from shoal_local.controllers.changes import Action, Changes, Create, Delete, Patch, PostEvent, seconds_since
from shoal_local.controllers.job_counts import (
    FAILURES,
    INDEX,
    TRACKING,
    Counts,
    annotated,
    fits,
    has_own_limits,
    index_of,
    is_held,
    is_indexed,
)
from shoal_local.controllers.replica_sets import MAX_CREATED_AT_ONCE, make_pod, rank
from shoal_local.objects import Object, has_ended, is_deleting

RETRY_S, MAX_RETRY_S = 10.0, 600.0
MAX_PREFIX = 58
"""Characters of ``generateName`` that the Kubernetes API server keeps."""


def plan_pods(job: Object, pods: Sequence[Object], counts: Counts, now: datetime, retry_s: float) -> Changes:
    """Return the changes that bring an unfinished Job to its number of pods."""
    changes = Changes()
    spec, needless = job["spec"], counts.completed | counts.failed_indexes
    if spec.get("suspend"):
        wanted = 0
    elif spec.get("completions") is None:
        # A work queue: once a pod has succeeded, no new pods are created.
        wanted = len(counts.active) if counts.succeeded else int(spec["parallelism"])
    else:
        left = spec["completions"] - counts.succeeded - len(counts.failed_indexes)
        wanted = max(0, min(int(spec["parallelism"]), int(left)))
    surplus = _surplus(job, counts, wanted, now)
    for pod in surplus:
        changes.add(*release([pod]), *end(job, pod))
    taken = [pod for pod in counts.active if pod not in surplus]
    if spec["podReplacementPolicy"] == "Failed":
        # A pod that is being deleted is replaced only after its end.
        taken += [pod for pod in pods if is_deleting(pod) and not has_ended(pod)]
    missing = max(0, min(wanted - len(taken), MAX_CREATED_AT_ONCE))
    indexes = [-1] * missing
    if is_indexed(job):
        busy = needless | {index_of(pod) for pod in taken}
        indexes = [index for index in range(spec["completions"]) if index not in busy][:missing]
    for index in indexes:
        tried = [pod for pod in pods if index_of(pod) == index] if has_own_limits(job) else pods
        wait_s = retry_in_s(tried, now, retry_s)
        if wait_s > 0:
            changes.requeue(wait_s)
        else:
            # A pod that was released before its end, as surplus, did not fail.
            failures = [annotated(pod, FAILURES, 0) + 1 for pod in tried if is_held(pod) or not is_deleting(pod)]
            changes.add(Create(make_job_pod(job, index, max(failures, default=0))))
    return changes


def _surplus(job: Object, counts: Counts, wanted: int, now: datetime) -> list[Object]:
    """Return the pods beyond the wanted number: unneeded pods first, then pods with the least progress.

    A pod without the finalizer was released as surplus before a restart, and stays surplus.
    """
    ranked = sorted(counts.active, key=lambda pod: rank(pod, now))
    kept: dict[int, Object] = {}
    needless = counts.completed | counts.failed_indexes
    for number, pod in enumerate(reversed(ranked)):
        index = index_of(pod) if is_indexed(job) else number
        if is_held(pod) and fits(job, pod) and not (is_indexed(job) and index in needless):
            kept.setdefault(index, pod)
    # One pod per index, the one with the most progress.
    best = list(kept.values())[:wanted]
    return [pod for pod in ranked if not any(pod is other for other in best)]


def retry_in_s(pods: Iterable[Object], now: datetime, retry_s: float) -> float:
    """Return the seconds to the next attempt; each failure doubles the delay."""
    ends = []
    for pod in pods:
        if has_ended(pod) and not is_deleting(pod):
            states = [status.get("state", {}) for status in pod["status"].get("containerStatuses") or []]
            times = [s["terminated"]["finishedAt"] for s in states if s.get("terminated", {}).get("finishedAt")]
            ends.append((max(times, default=str(pod["metadata"]["creationTimestamp"])), pod["status"]["phase"]))
    last_success = max((at for at, phase in ends if phase == "Succeeded"), default="")
    failures = [at for at, phase in ends if phase == "Failed" and at > last_success]
    if not failures:
        return 0.0
    # The exponent is bounded: 2**1024 exceeds a float.
    delay_s = min(retry_s * 2.0 ** min(len(failures) - 1, 20), MAX_RETRY_S)
    return max(0.0, delay_s - seconds_since(max(failures), now))


def make_job_pod(job: Object, index: int, failures: int) -> Object:
    """Return a pod from the Job's template.

    ``index`` is the pod's completion index; a negative one means none.
    """
    pod = make_pod(job)
    pod["metadata"]["finalizers"] = [TRACKING]
    if index < 0:
        return pod
    meta, suffix = pod["metadata"], f"-{index}-"
    marks = {INDEX: str(index), **({FAILURES: str(failures)} if has_own_limits(job) else {})}
    meta["labels"] = {**meta.get("labels", {}), INDEX: str(index)}
    meta["annotations"] = {**meta.get("annotations", {}), **marks}
    meta["generateName"] = job["metadata"]["name"][: MAX_PREFIX - len(suffix)] + suffix
    spec = {**pod["spec"], "hostname": f"{job['metadata']['name']}-{index}"}
    source = {"fieldRef": {"fieldPath": f"metadata.labels['{INDEX}']"}}
    variable = {"name": "JOB_COMPLETION_INDEX", "valueFrom": source}
    for part in ("initContainers", "containers"):
        for at, container in enumerate(spec.get(part) or []):
            env = container.get("env") or []
            # A variable of the template takes precedence. The template itself stays unchanged.
            if all(known["name"] != variable["name"] for known in env):
                copied = {**container, "env": [*env, variable]}
                spec[part] = [*spec[part][:at], copied, *spec[part][at + 1 :]]
    pod["spec"] = spec
    return pod


def release(pods: Iterable[Object]) -> list[Action]:
    """Return the patches that remove the Job's finalizer from pods."""
    actions: list[Action] = []
    for pod in pods:
        if is_held(pod):
            others = [name for name in pod["metadata"]["finalizers"] if name != TRACKING] or None
            actions.append(Patch(pod, {"metadata": {"finalizers": others}}))
    return actions


def end(job: Object, pod: Object) -> list[Action]:
    """Return the actions that delete a Job's pod and post an event."""
    return [Delete(pod), PostEvent(job, "Normal", "SuccessfulDelete", f"Deleted pod: {pod['metadata']['name']}")]
