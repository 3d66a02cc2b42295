"""Validation and status of CustomResourceDefinitions."""

import copy
from collections.abc import Iterator

from shoal_local.apiserver.errors import Cause
from shoal_local.apiserver.printing.tables import find_all
from shoal_local.apiserver.schemas.custom import parse
from shoal_local.apiserver.schemas.values import compile_schema, json_text, value_causes
from shoal_local.objects import Object

CLEANUP = "customresourcecleanup.apiextensions.k8s.io"
_ANY_TYPE = ("x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields")


def definition_causes(crd: Object) -> Iterator[Cause]:
    """Yield a cause for each error in a CustomResourceDefinition."""
    spec, name = crd["spec"], crd["metadata"]["name"]
    if name != f"{spec['names']['plural']}.{spec['group']}":
        message = f'Invalid value: "{name}": must be spec.names.plural+"."+spec.group'
        yield Cause("metadata.name", message)
    if spec["scope"] not in ("Namespaced", "Cluster"):
        message = f'Unsupported value: "{spec["scope"]}": supported values: "Cluster", "Namespaced"'
        yield Cause("spec.scope", message, "FieldValueNotSupported")
    versions = spec["versions"]
    if [v.get("storage") for v in versions].count(True) != 1:
        message = f"Invalid value: {json_text(versions)}: must have exactly one version marked as storage version"
        yield Cause("spec.versions", message)
    for index, version in enumerate(versions):
        path = f"spec.versions[{index}]"
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        if schema is None:
            message = "Required value: schemas are required"
            yield Cause(f"{path}.schema.openAPIV3Schema", message, "FieldValueRequired")
        else:
            yield from _schema_causes(schema, f"{path}.schema.openAPIV3Schema")
        for number, column in enumerate(version.get("additionalPrinterColumns", [])):
            try:
                find_all({}, column["jsonPath"])
            except ValueError as error:
                at = f"{path}.additionalPrinterColumns[{number}].jsonPath"
                yield Cause(at, f"Invalid value: {json_text(column['jsonPath'])}: {error}")


def _schema_causes(schema: Object, path: str) -> Iterator[Cause]:
    if not schema.get("type") and not any(schema.get(mark) for mark in _ANY_TYPE):
        message = "Required value: must not be empty for specified object fields"
        yield Cause(f"{path}.type", message, "FieldValueRequired")
    if schema.get("properties") and schema.get("additionalProperties"):
        message = "Forbidden: additionalProperties and properties are mutual exclusive"
        yield Cause(f"{path}.additionalProperties", message, "FieldValueForbidden")
    if "default" in schema:
        # A default must fit its own schema.
        for cause in value_causes(compile_schema(schema), schema["default"]):
            yield Cause(f"{path}.default.{cause.field}".rstrip("."), cause.message, cause.reason)
    for index, rule in enumerate(schema.get("x-kubernetes-validations") or []):
        try:
            parse(rule.get("rule") or "true")
        except ValueError as error:
            at = f"{path}.x-kubernetes-validations[{index}].rule"
            yield Cause(at, f"Invalid value: {json_text(rule['rule'])}: {error}")
    for name, inner in (schema.get("properties") or {}).items():
        yield from _schema_causes(inner, f"{path}.properties[{name}]")
    for part in ("items", "additionalProperties"):
        if isinstance(schema.get(part), dict):
            yield from _schema_causes(schema[part], f"{path}.{part}")


def established(crd: Object) -> Object:
    """Return a copy of a CRD with the finalizer and status of a served CRD."""
    crd = copy.deepcopy(crd)
    meta = crd["metadata"]
    if not meta.get("deletionTimestamp") and CLEANUP not in meta.get("finalizers", []):
        meta["finalizers"] = [*meta.get("finalizers", []), CLEANUP]
    stored = [v["name"] for v in crd["spec"]["versions"] if v.get("storage")]
    status = crd.get("status") or {}
    # Versions in which objects may still be stored.
    former = status.get("storedVersions") or []
    conditions = [
        {
            "type": kind,
            "status": "True",
            "reason": why,
            "message": text,
            "lastTransitionTime": meta["creationTimestamp"],
        }
        for kind, why, text in (
            ("NamesAccepted", "NoConflicts", "no conflicts found"),
            ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        )
    ]
    crd["status"] = {
        "acceptedNames": crd["spec"]["names"],
        "conditions": status.get("conditions") or conditions,
        "storedVersions": [*former, *(name for name in stored if name not in former)],
    }
    return crd
