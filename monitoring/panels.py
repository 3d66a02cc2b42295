"""Panels: a Prometheus query, a unit, and a description with the meaning and the remedy."""

from grafana_foundation_sdk.builders import bargauge, common, dashboard, heatmap, prometheus, table, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.common import GraphTresholdsStyleMode, StackingMode
from grafana_foundation_sdk.models.dashboard import DataSourceRef, Panel, Threshold, ThresholdsMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
Drawn = timeseries.Panel | heatmap.Panel | table.Panel | bargauge.Panel


def lines(
    title: str, unit: str, does: str, *queries: tuple[str, str], steps: tuple[float, ...] = (), stacked: bool = False
) -> Builder[Panel]:
    """Return a time series panel.

    Args:
        title: the title.
        unit: Grafana's name of the unit.
        does: the description: the meaning of the values, and the remedy.
        queries: PromQL expressions, each with the legend of its series.
        steps: the thresholds of a warning and of an error.
        stacked: whether the series are parts of a sum.
    """
    panel = timeseries.Panel().fill_opacity(30 if stacked else 5).min(0)
    if stacked:
        panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    if steps:
        colours = (Threshold(None, "green"), *map(Threshold, steps, ("orange", "red")))
        panel.thresholds(dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(list(colours)))
        panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(GraphTresholdsStyleMode.DASHED))
    return _about(panel, title, unit, does, [_query(expr, legend) for expr, legend in queries])


def heat(title: str, unit: str, does: str, buckets: str) -> Builder[Panel]:
    """Return a heat map of the increase of a histogram's buckets."""
    query = _query(buckets, "{{le}}").format(PromQueryFormat.HEATMAP)
    return _about(heatmap.Panel().calculate(calculate=False), title, unit, does, [query])


def bars(title: str, unit: str, does: str, expr: str, legend: str) -> Builder[Panel]:
    """Return a bar for each series, over the displayed time."""
    return _about(bargauge.Panel().min(0), title, unit, does, [_query(expr, legend).instant()])


def rows(title: str, does: str, expr: str) -> Builder[Panel]:
    """Return a table of current values, one row for each series."""
    query = _query(expr, "").instant().format(PromQueryFormat.TABLE)
    return _about(table.Panel(), title, "short", does, [query])


def _query(expr: str, legend: str) -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(expr).legend_format(legend)


def _about(panel: Drawn, title: str, unit: str, does: str, queries: list[prometheus.Dataquery]) -> Builder[Panel]:
    panel.title(title).description(does).unit(unit).datasource(SOURCE).height(8).span(8)
    for name, query in zip("ABCDEF", queries, strict=False):
        panel.with_target(query.ref_id(name).datasource(SOURCE))
    return panel
