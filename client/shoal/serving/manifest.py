"""Read the fields of an ``InferenceService`` manifest.

Fields with an effect in a cluster only (scaling, routes, the pod) are listed in ``ignored``; an unknown field is an
error.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any

from shoal.serving.errors import FieldError
from shoal.serving.fields import Values
from shoal_schema.decoding import SpecError, decode
from shoal_schema.fields.declaring import settings_of
from shoal_schema.process.environment import manifest_fields
from shoal_schema.process.settings.model import Metadata
from shoal_schema.resource import API_VERSION, GRAPH_KIND, KIND
from shoal_schema.resource.locations import scheme_of
from shoal_schema.resource.service import InferenceServiceSpec


@dataclass(frozen=True, slots=True)
class Service:
    """The fields of one manifest."""

    fields: Values
    ignored: tuple[str, ...] = ()
    """Fields of the spec with an effect in a cluster only."""

    def without_effect(self, assigned: Iterable[str]) -> list[str]:
        """Return the names of fields that have no effect outside a cluster.

        They are the manifest's ``ignored`` fields and the ``assigned`` fields. A listed field stands for all fields
        inside it.
        """
        names: list[str] = []
        for name in (*self.ignored, *assigned):
            if not any(name == each or name.startswith(f"{each}.") for each in names):
                names.append(name)
        return names


def services_of(documents: list[Any]) -> list[Service]:
    """Return every InferenceService among YAML documents; raises as `find_service`."""
    return [_service(each) for each in documents if isinstance(each, Mapping) and each.get("kind") == KIND]


def find_service(documents: list[Any]) -> Service | None:
    """Return the only InferenceService among YAML documents; None if there is none.

    Raises:
        FieldError: there are several, the API version is unsupported, or a field is unknown or invalid.
    """
    found = [each for each in documents if isinstance(each, Mapping) and each.get("kind") == KIND]
    if not found:
        return None
    if len(found) > 1:
        others = {str(each.get("kind")) for each in documents if isinstance(each, Mapping)} - {KIND}
        if GRAPH_KIND in others:
            raise FieldError(f"the file has an {GRAPH_KIND}. Serve it with `shoal serve FILE`, and query that server")
        beside = f", and {', '.join(sorted(others))}" if others else ""
        raise FieldError(
            f"the file must have one document of kind {KIND}, or an {GRAPH_KIND} with its steps, not"
            f" {len(found)}{beside}"
        )
    return _service(found[0])


def _service(document: Mapping[str, Any]) -> Service:
    if document.get("apiVersion") != API_VERSION:
        raise FieldError(f"apiVersion must be {API_VERSION}, not {document.get('apiVersion')}")
    if not isinstance(document.get("spec"), Mapping):
        raise FieldError("the manifest has no spec. It needs at least spec.model.uri")
    spec_document = document["spec"]
    model = spec_document.get("model")
    uri = model.get("uri") if isinstance(model, Mapping) else None
    if isinstance(model, Mapping) and isinstance(uri, str) and uri and not scheme_of(uri):
        # A bare path, allowed on one machine only, as the URI that the schema expects.
        spec_document = {**spec_document, "model": {**model, "uri": f"file://{uri}"}}
    try:
        spec = decode(InferenceServiceSpec, spec_document, "spec")
        name = decode(Metadata, {"name": (document.get("metadata") or {}).get("name")}, "metadata").name
    except SpecError as error:
        raise FieldError(str(error)) from None
    # Only the given fields: defaults must not override the environment.
    given = list(_leaves(document["spec"], prefix=""))
    fields = _values(spec, given)
    if name is not None:
        fields["metadata.name"] = name
    # The URI as written, for messages and relative paths.
    if "model.uri" in fields:
        fields["model.uri"] = document["spec"]["model"]["uri"]
    return Service(fields, tuple(each for each in given if each not in manifest_fields()))


def fields_alike(spec: Any, document: Mapping[str, Any], own: Collection[str]) -> Service:
    """Return the ``proxy`` and ``queue`` fields of another custom resource.

    They are the fields that an InferenceService has too. The resource's other fields are in ``ignored``, except the
    sections that ``own`` names.
    """
    given = [each for each in _leaves(document, prefix="") if each.partition(".")[0] not in own]
    read = [each for each in given if each.startswith(("proxy.", "queue.")) and each in manifest_fields()]
    return Service(_values(spec, read), tuple(each for each in given if each not in read))


def _values(spec: Any, given: list[str]) -> Values:
    used = {each: manifest_fields()[each] for each in given if each in manifest_fields()}
    return {each: attrgetter(".".join(setting.path))(spec) for each, setting in used.items()}


def _leaves(branch: Mapping[str, Any], *, prefix: str) -> Iterator[str]:
    """Yield the dotted names of fields with a value; null counts as absent."""
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
