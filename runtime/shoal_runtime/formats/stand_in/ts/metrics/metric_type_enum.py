"""Kinds of metrics."""

from enum import Enum


class MetricTypes(Enum):
    """Kind of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
