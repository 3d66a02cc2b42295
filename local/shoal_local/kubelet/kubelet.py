"""The kubelet: one worker for each pod that the scheduler bound to this node."""

import asyncio
import logging
from pathlib import Path

from shoal_local.api_client import PODS, ApiClient
from shoal_local.informer import Informer
from shoal_local.kubelet.machine import Machine
from shoal_local.kubelet.records import PodRecord, known_pods
from shoal_local.kubelet.worker import PodWorker
from shoal_local.objects import Object, has_ended

logger = logging.getLogger(__name__)


class Kubelet:
    """The kubelet of this node: one worker per pod."""

    def __init__(self, client: ApiClient, machine: Machine) -> None:
        self._machine = machine
        self._workers: dict[str, PodWorker] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        # False until earlier pods are adopted: changes before that are part of the first list.
        self._begun = False
        self.pods = Informer(client, PODS, fieldSelector=f"spec.nodeName={machine.node_name}")
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
        present = self.pods.get(pod["metadata"]["namespace"], pod["metadata"]["name"])
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
        known = self.pods.get(namespace, pod)
        worker = self._workers.get(known["metadata"]["uid"]) if known else None
        return worker.run_directory(container, previous=previous) if worker else None
