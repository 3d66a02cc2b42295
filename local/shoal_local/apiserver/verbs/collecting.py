"""Garbage collection: one pass over everything, which leaves nothing to do for the next one.

Dependents go after their owners, contents with their namespace, custom objects with their definition. A pass looks at
the state and not at what happened, so it may be run at any time and as often as one likes. Source of the rules for
owners: kubernetes/kubernetes pkg/controller/garbagecollector (attemptToDeleteItem).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from shoal_local.apiserver.access.rbac import User
from shoal_local.apiserver.kinds.builtin import EVENTS
from shoal_local.apiserver.kinds.registry import CRDS
from shoal_local.apiserver.kinds.resource import Resource
from shoal_local.apiserver.lifecycle.custom_definitions import CLEANUP
from shoal_local.apiserver.verbs.call import Call
from shoal_local.apiserver.verbs.deleting import FOREGROUND, ORPHAN, delete_object, target_of
from shoal_local.apiserver.verbs.namespace_defaults import create_defaults
from shoal_local.apiserver.verbs.subresources import store_finalizers
from shoal_local.apiserver.verbs.world import World
from shoal_local.apiserver.verbs.writing import NAMESPACES, may_go
from shoal_local.objects import Object, key_of, timestamp

COLLECTOR = User("system:serviceaccount:kube-system:generic-garbage-collector", ("system:masters",))
EVENT_LIFETIME = timedelta(hours=1)
NO_TARGET = target_of(Resource("", "v1", "Namespace", "namespaces", namespaced=False), {"metadata": {"name": ""}})


class Owner(StrEnum):
    """State of one owner."""

    SOLID = "it is there, or its kind is not served and nobody can tell"
    WAITING = "it is being deleted in the foreground and waits for its dependents"
    GONE = "no object has its uid"


class Fate(StrEnum):
    """What becomes of a dependent."""

    STAY = "stay"
    DISOWN = "stay, without the references to owners that are gone"
    DELETE = "delete"
    DELETE_FOREGROUND = "delete, its own dependents first"


def fate_of(owners: Sequence[Owner]) -> Fate:
    """Return what becomes of an object: one solid owner keeps it; without any, it goes as the last owner went."""
    if Owner.SOLID in owners or not owners:
        return Fate.STAY if set(owners) <= {Owner.SOLID} else Fate.DISOWN
    return Fate.DELETE_FOREGROUND if Owner.WAITING in owners else Fate.DELETE


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

    @property
    def going(self) -> bool:
        """Return whether the object is being deleted."""
        return bool(self.object["metadata"].get("deletionTimestamp"))

    def holds(self, finalizer: str) -> bool:
        """Return whether the object is being deleted and waits for this finalizer."""
        return self.going and finalizer in (self.object["metadata"].get("finalizers") or [])


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass."""

    world: World
    now: datetime

    def run(self) -> None:
        """Do what there is to do."""
        items = {item.uid: item for item in _items(self.world)}
        dependents: dict[str, list[Item]] = {}
        for item in items.values():
            for reference in references_of(item.object):
                dependents.setdefault(reference["uid"], []).append(item)
        for item in items.values():
            self._settle_owner(item, dependents.get(item.uid, []))
        for item in [i for i in items.values() if references_of(i.object) and not i.going]:
            self._settle_dependent(item, items, dependents)
        self._settle_containers()
        self._forget_old_events()

    def _settle_owner(self, item: Item, dependents: list[Item]) -> None:
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
        owners = [(ref, self._owner_state(item, ref, items.get(ref["uid"]))) for ref in references_of(item.object)]
        fate = fate_of([state for _, state in owners])
        if fate is Fate.DISOWN:
            self._write_references(item, [reference for reference, state in owners if state is Owner.SOLID])
        elif fate is not Fate.STAY:
            first = fate is Fate.DELETE_FOREGROUND and item.uid in dependents
            self._delete(item, {"propagationPolicy": "Foreground"} if first else {})

    def _owner_state(self, item: Item, reference: Object, owner: Item | None) -> Owner:
        if self.world.registry.by_kind(reference["apiVersion"], reference["kind"]) is None:
            return Owner.SOLID
        # An owner is cluster-wide or in the dependent's namespace; a reference across namespaces owns nothing.
        if owner is None or key_of(owner.object)[0] not in ("", key_of(item.object)[0]):
            return Owner.GONE
        return Owner.WAITING if owner.holds(FOREGROUND) else Owner.SOLID

    def _settle_containers(self) -> None:
        for crd in self.world.store.objects_of(CRDS):
            if Item(self._resource(CRDS), crd).holds(CLEANUP):
                self._empty_definition(crd)
        for namespace in self.world.store.objects_of(NAMESPACES):
            if namespace["metadata"].get("deletionTimestamp"):
                self._empty_namespace(namespace)
            else:
                create_defaults(self.world, self._call(), namespace["metadata"]["name"])

    def _empty_definition(self, crd: Object) -> None:
        key = f"{crd['spec']['group']}/{crd['spec']['names']['plural']}"
        resource, objects = self.world.registry.stored.get(key), self.world.store.objects_of(key)
        if resource and objects:
            # The next pass still knows their kind, and takes their dependents after them.
            for obj in objects:
                self._delete(Item(resource, obj), {})
        else:
            self._drop_finalizer(Item(self._resource(CRDS), crd), CLEANUP)

    def _empty_namespace(self, namespace: Object) -> None:
        name = namespace["metadata"]["name"]
        for item in _items(self.world, name):
            self._delete(item, {})
        left = list(_items(self.world, name))
        finalizers = (namespace.get("spec") or {}).get("finalizers") or []
        if left or not finalizers:
            return
        resource = self._resource(NAMESPACES)
        others = [f for f in finalizers if f != "kubernetes"]
        store_finalizers(self.world, self._call(), resource, namespace, others)

    def _forget_old_events(self) -> None:
        oldest = timestamp(self.now - EVENT_LIFETIME)
        resource = self._resource(EVENTS)
        for event in self.world.store.objects_of(EVENTS):
            last = event.get("lastTimestamp") or event["metadata"]["creationTimestamp"]
            if last < oldest:
                self.world.remove(self._call(), resource, event)

    def _delete(self, item: Item, options: dict[str, str]) -> None:
        live = self._live(item)
        if live is not None and not item.going:
            delete_object(self.world, self._call(item), item.resource, live, options)

    def _drop_finalizer(self, item: Item, finalizer: str) -> None:
        if live := self._live(item):
            left = [f for f in live["metadata"].get("finalizers") or [] if f != finalizer]
            self._write_metadata(item, live, {"finalizers": left})

    def _write_references(self, item: Item, references: list[Object]) -> None:
        if live := self._live(item):
            self._write_metadata(item, live, {"ownerReferences": references})

    def _write_metadata(self, item: Item, live: Object, part: Object) -> None:
        """Replace a part of the metadata; an empty one goes."""
        meta = {key: value for key, value in {**live["metadata"], **part}.items() if value or key not in part}
        new = {**live, "metadata": meta}
        if may_go(new):
            self.world.remove(self._call(item), item.resource, new)
        else:
            self.world.write(self._call(item), item.resource, new)

    def _live(self, item: Item) -> Object | None:
        """Return the object as it is by now: this pass itself may have changed or removed it."""
        return self.world.find(item.resource, key_of(item.object))

    def _resource(self, key: str) -> Resource:
        return self.world.registry.stored[key]

    def _call(self, item: Item | None = None) -> Call:
        target = target_of(item.resource, item.object) if item else NO_TARGET
        return Call("delete", target, COLLECTOR, self.now, agent="kube-controller-manager")


def _items(world: World, namespace: str = "") -> Iterator[Item]:
    """Yield every object of every kind, or of every kind in one namespace."""
    for key, resource in world.registry.stored.items():
        if resource.namespaced or not namespace:
            for obj in world.store.objects_of(key, namespace):
                yield Item(resource, obj)
