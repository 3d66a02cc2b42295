"""Liveness and readiness of the operator's process."""

HEARTBEAT_S = 20.0
"""Interval of renewals of the heartbeat, where it is not the leader's Lease."""
SILENCE_S = 90.0
"""A watch without an event for this long has stalled, as the Lease changes every 2 or 20 s."""
STUCK_S = 180.0
"""A reconciliation that takes this long is stuck, as each of its requests ends within 20 s."""


def diagnose(now_s: float, *, heard_s: float | None, in_touch: bool, began_s: float | None) -> str | None:
    """Return the fault of this process, or None.

    Args:
        now_s: monotonic time (s).
        heard_s: time at which a watch last received the Lease; None before the first time.
        in_touch: the API server responds. A restart does not help during an outage.
        began_s: start of the longest running reconciliation; None if there is none.
    """
    if heard_s is not None and now_s - heard_s > SILENCE_S and in_touch:
        return f"no watch event for {now_s - heard_s:.0f} s although the API server responds"
    if began_s is not None and now_s - began_s > STUCK_S:
        return f"a reconciliation has been running for {now_s - began_s:.0f} s"
    return None


def unready(*, in_touch: bool, heard: bool, leading: bool, settled: bool) -> str | None:
    """Return why this process is not ready, or None.

    Args:
        in_touch: the API server responds.
        heard: a watch has received the Lease.
        leading: this operator leads.
        settled: every service has been reconciled since it leads.
    """
    if not in_touch:
        return "the API server does not respond"
    if not heard:
        return "the watches have received no event yet"
    if leading and not settled:
        return "not every service has been reconciled since this operator became the leader"
    return None
