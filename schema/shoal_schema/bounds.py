"""Bottlenecks of a replica, as reported by ``/v1/explain`` and ``shoal bench``."""

from enum import StrEnum


class Bound(StrEnum):
    """The resource that is exhausted first as load grows."""

    UNKNOWN = "Unknown"
    """Too few measurements, or the runtime does not report the model's time."""
    MODEL = "Model"
    """The model takes longer for a batch than the host's work around it."""
    HOST = "Host"
    """The host's work around a batch (encode, transfer, preprocess, split) takes longer than the model."""
    PROXY = "Proxy"
    """The proxy's only thread uses a whole core."""


MORE_PROCESSOR_TIME = "more processor time (in a cluster runtime.resources, on one machine less beside it)"
"""Remedy for `HOST`. It names both cases, as neither server nor load generator detects whether it runs in a pod."""
