"""An API kind in one version: names, scope, verbs, subresources, columns."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ALL_VERBS = ("create", "delete", "get", "list", "patch", "update", "watch")
SUBRESOURCE_VERBS: Mapping[str, tuple[str, ...]] = {
    "status": ("get", "patch", "update"),
    "scale": ("get", "patch", "update"),
    "log": ("get",),
    "portforward": ("create", "get"),
    "binding": ("create",),
    "eviction": ("create",),
    "token": ("create",),
}
SUBRESOURCE_KINDS: Mapping[str, tuple[str, str, str]] = {
    "scale": ("autoscaling", "v1", "Scale"),
    "binding": ("", "v1", "Binding"),
    "eviction": ("policy", "v1", "Eviction"),
    "portforward": ("", "v1", "PodPortForwardOptions"),
    "token": ("authentication.k8s.io", "v1", "TokenRequest"),
}
"""Group, version and kind of subresources that differ from their object's kind."""


@dataclass(frozen=True, slots=True)
class Column:
    """A printer column of a custom kind."""

    name: str
    json_path: str
    type: str = "string"
    format: str = ""
    priority: int = 0
    description: str = ""


@dataclass(frozen=True, slots=True)
class ScalePaths:
    """Field paths of a kind's scale subresource, such as ``.spec.replicas``."""

    spec: str = ".spec.replicas"
    status: str = ".status.replicas"
    selector: str = ".status.selector"


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind as one API version serves it."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    generation: bool = False
    """Whether metadata.generation counts changes outside of metadata and status."""
    definition: str = ""
    """Name of the OpenAPI definition of a built-in kind; empty for a custom kind."""
    schema: Mapping[str, Any] | None = None
    """Structural schema of a custom kind."""
    columns: tuple[Column, ...] = ()
    scale: ScalePaths = field(default_factory=ScalePaths)
    selectable: tuple[str, ...] = ()
    """Dotted fields for field selectors, beside metadata.name and metadata.namespace."""
    since: int = 0
    """Revision of the last write of a custom kind's definition: older objects may not fit its schema."""
    singular_name: str = ""
    list_kind_name: str = ""

    @property
    def api_version(self) -> str:
        """Return the apiVersion: ``apps/v1``, or ``v1`` in the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the path of an object, or of the list when ``name`` is empty."""
        prefix = "/apis" if self.group else "/api"
        space = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        tail = "".join(f"/{part}" for part in (name, subresource) if part)
        return f"{prefix}/{self.api_version}{space}/{self.plural}{tail}"

    @property
    def key(self) -> str:
        """Return the storage key, which is the same for all versions of the kind."""
        return f"{self.group}/{self.plural}"

    @property
    def singular(self) -> str:
        """Return the singular name in lower case."""
        return self.singular_name or self.kind.lower()

    @property
    def list_kind(self) -> str:
        """Return the kind of a list, such as ``PodList``."""
        return self.list_kind_name or f"{self.kind}List"

    @property
    def custom(self) -> bool:
        """Return whether a CustomResourceDefinition defines this kind."""
        return not self.definition
