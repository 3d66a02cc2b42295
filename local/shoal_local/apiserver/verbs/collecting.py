"""Garbage collection in passes over all objects.

A pass deletes dependents of deleted owners, the contents of deleted namespaces, and custom objects of deleted
definitions. It reads the state and no events, so it may run at any time. Source of the rules for owners:
kubernetes/kubernetes pkg/controller/garbagecollector (attemptToDeleteItem).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from shoal_local.apiserver.access.rbac import User
from shoal_local.apiserver.kinds.registry import CRDS, EVENTS, NAMESPACES, Resource
from shoal_local.apiserver.schemas.custom import CLEANUP
from shoal_local.apiserver.verbs.call import Call
from shoal_local.apiserver.verbs.deleting import FOREGROUND, ORPHAN, delete_object, target_of
from shoal_local.apiserver.verbs.state import ClusterState
from shoal_local.apiserver.verbs.writing import create_defaults, may_be_removed, namespace_finalizers
from shoal_local.objects import Object, is_deleting, key_of, timestamp

COLLECTOR = User("system:serviceaccount:kube-system:generic-garbage-collector", ("system:masters",))
EVENT_LIFETIME = timedelta(hours=1)
NO_TARGET = target_of(Resource("", "v1", "Namespace", "namespaces", namespaced=False), {"metadata": {"name": ""}})


def references_of(obj: Object) -> list[Object]:
    """Return the object's owner references."""
    return obj["metadata"].get("ownerReferences") or []


@dataclass(frozen=True, slots=True)
class Item:
    """An object and its kind."""

    resource: Resource
    object: Object

    @property
    def uid(self) -> str:
        """Return the object's uid."""
        return str(self.object["metadata"]["uid"])

    def holds(self, finalizer: str) -> bool:
        """Return whether the object is being deleted and waits for this finalizer."""
        return is_deleting(self.object) and finalizer in (self.object["metadata"].get("finalizers") or [])


