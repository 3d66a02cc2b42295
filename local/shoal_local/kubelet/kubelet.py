"""The kubelet: one worker for each pod that the scheduler bound to this node.

A worker runs the containers of its pod and writes the pod's status.
"""

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shoal_local.api_client import STRATEGIC_PATCH, ApiClient, UnreachableError
from shoal_local.apiserver.errors import ApiError
from shoal_local.informer import Informer
from shoal_local.kubelet.container_spec import make_container_spec
from shoal_local.kubelet.containers import ObservedContainer, PodTermination, StopAction, members_of, next_actions
from shoal_local.kubelet.images import BadTableError, UnknownImageError
from shoal_local.kubelet.machine import Machine, referenced_objects
from shoal_local.kubelet.probing import Kind, Prober
from shoal_local.kubelet.records import PodRecord, known_pods
from shoal_local.kubelet.runs import Container
from shoal_local.kubelet.status import StatusContext, full_name, known_status, pod_status
from shoal_local.kubelet.variables import ConfigError, Context
from shoal_local.kubelet.volumes import VolumeError, Volumes, remove_volumes
from shoal_local.objects import Object, has_ended, key_of

logger = logging.getLogger(__name__)
RETRY_S = 5.0
STARTING_S = 10.0
FOLLOW_S = 2.0
"""Between two reads of a running pod's Secrets and ConfigMaps; Kubernetes takes up to two minutes."""
ERASED_GRACE_S = 1.0
"""Grace period of a pod that was deleted from the API without one."""


def _now() -> float:
    return datetime.now(UTC).timestamp()


