"""Rules over several fields of a section: one declaration gives CEL for the API server and a check in Python.

A `Rule` pairs a `Predicate` with the error for users. Most rules have one of the shapes at the end of this file; the
others combine predicates, or are a `Custom` pair of CEL and Python, which ``tests/schema/test_rules.py`` compares.
"""

import json
import operator
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from msgspec import Struct

from shoal_schema.fields.declaring import Setting, SettingsSection, element_of, fields_of, without_annotations


@dataclass(frozen=True, slots=True)
class Scope:
    """The variable that a predicate tests in CEL, and its type."""

    name: str
    """``self``, or the variable of a list's element."""
    kind: Any
    """Its section; None for a free-form object or a scalar."""

    def has(self, path: str) -> str:
        """Return CEL that tests that a path is present.

        Only optional parts of the path are tested; the text is empty if none is optional.
        """
        kind, walked, parts = self.kind, self.name, []
        for name in path.split(".") if path else []:
            walked = f"{walked}.{name}"
            setting = _setting(kind, name)
            if setting is None or (not setting.required and _default(setting) is None):
                parts.append(f"has({walked})")
            kind = setting and setting.kind
        return " && ".join(parts)

    def guarded(self, test: str, *paths: str) -> str:
        """Return CEL that holds if the paths are present and ``test`` holds; ``test`` may be empty."""
        return " && ".join(part for part in (*map(self.has, paths), test) if part)

    def at(self, path: str) -> str:
        """Return CEL for a path within the scope: ``self.PATH``, or the variable itself if the path is empty."""
        return f"{self.name}.{path}" if path else self.name

    def setting(self, path: str) -> Setting | None:
        """Return the setting at a path; None in a free-form object."""
        *parents, last = path.split(".")
        kind = self.kind
        for name in parents:
            kind = getattr(_setting(kind, name), "kind", None)
        return _setting(kind, last)


class Predicate(Protocol):
    """A condition on a section or on a free-form object."""

    def cel(self, scope: Scope) -> str:
        """Return the condition in CEL."""
        ...

    def holds(self, value: Any) -> bool:
        """Return whether a value meets the condition."""
        ...


@dataclass(frozen=True, slots=True)
class Given:
    """Condition that a field has a value other than its default, or elements if it is a list or map."""

    path: str

    def cel(self, scope: Scope) -> str:
        """Return the condition in CEL."""
        setting, at = scope.setting(self.path), scope.at(self.path)
        default = None if setting is None or setting.required else _default(setting)
        if default is not None:
            test = at if default is False else f"{at} != {_literal(default)}"
        else:
            test = f"{at}.size() > 0" if setting and _is_sized(setting.kind) else ""
        return scope.guarded(test, self.path)

    def holds(self, value: Any) -> bool:
        """Return whether a value meets the condition."""
        *parents, last = self.path.split(".")
        parent = value_at(value, ".".join(parents))
        found = value_at(parent, last)
        setting = _setting(type(parent), last)
        if found is None or (found in ((), {}) and (setting is None or _is_sized(setting.kind))):
            return False
        return setting is None or setting.required or found != setting.default


@dataclass(frozen=True, slots=True)
class In:
    """Condition that a field has one of several values."""

    path: str
    values: tuple[str | int, ...]

    def cel(self, scope: Scope) -> str:
        """Return the condition in CEL."""
        at = scope.at(self.path)
        one = f"{at} == {_literal(self.values[0])}"
        test = one if len(self.values) == 1 else f"{at} in [{', '.join(map(_literal, self.values))}]"
        return scope.guarded(test, self.path)

    def holds(self, value: Any) -> bool:
        """Return whether a value meets the condition."""
        return value_at(value, self.path) in self.values


@dataclass(frozen=True, slots=True)
class Matches:
    """Condition that a text matches a regular expression, which RE2 and Python interpret alike except for ``$``."""

    path: str
    pattern: str

    def cel(self, scope: Scope) -> str:
        """Return the condition in CEL."""
        test = f"{scope.at(self.path)}.matches(r'{self.pattern}')"
        return scope.guarded(test, self.path)

    def holds(self, value: Any) -> bool:
        """Return whether a value meets the condition."""
        found = value_at(value, self.path)
        # Python's `$` matches before a last newline too.
        return isinstance(found, str) and re.search(self.pattern.replace("$", r"\Z"), found) is not None


