"""The state of a cluster on which the verbs operate: the store, the served kinds, and secrets."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal_local.apiserver.errors import no_such_path, not_found
from shoal_local.apiserver.kinds.registry import CRDS, Registry, Resource
from shoal_local.apiserver.schemas.custom import CustomSchema
from shoal_local.apiserver.schemas.node import Node, root_of
from shoal_local.apiserver.storage.store import Store
from shoal_local.apiserver.verbs.call import Call, Target
from shoal_local.objects import Key, Object

Kind = tuple[str, str]
"""Storage key and version."""


@dataclass(slots=True)
class ClusterState:
    """The state of one cluster."""

    store: Store
    definitions: Mapping[str, Mapping[str, Any]]
    """OpenAPI definitions of the built-in kinds by name."""
    new_uid: Callable[[], str]
    signing_key: bytes = b""
    """Key of the service account tokens."""
    admin_token: str = ""
    """Bearer token of the administrator; empty disables it."""
    authority: str = ""
    """Certificate of the authority of the server's certificate, PEM."""
    service_network: str = "10.96.0.0/16"
    """Network of the services' addresses."""
    _registry: Registry | None = None
    _roots: dict[Kind, Node] = field(default_factory=dict)
    _custom: dict[Kind, CustomSchema] = field(default_factory=dict)

    @property
    def registry(self) -> Registry:
        """Return the kinds that are served now."""
        # Rebuilt only after a change of a definition.
        if self._registry is None:
            self._registry = Registry.of(self.store.objects_of(CRDS))
        return self._registry

    def resource(self, target: Target) -> Resource:
        """Return the kind of a path. Raises ApiError: 404, it is not served."""
        found = self.registry.find(target.group, target.version, target.plural)
        if target.subresource and target.subresource not in found.subresources:
            raise no_such_path()
        return found

    def schema(self, resource: Resource) -> Node:
        """Return the schema of the kind's objects."""
        kind = (resource.key, resource.version)
        if kind not in self._roots:
            self._roots[kind] = root_of(resource.definition, resource.schema, self.definitions)
        return self._roots[kind]

    def custom_schema(self, resource: Resource) -> CustomSchema:
        """Return the compiled schema of a custom kind."""
        kind = (resource.key, resource.version)
        if kind not in self._custom:
            self._custom[kind] = CustomSchema.of(self.schema(resource))
        return self._custom[kind]

    def existing(self, target: Target) -> tuple[Resource, Object]:
        """Return the kind and the object of a path. Raises ApiError: 404, the object does not exist."""
        resource = self.resource(target)
        found = self.find(resource, (target.namespace, target.name))
        if found is None:
            raise not_found(target.plural, target.group, target.name)
        return resource, found

    def find(self, resource: Resource, name: Key) -> Object | None:
        """Return an object as `as_read` converts it, or None if it is missing."""
        found = self.store.get(resource.key, name)
        return found and self.as_read(resource, found)

    def as_read(self, resource: Resource, stored: Object) -> Object:
        """Convert a stored object to the current schema of its kind.

        A custom object that is older than its definition is pruned and gets defaults. The stored object changes at the
        next write only.
        """
        if not resource.custom or int(stored["metadata"]["resourceVersion"]) > resource.since:
            return stored
        return self.custom_schema(resource).admitted(stored)

    def write(self, call: Call, resource: Resource, obj: Object) -> Object:
        """Store the object, unless the request is a dry run; return it."""
        return obj if call.dry_run else self._changed(resource, self.store.write(resource.key, obj))

    def remove(self, call: Call, resource: Resource, obj: Object) -> Object:
        """Remove the object, unless the request is a dry run; return its last state."""
        return obj if call.dry_run else self._changed(resource, self.store.remove(resource.key, obj))

    def _changed(self, resource: Resource, stored: Object) -> Object:
        # The definitions of custom kinds may have changed.
        if resource.key == CRDS:
            self._registry = None
            self._roots.clear()
            self._custom.clear()
        return stored


def presented(resource: Resource, obj: Object) -> Object:
    """Return the object with the kind and apiVersion of ``resource``."""
    head = {"kind": resource.kind, "apiVersion": resource.api_version}
    # First for the order of the keys, last for their values.
    return {**head, **obj, **head}


def listed(resource: Resource, obj: Object) -> Object:
    """Return the object as an item of a list; items of built-in kinds have neither kind nor apiVersion."""
    item = presented(resource, obj)
    return {name: value for name, value in item.items() if not (resource.definition and name in ("kind", "apiVersion"))}
