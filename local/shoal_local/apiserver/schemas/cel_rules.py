"""`x-kubernetes-validations`: rules in the Common Expression Language.

A rule has the value as ``self``. A rule that names ``oldSelf`` gets the former value and applies to updates only.
Former elements of keyed lists are found by key, so an element may move.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import cel

from shoal_local.apiserver.errors import Cause
from shoal_local.apiserver.schemas.node import Node
from shoal_local.apiserver.schemas.values import json_text, path_text

_RESERVED = re.compile(
    "true|false|null|in|as|break|const|continue|else|for|function|if|import|let|loop|package|"
    "namespace|return|var|void|while"
)
_OLD = re.compile(r"\boldSelf\b")


@dataclass(frozen=True, slots=True)
class Rule:
    """One compiled rule."""

    text: str
    program: Any
    message: str
    reason: str
    field_path: str

    @property
    def transition(self) -> bool:
        """Return whether the rule uses ``oldSelf``, the former value."""
        return _OLD.search(self.text) is not None


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
                    text=rule["rule"],
                    program=parse(rule["rule"]),
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
        message = f"{error} evaluating rule: {rule.message}"
        yield Cause(path, f'Invalid value: "{node.type}": {message}', "FieldValueInvalid")
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