class PodWorker:
    """The worker that runs the containers of one pod."""

    def __init__(self, pod: Object, record: PodRecord, machine: Machine) -> None:
        self.pod = pod
        self.uid = record.uid
        self._record = record
        self._machine = machine
        self._address = machine.addresses.acquire(record.uid)
        self._changed = asyncio.Event()
        self._erased_at: float | None = None
        self._containers = {m.name: Container(m, record, self._changed.set) for m in members_of(pod["spec"])}
        self._volumes = Volumes(pod, record, machine)
        self._tasks: set[asyncio.Task[None]] = set()
        self._written: Object = {}
        self._held_back: dict[str, int] = {}

    def update(self, pod: Object) -> None:
        """Continue with a new version of the pod."""
        self.pod = pod
        self._changed.set()

    def erase(self) -> None:
        """End the pod after its deletion from the API."""
        if self._erased_at is None:
            self._erased_at = _now()
        self._changed.set()

    def adopt(self) -> None:
        """Continue to manage the container processes of an earlier kubelet, with their last probe results."""
        for name, container in self._containers.items():
            container.adopt()
            run = container.run
            if run is None:
                continue
            self._machine.devices.reserve(self.uid, name, run.container.get("devices") or {})
            if not run.ended.is_set():
                known = known_status(self.pod, name, container.next_attempt - 1)
                started, ready = bool(known.get("started")), bool(known.get("ready"))
                container.probe(self._prober(container), started=started, ready=ready)

    async def run(self) -> None:
        """Work until the pod has ended and is deleted."""
        self._record.save(self.pod, self._address)
        if self._volumes.follows:
            self._keep(self._follow())
        while True:
            self._changed.clear()
            try:
                wait_s = await self._step()
            except (ApiError, UnreachableError) as error:
                logger.info("event=pod_step_failed pod=%s error=%s", self.pod["metadata"]["name"], error)
                wait_s = 1.0
            # The pod is gone.
            if wait_s is not None and wait_s < 0:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        # The reference keeps the task from being collected.
        self._tasks.add(task := asyncio.create_task(work))
        task.add_done_callback(self._tasks.discard)

    async def _follow(self) -> None:
        """Update changed Secrets and ConfigMaps in volumes, until the pod ends."""
        while self._end() is None:
            await asyncio.sleep(FOLLOW_S)
            with contextlib.suppress(ApiError, UnreachableError, VolumeError, OSError):
                self._volumes.renew(await referenced_objects(self._machine.client, self.pod))

    def release(self) -> None:
        """Stop following the pod's processes, which outlive the kubelet."""
        for container in self._containers.values():
            container.release()
        for task in self._tasks:
            task.cancel()

    def run_directory(self, name: str, *, previous: bool) -> Path | None:
        """Return the directory of a container's current or previous run, or None if there is none."""
        container = self._containers.get(name)
        attempt = container.next_attempt - (2 if previous else 1) if container else -1
        return self._record.run(name, attempt) if attempt >= 0 else None

    async def _step(self) -> float | None:
        """Take the next steps; return the delay until the next call, or -1 after the pod's end."""
        now = _now()
        steps = next_actions(self.pod["spec"], self._observed(now), now, self._end())
        for stop in steps.stop:
            self._stop(stop)
        for name in steps.held_back:
            # One event for each run that is delayed.
            container = self._containers[name]
            if self._held_back.get(name) != container.next_attempt:
                self._held_back[name] = container.next_attempt
                message = f"Back-off restarting failed container {name} in pod {full_name(self.pod)}"
                self._post_event("Warning", "BackOff", message, container)
        # A pod that had ended under an earlier kubelet does not run again.
        if steps.start and not has_ended(self.pod):
            await asyncio.gather(*map(self._start, steps.start))
            self._changed.set()
        if steps.over and self._end() is not None:
            # Publish the final status, delete the pod from the API, and free its resources.
            await self._publish()
            if self._erased_at is None:
                await self._machine.client.delete(self.pod, grace_s=0)
            self.release()
            self._record.remove()
            remove_volumes(self.uid)
            self._machine.addresses.release(self.uid)
            self._machine.devices.release(self.uid)
            return -1
        await self._publish()
        return None if steps.wake_at is None else max(0.0, steps.wake_at - now)

    def _observed(self, now: float) -> dict[str, ObservedContainer]:
        return {name: c.observe(now) for name, c in self._containers.items()}

    def _end(self) -> PodTermination | None:
        # deletionTimestamp is the end of the grace period, not its start.
        if self._erased_at is not None:
            return PodTermination(self._erased_at, ERASED_GRACE_S)
        meta = self.pod["metadata"]
        if not meta.get("deletionTimestamp"):
            return None
        grace_s = float(meta.get("deletionGracePeriodSeconds") or 0)
        ends_at = datetime.fromisoformat(meta["deletionTimestamp"]).timestamp()
        return PodTermination(ends_at - grace_s, grace_s)

    async def _start(self, name: str) -> None:
        container = self._containers[name]
        machine = self._machine
        try:
            found = await referenced_objects(machine.client, self.pod)
            context = Context(self.pod, self._address, machine.host_ip, found)
            await self._volumes.prepare(context)
            directory = self._record.run(name, container.next_attempt)
            content = make_container_spec(container.member, context, machine, self._volumes, directory)
        except (UnknownImageError, BadTableError) as error:
            # The first attempt has the reason ErrImagePull, later ones ImagePullBackOff, as with a registry.
            image, message, before = container.member.spec["image"], str(error), container.state.waiting
            if before is None or not before[1].endswith(message):
                self._post_event("Warning", "Failed", f'Failed to pull image "{image}": {message}', container)
                self._cannot_start(container, "ErrImagePull", message, retry_s=0.5)
                return
            back_off = f'Back-off pulling image "{image}"'
            if before[0] != "ImagePullBackOff":
                self._post_event("Normal", "BackOff", back_off, container)
            self._cannot_start(container, "ImagePullBackOff", f"{back_off}: ErrImagePull: {message}")
        except ConfigError as error:
            self._cannot_start(container, "CreateContainerConfigError", str(error))
        except (VolumeError, OSError) as error:
            self._post_event("Warning", "FailedMount", str(error))
            container.state.waiting, container.state.retry_at = None, _now() + RETRY_S
        else:
            await self._launch(container, content)

    def _cannot_start(self, container: Container, reason: str, message: str, retry_s: float = RETRY_S) -> None:
        if container.state.waiting != (reason, message) and reason == "CreateContainerConfigError":
            self._post_event("Warning", "Failed", f"Error: {message}", container)
        container.state.waiting = (reason, message)
        container.state.retry_at = _now() + retry_s

    async def _launch(self, container: Container, content: Object) -> None:
        name, old = container.member.name, container.next_attempt - 2
        image = container.member.spec["image"]
        message = f'Container image "{image}" already present on machine'
        self._post_event("Normal", "Pulled", message, container)
        # Files of the current and the previous run are kept.
        shutil.rmtree(self._record.run(name, old), ignore_errors=True)
        run = container.start(content, _now())
        self._post_event("Normal", "Created", f"Container created: {name}", container)
        async with asyncio.timeout(STARTING_S):
            # The shim writes a file when the process runs or has failed to start.
            while run.started_at is None and not run.ended.is_set():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        if run.exit is not None and run.started_at is None:
            self._post_event("Warning", "Failed", f"Error: {run.exit.message}", container)
            return
        self._post_event("Normal", "Started", f"Container started: {name}", container)
        container.probe(self._prober(container))

    def _prober(self, container: Container) -> Prober:
        assert container.run is not None

        def on_failure(kind: Kind, failure: str) -> None:
            name = kind.value.removesuffix("Probe").capitalize()
            self._post_event("Warning", "Unhealthy", f"{name} probe failed: {failure}", container)

        return Prober(self._machine.probe_client, container.member.spec, self._address, on_failure)

    def _stop(self, stop: StopAction) -> None:
        # A second stop is sent only at the pod's end, whose grace period may be shorter.
        container = self._containers[stop.name]
        if container.state.stopping and stop.why != "ending":
            return
        container.state.stopping = True
        message = f"Stopping container {stop.name}"
        if stop.why == "unhealthy":
            message = f"Container {stop.name} failed liveness probe, will be restarted"
        self._post_event("Normal", "Killing", message, container)
        if container.run is not None:
            self._keep(container.run.stop_gracefully(stop.grace_s))

    async def _publish(self) -> None:
        now = _now()
        place = StatusContext(self.pod, now, ending=self._end() is not None)
        status = pod_status(place, self._observed(now), pod_ip=self._address, host_ip=self._machine.host_ip)
        # A deleted pod has no status to write.
        if status == self._written or self._erased_at is not None:
            return
        try:
            # The uid rejects the patch for a later pod of this name.
            patch = {"metadata": {"uid": self.uid}, "status": status}
            patched = await self._machine.client.patch(
                self.pod, patch, subresource="status", content_type=STRATEGIC_PATCH
            )
        except ApiError as error:
            # The pod was deleted, or replaced by another one of this name.
            if error.code not in (404, 409):
                raise
            return
        self._written = status
        # A deletion that this worker has not seen yet arrives by the watch.
        if not patched["metadata"].get("deletionTimestamp") or self._end():
            self.pod = {**self.pod, "status": patched["status"]}

    def _post_event(self, kind: str, reason: str, message: str, container: Container | None = None) -> None:
        about = {**self.pod, "apiVersion": "v1", "kind": "Pod"}
        if container is not None:
            part = "containers" if container.member.role.name == "MAIN" else "initContainers"
            about["fieldPath"] = f"spec.{part}{{{container.member.name}}}"
        self._machine.recorder.post(about, kind, reason, message)


