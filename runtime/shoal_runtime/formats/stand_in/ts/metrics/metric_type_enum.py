"""Kinds of metrics."""

from enum import Enum


class MetricTypes(Enum):
    """What a metric counts."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
