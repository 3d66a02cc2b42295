"""Times that a pod takes to stop."""

import math

from shoal_operator.manifests.target import Target
from shoal_schema.interfaces.stay import DEFAULT_S

SHUTDOWN_MARGIN_S = 5
"""From the end of the runtime's shutdown to the kill of its container."""


def stop_time_s(target: Target) -> int:
    """Return the longest time that a pod takes to stop (s)."""
    return replacement_time_s(target) + drain_time_s(target)


def drain_time_s(target: Target) -> int:
    """Return the longest time to stop a pod while another pod is ready (s)."""
    rollout = target.spec.rollout
    drain_s = math.ceil(rollout.drain_delay_seconds + rollout.drain_timeout_seconds)
    return drain_s + 2 * SHUTDOWN_MARGIN_S


def replacement_time_s(target: Target) -> int:
    """Return how long a stopping pod may serve if no other pod is ready (s)."""
    given = target.spec.rollout.replacement_timeout_seconds
    if given is not None:
        return given
    # Foreign containers receive SIGTERM too: a server would stop, and a shell that ignores it would delay the pod.
    return 0 if target.foreign or target.spec.pod.containers else DEFAULT_S
