"""The Prometheus queries of a dashboard's file, with Grafana's variables replaced."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from monitoring.__main__ import FOLDER


class Question(NamedTuple):
    """One query of a panel: its PromQL, its legend, and the panel's JSON."""

    dashboard: str
    panel: Mapping[str, Any]
    expr: str
    legend: str


def questions(root: Path, values: Mapping[str, str]) -> Iterator[Question]:
    """Yield the queries of all dashboards.

    Args:
        root: the root of the repository.
        values: the value of each variable, whose name includes the dollar.
    """
    for path in sorted((root / FOLDER).glob("*.json")):
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
            for target in panel.get("targets", ()):
                expr = target["expr"]
                # Longer names first: $__range is a prefix of $__range_s.
                for name in sorted(values, key=len, reverse=True):
                    expr = expr.replace(name, values[name])
                yield Question(path.stem, panel, expr, target.get("legendFormat", ""))
