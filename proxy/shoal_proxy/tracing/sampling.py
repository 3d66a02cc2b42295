"""Trace sampling by the ``traceparent`` header (W3C Trace Context) and OpenTelemetry's samplers."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from shoal_schema.process.environment import SettingsError

_TRACEPARENT: Final = re.compile(rb"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_RATIO_MASK: Final = (1 << 64) - 1
"""The bits of a trace id that a ratio applies to: all services of a trace decide alike."""


class SpanContext(NamedTuple):
    """The identity of a span, as the ``traceparent`` header carries it."""

    trace_id: int
    span_id: int
    sampled: bool

    @property
    def traceparent(self) -> str:
        """The value of the ``traceparent`` header."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.sampled):02x}"


class ShareSampler:
    """Sampler that selects a share (0 to 1) of uniform 64-bit numbers."""

    __slots__ = ("_below",)

    def __init__(self, share: float) -> None:
        self._below = round(share * (_RATIO_MASK + 1))

    def takes(self, number: int) -> bool:
        """Return whether the number is in the selected share."""
        return number & _RATIO_MASK < self._below


@dataclass(frozen=True)
class Sampling:
    """Sampling rule: by the client's span if ``by_parent``, else by share."""

    by_parent: bool = True
    share: float = 1.0

    def takes(self, parent: SpanContext | None, trace_id: int) -> bool:
        """Return whether a request is sampled."""
        if self.by_parent and parent is not None:
            return parent.sampled
        return ShareSampler(self.share).takes(trace_id)


_COLLECTOR: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_SAMPLERS: Final[Mapping[str, tuple[bool, float | None]]] = {
    "always_on": (False, 1.0),
    "always_off": (False, 0.0),
    "traceidratio": (False, None),
    "parentbased_always_on": (True, 1.0),
    "parentbased_always_off": (True, 0.0),
    "parentbased_traceidratio": (True, None),
}


def parse_traceparent(value: bytes | None) -> SpanContext | None:
    """Return the client's span context; None if absent or malformed."""
    match = _TRACEPARENT.fullmatch(value) if value else None
    if match is None:
        return None
    trace_id, span_id, flags = (int(part, 16) for part in match.groups())
    # Ids of zero are invalid (W3C Trace Context, section 3.2.2).
    return SpanContext(trace_id, span_id, bool(flags & 1)) if trace_id and span_id else None


def is_enabled(environ: Mapping[str, str]) -> bool:
    """Return whether traces have a collector and are not disabled."""
    off = environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or environ.get("OTEL_TRACES_EXPORTER") == "none"
    return not off and any(environ.get(name) for name in _COLLECTOR)


def sampling_of(environ: Mapping[str, str]) -> Sampling:
    """Return the sampling that ``OTEL_TRACES_SAMPLER`` and ``OTEL_TRACES_SAMPLER_ARG`` configure.

    Raises:
        SettingsError: the sampler is unknown, or its ratio is not 0 to 1.
    """
    name = environ.get("OTEL_TRACES_SAMPLER") or "parentbased_always_on"
    if name not in _SAMPLERS:
        raise SettingsError(f"OTEL_TRACES_SAMPLER must be one of {', '.join(_SAMPLERS)}, not {name!r}")
    by_parent, share = _SAMPLERS[name]
    if share is None:
        text = environ.get("OTEL_TRACES_SAMPLER_ARG") or "1"
        try:
            share = float(text)
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:
            raise SettingsError(f"OTEL_TRACES_SAMPLER_ARG must be 0 to 1, not {text!r}")
    return Sampling(by_parent, share)
