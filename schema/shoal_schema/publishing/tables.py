"""Generated tables in pages that are otherwise written by hand.

A page marks the place of a table with ``<!-- generated: NAME -->`` and ``<!-- end -->``.
"""

import re
from collections.abc import Callable, Iterable, Mapping

from shoal_schema.fields.declaring import ACTIVATOR, BATCH, OPERATOR, PROXY, RUNTIME, Process, fields_of
from shoal_schema.interfaces import metrics
from shoal_schema.process.environment import manifest_fields, variables
from shoal_schema.publishing.words import in_a_table, range_of, unset_of
from shoal_schema.resource.policy import Policy

# The text between the marks is replaced.
_MARK = re.compile(r"(?<=<!-- generated: )(?P<name>[\w ]+) -->\n.*?(?=<!-- end -->)", re.DOTALL)


class UnknownTableError(ValueError):
    """Error of a page with a marker for an unknown table."""


def filled(page: str) -> str:
    """Return a page with newly generated tables.

    Raises:
        UnknownTableError: a marker names an unknown table.
    """

    def table(mark: re.Match[str]) -> str:
        name = mark["name"]
        if name not in TABLES:
            raise UnknownTableError(f"unknown table {name!r}; known are {', '.join(TABLES)}")
        return f"{name} -->\n{TABLES[name]()}\n"

    return _MARK.sub(table, page)


def _markdown(header: str, rows: Iterable[str]) -> str:
    return "\n".join(["", header, "|---" * (header.count("|") - 1) + "|", *rows, ""])


def _settings_of(*readers: Process) -> str:
    fields = {each.env.name: name for name, each in reversed(list(manifest_fields().items())) if each.env}
    declared = []
    for variable, each in variables().items():
        # The init container reads a subset of the runtime's settings.
        if each.env is None or set(each.env.readers) - {Process.MODEL} != set(readers):
            continue
        declared.append((variable, each))
    # The operator's settings have no fields.
    has_fields = any(variable in fields for variable, _ in declared)
    rows = []
    for variable, each in declared:
        field = f" `{fields[variable]}` |" if variable in fields else "  |" if has_fields else ""
        meaning = in_a_table(each.description)
        rows.append(f"| `{variable}` | {unset_of(each)} | {range_of(each)} |{field} {meaning} |")
    return _markdown(f"| variable | default | range |{' field |' if has_fields else ''} meaning |", rows)


def _policy() -> str:
    rows = []
    for each in fields_of(Policy):
        is_list = each.kind is not bool
        default = ", ".join(f"`{pattern}`" for pattern in each.default) or "none" if is_list else unset_of(each)
        rows.append(f"| `{each.name}` | {default} | {in_a_table(each.description)} |")
    return _markdown("| value below `policy` | default | allows |", rows)


def _metrics_of(declared: Iterable[metrics.Metric]) -> str:
    rows = []
    for each in declared:
        labels = ", ".join(f"`{name}` ({values})" if values else f"`{name}`" for name, values in each.labels.items())
        rows.append(f"| `{each.name}` | {each.kind} | {labels} | {each.description} |")
    return _markdown("| name | type | labels | meaning |", rows)


TABLES: Mapping[str, Callable[[], str]] = {
    "settings of both": lambda: _settings_of(PROXY, RUNTIME),
    "settings of all": lambda: _settings_of(PROXY, RUNTIME, OPERATOR, ACTIVATOR, BATCH),
    "settings of the proxy and the batch program": lambda: _settings_of(PROXY, BATCH),
    "settings of the runtime": lambda: _settings_of(RUNTIME),
    "settings of the proxy": lambda: _settings_of(PROXY),
    "settings of the operator": lambda: _settings_of(OPERATOR),
    "settings of the activator": lambda: _settings_of(ACTIVATOR),
    "settings of the batch program": lambda: _settings_of(BATCH),
    "fields of serve": lambda: _markdown(
        "| field | takes | default | meaning |",
        (
            f"| `{name}` | {range_of(each)} | {unset_of(each)} | {in_a_table(each.description)} |"
            for name, each in manifest_fields().items()
        ),
    ),
    "values of the policy": _policy,
    "metrics of the proxy": lambda: _metrics_of(metrics.ALL),
    "metrics of the operator": lambda: _metrics_of(metrics.ALL_OF_OPERATOR),
}
