"""Control loops, which reconcile the keys of changed objects, the execution of planned changes, and the command."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import click

from shoal_local.api_client import ApiClient, read_kubeconfig
from shoal_local.apiserver.errors import ApiError
from shoal_local.controllers.changes import Action, Changes, Create, Delete, Patch, PostEvent
from shoal_local.controllers.deployments import plan_deployment
from shoal_local.controllers.endpoints import plan_slices, selects
from shoal_local.controllers.job_counts import is_held
from shoal_local.controllers.jobs import plan_job, release
from shoal_local.controllers.replica_sets import plan_replica_set
from shoal_local.controllers.scheduling import place
from shoal_local.events import EventRecorder
from shoal_local.informer import Informer
from shoal_local.objects import (
    SERVICE_NAME,
    Key,
    Object,
    condition,
    controller_of,
    has_ended,
    key_of,
    make_condition,
    other_conditions,
    owned_by,
    timestamp,
)
from shoal_local.processes import run_part
from shoal_local.workqueue import WorkQueue
from shoal_schema.process.arguments import FILE


class CreateRejectedError(Exception):
    """The API server rejected an object that a controller created; the message is the server's."""


class Executor:
    """The executor of the changes that controllers plan."""

    def __init__(self, client: ApiClient, recorder: EventRecorder, informers: list[Informer]) -> None:
        self._client = client
        self._recorder = recorder
        self._informers = {i.kind: i for i in informers}

    async def execute(self, changes: Changes) -> None:
        """Execute the actions in order.

        Raises CreateRejectedError: 403 or 422 for a new object. Raises ApiError: an object has changed since it was
        read, or the server failed; the reconciliation is retried.
        """
        latest: dict[str, Object] = {}
        for action in changes.actions:
            match action:
                case PostEvent(about, kind, reason, message):
                    self._recorder.post(about, kind, reason, message)
                case Create(obj):
                    await self._create(obj)
                case Patch():
                    await self._patch(action, latest)
                case Delete(obj):
                    informer = self._informers[obj["kind"]]
                    left = await self._client.delete(obj)
                    same = left is not None and left.get("metadata", {}).get("uid") == obj["metadata"]["uid"]
                    # Finalizers or a grace period keep the object for now.
                    if left is not None and same and left["metadata"].get("deletionTimestamp"):
                        informer.record(left)
                    else:
                        informer.record_deleted(obj)

    async def _create(self, obj: Object) -> None:
        informer = self._informers[obj["kind"]]
        try:
            made = await self._client.create(obj)
        except ApiError as error:
            if error.reason == "AlreadyExists" and "name" in obj["metadata"]:
                # An earlier process created it, and the watch has not delivered it yet.
                made = await self._client.get(obj["kind"], *key_of(obj))
            elif error.code in (403, 422):
                raise CreateRejectedError(error.message) from error
            else:
                raise
        else:
            owner = controller_of(obj)
            # Only ReplicaSets and Jobs create pods.
            if owner is not None and obj["kind"] == "Pod":
                about = self._informers[owner["kind"]].objects.get((obj["metadata"]["namespace"], owner["name"]))
                if about is not None:
                    message = f"Created pod: {made['metadata']['name']}"
                    self._recorder.post(about, "Normal", "SuccessfulCreate", message)
        informer.record(made)

    async def _patch(self, action: Patch, latest: dict[str, Object]) -> None:
        obj, patch, subresource = action.object, action.patch, action.subresource
        informer, uid = self._informers[obj["kind"]], obj["metadata"]["uid"]
        # The second patch of one object builds on the version that the first returned.
        version = latest.get(uid, obj)["metadata"]["resourceVersion"]
        # With a version the API server rejects a patch of an object that has changed.
        meta = {**patch.get("metadata", {}), "resourceVersion": version}
        made = await self._client.patch(obj, {**patch, "metadata": meta}, subresource=subresource)
        latest[uid] = made
        meta = made["metadata"]
        if meta.get("deletionTimestamp") and not meta.get("deletionGracePeriodSeconds") and not meta.get("finalizers"):
            # The patch removed the last finalizer, and with it the object.
            informer.record_deleted(made)
        else:
            informer.record(made)


Plan = Callable[[Object, list[Object], datetime], Changes]


