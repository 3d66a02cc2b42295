"""Probes of one run of a container."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Self

import httpx

Object = Mapping[str, Any]


class Kind(StrEnum):
    """The kind of a probe; the value is its field in a container's spec."""

    STARTUP = "startupProbe"
    LIVENESS = "livenessProbe"
    READINESS = "readinessProbe"


@dataclass(frozen=True, slots=True)
class ProbeState:
    """Results of a probe.

    ``verdict`` is None until enough consecutive results agree.
    """

    probe: Object
    """The probe's spec, in which the API server sets the defaults."""
    scheduled_s: float
    """Loop time of the next attempt."""
    verdict: bool | None = None
    last: bool | None = None
    in_a_row: int = 0

    @classmethod
    def begin(cls, probe: Object, now_s: float, *, verdict: bool | None = None) -> Self:
        """Return the state before the first attempt.

        If a ``verdict`` of an earlier kubelet is given, the initial delay is skipped.
        """
        delay_s = probe.get("initialDelaySeconds", 0) if verdict is None else 0
        return cls(probe, now_s + delay_s, verdict)

    def after(self, *, success: bool, now_s: float) -> "ProbeState":
        """Return the state after an attempt that ended now."""
        count = self.in_a_row + 1 if success == self.last else 1
        needed = self.probe["successThreshold" if success else "failureThreshold"]
        verdict = success if count >= needed else self.verdict
        # A slow attempt delays the next one; missed periods are skipped.
        scheduled_s = max(self.scheduled_s + self.probe["periodSeconds"], now_s)
        return replace(self, scheduled_s=scheduled_s, verdict=verdict, last=success, in_a_row=count)


class ProbeClient:
    """An HTTP client that probes containers."""

    def __init__(self) -> None:
        # Probes must see what a new client sees: no kept connections, no proxies, any certificate.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._http = httpx.AsyncClient(verify=False, trust_env=False, limits=limits)

    async def attempt(self, probe: Object, address: str, container: Object, timeout_s: float) -> str:
        """Probe a container once; return '' on success, otherwise the failure."""
        if "httpGet" not in probe:
            kind = ", ".join(key for key in ("exec", "grpc", "tcpSocket") if key in probe)
            return f"{kind} is not supported by the kubelet of shoal local. Use httpGet"
        try:
            async with asyncio.timeout(timeout_s):
                spec = probe["httpGet"]
                host, scheme = spec.get("host") or address, (spec.get("scheme") or "HTTP").lower()
                path = (spec.get("path") or "/").removeprefix("/")
                port, ports = spec["port"], {p.get("name"): p["containerPort"] for p in container.get("ports") or []}
                if isinstance(port, str) and port not in ports:
                    return f"the container has no port named {port!r}"
                url = f"{scheme}://{host}:{ports[port] if isinstance(port, str) else port}/{path}"
                own = [(h["name"], h["value"]) for h in spec.get("httpHeaders") or []]
                headers = [("user-agent", "kube-probe/shoal"), *own]
                response = await self._http.get(url, headers=headers, timeout=None)
        except TimeoutError:
            return f"timed out after {timeout_s:g} s"
        except (OSError, httpx.HTTPError, ValueError) as error:
            return f"{type(error).__name__}: {error}"
        if 200 <= response.status_code < 400:
            return ""
        return f"HTTP probe failed with statuscode: {response.status_code}"


OnFailure = Callable[[Kind, str], None]
Report = Callable[[Mapping[Kind, bool]], None]
"""Receives the new verdicts of probes."""


@dataclass(frozen=True, slots=True)
class Prober:
    """The probes of a container; startup must succeed before the others start."""

    probe_client: ProbeClient
    container: Object
    address: str
    on_failure: OnFailure

    async def run(self, report: Report, *, started: bool = False, ready: bool = False) -> None:
        """Report verdicts until cancelled. ``started`` and ``ready`` are the last verdicts of an earlier kubelet."""
        if Kind.STARTUP in self.container and not started:
            state = self._begin(Kind.STARTUP)
            while state.verdict is None:
                state = await self._next(Kind.STARTUP, state)
            if not state.verdict:
                report({Kind.STARTUP: False})
                return
        report({Kind.STARTUP: True})
        if ready or Kind.READINESS not in self.container:
            report({Kind.READINESS: True})
        async with asyncio.TaskGroup() as group:
            # A readiness that an earlier kubelet established stays until probes disagree.
            for kind, verdict in ((Kind.LIVENESS, None), (Kind.READINESS, ready or None)):
                if kind in self.container:
                    group.create_task(self._watch(kind, report, verdict=verdict))

    async def _watch(self, kind: Kind, report: Report, *, verdict: bool | None) -> None:
        state = self._begin(kind, verdict=verdict)
        while True:
            before = state.verdict
            state = await self._next(kind, state)
            if state.verdict is not None and state.verdict != before:
                report({kind: state.verdict})

    def _begin(self, kind: Kind, *, verdict: bool | None = None) -> ProbeState:
        now_s = asyncio.get_running_loop().time()
        return ProbeState.begin(self.container[kind], now_s, verdict=verdict)

    async def _next(self, kind: Kind, state: ProbeState) -> ProbeState:
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(max(0.0, state.scheduled_s - clock()))
        timeout_s = state.probe["timeoutSeconds"]
        failure = await self.probe_client.attempt(state.probe, self.address, self.container, timeout_s)
        if failure:
            self.on_failure(kind, failure)
        return state.after(success=not failure, now_s=clock())
