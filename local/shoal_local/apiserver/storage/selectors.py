"""Label and field selectors, parsed into predicates on objects."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from shoal_local.apiserver.errors import bad_request
from shoal_local.objects import Object, dig

Predicate = Callable[[Object], bool]
LabelTest = Callable[[Mapping[str, str]], bool]

_SET = re.compile(r"^(?P<key>[^\s!=,()]+)\s+(?P<op>in|notin)\s+\((?P<values>[^()]*)\)$")
_EQUALS = re.compile(r"^(?P<key>[^\s!=,()]+)\s*(?P<op>!=|==|=)\s*(?P<value>[^\s!=,()]*)$")
_EXISTS = re.compile(r"^(?P<absent>!?)\s*(?P<key>[^\s!=,()]+)$")


def label_selector(text: str) -> LabelTest:
    """Parse ``app=cat,tier in (a,b),!old`` into a test of labels. Raises ApiError: 400, the selector is invalid."""
    tests = [_label_test(part) for part in _split(text)]
    return lambda labels: all(test(labels) for test in tests)


def _split(text: str) -> list[str]:
    """Split at commas that are not inside parentheses."""
    parts = re.split(r",(?![^(]*\))", text)
    return [part.strip() for part in parts if part.strip()]


def _label_test(part: str) -> LabelTest:
    if found := _SET.match(part):
        values = {value.strip() for value in found["values"].split(",")}
        key, wanted = found["key"], found["op"] == "in"
        # `notin` and `!=` also match objects without the label.
        return lambda labels: (key in labels and labels[key] in values) if wanted else labels.get(key) not in values
    if found := _EQUALS.match(part):
        key, value, equal = found["key"], found["value"], found["op"] != "!="
        return lambda labels: (key in labels and labels[key] == value) == equal
    if found := _EXISTS.match(part):
        key, absent = found["key"], bool(found["absent"])
        return lambda labels: (key in labels) != absent
    raise bad_request(f"unable to parse requirement: found '{part}', expected: a label selector")


def field_selector(text: str, allowed: tuple[str, ...]) -> Predicate:
    """Parse ``metadata.name=a,status.phase!=Running`` into a test of objects.

    Raises ApiError: 400, the selector is invalid, or the kind does not support a field in it.
    """
    tests = [_field_test(part, allowed) for part in _split(text)]
    return lambda obj: all(test(obj) for test in tests)


def _field_test(part: str, allowed: tuple[str, ...]) -> Predicate:
    found = _EQUALS.match(part)
    if not found:
        raise bad_request(f"invalid field selector: {part!r}; can't understand it")
    path = found["key"]
    if path not in ("metadata.name", "metadata.namespace", *allowed):
        raise bad_request(f"field label not supported: {path}")
    wanted, equal = found["value"], found["op"] != "!="

    def test(obj: Object) -> bool:
        value = dig(obj, *path.split("."))
        text = str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)
        return (text == wanted) == equal

    return test


def matches_label_selector(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Return whether a selector object (matchLabels, matchExpressions) matches labels; None matches nothing."""
    if selector is None:
        return False
    tests = [labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items()]
    for rule in selector.get("matchExpressions") or []:
        key, values = rule["key"], rule.get("values") or []
        present, among = key in labels, labels.get(key) in values
        # The remaining operator is DoesNotExist.
        tests.append({"In": among, "NotIn": not among, "Exists": present}.get(rule["operator"], not present))
    return all(tests)
