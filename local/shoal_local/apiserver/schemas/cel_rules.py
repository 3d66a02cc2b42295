"""`x-kubernetes-validations`: rules in the Common Expression Language.

A rule sees the value as ``self`` and, when it names it, the former value as ``oldSelf``; such a
rule holds on updates only. Keyed lists find the former value by key, so an element may move.
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
        """Return whether the rule compares with the former value."""
        return _OLD.search(self.text) is not None


Rules = dict[int, tuple[Rule, ...]]
"""Rules by the identity of the schema dictionary that holds them."""


def compile_rules(schema: Any) -> Rules:
    """Compile the rules of a schema and all that is in it.

    Raises ValueError: a rule cannot be parsed; the message names it.
    """
    found: Rules = {}
    if isinstance(schema, Mapping):
        rules = schema.get("x-kubernetes-validations")
        if isinstance(rules, list):
            found[id(schema)] = tuple(_compile(rule) for rule in rules)
        for inner in schema.values():
            found |= compile_rules(inner)
    elif isinstance(schema, list):
        for inner in schema:
            found |= compile_rules(inner)
    return found


def _compile(rule: Mapping[str, Any]) -> Rule:
    text = rule["rule"]
    return Rule(
        text=text,
        program=parse(text),
        message=rule.get("message", "").strip() or f"failed rule: {text.strip()}",
        reason=rule.get("reason", "FieldValueInvalid"),
        field_path=rule.get("fieldPath", ""),
    )


def parse(text: str) -> Any:
    """Compile an expression. Raises ValueError: it cannot be parsed."""
    try:
        return cel.compile(text)
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"compilation failed: {error}") from None


def rule_causes(rules: Rules, node: Node | None, value: Any, old: Any, steps: list[Any]) -> Iterator[Cause]:
    """Yield the rules that a value, or what is in it, breaks.

    ``old``: the former value at this place; None when there is none.
    """
    if node is None or value is None or not rules:
        return
    for rule in rules.get(id(node.schema), ()):
        # What was there before and is the same is not judged again, or a stricter rule would
        # block old objects.
        if old is not None if rule.transition else value != old:
            yield from _judged(rule, node, value, old, steps)
    if isinstance(value, dict):
        former = old if isinstance(old, dict) else {}
        for key, inner in value.items():
            yield from rule_causes(rules, node.child(key), inner, former.get(key), [*steps, key])
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            known = old if node.associative and isinstance(old, list) else []
            same = (o for o in known if all(o.get(key) == inner.get(key) for key in node.map_keys))
            yield from rule_causes(rules, node.item, inner, next(same, None), [*steps, index])


def _judged(rule: Rule, node: Node, value: Any, old: Any, steps: list[Any]) -> Iterator[Cause]:
    variables = {"self": as_cel(value, node)} | ({"oldSelf": as_cel(old, node)} if rule.transition else {})
    path = (path_text(steps) or "<nil>") + rule.field_path
    try:
        if rule.program.execute(cel.Context(variables)) is True:
            return
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        message = f"{error} evaluating rule: {rule.message}"
        yield Cause(path, f'Invalid value: "{node.type}": {message}', "FieldValueInvalid")
        return
    yield Cause(path, _complaint(rule, value), rule.reason)


def _complaint(rule: Rule, value: Any) -> str:
    # Objects and lists are too long to be shown.
    message = "" if isinstance(value, dict | list) else f"{json_text(value)}: "
    forms = {
        "FieldValueForbidden": f"Forbidden: {rule.message}",
        "FieldValueRequired": f"Required value: {rule.message}",
        "FieldValueDuplicate": f"Duplicate value: {message}".removesuffix(": "),
    }
    return forms.get(rule.reason, f"Invalid value: {message}{rule.message}")


def as_cel(value: Any, node: Node | None) -> Any:
    """Return a JSON value as rules see it: field names escaped, whole numbers as the schema calls them."""
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
    """Return a field name as expressions write it."""
    if _RESERVED.fullmatch(name):
        return f"__{name}__"
    for old, new in (("__", "__underscores__"), (".", "__dot__"), ("-", "__dash__"), ("/", "__slash__")):
        name = name.replace(old, new)
    return name
