"""CustomResourceDefinition -> the kinds that it adds."""

import re
from typing import Any

from shoal_local.apiserver.kinds.resource import Column, Object, Resource, ScalePaths


def resources_of(crd: Object) -> list[Resource]:
    """Return one resource for each served version, the newest first as discovery prefers."""
    versions = [v for v in crd["spec"]["versions"] if v.get("served")]
    return [_resource(crd["spec"], v) for v in sorted(versions, key=lambda v: _priority(v["name"]))]


def _priority(version: str) -> tuple[int, int, int, str]:
    """Order v2, v1, v1beta2, v1alpha1, then the rest by name."""
    found = re.fullmatch(r"v(\d+)(?:(alpha|beta)(\d+))?", version)
    if not found:
        return (3, 0, 0, version)
    stage = {None: 0, "beta": 1, "alpha": 2}[found[2]]
    return (stage, -int(found[1]), -int(found[3] or 0), version)


def _resource(spec: Object, version: Object) -> Resource:
    names = spec["names"]
    subresources = version.get("subresources") or {}
    return Resource(
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
        columns=tuple(_column(c) for c in version.get("additionalPrinterColumns") or ()),
        scale=_scale(subresources.get("scale")),
        selectable=tuple(f["jsonPath"].lstrip(".") for f in version.get("selectableFields") or ()),
        singular_name=names.get("singular", ""),
        list_kind_name=names.get("listKind", ""),
    )


def _column(column: dict[str, Any]) -> Column:
    return Column(
        column["name"],
        column["jsonPath"],
        column.get("type", "string"),
        column.get("format", ""),
        column.get("priority", 0),
        column.get("description", ""),
    )


def _scale(scale: dict[str, Any] | None) -> ScalePaths:
    if not scale:
        return ScalePaths()
    selector = scale.get("labelSelectorPath", "")
    return ScalePaths(scale["specReplicasPath"], scale["statusReplicasPath"], selector)