@dataclass(frozen=True, slots=True)
class Compared:
    """Condition that two fields are present and compare as ``sign`` states."""

    path: str
    sign: Literal["<", "=="]
    other: str

    def cel(self, scope: Scope) -> str:
        """Return the condition in CEL."""
        test = f"{scope.at(self.path)} {self.sign} {scope.at(self.other)}"
        return scope.guarded(test, self.path, self.other)

    def holds(self, value: Any) -> bool:
        """Return whether a value meets the condition."""
        found, other = value_at(value, self.path), value_at(value, self.other)
        compare = {"<": operator.lt, "==": operator.eq}[self.sign]
        return found is not None and other is not None and bool(compare(found, other))


@dataclass(frozen=True, slots=True)
class Every:
    """Condition that all elements of a list meet ``part``; true of an absent or empty list."""

    path: str
    part: Predicate

    def cel(self, scope: Scope) -> str:
        """Return the condition in CEL."""
        setting = scope.setting(self.path)
        variable = "each" if scope.name == "self" else f"{scope.name}_"
        inner = self.part.cel(Scope(variable, setting and without_annotations(element_of(setting.kind))))
        test = f"{scope.at(self.path)}.all({variable}, {inner})"
        return f"!{_grouped(present)} || {test}" if (present := scope.has(self.path)) else test

    def holds(self, value: Any) -> bool:
        """Return whether a value meets the condition."""
        elements = value_at(value, self.path)
        # A free-form object may have something else there, which the API server rejects when it is written.
        return all(self.part.holds(each) for each in elements) if isinstance(elements, list | tuple) else True


@dataclass(frozen=True, slots=True)
class Not:
    """Condition that another condition does not hold."""

    part: Predicate

    def cel(self, scope: Scope) -> str:
        """Return the condition in CEL."""
        return f"!{_grouped(self.part.cel(scope))}"

    def holds(self, value: Any) -> bool:
        """Return whether a value meets the condition."""
        return not self.part.holds(value)


@dataclass(frozen=True, slots=True)
class Count:
    """Condition that ``least`` to ``most`` of several conditions hold."""

    parts: tuple[Predicate, ...]
    least: int
    most: int

    def cel(self, scope: Scope) -> str:
        """Return the condition in CEL."""
        parts = [_grouped(part.cel(scope)) for part in self.parts]
        if (self.least, self.most) == (1, len(parts)):
            return " || ".join(parts)
        if self.least == len(parts):
            return " && ".join(parts)
        assert self.least == self.most
        return f"[{', '.join(parts)}].filter(held, held).size() == {self.least}"

    def holds(self, value: Any) -> bool:
        """Return whether a value meets the condition."""
        return self.least <= sum(part.holds(value) for part in self.parts) <= self.most


