"""A cluster in process whose definition is replaced while objects lie in its store, and the operator beside it."""

import asyncio
import copy
import json
from collections.abc import Iterator
from typing import Any

from shoal_local.apiserver import errors
from shoal_operator.batch.reconciler import BatchReconciler
from shoal_operator.children.observation import Key
from shoal_operator.errors import ApiError
from shoal_operator.loop.records import Records
from shoal_operator.loop.workqueue import Outcome
from shoal_operator.manifests.desired import Child
from shoal_schema.fields.declaring import Json
from shoal_schema.resource import API_VERSION, BATCH_PLURAL
from tests.local.apiserver.cluster import CRDS, Cluster, new_cluster
from tests.operator.batch.test_batches import Pods
from tests.operator.fakes import FakeCluster, NoNames, new_year, reconciler_of
from tests.operator.samples import DEFAULTS
from tests.upgrades.recorded import Recorded, Written

APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


class Installed:
    """A cluster with one definition, which may be replaced by another of the same kind."""

    def __init__(self, definition: Recorded) -> None:
        self.server: Cluster = new_cluster()
        self.plural = definition.plural
        self.definition = f"{CRDS}/{definition.crd['metadata']['name']}"
        self.path = f"/apis/{API_VERSION}/namespaces/default/{definition.plural}"
        self.server.post(CRDS, copy.deepcopy(definition.crd))

    def install(self, definition: Recorded) -> None:
        """Replace the definition, as `helm upgrade` does."""
        live = self.server.get(self.definition)
        self.server.request("PUT", self.definition, {**live, "spec": copy.deepcopy(definition.spec)})

    def apply(self, written: Written, name: str) -> str:
        """Create an object as `kubectl apply` does; return why the API server refuses it, or nothing."""
        manifest = copy.deepcopy(written.manifest(name))
        manifest["metadata"]["annotations"] = {APPLIED: json.dumps(manifest)}
        try:
            self.server.post(self.path, manifest, fieldValidation="Strict", fieldManager="kubectl-client-side-apply")
        except errors.ApiError as error:
            return error.message
        return ""

    def apply_all(self, objects: Iterator[Written]) -> dict[str, Written]:
        """Create those that the definition takes; return them by name."""
        named = {f"o{number}": each for number, each in enumerate(objects)}
        return {name: each for name, each in named.items() if not self.apply(each, name)}

    def read(self, name: str) -> Json:
        """Return an object, to be kept while others are written."""
        return copy.deepcopy(self.server.get(f"{self.path}/{name}"))

    def replace(self, resource: Json) -> None:
        """Write an object as it was read, with an annotation more."""
        changed = copy.deepcopy(resource)
        changed["metadata"].setdefault("annotations", {})["touched"] = "yes"
        self.server.request("PUT", f"{self.path}/{resource['metadata']['name']}", changed)

    def reconcile(self, name: str) -> tuple[Outcome, dict[str, Json]]:
        """Have the operator reconcile an object; return its conditions by type, as the store has them then."""
        outcome = asyncio.run(_reconcile(Operated(self), Key("default", name, self.plural)))
        conditions = self.read(name).get("status", {}).get("conditions", [])
        return outcome, {each["type"]: each for each in conditions}


class Operated(FakeCluster):
    """Objects and statuses are those of a server; children are in memory."""

    def __init__(self, installed: Installed) -> None:
        super().__init__()
        self._installed = installed

    async def read_service(self, key: Key) -> Json | None:
        return self._installed.read(key.name)

    async def observe_batch(self, key: Key, kind: Child) -> tuple[Json | None, tuple[Json, ...]]:
        return copy.deepcopy(self.children.get((Key(key.namespace, key.name), kind))), ()

    async def apply_status(self, resource: Json, status: Json) -> Json:
        metadata = {name: resource["metadata"][name] for name in ("name", "namespace", "uid")}
        body = {"apiVersion": API_VERSION, "kind": resource["kind"], "metadata": metadata, "status": status}
        path = f"{self._installed.path}/{metadata['name']}/status"
        try:
            return copy.deepcopy(self._installed.server.apply(path, body, "shoal-operator", force="true"))
        except errors.ApiError as error:
            raise ApiError(error.code, error.message) from error


async def _reconcile(cluster: Operated, key: Key) -> Outcome:
    if key.plural != BATCH_PLURAL:
        return await reconciler_of(cluster).reconcile(key)
    return await BatchReconciler(cluster, Records(), DEFAULTS, NoNames(), Pods(), new_year, lambda: 0.0).reconcile(key)


def lost(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Yield the fields that only the first of two values has: `queue.maxItems`, `steps[].name`."""
    if isinstance(before, list) and isinstance(after, list):
        for one, other in zip(before, after, strict=False):
            yield from lost(one, other, f"{path}[]")
    if not isinstance(before, dict):
        return
    for name, value in before.items():
        field = f"{path}.{name}".removeprefix(".")
        if not isinstance(after, dict) or name not in after:
            yield field
        else:
            yield from lost(value, after[name], field)


def fields_of(schema: Json, path: str = "") -> Iterator[str]:
    """Yield the fields that a schema names, in the words of `lost`."""
    for name, part in schema.get("properties", {}).items():
        yield f"{path}.{name}".removeprefix(".")
        yield from fields_of(part, f"{path}.{name}")
    if isinstance(schema.get("items"), dict):
        yield from fields_of(schema["items"], f"{path}[]")
