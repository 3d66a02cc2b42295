"""Whether a restart of this process would help, and whether it is ready."""

HEARTBEAT_S = 20.0
"""How often the heartbeat is renewed, where it is not the Lease that decides who writes."""
SILENCE_S = 90.0
"""A Lease changes every two seconds, or every twenty, so a watch that is silent for this long has stalled."""
STUCK_S = 180.0
"""No look at a service takes this long: each of its requests ends within 20 seconds."""


def diagnose(now_s: float, *, heard_s: float | None, in_touch: bool, began_s: float | None) -> str | None:
    """Return what is wrong with this process, or None.

    Args:
        now_s: monotonic time (s).
        heard_s: when a watch last brought the Lease; None before the first time.
        in_touch: whether the API server answers. An outage is not cured by a restart.
        began_s: when the longest look that is still running began; None when none is.
    """
    if heard_s is not None and now_s - heard_s > SILENCE_S and in_touch:
        return f"no watch event for {now_s - heard_s:.0f} s though the API server answers"
    if began_s is not None and now_s - began_s > STUCK_S:
        return f"a look at a service has not ended for {now_s - began_s:.0f} s"
    return None


def unready(*, in_touch: bool, heard: bool, leading: bool, settled: bool) -> str | None:
    """Return what this process has yet to do before it can be relied on, or None; a standby has little.

    Args:
        in_touch: the API server answers.
        heard: a watch has brought the Lease.
        leading: this operator writes.
        settled: it has looked at every service that there was when it began to lead.
    """
    if not in_touch:
        return "the API server does not answer"
    if not heard:
        return "the watches have brought nothing yet"
    if leading and not settled:
        return "not every service has been looked at since this operator leads"
    return None
