"""Tables of settings that stand in pages written by hand, each between two marks.

A page holds ``<!-- generated: NAME -->`` and, after the table, ``<!-- end -->``.
"""

import re
from collections.abc import Callable, Iterable, Mapping

from shoal_schema import metrics
from shoal_schema.declaring import BATCH, OPERATOR, PROXY, RUNTIME, WAITING, Process, Setting, fields_of
from shoal_schema.environment import manifest_fields, variables
from shoal_schema.policy import Policy
from shoal_schema.publishing.words import in_a_table, range_of, unset_of

_MARK = re.compile(r"(?<=<!-- generated: )(?P<name>[\w ]+) -->\n.*?(?=<!-- end -->)", re.DOTALL)


class UnknownTableError(ValueError):
    """A page asks for an unknown table."""


def filled(page: str) -> str:
    """Return a page with its tables written anew.

    Raises:
        UnknownTableError: it asks for one that there is not.
    """
    return _MARK.sub(lambda match: f"{match['name']} -->\n{_table(match['name'])}\n", page)


def _table(name: str) -> str:
    if name not in TABLES:
        raise UnknownTableError(f"there is no table {name!r}; there are {', '.join(TABLES)}")
    return TABLES[name]()


def _settings_of(*readers: Process) -> str:
    rows = [_row(each) for each in variables().values() if _audience(each) == set(readers)]
    return "\n".join(["", "| variable | default | range | field | meaning |", "|---|---|---|---|---|", *rows, ""])


def _audience(setting: Setting) -> set[Process]:
    return set(setting.env.readers) - {Process.MODEL} if setting.env else set()


def _row(setting: Setting) -> str:
    variable = setting.env.name if setting.env else ""
    fields = (f"`{name}`" for name, each in manifest_fields().items() if each.env and each.env.name == variable)
    meaning = in_a_table(setting.description)
    return f"| `{variable}` | {unset_of(setting)} | {range_of(setting)} | {next(fields, '')} | {meaning} |"


def _assignable() -> str:
    rows = (
        f"| `{name}` | {range_of(each)} | {in_a_table(each.description)} |" for name, each in manifest_fields().items()
    )
    return "\n".join(["", "| field | takes | meaning |", "|---|---|---|", *rows, ""])


def _policy() -> str:
    rows = (f"| `{each.name}` | {_patterns(each)} | {in_a_table(each.description)} |" for each in fields_of(Policy))
    return "\n".join(["", "| value below `policy` | default | allows |", "|---|---|---|", *rows, ""])


def _patterns(setting: Setting) -> str:
    return unset_of(setting) if setting.kind is bool else ", ".join(f"`{each}`" for each in setting.default) or "none"


def _metrics_of(declared: Iterable[metrics.Metric]) -> str:
    rows = (f"| `{each.name}` | {each.kind} | {_labels(each)} | {each.description} |" for each in declared)
    return "\n".join(["", "| name | type | labels | meaning |", "|---|---|---|---|", *rows, ""])


def _labels(metric: metrics.Metric) -> str:
    return ", ".join(f"`{name}` ({values})" if values else f"`{name}`" for name, values in metric.labels.items())


TABLES: Mapping[str, Callable[[], str]] = {
    "settings of both": lambda: _settings_of(PROXY, RUNTIME),
    "settings of all": lambda: _settings_of(PROXY, RUNTIME, OPERATOR, WAITING, BATCH),
    "settings of the proxy and the batch program": lambda: _settings_of(PROXY, BATCH),
    "settings of the runtime": lambda: _settings_of(RUNTIME),
    "settings of the proxy": lambda: _settings_of(PROXY),
    "settings of the operator": lambda: _settings_of(OPERATOR),
    "settings of the waiting room": lambda: _settings_of(WAITING),
    "settings of the batch program": lambda: _settings_of(BATCH),
    "fields of serve": _assignable,
    "values of the policy": _policy,
    "metrics of the proxy": lambda: _metrics_of(metrics.ALL),
    "metrics of the operator": lambda: _metrics_of(metrics.ALL_OF_OPERATOR),
}
