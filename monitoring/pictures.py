"""Draw the dashboards for the docs from query results of a real Prometheus, without Grafana."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from monitoring.queries import Question

Answer = Sequence[tuple[Mapping[str, str], Sequence[tuple[float, str]]]]
"""Series: labels, and times in seconds with values as Prometheus writes them."""
COLUMNS = 3
UNITS = {"s": "s", "short": "", "percentunit": "share", "reqps": "/s", "cps": "/s", "bytes": "bytes"}


def draw(answers: Sequence[tuple[Question, Answer]], folder: Path) -> Iterator[Path]:
    """Draw a picture of each dashboard; yield its path."""
    mpl.use("Agg")
    for name, of_dashboard in groupby(answers, lambda pair: pair[0].dashboard):
        panels = [list(group) for _, group in groupby(of_dashboard, lambda pair: pair[0].panel["title"])]
        lines = math.ceil(len(panels) / COLUMNS)
        figure = Figure(figsize=(15, 2.7 * lines), layout="constrained")
        axes = figure.subplots(lines, COLUMNS, squeeze=False).flatten()
        begun_s = min(
            float(time_s) for panel in panels for _, a in panel for _, v in a if len(v) > 1 for time_s, _ in v
        )
        for place, panel in zip(axes, panels, strict=False):
            _panel(place, panel, begun_s)
        for place in axes[len(panels) :]:
            place.axis("off")
        path = folder / f"dashboard-{name}.png"
        figure.savefig(path, dpi=70)
        yield path


def _panel(place: Axes, asked: Sequence[tuple[Question, Answer]], begun_s: float) -> None:
    described = asked[0][0].panel
    unit = UNITS[described["fieldConfig"]["defaults"]["unit"]]
    place.set_title(described["title"] + (f" ({unit})" if unit else ""), fontsize=9, loc="left")
    place.tick_params(labelsize=7)
    kinds = {"heatmap": _heat, "bargauge": _bars, "table": _rows}
    if draws := kinds.get(described["type"]):
        draws(place, asked[0][1], asked[0][0].legend, begun_s)
    else:
        _lines(place, asked, begun_s)


def _lines(place: Axes, asked: Sequence[tuple[Question, Answer]], begun_s: float) -> None:
    curves = {_named(q.legend, labels): _numbers(values, begun_s) for q, answer in asked for labels, values in answer}
    if not curves:
        place.text(0.5, 0.5, "no data", ha="center", transform=place.transAxes, fontsize=8)
        return
    # Series that are always zero are omitted; the legend has no room for them.
    shown = {name: curve for name, curve in curves.items() if any(curve.values())} or curves
    if asked[0][0].panel["fieldConfig"]["defaults"]["custom"].get("stacking"):
        times = sorted({time_s for curve in shown.values() for time_s in curve})
        parts = [[curve.get(time_s, 0.0) for time_s in times] for curve in shown.values()]
        place.stackplot(times, parts, labels=list(shown), alpha=0.5)
    else:
        for name, curve in shown.items():
            place.plot(list(curve), list(curve.values()), label=name, linewidth=1.2)
    place.set_ylim(bottom=0)
    place.legend(fontsize=6, loc="upper left")


def _heat(place: Axes, answer: Answer, legend: str, begun_s: float) -> None:
    del legend
    buckets = sorted(answer, key=lambda series: float(series[0]["le"]))
    times = [float(time_s) - begun_s for time_s, _ in buckets[0][1]]
    counts = [[float(value) for _, value in values] for _, values in buckets]
    # Prometheus buckets are cumulative.
    own = [
        counts[0],
        *([b - a for a, b in zip(low, high, strict=True)] for low, high in pairwise(counts)),
    ]
    place.pcolormesh(times, range(len(own)), own, cmap="Blues", shading="nearest")
    place.set_yticks(range(len(own)), [labels["le"].removesuffix(".0") for labels, _ in buckets])


def _bars(place: Axes, answer: Answer, legend: str, begun_s: float) -> None:
    del begun_s
    place.barh([_named(legend, labels) for labels, _ in answer], [float(values[0][1]) for _, values in answer])


def _rows(place: Axes, answer: Answer, legend: str, begun_s: float) -> None:
    del legend, begun_s
    place.axis("off")
    text = "\n".join("   ".join(value for name, value in labels.items() if name != "namespace") for labels, _ in answer)
    place.text(0, 0.95, text, fontsize=7, va="top", transform=place.transAxes)


def _named(legend: str, labels: Mapping[str, str]) -> str:
    name = legend.replace("{{namespace}}/", "")
    for label, value in labels.items():
        name = name.replace(f"{{{{{label}}}}}", value)
    return name


def _numbers(values: Iterable[tuple[float, str]], begun_s: float) -> dict[float, float]:
    return {float(time_s) - begun_s: float(value) for time_s, value in values}
