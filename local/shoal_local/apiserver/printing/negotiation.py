"""Which form of an object the client wants: the object, a Table row, or its metadata only."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any

from shoal_local.apiserver.errors import not_acceptable
from shoal_local.apiserver.kinds.resource import Object, Resource
from shoal_local.apiserver.printing.table import as_table

OFFERED = ("application/json", "application/yaml")


class Form(StrEnum):
    """The shape of an answer."""

    OBJECT = ""
    TABLE = "Table"
    METADATA = "PartialObjectMetadata"


def form_wanted(accept: str) -> Form:
    """Return the first form in an Accept header that this server can write.

    Raises:
        ApiError: 406, there is none.
    """
    for entry in accept.split(",") if accept else ["*/*"]:
        media, *parameters = [part.strip() for part in entry.split(";")]
        if media not in (*OFFERED, "*/*", "application/*"):
            continue
        asked = dict(p.split("=", 1) for p in parameters if "=" in p).get("as", "")
        if (form := _form(asked)) is not None:
            return form
    raise not_acceptable(OFFERED)


def _form(asked: str) -> Form | None:
    asked = asked.removesuffix("List") if asked.startswith("Partial") else asked
    return Form(asked) if asked in list(Form) else None


def in_form(form: Form, resource: Resource, body: Object, *, now: datetime, query: Mapping[str, str]) -> Object:
    """Return an object or a list in the wanted form; a Status stays a Status."""
    if form is Form.OBJECT or body.get("kind") == "Status":
        return body
    listed = "items" in body
    items: Sequence[Object] = body["items"] if listed else [body]
    if form is Form.TABLE:
        version = {"resourceVersion": body["metadata"].get("resourceVersion", "")}
        meta = body["metadata"] if listed else version
        return as_table(resource, items, meta, now=now, include=query.get("includeObject", ""))
    partial = [_partial(item) for item in items]
    if not listed:
        return partial[0]
    return {**_META, "kind": "PartialObjectMetadataList", "metadata": body["metadata"], "items": partial}


_META: dict[str, Any] = {"apiVersion": "meta.k8s.io/v1"}


def _partial(obj: Object) -> Object:
    return {**_META, "kind": "PartialObjectMetadata", "metadata": obj["metadata"]}
