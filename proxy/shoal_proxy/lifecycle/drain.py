"""Lifecycle states of a proxy, from serving to stopped.

    state      accepts  ready  keeps connections   next
    SERVING    yes      yes    yes                 STAYING on SIGTERM or POST /drain
    STAYING    yes      yes    no                  LEAVING when another replica is ready, or at the time-out (`stay`)
    LEAVING    yes      no     no                  DRAINING after the drain delay: routers have observed it by then
    DRAINING   no       no     no                  STOPPED when nothing waits or runs, or at the time-out
    STOPPED    no       no     no                  -

From STAYING on every response carries ``Connection: close``, so that clients move to other replicas before this one
stops accepting. In DRAINING a new request on an open connection gets 503; requests accepted before are finished.
"""

from enum import StrEnum


class ProxyPhase(StrEnum):
    """The state of the proxy between serving and stopped."""

    SERVING = "serving"
    STAYING = "staying"
    LEAVING = "leaving"
    DRAINING = "draining"
    STOPPED = "stopped"


# Tuples: a look-up in a set would hash the member, which for an enum runs Python code.
ACCEPTS = (ProxyPhase.SERVING, ProxyPhase.STAYING, ProxyPhase.LEAVING)
READY = (ProxyPhase.SERVING, ProxyPhase.STAYING)
KEEPS_CONNECTIONS = (ProxyPhase.SERVING,)


def unready_reason(phase: ProxyPhase, runtime_reason: str) -> str:
    """Return why this proxy must receive no traffic; empty if it is ready."""
    if phase not in READY:
        return f"proxy is {phase}"
    return runtime_reason
