"""The reference page of the custom resource, in Markdown."""

import dataclasses
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

from shoal_operator.api import API_VERSION, KIND, conditions
from shoal_operator.api.fields import FieldView, fields_of, rules_of
from shoal_operator.api.model import InferenceServiceSpec
from shoal_operator.api.schema import plain

_INTRODUCTION = f"""# InferenceService

`{API_VERSION}`, kind `{KIND}`, short name `infsvc`. This page is generated from
`operator/shoal_operator/api` by `make crds`. `kubectl explain infsvc.spec --recursive` shows the
same. A setting that reaches the pods names its environment variable.
"""


def reference_page() -> str:
    """Return the page as Markdown."""
    parts = [_INTRODUCTION, *_sections(InferenceServiceSpec, "spec"), *_condition_section()]
    return "\n".join(parts)


def _sections(cls: type, path: str) -> Iterator[str]:
    views = fields_of(cls)
    yield f"## `{path}`\n\n{cls.__doc__}\n"
    yield "| field | type | default | meaning |\n|---|---|---|---|"
    for view in views:
        yield f"| `{view.name}` | {_type(view)} | {_default(view)} | {_meaning(view)} |"
    yield ""
    if rules := rules_of(cls):
        yield "Rules:\n"
        yield from (f"- {rule.message}" for rule in rules)
        yield ""
    for view in views:
        if nested := _nested(view):
            yield from _sections(nested, f"{path}.{view.name}")


def _nested(view: FieldView) -> Any:
    kind = view.element or view.type
    return kind if dataclasses.is_dataclass(kind) else None


def _type(view: FieldView) -> str:
    if view.schema.raw is not None:
        return "list" if view.element else "object"
    name = _scalar_name(view.element or view.type)
    return f"list of {name}" if view.element else f"{name}{_range(view)}"


def _scalar_name(kind: Any) -> str:
    if dataclasses.is_dataclass(kind):
        return "object"
    if issubclass(kind, StrEnum):
        return ", ".join(f"`{member}`" for member in kind)
    return {int: "integer", bool: "boolean"}.get(kind, "string")


def _range(view: FieldView) -> str:
    if view.schema.minimum is None:
        return ""
    return f", {view.schema.minimum} to {view.schema.maximum}"


def _default(view: FieldView) -> str:
    if view.required:
        return "required"
    value = plain(view.default)
    if value is None or isinstance(value, dict):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _meaning(view: FieldView) -> str:
    env = f" (`{view.schema.env}`)" if view.schema.env else ""
    return view.schema.description.replace("|", "\\|") + env


def _condition_section() -> Iterator[str]:
    yield "## `status.conditions`\n"
    yield "| type | reasons that wait for a person |\n|---|---|"
    kinds = ", ".join(f"`{kind}`" for kind in conditions.ConditionType)
    reasons = ", ".join(f"`{r}`" for r in conditions.Reason if r in conditions.FAILURES)
    yield f"| {kinds} | {reasons} |"
    yield ""
