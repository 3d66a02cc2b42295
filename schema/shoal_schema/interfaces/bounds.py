"""Bottlenecks of a replica's throughput, and their remedies.

The proxy determines the bottleneck (``/v1/explain``); ``shoal bench`` repeats it. Both use the texts in `ADVICE`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from shoal_schema.guides import guide


class Bound(StrEnum):
    """The resource that is exhausted first when the load grows."""

    UNKNOWN = "Unknown"
    """Too few batches were measured, or the runtime does not report the model's own time."""
    MODEL = "Model"
    """The model's own time for a batch exceeds the host's work around it."""
    HOST = "Host"
    """The host's work around a batch (encode, transfer, prepare, split) exceeds the model's own time."""
    PROXY = "Proxy"
    """The proxy's thread uses a whole core and cannot use a second one."""


@dataclass(frozen=True, slots=True)
class Advice:
    """Cause and remedy of a bottleneck, as texts for users."""

    cause: str
    """Completes "The bound is ...", without a full stop."""
    remedy: str
    """An imperative sentence, without a full stop."""


# A server does not know whether it runs in a pod, so the remedy names both places.
MORE_PROCESSOR_TIME: Final = "more processor time (runtime.resources in a cluster; fewer other programs on one machine)"
"""The remedy for a host that is short of CPU."""

ADVICE: Final[Mapping[Bound, Advice]] = {
    Bound.MODEL: Advice(
        "the model, which takes longer per batch than the host's work around it",
        "Raise scaling.maxReplicas, or make the model faster (runtime.dtype, runtime.compile, runtime.device)",
    ),
    Bound.HOST: Advice(
        "the host's work around a batch, which takes longer than the model",
        f"Give it {MORE_PROCESSOR_TIME}, send more rows per request, or send binary tensors instead of JSON",
    ),
    Bound.PROXY: Advice(
        "the CPU of the proxy, which can use only one core",
        f"Compile the proxy{guide('how-to/make-a-service-faster', ' (', ')')}, send more rows per request or binary"
        " tensors, or raise scaling.maxReplicas",
    ),
    Bound.UNKNOWN: Advice(
        "either the model or the host's work around it: too few batches were measured, or the runtime does not report"
        " the model's own time",
        "Send more requests, and repeat the measurement",
    ),
}
"""By bound, its cause and its remedy."""