class OwnerLoop:
    """The control loop of a kind whose objects own others."""

    def __init__(self, owners: Informer, owned: Informer, executor: Executor, plan: Plan) -> None:
        self._owners = owners
        self._owned = owned
        self._executor = executor
        self._plan = plan
        self.queue = WorkQueue(owners.kind, self._reconcile)
        owners.listen(lambda obj: self.queue.mark(key_of(obj)))
        owned.listen(self._on_owned)

    def _on_owned(self, obj: Object) -> None:
        owner = controller_of(obj)
        if owner is not None and owner["kind"] == self._owners.kind:
            self.queue.mark((obj["metadata"]["namespace"], owner["name"]))

    async def _reconcile(self, key: Key) -> float | None:
        owner = self._owners.objects.get(key)
        if owner is None:
            return None
        owned = owned_by(owner, self._owned.within(key[0]))
        changes = self._plan(owner, owned, datetime.now(UTC))
        try:
            await self._executor.execute(changes)
        except CreateRejectedError as refused:
            actions: list[Action] = [PostEvent(owner, "Warning", "FailedCreate", f"Error creating: {refused}")]
            if owner["kind"] == "ReplicaSet":
                # Its status states the reason too.
                failed = plan_replica_set(owner, owned, datetime.now(UTC), failure=str(refused))
                actions += [action for action in failed.actions if isinstance(action, Patch)]
            await self._executor.execute(Changes(actions))
            # Retried with a back-off.
            raise
        return changes.requeue_s


class JobLoop(OwnerLoop):
    """The control loop of Jobs, which also releases pods without a Job."""

    def _on_owned(self, obj: Object) -> None:
        # Pods with a Job's finalizer and without an owner share the key with an empty name.
        if is_held(obj) or _job_of(obj)[0]:
            self.queue.mark((obj["metadata"]["namespace"], _job_of(obj)[0]))

    async def _reconcile(self, key: Key) -> float | None:
        job = self._owners.objects.get(key)
        own = (key[1], job["metadata"]["uid"] if job else None)
        # Pods of a deleted Job, possibly of an earlier one with this name, would keep their finalizer forever.
        pods = self._owned.within(key[0])
        orphans = [pod for pod in pods if _job_of(pod)[0] in ("", key[1]) and _job_of(pod) != own]
        await self._executor.execute(Changes(release(orphans)))
        return await super()._reconcile(key)


def _job_of(pod: Object) -> tuple[str, str]:
    owner = controller_of(pod) or {}
    return (owner["name"], owner["uid"]) if owner.get("kind") == "Job" else ("", "")


class EndpointSliceLoop:
    """The control loop of the EndpointSlices of services."""

    def __init__(self, services: Informer, slices: Informer, pods: Informer, executor: Executor) -> None:
        self._services = services
        self._slices = slices
        self._pods = pods
        self._executor = executor
        # Labels by pod uid: services that selected a pod before its labels changed must drop it.
        self._last_labels: dict[str, Object] = {}
        self.queue = WorkQueue("endpointslices", self._reconcile)
        services.listen(lambda obj: self.queue.mark(key_of(obj)))
        slices.listen(self._on_slice)
        pods.listen(self._on_pod)

    def _on_slice(self, endpoint_slice: Object) -> None:
        if name := _service_of(endpoint_slice):
            self.queue.mark((endpoint_slice["metadata"]["namespace"], name))

    def _on_pod(self, pod: Object) -> None:
        before = self._last_labels.get(pod["metadata"]["uid"], pod)
        self._last_labels[pod["metadata"]["uid"]] = {"metadata": pod["metadata"]}
        if self._pods.objects.get(key_of(pod)) is None:
            del self._last_labels[pod["metadata"]["uid"]]
        for service in self._services.within(pod["metadata"]["namespace"]):
            if selects(service, pod) or selects(service, before):
                self.queue.mark(key_of(service))

    async def _reconcile(self, key: Key) -> float | None:
        service = self._services.objects.get(key)
        if service is None:
            # The garbage collector deletes its slices.
            return None
        pods = [p for p in self._pods.within(key[0]) if selects(service, p)]
        labelled = [s for s in self._slices.within(key[0]) if _service_of(s) == key[1]]
        changes = plan_slices(service, pods, labelled)
        await self._executor.execute(changes)
        return changes.requeue_s


