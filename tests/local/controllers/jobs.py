"""A simulation of one Job: executes plans as an API server would, and acts as kubelet and user."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from shoal_local.controllers.changes import Action, Changes, Create, Delete, Patch
from shoal_local.controllers.job_counts import TRACKING, index_of
from shoal_local.controllers.jobs import plan_job
from shoal_local.objects import Object, condition, has_ended, is_deleting, timestamp

START = datetime(2026, 1, 1, tzinfo=UTC)


def make_job(**spec: Any) -> Object:
    """Return a Job as the API server stores it."""
    template = {
        "metadata": {"labels": {"app": "sums"}},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "a"}]},
    }
    defaults = {"parallelism": 1, "backoffLimit": 6, "completionMode": "NonIndexed", "suspend": False}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "sums", "namespace": "default", "uid": "j", "creationTimestamp": timestamp(START)},
        "spec": {**defaults, "podReplacementPolicy": "TerminatingOrFailed", "template": template, **spec},
    }


@dataclass
class JobSimulation:
    """A Job, its pods by uid, and the time."""

    job: Object
    pods: dict[str, Object] = field(default_factory=dict)
    now: datetime = START
    events: list[str] = field(default_factory=list)
    """Reasons of events."""
    given_up: set[str] = field(default_factory=set)
    """Uids of pods that the status has ever counted as failed."""
    lost: set[str] = field(default_factory=set)
    """Uids of pods that failed before the Job released them."""
    won: dict[str, int] = field(default_factory=dict)
    """Indexes by uid of the pods that succeeded before the Job released them or counted them as failed."""
    numbers: Any = field(default_factory=lambda: itertools.count(1))

    @property
    def status(self) -> Object:
        """Return the Job's status."""
        found: Object = self.job.get("status", {})
        return found

    @property
    def unended(self) -> list[Object]:
        """Return the pods that have not ended."""
        return [pod for pod in self.pods.values() if not has_ended(pod)]

    @property
    def active(self) -> list[Object]:
        """Return the pods that have not ended and are not being deleted."""
        return [pod for pod in self.unended if not is_deleting(pod)]

    @property
    def reason(self) -> str:
        """Return the reason of the Job's final condition, or ''."""
        final = condition(self.job, "Failed") or condition(self.job, "Complete") or {"type": "", "reason": ""}
        return str(final["reason"])

    def plan(self) -> Changes:
        """Return the plan for the current state."""
        return plan_job(self.job, list(self.pods.values()), self.now)

    def step(self, most: int = 1000) -> int:
        """Execute the first actions of a plan and stop, as after a kill; return their number."""
        actions = self.plan().actions
        for action in actions[:most]:
            self._do(action)
        return len(actions)

    def settle(self) -> None:
        """Execute plans until one is empty."""
        for _ in range(50):
            if not self.step():
                return
        raise AssertionError("it never settles")

    def later(self, seconds: float) -> None:
        """Advance the clock, and settle."""
        self.now += timedelta(seconds=seconds)
        self.settle()

    def _do(self, action: Action) -> None:
        match action:
            case Create(obj):
                uid = f"p{next(self.numbers)}"
                name = f"{obj['metadata']['generateName']}{uid}"
                made = {"uid": uid, "name": name, "creationTimestamp": timestamp(self.now)}
                self.pods[uid] = {**obj, "metadata": {**obj["metadata"], **made}, "status": {"phase": "Pending"}}
            case Patch(obj, patch, "status"):
                assert obj["kind"] == "Job"
                self.job = {**self.job, "status": merged(self.status, patch["status"])}
                self.given_up.update(self.status["uncountedTerminatedPods"].get("failed", []))
            case Patch(obj, patch, _):
                pod = self.pods[obj["metadata"]["uid"]]
                self._put({**pod, "metadata": merged(pod["metadata"], patch["metadata"])})
            case Delete(obj):
                self.delete(self.pods[obj["metadata"]["uid"]])
            case event:
                self.events.append(event.reason)

    def delete(self, pod: Object) -> None:
        """Delete a pod: at once if it has ended, else mark it."""
        grace_s = 0 if has_ended(pod) else 30
        stamps = {"deletionTimestamp": timestamp(self.now), "deletionGracePeriodSeconds": grace_s}
        self._put({**pod, "metadata": {**pod["metadata"], **stamps}})

    def end(self, pod: Object, phase: str) -> None:
        """End a pod; a marked pod is removed."""
        uid = pod["metadata"]["uid"]
        pod = self.pods[uid]
        if held([pod]) and phase == "Failed":
            self.lost.add(uid)
        elif held([pod]) and uid not in self.given_up:
            self.won[uid] = index_of(pod)
        state = {"terminated": {"finishedAt": timestamp(self.now)}}
        meta = {**pod["metadata"], **({"deletionGracePeriodSeconds": 0} if is_deleting(pod) else {})}
        self._put({**pod, "metadata": meta, "status": {"phase": phase, "containerStatuses": [{"state": state}]}})

    def _put(self, pod: Object) -> None:
        meta = pod["metadata"]
        self.pods[meta["uid"]] = pod
        if is_deleting(pod) and not meta["deletionGracePeriodSeconds"] and not meta.get("finalizers"):
            del self.pods[meta["uid"]]

    @property
    def successes(self) -> int:
        """Return the number of succeeded pods or indexes."""
        return len(set(self.won.values()) if self.job["spec"]["completionMode"] == "Indexed" else self.won)

    def end_all(self, phase: Callable[[Object], str] = lambda pod: "Succeeded") -> None:
        """End every pod that runs, and settle."""
        for pod in self.unended:
            self.end(pod, phase(pod))
        self.settle()


def merged(old: Any, patch: Any) -> Any:
    """Return an object with a merge patch applied."""
    if not isinstance(patch, dict):
        return patch
    base = old if isinstance(old, dict) else {}
    new = {**base, **{key: merged(base.get(key), value) for key, value in patch.items()}}
    return {key: value for key, value in new.items() if value is not None}


def held(pods: Sequence[Object]) -> list[Object]:
    """Return the pods that the Job has not counted."""
    return [pod for pod in pods if TRACKING in pod["metadata"].get("finalizers", [])]