class Kubelet:
    """The kubelet of this node: one worker per pod."""

    def __init__(self, client: ApiClient, machine: Machine) -> None:
        self._machine = machine
        self._workers: dict[str, PodWorker] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        # False until earlier pods are adopted: changes before that are part of the first list.
        self._begun = False
        self.pods = Informer(client, "Pod", fieldSelector=f"spec.nodeName={machine.node_name}")
        self.pods.listen(self._on_pod)

    async def run(self) -> None:
        """Run pods until cancelled; their processes continue for the next kubelet."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.pods.run())
                await self.pods.synced.wait()
                self._begin()
                # Forever: the informer's task and the workers do the rest.
                await asyncio.Event().wait()
        finally:
            for worker in self._workers.values():
                worker.release()
            for task in self._tasks.values():
                task.cancel()

    def _begin(self) -> None:
        """Adopt the pods of an earlier kubelet, end deleted ones, start new ones.

        Requires the first list from the API: a pod that is not in it was deleted.
        """
        known = {pod["metadata"]["uid"]: pod for pod in self.pods.objects.values()}
        records = known_pods(self._machine.root)
        loaded = [(record, found) for record in records if (found := record.load())]
        # All addresses first: a worker acquires one when it is created.
        for record, (_, address) in loaded:
            self._machine.addresses.reserve(record.uid, address)
        for record, (old, _) in loaded:
            worker = self._add(known.get(record.uid, old), record)
            worker.adopt()
            # Deleted while no kubelet ran.
            if record.uid not in known:
                worker.erase()
        self._begun = True
        for uid, pod in known.items():
            if uid not in self._workers and not has_ended(pod):
                self._add(pod, PodRecord(self._machine.root, uid))
        for uid in self._workers:
            self._launch(uid)

    def _add(self, pod: Object, record: PodRecord) -> PodWorker:
        worker = self._workers[record.uid] = PodWorker(pod, record, self._machine)
        return worker

    def _launch(self, uid: str) -> None:
        self._tasks[uid] = asyncio.create_task(self._work(uid), name=f"pod {uid}")

    async def _work(self, uid: str) -> None:
        """Run a worker, and restart it if it fails: a fault with one pod must not stop the others."""
        worker = self._workers[uid]
        while True:
            try:
                await worker.run()
                break
            except Exception:
                logger.exception("event=pod_worker_failed pod=%s", uid)
                await asyncio.sleep(1.0)
        del self._workers[uid], self._tasks[uid]

    def _on_pod(self, pod: Object) -> None:
        if not self._begun:
            return
        uid = pod["metadata"]["uid"]
        present = self.pods.objects.get(key_of(pod))
        gone = present is None or present["metadata"]["uid"] != uid
        worker = self._workers.get(uid)
        # A new pod, a deleted pod, or a change of a known pod.
        if worker is None and not gone and not has_ended(pod):
            self._add(pod, PodRecord(self._machine.root, uid))
            self._launch(uid)
        elif worker is not None and gone:
            worker.erase()
        elif worker is not None:
            worker.update(pod)

    def run_directory(self, namespace: str, pod: str, container: str, *, previous: bool) -> Path | None:
        """Return the directory of a container's current or previous run, or None if there is none."""
        known = self.pods.objects.get((namespace, pod))
        worker = self._workers.get(known["metadata"]["uid"]) if known else None
        return worker.run_directory(container, previous=previous) if worker else None
