"""The registry of served kinds: built-in kinds and custom kinds."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from shoal_local.apiserver.errors import no_such_path
from shoal_local.apiserver.kinds.builtin import BUILTIN
from shoal_local.apiserver.kinds.resource import Column, Resource, ScalePaths
from shoal_local.objects import Object

_COLUMN: dict[str, Any] = {"type": "string", "format": "", "priority": 0, "description": ""}
_SCALE_PATHS = ("specReplicasPath", "statusReplicasPath", "labelSelectorPath")
CRDS = "apiextensions.k8s.io/customresourcedefinitions"


def resources_of(crd: Object) -> list[Resource]:
    """Return a CRD's served versions as resources, in discovery order."""

    def priority(version: Object) -> tuple[int, int, int, str]:
        found = re.fullmatch(r"v(\d+)(?:(alpha|beta)(\d+))?", version["name"])
        if not found:
            return (3, 0, 0, version["name"])
        stage = {None: 0, "beta": 1, "alpha": 2}[found[2]]
        return (stage, -int(found[1]), -int(found[3] or 0), version["name"])

    spec, names, resources = crd["spec"], crd["spec"]["names"], []
    for version in sorted((v for v in spec["versions"] if v.get("served")), key=priority):
        subresources = version.get("subresources") or {}
        scale = subresources.get("scale")
        columns = [
            Column(c["name"], c["jsonPath"], *(c.get(part, default) for part, default in _COLUMN.items()))
            for c in version.get("additionalPrinterColumns") or ()
        ]
        resource = Resource(
            group=spec["group"],
            version=version["name"],
            kind=names["kind"],
            plural=names["plural"],
            namespaced=spec["scope"] == "Namespaced",
            short_names=tuple(names.get("shortNames") or ()),
            categories=tuple(names.get("categories") or ()),
            subresources=tuple(sorted(subresources)),
            generation=True,
            schema=(version.get("schema") or {}).get("openAPIV3Schema"),
            columns=tuple(columns),
            scale=ScalePaths(*(scale.get(path, "") for path in _SCALE_PATHS)) if scale else ScalePaths(),
            selectable=tuple(f["jsonPath"].lstrip(".") for f in version.get("selectableFields") or ()),
            since=int(crd["metadata"].get("resourceVersion", 0)),
            singular_name=names.get("singular", ""),
            list_kind_name=names.get("listKind", ""),
        )
        resources.append(resource)
    return resources


@dataclass(frozen=True, slots=True)
class Registry:
    """The served kinds by group, version and plural."""

    resources: dict[tuple[str, str, str], Resource]

    @classmethod
    def of(cls, definitions: Iterable[Object]) -> "Registry":
        """Return a registry of the built-in kinds and the kinds of these CRDs."""
        # Built-in kinds precede custom ones in discovery.
        custom = [resource for crd in definitions for resource in resources_of(crd)]
        return cls({(r.group, r.version, r.plural): r for r in (*BUILTIN, *custom)})

    def find(self, group: str, version: str, plural: str) -> Resource:
        """Return a kind by its plural name. Raises ApiError: 404, not served."""
        try:
            return self.resources[group, version, plural]
        except KeyError:
            raise no_such_path() from None

    def by_kind(self, api_version: str, kind: str) -> Resource | None:
        """Return a kind by apiVersion and name, or None if it is not served."""
        return next((r for r in self.resources.values() if r.kind == kind and r.api_version == api_version), None)

    def in_version(self, group: str, version: str) -> list[Resource]:
        """Return the kinds of one group version, sorted by plural."""
        found = [r for r in self.resources.values() if (r.group, r.version) == (group, version)]
        return sorted(found, key=lambda r: r.plural)

    @property
    def groups(self) -> dict[str, list[str]]:
        """Return the versions of each group, the preferred version first; the core group is ''."""
        found: dict[str, list[str]] = {}
        for group, version, _ in self.resources:
            if version not in found.setdefault(group, []):
                found[group].append(version)
        return found

    @property
    def stored(self) -> dict[str, Resource]:
        """Return each listable kind in its preferred version.

        The key is the storage key, such as ``apps/deployments``, which all versions of a kind share.
        """
        # The preferred version comes first, so in reverse order it wins.
        return {r.key: r for r in reversed(self.resources.values()) if "list" in r.verbs}
