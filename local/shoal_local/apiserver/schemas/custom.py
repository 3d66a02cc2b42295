"""CustomResourceDefinitions, and the schema of a custom kind applied to an object: prune, set defaults, validate.

`x-kubernetes-validations` are rules in the Common Expression Language. A rule has the value as ``self``. A rule that
names ``oldSelf`` gets the former value and applies to updates only. Former elements of keyed lists are found by key, so
an element may move.
"""

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import cel
from jsonschema import Draft4Validator

from shoal_local.apiserver.errors import (
    Cause,
    forbidden_value,
    invalid_value,
    json_text,
    required_value,
    unsupported_value,
)
from shoal_local.apiserver.printing.tables import find_all
from shoal_local.apiserver.schemas.node import Node, path_text
from shoal_local.apiserver.schemas.values import compile_schema, duplicate_causes, value_causes
from shoal_local.objects import Object, make_condition

_RESERVED = re.compile(
    "true|false|null|in|as|break|const|continue|else|for|function|if|import|let|loop|package|"
    "namespace|return|var|void|while"
)
_OLD = re.compile(r"\boldSelf\b")


@dataclass(frozen=True, slots=True)
class Rule:
    """One compiled rule."""

    program: Any
    transition: bool
    """Whether the rule uses ``oldSelf``, the former value."""
    message: str
    reason: str
    field_path: str


Rules = dict[int, tuple[Rule, ...]]
"""Rules by the identity of the schema dictionary that contains them."""


def compile_rules(schema: Any) -> Rules:
    """Compile the rules of a schema and of all schemas in it.

    Raises ValueError: a rule cannot be compiled; the message quotes it.
    """
    found: Rules = {}
    if isinstance(schema, Mapping):
        rules = schema.get("x-kubernetes-validations")
        if isinstance(rules, list):
            found[id(schema)] = tuple(
                Rule(
                    program=parse(rule["rule"]),
                    transition=_OLD.search(rule["rule"]) is not None,
                    message=rule.get("message", "").strip() or f"failed rule: {rule['rule'].strip()}",
                    reason=rule.get("reason", "FieldValueInvalid"),
                    field_path=rule.get("fieldPath", ""),
                )
                for rule in rules
            )
        for inner in schema.values():
            found |= compile_rules(inner)
    elif isinstance(schema, list):
        for inner in schema:
            found |= compile_rules(inner)
    return found


def parse(text: str) -> Any:
    """Compile an expression. Raises ValueError: it cannot be compiled."""
    try:
        return cel.compile(text)
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"compilation failed: {error}") from None


def rule_causes(rules: Rules, node: Node | None, value: Any, old: Any, steps: list[Any]) -> Iterator[Cause]:
    """Yield a cause for each rule that a value, or a value inside of it, violates.

    ``old``: the former value at this place, or None.
    """
    if node is None or value is None or not rules:
        return
    for rule in rules.get(id(node.schema), ()):
        # Unchanged values are not validated again: a stricter rule must not block writes to old objects.
        if old is not None if rule.transition else value != old:
            yield from _evaluate(rule, node, value, old, steps)
    if isinstance(value, dict):
        former = old if isinstance(old, dict) else {}
        for key, inner in value.items():
            yield from rule_causes(rules, node.child(key), inner, former.get(key), [*steps, key])
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            known = old if node.associative and isinstance(old, list) else []
            same = (o for o in known if all(o.get(key) == inner.get(key) for key in node.map_keys))
            yield from rule_causes(rules, node.item, inner, next(same, None), [*steps, index])


def _evaluate(rule: Rule, node: Node, value: Any, old: Any, steps: list[Any]) -> Iterator[Cause]:
    variables = {"self": as_cel(value, node)} | ({"oldSelf": as_cel(old, node)} if rule.transition else {})
    path = (path_text(steps) or "<nil>") + rule.field_path
    try:
        if rule.program.execute(cel.Context(variables)) is True:
            return
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        yield invalid_value(path, node.type, f"{error} evaluating rule: {rule.message}")
        return
    # Objects and lists are too long for a message.
    message = "" if isinstance(value, dict | list) else f"{json_text(value)}: "
    forms = {
        "FieldValueForbidden": f"Forbidden: {rule.message}",
        "FieldValueRequired": f"Required value: {rule.message}",
        "FieldValueDuplicate": f"Duplicate value: {message}".removesuffix(": "),
    }
    yield Cause(path, forms.get(rule.reason, f"Invalid value: {message}{rule.message}"), rule.reason)


