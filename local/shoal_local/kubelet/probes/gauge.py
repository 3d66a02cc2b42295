"""One probe of one container as a state machine; the times are arguments."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Self

Object = Mapping[str, Any]


class Kind(StrEnum):
    """What a probe decides; the value is its field in a container."""

    STARTUP = "startupProbe"
    LIVENESS = "livenessProbe"
    READINESS = "readinessProbe"


@dataclass(frozen=True, slots=True)
class Timing:
    """Times in seconds and numbers of results in a row."""

    initial_delay_s: float
    period_s: float
    timeout_s: float
    success_threshold: int
    failure_threshold: int

    @classmethod
    def of(cls, probe: Object) -> Self:
        """Read a probe, with the defaults of the API."""
        return cls(
            initial_delay_s=probe.get("initialDelaySeconds") or 0,
            period_s=probe.get("periodSeconds") or 10,
            timeout_s=probe.get("timeoutSeconds") or 1,
            success_threshold=probe.get("successThreshold") or 1,
            failure_threshold=probe.get("failureThreshold") or 3,
        )


@dataclass(frozen=True, slots=True)
class Gauge:
    """What a probe says by now: None until enough results in a row agree."""

    timing: Timing
    due_s: float
    """Clock time of the next attempt."""
    verdict: bool | None = None
    last: bool | None = None
    in_a_row: int = 0

    @classmethod
    def begin(cls, timing: Timing, now_s: float, *, verdict: bool | None = None) -> Self:
        """Return a probe of a container that starts now, or is taken over with a verdict."""
        delay_s = timing.initial_delay_s if verdict is None else 0.0
        return cls(timing, now_s + delay_s, verdict)

    def after(self, *, success: bool, now_s: float) -> "Gauge":
        """Return the state after an attempt that ended now."""
        count = self.in_a_row + 1 if success == self.last else 1
        needed = self.timing.success_threshold if success else self.timing.failure_threshold
        verdict = success if count >= needed else self.verdict
        due_s = max(self.due_s + self.timing.period_s, now_s)
        return replace(self, due_s=due_s, verdict=verdict, last=success, in_a_row=count)
