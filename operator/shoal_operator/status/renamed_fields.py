"""Fields under their names of older releases, which the API server has silently dropped.

The API server removes unknown fields when it reads an object from its store. Traces stay in ``metadata``: the manifest
of the last `kubectl apply`, and the fields that each client set (``managedFields``).
"""

import json
from collections.abc import Iterator, Mapping

from shoal_operator.children.observation import dig
from shoal_schema.fields.declaring import Json
from shoal_schema.resource.service import ONCE_DEFAULTED, RENAMED, RENAMED_SINCE

_APPLIED_ANNOTATION = "kubectl.kubernetes.io/last-applied-configuration"


def dropped_fields(resource: Json) -> Mapping[str, str]:
    """Return renamed fields (old to new) that were dropped and must be set.

    Old fields that the API server still returns are left out, because they make the spec invalid.
    """
    spec = resource.get("spec", {})
    # Neither the old nor the new name may have a value now.
    given = set(_written(resource))
    return {
        old: new
        for old, new in RENAMED.items()
        if old in given and dig(spec, *old.split(".")) is None and dig(spec, *new.split(".")) is None
    }


def dropped_text(fields: Mapping[str, str]) -> str:
    """Return a message about dropped fields, with the remedy."""
    renamed = (f"spec.{old} was renamed to {new} in {RENAMED_SINCE}" for old, new in fields.items())
    return f"{'; '.join(renamed)}. The API server dropped the old field's value. Set the new field"


def _written(resource: Json) -> Iterator[str]:
    """Yield the old names of fields that a client wrote.

    Fields that only the API server set, as defaults, are left out.
    """
    # The manifest of the last kubectl apply; None where it is missing or no object.
    try:
        applied = json.loads(dig(resource, "metadata", "annotations", _APPLIED_ANNOTATION, default="null"))
    except (ValueError, TypeError, RecursionError):
        applied = None
    if not isinstance(applied, dict):
        applied = None
    if applied is not None:
        yield from (old for old in RENAMED if dig(applied, "spec", *old.split(".")) is not None)
    for entry in dig(resource, "metadata", "managedFields", default=[]):
        fields = dig(entry, "fieldsV1", "f:spec", default={})
        for old in RENAMED:
            # An update owns the defaults too, and keeps the ownership of removed fields.
            exact = entry.get("operation") == "Apply" or (applied is None and old not in ONCE_DEFAULTED)
            if exact and dig(fields, *(f"f:{name}" for name in old.split("."))) is not None:
                yield old