def as_cel(value: Any, node: Node | None) -> Any:
    """Return a value for CEL rules, with escaped names and typed numbers."""
    if node is None:
        return value
    if isinstance(value, dict):
        named = node.fields
        return {escaped(key) if key in named else key: as_cel(inner, node.child(key)) for key, inner in value.items()}
    if isinstance(value, list):
        return [as_cel(inner, node.item) for inner in value]
    whole = isinstance(value, int) and not isinstance(value, bool)
    return float(value) if whole and node.type == "number" else value


def escaped(name: str) -> str:
    """Return a field name escaped for CEL, such as ``a__dash__b``."""
    if _RESERVED.fullmatch(name):
        return f"__{name}__"
    for old, new in (("__", "__underscores__"), (".", "__dot__"), ("-", "__dash__"), ("/", "__slash__")):
        name = name.replace(old, new)
    return name


_KEPT = ("apiVersion", "kind", "metadata")

BLOCKING = {f"FieldValue{why}" for why in ("NotSupported", "Required", "TooLong", "TooMany", "TypeInvalid")}
"""Causes after which the rules of an object are not evaluated."""
NOT_CHECKED = Cause(
    "<nil>",
    "Invalid value: null: some validation rules were not checked because the object was invalid; "
    "correct the existing errors to complete validation",
)
_MISSING = object()


def prune(value: Any, node: Node | None) -> Any:
    """Return the value without fields that the schema does not declare.

    A field under ``x-kubernetes-preserve-unknown-fields`` stays; declared fields below it are still pruned.
    """
    if isinstance(value, list):
        item = node.item if node else None
        return [prune(element, item) for element in value] if item else value
    if not isinstance(value, dict) or node is None:
        return value
    kept = {}
    for key, inner in value.items():
        child = node.child(key)
        if child is not None:
            kept[key] = prune(inner, child)
        elif node.open or (node.tag("embedded-resource") and key in _KEPT):
            kept[key] = inner
    return kept


def with_defaults(value: Any, node: Node | None) -> Any:
    """Return the value with defaults where a field is missing or wrongly null."""
    if node is None:
        return value
    if isinstance(value, list):
        return [with_defaults(element, node.item) for element in value]
    if not isinstance(value, dict):
        return value
    found = dict(value)
    for key, schema in node.fields.items():
        absent = key not in found or (found[key] is None and not schema.get("nullable"))
        if absent and "default" in schema:
            # A copy: the object may be modified later.
            found[key] = copy.deepcopy(schema["default"])
    return {
        key: with_defaults(inner, node.child(key))
        for key, inner in found.items()
        if inner is not None or key not in node.fields or node.fields[key].get("nullable")
    }


@dataclass(frozen=True, slots=True)
class CustomSchema:
    """A compiled structural schema."""

    root: Node
    validator: Draft4Validator
    rules: Rules

    @classmethod
    def of(cls, root: Node) -> "CustomSchema":
        """Compile the schema of a complete object."""
        # Metadata is validated elsewhere, but the author's rules for names apply.
        plain = {key: value for key, value in root.schema.items() if key != "properties"}
        meta = {key: value for key, value in root.fields["metadata"].items() if key != "$ref"}
        fields = {**root.fields, "metadata": meta}
        return cls(root, compile_schema({**plain, "properties": fields}), compile_rules(root.schema))

    def admitted(self, obj: Object) -> Object:
        """Return the object pruned and with defaults; metadata stays unchanged."""
        meta = obj["metadata"]
        return {**with_defaults(prune(obj, self.root), self.root), "metadata": meta}

    def causes(self, obj: Object, live: Object | None) -> list[Cause]:
        """Return the violations of an object.

        Violations that exist in ``live`` with the same value are skipped: a stricter schema must not block writes to
        old objects.
        """
        found = value_causes(self.validator, obj) or list(duplicate_causes(obj, self.root))
        causes = []
        for cause in found:
            steps = [int(s) if s.isdigit() else s for s in re.findall(r"[^.\[\]]+", cause.field)]
            # A missing field concerns the object that does not have it.
            steps = steps[:-1] if cause.reason == "FieldValueRequired" else steps
            old = _MISSING if live is None else _at(live, steps)
            if old is _MISSING or old != _at(obj, steps):
                causes.append(cause)
        if self.rules and any(cause.reason in BLOCKING for cause in causes):
            return [*causes, NOT_CHECKED]
        return [*causes, *rule_causes(self.rules, self.root, _for_rules(obj), _for_rules(live), [])]


