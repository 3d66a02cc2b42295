"""Probes one run of a container for as long as it lives."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from shoal_local.kubelet.attempts import Attempts
from shoal_local.kubelet.probes.gauge import Gauge, Kind, Timing

Object = dict[str, Any]
Complain = Callable[[Kind, str], None]


class Report(Protocol):
    """Takes in what a probe says."""

    def __call__(self, kind: Kind, *, verdict: bool) -> None:
        """Take in a verdict."""


class Prober:
    """Runs a container's probes; startup holds the others back."""

    def __init__(self, attempts: Attempts, container: Object, address: str, complain: Complain) -> None:
        self._attempts = attempts
        self._container = container
        self._address = address
        self._complain = complain

    async def run(self, report: Report, *, started: bool = False, ready: bool = False) -> None:
        """Report verdicts until cancelled. ``started`` and ready are the last verdicts of an earlier kubelet."""
        held_back = Kind.STARTUP in self._container and not started
        if held_back and not await self._started(report):
            return
        report(Kind.STARTUP, verdict=True)
        if ready or Kind.READINESS not in self._container:
            report(Kind.READINESS, verdict=True)
        async with asyncio.TaskGroup() as group:
            for kind, verdict in ((Kind.LIVENESS, None), (Kind.READINESS, ready or None)):
                if kind in self._container:
                    group.create_task(self._watch(kind, report, verdict=verdict))

    async def _started(self, report: Report) -> bool:
        gauge = self._begin(Kind.STARTUP)
        while gauge.verdict is None:
            gauge = await self._next(Kind.STARTUP, gauge)
        if not gauge.verdict:
            report(Kind.STARTUP, verdict=gauge.verdict)
        return gauge.verdict

    async def _watch(self, kind: Kind, report: Report, *, verdict: bool | None) -> None:
        gauge = self._begin(kind, verdict=verdict)
        while True:
            before = gauge.verdict
            gauge = await self._next(kind, gauge)
            if gauge.verdict is not None and gauge.verdict != before:
                report(kind, verdict=gauge.verdict)

    def _begin(self, kind: Kind, *, verdict: bool | None = None) -> Gauge:
        now_s = asyncio.get_running_loop().time()
        return Gauge.begin(Timing.of(self._container[kind]), now_s, verdict=verdict)

    async def _next(self, kind: Kind, gauge: Gauge) -> Gauge:
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(max(0.0, gauge.due_s - clock()))
        probe, container = self._container[kind], self._container
        trouble = await self._attempts.make(probe, self._address, container, gauge.timing.timeout_s)
        if trouble:
            self._complain(kind, trouble)
        return gauge.after(success=not trouble, now_s=clock())
