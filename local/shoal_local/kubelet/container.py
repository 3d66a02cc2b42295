"""A container of a pod across all its runs, with its state on disk."""

import asyncio
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from shoal_local.kubelet.container_spec import TERMINATION_LOG
from shoal_local.kubelet.containers import Exit, Member, ObservedContainer, next_streak
from shoal_local.kubelet.probing import Kind, Prober
from shoal_local.kubelet.records import PodRecord, read_json
from shoal_local.kubelet.runs import Run
from shoal_local.kubelet.shim import write_json
from shoal_local.objects import Object

MAX_MESSAGE_BYTES, MAX_MESSAGE_LINES = 4096, 80
_MAX_FALLBACK_BYTES = 2048


@dataclass(slots=True)
class ProbeResults:
    """The results of the startup and readiness probes of a container's run."""

    started: bool = False
    ready: bool = False
    healthy: bool = True


class Container:
    """A container, its current run and its probes."""

    def __init__(self, member: Member, record: PodRecord, on_change: Callable[[], None]) -> None:
        self.member = member
        self.run: Run | None = None
        self.stopping = False
        self.waiting: tuple[str, str] | None = None
        self.retry_at = 0.0
        self.verdicts = ProbeResults()
        self._record = record
        self._on_change = on_change
        self._attempt = -1
        self._streak = 0
        self._previous: Exit | None = None
        self._ended: Exit | None = None
        self._probing: asyncio.Task[None] | None = None
        self._waiting: asyncio.Task[None] | None = None

    @property
    def next_attempt(self) -> int:
        """Return the number of the next run."""
        return self._attempt + 1

    def adopt(self) -> None:
        """Restore the state on disk and adopt the run of an earlier kubelet."""
        known = read_json(self._record.container(self.member.name) / "state.json")
        if known is None:
            return
        # Written before each run, so this is the latest run.
        self._attempt, self._streak = known["attempt"], known["streak"]
        self._previous = Exit(**known["previous"]) if known["previous"] else None
        self.run = Run.adopt(self._record.run(self.member.name, self._attempt))
        if self.run is None:
            # The earlier kubelet was killed after it wrote the state and before it started the run.
            self._attempt -= 1
            self._ended = self._previous
        else:
            self._follow(self.run)

    def start(self, container: Object, now: float) -> Run:
        """Start the next run."""
        ended = self._exit()
        if ended is not None:
            self._streak = next_streak(self._streak, ended.finished_at - ended.started_at)
        self._previous, self._ended = ended, None
        self._attempt += 1
        self.stopping, self.waiting, self.retry_at = False, None, 0.0
        self.verdicts = ProbeResults()
        state = {"attempt": self._attempt, "streak": self._streak, "previous": asdict(ended) if ended else None}
        # Written before the start: after a kill in between, the next kubelet counts no run twice.
        write_json(self._record.container(self.member.name) / "state.json", state)
        self.run = Run.start(self._record.run(self.member.name, self._attempt), container)
        self._follow(self.run)
        return self.run

    def _follow(self, run: Run) -> None:
        async def until_ended() -> None:
            await run.ended.wait()
            self.stop_probing()
            self._on_change()

        self._waiting = asyncio.create_task(until_ended())

    def probe(self, prober: Prober, *, started: bool = False, ready: bool = False) -> None:
        """Start to probe the current run."""

        def report(kind: Kind, *, verdict: bool) -> None:
            if kind is Kind.READINESS:
                self.verdicts.ready = verdict
            elif not verdict:
                self.verdicts.healthy = False
            elif kind is Kind.STARTUP:
                self.verdicts.started = True
            self._on_change()

        self._probing = asyncio.create_task(prober.run(report, started=started, ready=ready))

    def stop_probing(self) -> None:
        """Stop the probes."""
        if self._probing is not None:
            self._probing.cancel()

    def release(self) -> None:
        """Stop following the current run; its process continues."""
        self.stop_probing()
        if self._waiting is not None:
            self._waiting.cancel()

    def observe(self, now: float) -> ObservedContainer:
        """Return the state of the container now."""
        running = self.run is not None and not self.run.ended.is_set()
        # The shim may not have recorded the start yet.
        since = (self.run.started_at or now) if running and self.run else None
        return ObservedContainer(
            attempt=self._attempt,
            running_since=since,
            exit=self._exit(),
            previous=self._previous,
            streak=self._streak,
            started=self.verdicts.started,
            ready=self.verdicts.ready,
            healthy=self.verdicts.healthy,
            stopping=self.stopping,
            waiting=self.waiting,
            retry_at=self.retry_at,
        )

    def _exit(self) -> Exit | None:
        """Return how the latest run ended, with its termination message."""
        if self._ended is None and self.run is not None and (found := self.run.exit):
            message = found.message
            if not message:
                try:
                    text = (self.run.directory / TERMINATION_LOG).read_bytes()[-MAX_MESSAGE_BYTES:]
                except FileNotFoundError:
                    text = b""
                policy, log = self.member.spec.get("terminationMessagePolicy"), self.run.directory / "log"
                if not text and found.code and policy == "FallbackToLogsOnError" and log.exists():
                    # A line of the log is: time, stream, tag, text.
                    lines = log.read_bytes()[-16 * MAX_MESSAGE_BYTES :].splitlines()[-MAX_MESSAGE_LINES:]
                    text = b"\n".join(line.split(b" ", 3)[-1] for line in lines)[-_MAX_FALLBACK_BYTES:]
                message = text.decode(errors="replace").strip()
            self._ended = replace(found, message=message)
        return self._ended