def _for_rules(obj: Object | None) -> Object | None:
    """Return the object that CEL rules receive.

    Its metadata has only ``name`` and ``generateName``.
    """
    if obj is None:
        return None
    meta = {key: value for key, value in obj["metadata"].items() if key in ("name", "generateName")}
    return {**obj, "metadata": meta}


def _at(value: Any, steps: list[Any]) -> Any:
    for step in steps:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return _MISSING
    return value


CLEANUP = "customresourcecleanup.apiextensions.k8s.io"
_ANY_TYPE = ("x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields")


def definition_causes(crd: Object) -> Iterator[Cause]:
    """Yield a cause for each error in a CustomResourceDefinition."""
    spec, name = crd["spec"], crd["metadata"]["name"]
    if name != f"{spec['names']['plural']}.{spec['group']}":
        yield invalid_value("metadata.name", name, 'must be spec.names.plural+"."+spec.group')
    if spec["scope"] not in ("Namespaced", "Cluster"):
        yield unsupported_value("spec.scope", spec["scope"], ("Cluster", "Namespaced"))
    versions = spec["versions"]
    if [v.get("storage") for v in versions].count(True) != 1:
        yield invalid_value("spec.versions", versions, "must have exactly one version marked as storage version")
    for index, version in enumerate(versions):
        path = f"spec.versions[{index}]"
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        if schema is None:
            yield required_value(f"{path}.schema.openAPIV3Schema", "schemas are required")
        else:
            yield from _schema_causes(schema, f"{path}.schema.openAPIV3Schema")
        for number, column in enumerate(version.get("additionalPrinterColumns", [])):
            try:
                find_all({}, column["jsonPath"])
            except ValueError as error:
                at = f"{path}.additionalPrinterColumns[{number}].jsonPath"
                yield invalid_value(at, column["jsonPath"], str(error))


def _schema_causes(schema: Object, path: str) -> Iterator[Cause]:
    if not schema.get("type") and not any(schema.get(mark) for mark in _ANY_TYPE):
        yield required_value(f"{path}.type", "must not be empty for specified object fields")
    if schema.get("properties") and schema.get("additionalProperties"):
        yield forbidden_value(
            f"{path}.additionalProperties", "additionalProperties and properties are mutual exclusive"
        )
    if "default" in schema:
        # A default must fit its own schema.
        for cause in value_causes(compile_schema(schema), schema["default"]):
            yield Cause(f"{path}.default.{cause.field}".rstrip("."), cause.message, cause.reason)
    for index, rule in enumerate(schema.get("x-kubernetes-validations") or []):
        try:
            parse(rule.get("rule") or "true")
        except ValueError as error:
            at = f"{path}.x-kubernetes-validations[{index}].rule"
            yield invalid_value(at, rule["rule"], str(error))
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
    made = meta["creationTimestamp"]
    conditions = [
        make_condition("NamesAccepted", "True", "NoConflicts", "no conflicts found", made),
        make_condition("Established", "True", "InitialNamesAccepted", "the initial names have been accepted", made),
    ]
    crd["status"] = {
        "acceptedNames": crd["spec"]["names"],
        "conditions": status.get("conditions") or conditions,
        "storedVersions": [*former, *(name for name in stored if name not in former)],
    }
    return crd
