"""Execution of planned changes: API requests and informer updates."""

from shoal_local.api_client import ApiClient
from shoal_local.apiserver.errors import ApiError
from shoal_local.controllers.changes import Changes, Create, Delete, Patch, PostEvent
from shoal_local.events import EventRecorder
from shoal_local.informer import Informer
from shoal_local.objects import Object, controller_of, key_of


class CreateRejectedError(Exception):
    """The API server rejected an object that a controller created."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Executor:
    """The executor of the changes that controllers plan."""

    def __init__(self, client: ApiClient, recorder: EventRecorder, informers: list[Informer]) -> None:
        self._client = client
        self._recorder = recorder
        self._informers = {i.resource.kind: i for i in informers}

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
                    left = await self._client.delete(informer.resource, obj)
                    same = left is not None and left.get("metadata", {}).get("uid") == obj["metadata"]["uid"]
                    # Finalizers or a grace period keep the object for now.
                    if left is not None and same and left["metadata"].get("deletionTimestamp"):
                        informer.record(left)
                    else:
                        informer.record_deleted(obj)

    async def _create(self, obj: Object) -> None:
        informer = self._informers[obj["kind"]]
        try:
            made = await self._client.create(informer.resource, obj)
        except ApiError as error:
            if error.reason == "AlreadyExists" and "name" in obj["metadata"]:
                # An earlier process created it, and the watch has not delivered it yet.
                made = await self._client.get(informer.resource, *key_of(obj))
            elif error.code in (403, 422):
                raise CreateRejectedError(error.message) from error
            else:
                raise
        else:
            owner = controller_of(obj) if obj["kind"] == "Pod" else None
            about = self._informers[owner["kind"]].get(obj["metadata"]["namespace"], owner["name"]) if owner else None
            # Only ReplicaSets and Jobs create pods.
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
        made = await self._client.patch(informer.resource, obj, {**patch, "metadata": meta}, subresource=subresource)
        latest[uid] = made
        meta = made["metadata"]
        if meta.get("deletionTimestamp") and not meta.get("deletionGracePeriodSeconds") and not meta.get("finalizers"):
            # The patch removed the last finalizer, and with it the object.
            informer.record_deleted(made)
        else:
            informer.record(made)