def _service_of(endpoint_slice: Object) -> str:
    return str((endpoint_slice["metadata"].get("labels") or {}).get(SERVICE_NAME, ""))


class SchedulerLoop:
    """The scheduler's loop; one worker, as two could assign a resource twice."""

    def __init__(self, pods: Informer, nodes: Informer, client: ApiClient, recorder: EventRecorder) -> None:
        self._pods = pods
        self._nodes = nodes
        self._client = client
        self._recorder = recorder
        self.queue = WorkQueue("scheduler", self._reconcile, workers=1)
        pods.listen(self._on_pod)
        nodes.listen(lambda node: self._mark_pending())

    def _on_pod(self, pod: Object) -> None:
        if _is_pending(pod):
            self.queue.mark(key_of(pod))
        elif has_ended(pod) or self._pods.objects.get(key_of(pod)) is None:
            self._mark_pending()

    def _mark_pending(self) -> None:
        for key, pod in self._pods.objects.items():
            if _is_pending(pod):
                self.queue.mark(key)

    async def _reconcile(self, key: Key) -> float | None:
        pod = self._pods.objects.get(key)
        if pod is None or not _is_pending(pod):
            return None
        nodes = list(self._nodes.objects.values())
        node, message = place(pod, nodes, self._pods.objects.values())
        if not node:
            await self._report_unschedulable(pod, message)
            return None
        meta = {part: pod["metadata"][part] for part in ("name", "namespace", "uid")}
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": target}
        await self._client.post("Pod", binding, "binding")
        bound = await self._client.find("Pod", meta["namespace"], meta["name"])
        if bound is not None:
            # The next reconciliation must see that the node's resources are taken.
            self._pods.record(bound)
        message = f"Successfully assigned {meta['namespace']}/{meta['name']} to {node}"
        self._recorder.post(pod, "Normal", "Scheduled", message)
        return None

    async def _report_unschedulable(self, pod: Object, message: str) -> None:
        known = condition(pod, "PodScheduled")
        if known is not None and known.get("message") == message:
            return
        since = known["lastTransitionTime"] if known else timestamp(datetime.now(UTC))
        unschedulable = make_condition("PodScheduled", "False", "Unschedulable", message, since)
        patch = {"status": {"conditions": [*other_conditions(pod, "PodScheduled"), unschedulable]}}
        self._pods.record(await self._client.patch(pod, patch, subresource="status"))
        self._recorder.post(pod, "Warning", "FailedScheduling", message)


def _is_pending(pod: Object) -> bool:
    spec = pod["spec"]
    own = spec.get("schedulerName", "default-scheduler") == "default-scheduler"
    return own and not spec.get("nodeName") and not pod["metadata"].get("deletionTimestamp")


async def work(kubeconfig: Path) -> None:
    """Run all controllers until cancelled."""
    connection = read_kubeconfig(kubeconfig)
    async with ApiClient(connection, "shoal-controllers") as client, asyncio.TaskGroup() as group:
        kinds = ("Deployment", "ReplicaSet", "Job", "Pod", "Service", "EndpointSlice", "Node")
        informers = [Informer(client, kind) for kind in kinds]
        deployments, replica_sets, jobs, pods, services, slices, nodes = informers
        recorder = EventRecorder(client, "shoal-controllers")
        # Loops share the informers: a write of one is visible to all at once.
        executor = Executor(client, recorder, informers)
        loops = (
            OwnerLoop(deployments, replica_sets, executor, plan_deployment),
            OwnerLoop(replica_sets, pods, executor, plan_replica_set),
            JobLoop(jobs, pods, executor, plan_job),
            EndpointSliceLoop(services, slices, pods, executor),
            SchedulerLoop(pods, nodes, client, recorder),
        )
        for informer in informers:
            group.create_task(informer.run())
        group.create_task(recorder.run())
        # A controller with an empty cache would create everything a second time.
        await asyncio.gather(*(informer.synced.wait() for informer in informers))
        for loop in loops:
            group.create_task(loop.queue.run())


@click.command()
@click.option("--kubeconfig", type=FILE, required=True, help="how to reach the API server")
def command(kubeconfig: Path) -> int:
    """Run the controllers and the scheduler."""
    return run_part(work(kubeconfig))