@dataclass(frozen=True, slots=True)
class GarbageCollection:
    """One pass of the garbage collector."""

    state: ClusterState
    now: datetime

    def run(self) -> None:
        """Delete all garbage."""
        items = {item.uid: item for item in _items(self.state)}
        dependents: dict[str, list[Item]] = {}
        for item in items.values():
            for reference in references_of(item.object):
                dependents.setdefault(reference["uid"], []).append(item)
        for item in items.values():
            self._settle_owner(item, dependents.get(item.uid, []))
        for item in [i for i in items.values() if references_of(i.object) and not is_deleting(i.object)]:
            self._settle_dependent(item, items, dependents)
        for crd in self.state.store.objects_of(CRDS):
            definition = Item(self._resource(CRDS), crd)
            if not definition.holds(CLEANUP):
                continue
            key = f"{crd['spec']['group']}/{crd['spec']['names']['plural']}"
            resource, objects = self.state.registry.stored.get(key), self.state.store.objects_of(key)
            # The definition stays until the next pass, so that its objects' dependents can be found.
            if resource and objects:
                for obj in objects:
                    self._delete(Item(resource, obj), {})
            else:
                self._drop_finalizer(definition, CLEANUP)
        for namespace in self.state.store.objects_of(NAMESPACES):
            if is_deleting(namespace):
                self._empty_namespace(namespace)
            else:
                create_defaults(self.state, self._call(), namespace["metadata"]["name"])
        oldest = timestamp(self.now - EVENT_LIFETIME)
        for event in self.state.store.objects_of(EVENTS):
            last = event.get("lastTimestamp") or event["metadata"]["creationTimestamp"]
            if last < oldest:
                self.state.remove(self._call(), self._resource(EVENTS), event)

    def _settle_owner(self, item: Item, dependents: list[Item]) -> None:
        """Remove the collector's finalizers from an owner, once its dependents are orphaned or deleted."""
        if item.holds(ORPHAN):
            for dependent in dependents:
                left = [r for r in references_of(dependent.object) if r["uid"] != item.uid]
                self._write_references(dependent, left)
            self._drop_finalizer(item, ORPHAN)
        elif item.holds(FOREGROUND) and not any(
            reference["uid"] == item.uid and reference.get("blockOwnerDeletion")
            for dependent in dependents
            for reference in references_of(dependent.object)
        ):
            self._drop_finalizer(item, FOREGROUND)

    def _settle_dependent(self, item: Item, items: dict[str, Item], dependents: dict[str, list[Item]]) -> None:
        """Delete an object without an owner that exists, or remove its references to deleted owners."""
        solid, waiting = [], False
        for ref in references_of(item.object):
            owner = items.get(ref["uid"])
            if self.state.registry.by_kind(ref["apiVersion"], ref["kind"]) is None:
                # Whether an owner of this kind exists is unknown.
                solid.append(ref)
            # An owner is cluster-scoped or in the dependent's namespace; other references own nothing.
            elif owner is not None and key_of(owner.object)[0] in ("", key_of(item.object)[0]):
                if owner.holds(FOREGROUND):
                    waiting = True
                else:
                    solid.append(ref)
        if not solid:
            # Its own dependents first, if an owner waits for its dependents.
            first = waiting and item.uid in dependents
            self._delete(item, {"propagationPolicy": "Foreground"} if first else {})
        elif solid != references_of(item.object):
            self._write_references(item, solid)

    def _empty_namespace(self, namespace: Object) -> None:
        """Delete a namespace's objects; remove its finalizer once it is empty."""
        name = namespace["metadata"]["name"]
        for item in _items(self.state, name):
            self._delete(item, {})
        left = list(_items(self.state, name))
        finalizers = namespace_finalizers(namespace)
        # Objects with finalizers are left until a later pass.
        if left or not finalizers:
            return
        others = [f for f in finalizers if f != "kubernetes"]
        self._write(
            Item(self._resource(NAMESPACES), {**namespace, "spec": {**namespace["spec"], "finalizers": others}})
        )

    def _delete(self, item: Item, options: dict[str, str]) -> None:
        live = self._live(item)
        if live is not None and not is_deleting(item.object):
            delete_object(self.state, self._call(item), item.resource, live, options)

    def _drop_finalizer(self, item: Item, finalizer: str) -> None:
        if live := self._live(item):
            left = [f for f in live["metadata"].get("finalizers") or [] if f != finalizer]
            self._write_metadata(item, live, {"finalizers": left})

    def _write_references(self, item: Item, references: list[Object]) -> None:
        if live := self._live(item):
            self._write_metadata(item, live, {"ownerReferences": references})

    def _write_metadata(self, item: Item, live: Object, part: Object) -> None:
        """Set metadata fields of an object; an empty value removes a field."""
        meta = {key: value for key, value in {**live["metadata"], **part}.items() if value or key not in part}
        self._write(Item(item.resource, {**live, "metadata": meta}))

    def _write(self, item: Item) -> None:
        """Store a new version of an object, or remove it if nothing delays its deletion any longer."""
        change = self.state.remove if may_be_removed(item.object) else self.state.write
        change(self._call(item), item.resource, item.object)

    def _live(self, item: Item) -> Object | None:
        return self.state.find(item.resource, key_of(item.object))

    def _resource(self, key: str) -> Resource:
        return self.state.registry.stored[key]

    def _call(self, item: Item | None = None) -> Call:
        target = target_of(item.resource, item.object) if item else NO_TARGET
        return Call("delete", target, COLLECTOR, self.now, agent="kube-controller-manager")


def _items(state: ClusterState, namespace: str = "") -> Iterator[Item]:
    """Yield every object of every kind, or of every kind in one namespace."""
    for key, resource in state.registry.stored.items():
        if resource.namespaced or not namespace:
            for obj in state.store.objects_of(key, namespace):
                yield Item(resource, obj)
