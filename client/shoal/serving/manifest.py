"""An ``InferenceService`` manifest to fields.

What only matters in a cluster (scaling, routes, the pod) is named in ``ignored`` rather than passed over; a field that
no Shoal knows is an error.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any

from shoal.serving.fields import FieldError, Values
from shoal_schema.declaring import settings_of
from shoal_schema.decoding import SpecError, decode
from shoal_schema.environment import manifest_fields
from shoal_schema.processes import Metadata
from shoal_schema.resource import API_VERSION, GRAPH_KIND, KIND
from shoal_schema.resource.locations import scheme_of
from shoal_schema.resource.service import InferenceServiceSpec


@dataclass(frozen=True, slots=True)
class Service:
    """The fields of one manifest, and those of its spec that only a cluster acts on."""

    fields: Values
    ignored: tuple[str, ...] = ()

    def without_effect(self, assigned: Iterable[str]) -> list[str]:
        """Return what only a cluster acts on, each once: of the manifest, and of the fields that were ``assigned``."""
        told: list[str] = []
        for name in (*self.ignored, *assigned):
            if not any(name == each or name.startswith(f"{each}.") for each in told):
                told.append(name)
        return told


def services_of(documents: list[Any]) -> list[Service]:
    """Return every InferenceService among a file's YAML documents, as `find_service` does the one."""
    return [_service(each) for each in documents if isinstance(each, Mapping) and each.get("kind") == KIND]


def find_service(documents: list[Any]) -> Service | None:
    """Return the one InferenceService among a file's YAML documents; None when there is none.

    Raises:
        FieldError: there are several; its API version is another; a field is unknown, or holds what it must not.
    """
    found = [each for each in documents if isinstance(each, Mapping) and each.get("kind") == KIND]
    if not found:
        return None
    if len(found) > 1:
        raise FieldError(_several(documents, len(found)))
    return _service(found[0])


def _several(documents: list[Any], services: int) -> str:
    """Return why a file with several services is no service."""
    others = {str(each.get("kind")) for each in documents if isinstance(each, Mapping)} - {KIND}
    if GRAPH_KIND in others:
        return f"the file holds an {GRAPH_KIND}: `shoal serve FILE` alone serves it, and others ask it there"
    beside = f", not of {', '.join(sorted(others))}" if others else ""
    return f"the file holds {services} documents of kind {KIND}: one is served, or the steps of an {GRAPH_KIND}{beside}"


def _service(document: Mapping[str, Any]) -> Service:
    if document.get("apiVersion") != API_VERSION:
        raise FieldError(f"apiVersion must be {API_VERSION}, not {document.get('apiVersion')}")
    if not isinstance(document.get("spec"), Mapping):
        raise FieldError("the manifest has no spec: it must say at least spec.model.uri")
    try:
        spec = decode(InferenceServiceSpec, _with_uri(document["spec"]), "spec")
        name = decode(Metadata, {"name": (document.get("metadata") or {}).get("name")}, "metadata").name
    except SpecError as error:
        raise FieldError(str(error)) from None
    given = list(_leaves(document["spec"], prefix=""))
    fields = _values(spec, given)
    if name is not None:
        fields["metadata.name"] = name
    if "model.uri" in fields:
        fields["model.uri"] = document["spec"]["model"]["uri"]
    return Service(fields, tuple(each for each in given if each not in manifest_fields()))


def fields_alike(spec: Any, document: Mapping[str, Any], own: Collection[str]) -> Service:
    """Return what another resource has of a service's fields beside its ``own``: those of its proxy and its queue."""
    given = [each for each in _leaves(document, prefix="") if each.partition(".")[0] not in own]
    read = [each for each in given if each.startswith(("proxy.", "queue.")) and each in manifest_fields()]
    return Service(_values(spec, read), tuple(each for each in given if each not in read))


def _values(spec: Any, given: list[str]) -> Values:
    used = {each: manifest_fields()[each] for each in given if each in manifest_fields()}
    return {each: attrgetter(".".join(setting.path))(spec) for each, setting in used.items()}


def _with_uri(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a spec whose model's path, which is this machine's alone, is a URI as clusters take it."""
    model = spec.get("model")
    uri = model.get("uri") if isinstance(model, Mapping) else None
    if not isinstance(model, Mapping) or not isinstance(uri, str) or not uri or scheme_of(uri):
        return spec
    return {**spec, "model": {**model, "uri": f"file://{uri}"}}


def _leaves(branch: Mapping[str, Any], *, prefix: str) -> Iterator[str]:
    """Yield the fields that are given; null is the same as leaving them out."""
    for key, value in branch.items():
        name = f"{prefix}{key}"
        if value is None:
            continue
        if isinstance(value, Mapping) and value and any(known.startswith(f"{name}.") for known in _field_names()):
            yield from _leaves(value, prefix=f"{name}.")
        else:
            yield name


@cache
def _field_names() -> tuple[str, ...]:
    return tuple(each.name for each in settings_of(InferenceServiceSpec))
