"""An ``InferenceService`` manifest to fields.

A field that only matters in a cluster (scaling, routes, the pod) is named in ``ignored`` rather
than passed over; a field that no Shoal knows is an error.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shoal.serving.fields import BY_NAME, FieldError, Values, check_value, nearest

API_VERSION = "serving.shoal.dev/v1alpha1"
KIND = "InferenceService"

# Whole branches of the spec that the operator acts on and one machine has no use for.
CLUSTER_ONLY = frozenset(
    {
        "affinity",
        "annotations",
        "imagePullSecrets",
        "nodeSelector",
        "priorityClassName",
        "proxy",
        "rollout",
        "route",
        "runtime.env",
        "runtime.image",
        "runtime.resourceClaims",
        "runtime.resources",
        "scaling",
        "securityContext",
        "serviceAccountName",
        "tolerations",
        "topologySpreadConstraints",
    }
)


@dataclass(frozen=True, slots=True)
class Service:
    """The fields of one manifest, and the branches of its spec that only a cluster acts on."""

    fields: Values
    ignored: tuple[str, ...] = ()


def find_service(documents: list[Any]) -> Service | None:
    """Return the one InferenceService among a file's YAML documents; None when there is none.

    Raises:
        FieldError: there are several; its API version is another; a field is unknown or of
            another type.
    """
    found = [each for each in documents if isinstance(each, Mapping) and each.get("kind") == KIND]
    if not found:
        return None
    if len(found) > 1:
        raise FieldError(f"the file holds {len(found)} documents of kind {KIND}: shoal serve runs one")
    return _service(found[0])


def _service(document: Mapping[str, Any]) -> Service:
    if document.get("apiVersion") != API_VERSION:
        raise FieldError(f"apiVersion must be {API_VERSION}, not {document.get('apiVersion')}")
    fields: Values = {}
    ignored: list[str] = []
    metadata = document.get("metadata") or {}
    if isinstance(metadata, Mapping) and metadata.get("name") is not None:
        fields |= check_value("metadata.name", metadata["name"])
    for name, value in _leaves(_spec(document), prefix=""):
        if name in CLUSTER_ONLY:
            ignored.append(name)
        else:
            fields |= check_value(name, value)
    return Service(fields, tuple(ignored))


def _spec(document: Mapping[str, Any]) -> Mapping[str, Any]:
    spec = document.get("spec")
    if not isinstance(spec, Mapping):
        raise FieldError("the manifest has no spec: it must say at least spec.model.uri")
    return spec


def _leaves(branch: Mapping[str, Any], *, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield each field with its value; null is the same as leaving the field out."""
    for key, value in branch.items():
        name = f"{prefix}{key}"
        if value is None:
            continue
        if name in BY_NAME or name in CLUSTER_ONLY:
            yield name, value
        elif isinstance(value, Mapping) and any(known.startswith(f"{name}.") for known in BY_NAME):
            yield from _leaves(value, prefix=f"{name}.")
        else:
            raise FieldError(f"there is no field {name}; {nearest(name)}")
