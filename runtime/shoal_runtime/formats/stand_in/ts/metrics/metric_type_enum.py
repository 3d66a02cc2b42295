"""TorchServe's enumeration of metric types."""

from enum import Enum


class MetricTypes(Enum):
    """Type of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
