"""Revisions of a service's pods, and the parts of a spec that pods are made from.

A revision is a digest of the parts that a candidate is compared by. It is the same for all releases of the operator.
"""

import json

from msgspec import structs

from shoal_operator.manifests.labels import POD_SPEC_ANNOTATION, digest
from shoal_schema.decoding import SpecError, convert
from shoal_schema.fields.declaring import Json, as_json
from shoal_schema.resource.service import InferenceServiceSpec

JUDGED = ("model", "runtime", "batching", "queue")
"""Parts of the spec that a candidate compares."""
UNJUDGED = ("proxy", "tls", "access", "pod")
"""Other parts of the spec that pods are made from, and that change together with the pods' model or not at all."""
_DIGITS = 10


def revision_of(spec: InferenceServiceSpec) -> str:
    """Return the revision of the pods of a spec, as they see the model's source."""
    parts = _parts(spec)
    judged = {name: parts[name] for name in JUDGED if name in parts}
    # When to resolve the model's name has no effect on pods.
    judged["model"] = {name: value for name, value in parts["model"].items() if name != "follow"}
    return digest(judged)[:_DIGITS]


def pod_spec_text(spec: InferenceServiceSpec) -> str:
    """Return the parts of a spec that pods are made from, as JSON for an annotation."""
    return json.dumps(_parts(spec), sort_keys=True, separators=(",", ":"))


def with_pod_spec(spec: InferenceServiceSpec, text: str) -> InferenceServiceSpec | None:
    """Return the spec with the parts that an annotation has; None if it is not readable.

    Args:
        spec: the newest spec.
        text: value of `POD_SPEC_ANNOTATION`; any client may have written it.
    """
    try:
        parts = json.loads(text)
        older = convert(InferenceServiceSpec, parts, "spec") if isinstance(parts, dict) else None
    except (ValueError, RecursionError, SpecError):
        return None
    if older is None:
        return None
    return structs.replace(spec, **{name: getattr(older, name) for name in (*JUDGED, *UNJUDGED)})


def spec_of_pods(newest: InferenceServiceSpec, deployment: Json) -> InferenceServiceSpec:
    """Return the spec that a Deployment's pods were made from; the newest one if it is unknown.

    Args:
        newest: the newest spec.
        deployment: the Deployment of the stable pods.
    """
    return with_pod_spec(newest, stored_pod_spec(deployment)) or newest


def changed_parts(older: InferenceServiceSpec, newer: InferenceServiceSpec) -> tuple[str, ...]:
    """Return the parts that pods are made from, that differ, and that a candidate does not compare."""
    return tuple(name for name in UNJUDGED if getattr(older, name) != getattr(newer, name))


def stored_pod_spec(child: Json) -> str:
    """Return the annotation with the parts of the spec that a service's pods were made from, or ""."""
    text = (child.get("metadata", {}).get("annotations") or {}).get(POD_SPEC_ANNOTATION, "")
    return text if isinstance(text, str) else ""


def _parts(spec: InferenceServiceSpec) -> Json:
    parts: Json = as_json(spec)
    return {name: parts[name] for name in (*JUDGED, *UNJUDGED) if name in parts}
