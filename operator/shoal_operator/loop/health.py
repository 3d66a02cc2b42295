"""Liveness and readiness of the operator's process."""

HEARTBEAT_S = 20.0
"""Interval of renewals of the heartbeat, where it is not the leader's Lease."""
SILENCE_S = 90.0
"""A watch without an event for this long has stalled, as the Lease changes every 2 or 20 s."""
STUCK_S = 180.0
"""A reconciliation that takes this long is stuck, as each of its requests ends within 20 s."""


def diagnose(now_s: float, *, last_event_s: float | None, is_connected: bool, began_s: float | None) -> str | None:
    """Return the fault for which this process must restart, or None.

    Args:
        now_s: monotonic time (s).
        last_event_s: when a watch last received the Lease; None before the first time.
        is_connected: the API server responds. A restart does not help during an outage.
        began_s: when the longest running reconciliation began; None without any.
    """
    if last_event_s is not None and now_s - last_event_s > SILENCE_S and is_connected:
        return f"no watch event for {now_s - last_event_s:.0f} s although the API server responds"
    if began_s is not None and now_s - began_s > STUCK_S:
        return f"a reconciliation has been running for {now_s - began_s:.0f} s"
    return None


def unready(*, is_connected: bool, watching: bool, leading: bool, settled: bool) -> str | None:
    """Return why the operator is not ready, or None.

    Args:
        is_connected: the API server responds.
        watching: a watch has received the Lease.
        leading: this operator is the leader.
        settled: every service has been reconciled since this operator became the leader.
    """
    if not is_connected:
        return "the API server does not respond"
    if not watching:
        return "the watches have received no event yet"
    if leading and not settled:
        return "not every service has been reconciled since this operator became the leader"
    return None
