"""From serving to stopped, as a table.

    state      accepts  ready  keeps connections   next
    SERVING    yes      yes    yes                 LEAVING on SIGTERM or POST /drain
    LEAVING    yes      no     no                  DRAINING after the drain delay: routers have seen us unready by then
    DRAINING   no       no     no                  STOPPED when nothing waits or runs, or at the time-out
    STOPPED    no       no     no                  -

From LEAVING on every answer carries ``Connection: close``, so that callers move to other replicas before ours stop
accepting. In DRAINING a new request on a connection still open is answered 503; requests accepted before are finished.
"""

from enum import StrEnum


class Phase(StrEnum):
    """Where in its life the proxy is."""

    SERVING = "serving"
    LEAVING = "leaving"
    DRAINING = "draining"
    STOPPED = "stopped"


NEXT = {Phase.SERVING: Phase.LEAVING, Phase.LEAVING: Phase.DRAINING, Phase.DRAINING: Phase.STOPPED}
# Tuples: a look into a set would hash the member, which for an enum is Python code.
ACCEPTS = (Phase.SERVING, Phase.LEAVING)
KEEPS_CONNECTIONS = (Phase.SERVING,)


def unready_reason(phase: Phase, runtime_reason: str) -> str:
    """Return why this proxy should get no traffic, or nothing when it is ready."""
    if phase is not Phase.SERVING:
        return f"proxy is {phase}"
    return runtime_reason