@dataclass(frozen=True, slots=True)
class Custom:
    """A condition that no other predicate can express."""

    expression: str
    """CEL over ``self``."""
    function: Callable[[Any], bool]
    """The same condition over the section."""

    def cel(self, scope: Scope) -> str:
        """Return the condition in CEL."""
        return self.expression

    def holds(self, value: Any) -> bool:
        """Return whether a value meets the condition."""
        return self.function(value)


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition that a section must meet, with the error for users."""

    predicate: Predicate
    message: str
    """The error and its remedy, in the names of the spec."""
    path: str = ""
    """The field at fault, relative to the section: ``maxReplicas``; empty for the section itself."""

    def schema(self, kind: Any) -> dict[str, str]:
        """Return the entry of ``x-kubernetes-validations`` for a section."""
        entry = {"rule": self.predicate.cel(Scope("self", kind)), "message": self.message}
        return {**entry, "fieldPath": f".{self.path}"} if self.path else entry


def any_of(*parts: Predicate) -> Predicate:
    """Return the condition that at least one of several holds."""
    return Count(parts, 1, len(parts))


def checked_by_api_server(expression: str) -> Predicate:
    """Return a condition in CEL that only the API server checks.

    In Python the condition always holds, or another module checks it.
    """
    return Custom(expression, lambda _: True)


def all_of(*parts: Predicate) -> Predicate:
    """Return the condition that all of several hold."""
    return Count(parts, len(parts), len(parts))


# The shapes of most rules.
def requires(name: str, other: str, why: str = "") -> Rule:
    """Return the rule that field ``name`` may be set only if field ``other`` is set."""
    return Rule(any_of(Not(Given(name)), Given(other)), f"{name} requires {other}{_because(why)}", name)


def requires_value(name: str, other: str, *values: str | int, why: str = "") -> Rule:
    """Return the rule that field ``name`` may be set only while ``other`` has one of several values."""
    message = f"{name} requires {other} {' or '.join(map(str, values))}{_because(why)}"
    return Rule(any_of(Not(Given(name)), In(other, values)), message, name)


def excludes(name: str, other: str, message: str) -> Rule:
    """Return the rule that fields ``name`` and ``other`` are not both set."""
    return Rule(any_of(Not(Given(name)), Not(Given(other))), message, name)


def at_most(name: str, limit: str) -> Rule:
    """Return the rule that the number ``name`` does not exceed the number ``limit``."""
    return Rule(Not(Compared(limit, "<", name)), f"{name} must not exceed {limit}", name)


def different(name: str, other: str, message: str) -> Rule:
    """Return the rule that two fields do not have the same value."""
    return Rule(Not(Compared(name, "==", other)), message, name)


def not_in(name: str, values: tuple[str | int, ...], message: str) -> Rule:
    """Return the rule that a field has none of several values."""
    return Rule(Not(In(name, values)), message, name)


def one_of(names: tuple[str, ...], subject: str, why: str = "") -> Rule:
    """Return the rule that exactly one of several fields is set."""
    message = f"{subject} requires exactly one of {', '.join(names[:-1])} and {names[-1]}{_because(why)}"
    return Rule(Count(tuple(map(Given, names)), 1, 1), message, names[0])


def some_of(names: tuple[str, ...], subject: str, why: str) -> Rule:
    """Return the rule that at least one of several fields is set."""
    message = f"{subject} requires {', '.join(names[:-1])} or {names[-1]}{_because(why)}"
    return Rule(any_of(*map(Given, names)), message, names[0])


def broken(section: Struct) -> Iterator[tuple[str, Rule]]:
    """Yield each broken rule of a section and its inner sections, with the path of its section.

    Paths are relative (``scaling``, ``steps[1]``), empty for the section itself.
    """
    yield from (("", rule) for rule in broken_among(getattr(type(section), "RULES", ()), section))
    for each in fields_of(type(section)):
        value = getattr(section, each.path[0])
        if isinstance(value, SettingsSection):
            yield from ((f"{each.name}.{path}".rstrip("."), rule) for path, rule in broken(value))
        elif isinstance(value, tuple):
            for index, element in enumerate(value):
                if isinstance(element, SettingsSection):
                    where = f"{each.name}[{index}]"
                    yield from ((f"{where}.{path}".rstrip("."), rule) for path, rule in broken(element))


def broken_among(rules: Iterable[Rule], value: Any) -> Iterator[Rule]:
    """Yield the rules that a section, or a whole object, breaks."""
    return (rule for rule in rules if not rule.predicate.holds(value))


def value_at(value: Any, path: str) -> Any:
    """Return the value at a dotted path of a section or a free-form object; None if it is absent."""
    for name in path.split(".") if path else []:
        if isinstance(value, Mapping):
            value = value.get(name)
        elif (setting := _setting(type(value), name)) is not None:
            value = getattr(value, setting.path[0])
        else:
            return None
    return value


def _because(why: str) -> str:
    return why and f": {why}"


def _setting(kind: Any, name: str) -> Setting | None:
    if not (isinstance(kind, type) and issubclass(kind, Struct)):
        return None
    return next((each for each in fields_of(kind) if each.name == name), None)


def _default(setting: Setting) -> Any:
    """Return the default that the API server fills in, or None."""
    return None if setting.default in (None, (), {}) else setting.default


def _is_sized(kind: Any) -> bool:
    """Return whether CEL has ``size()`` for a type: for lists and typed maps, not for free-form objects."""
    return element_of(kind) is not None or (typing.get_origin(kind) is dict and typing.get_args(kind)[1] is not Any)


def _literal(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"  # numbers of a resource are integers
    return json.dumps(value) if isinstance(value, str | int) else json.dumps(str(value))


def _grouped(expression: str) -> str:
    """Put a CEL expression into parentheses if it contains an operator."""
    return f"({expression})" if re.search(r"[!=<&|]| in ", expression) else expression
