"""Fields of older releases that a service still holds for its author, though no longer for us.

An API server drops what its schema does not name when it reads an object from its store, without a word. What it
keeps are the traces in ``metadata``: the manifest that `kubectl apply` noted, and which fields whose client set.
"""

import json
from collections.abc import Iterator, Mapping

from shoal_operator.planning.observation import dig
from shoal_schema.declaring import Json
from shoal_schema.resource.service import ONCE_DEFAULTED, RENAMED, RENAMED_SINCE

_APPLIED_ANNOTATION = "kubectl.kubernetes.io/last-applied-configuration"


def dropped_fields(resource: Json) -> Mapping[str, str]:
    """Return the renamed fields that were written, dropped, and not written under their new names since; old to new.

    A field that the API server still hands over is not among them: the spec is refused for it.
    """
    spec = resource.get("spec", {})
    given = set(_written(resource))
    return {
        old: new
        for old, new in RENAMED.items()
        if old in given and dig(spec, *old.split(".")) is None and dig(spec, *new.split(".")) is None
    }


def dropped_text(fields: Mapping[str, str]) -> str:
    """Return the sentence that tells of such fields."""
    told = (f"spec.{old} is not read since {RENAMED_SINCE}: it is called {new}" for old, new in fields.items())
    return f"{'; '.join(told)}. The API server has dropped what stood there: write it under the new name"


def _written(resource: Json) -> Iterator[str]:
    """Yield the old names that somebody wrote, and not the API server as a default."""
    applied = _applied(resource)
    if applied is not None:
        yield from (old for old in RENAMED if dig(applied, "spec", *old.split(".")) is not None)
    for entry in dig(resource, "metadata", "managedFields", default=[]):
        fields = dig(entry, "fieldsV1", "f:spec", default={})
        for old in RENAMED:
            # What a client set by an update is said together with the defaults, and stays said when it is gone.
            exact = entry.get("operation") == "Apply" or (applied is None and old not in ONCE_DEFAULTED)
            if exact and dig(fields, *(f"f:{name}" for name in old.split("."))) is not None:
                yield old


def _applied(resource: Json) -> Json | None:
    """Return the manifest that was applied last, or None where that is not known."""
    try:
        applied = json.loads(dig(resource, "metadata", "annotations", _APPLIED_ANNOTATION, default="null"))
    except (ValueError, TypeError, RecursionError):
        return None
    return applied if isinstance(applied, dict) else None
