"""One container of a pod over all its runs. What was observed, kept on disk as far as it must outlive us."""

import asyncio
from collections.abc import Callable
from dataclasses import asdict, dataclass

from shoal_local.kubelet.container_spec import TERMINATION_LOG
from shoal_local.kubelet.containers import Exit, Member, Observed, next_streak
from shoal_local.kubelet.probing import Kind, Prober
from shoal_local.kubelet.records import PodRecord, read_json, write_json
from shoal_local.kubelet.runs import Run
from shoal_local.objects import Object

MAX_MESSAGE_BYTES, MAX_MESSAGE_LINES = 4096, 80
_MAX_FALLBACK_BYTES = 2048


@dataclass(slots=True)
class Verdicts:
    """What probes say of the present run."""

    started: bool = False
    ready: bool = False
    healthy: bool = True


class Container:
    """A container, its present run and its probes."""

    def __init__(self, member: Member, record: PodRecord, on_change: Callable[[], None]) -> None:
        self.member = member
        self.run: Run | None = None
        self.stopping = False
        self.waiting: tuple[str, str] | None = None
        self.retry_at = 0.0
        self.verdicts = Verdicts()
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
        """Return the number of the run to come."""
        return self._attempt + 1

    def adopt(self) -> None:
        """Take over what an earlier kubelet left."""
        known = read_json(self._record.container(self.member.name) / "state.json")
        if known is None:
            return
        self._attempt, self._streak = known["attempt"], known["streak"]
        self._previous = Exit(**known["previous"]) if known["previous"] else None
        self.run = Run.adopt(self._record.run(self.member.name, self._attempt))
        if self.run is None:
            # Killed between the note and the start: that run never was.
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
        self.verdicts = Verdicts()
        state = {"attempt": self._attempt, "streak": self._streak, "previous": asdict(ended) if ended else None}
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
        """Begin to probe the present run."""

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
        """Leave the run to itself."""
        self.stop_probing()
        if self._waiting is not None:
            self._waiting.cancel()

    def observed(self, now: float) -> Observed:
        """Return what is known by now."""
        running = self.run is not None and not self.run.ended.is_set()
        since = (self.run.started_at or now) if running and self.run else None
        return Observed(
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
        if self._ended is None and self.run is not None and (found := self.run.exit):
            values = asdict(found)
            values["message"] = found.message or self._last_words(self.run, found)
            self._ended = Exit(**values)
        return self._ended

    def _last_words(self, run: Run, ended: Exit) -> str:
        """Return the termination message. The file's, or the end of the log where the spec says so."""
        try:
            text = (run.directory / TERMINATION_LOG).read_bytes()[-MAX_MESSAGE_BYTES:]
        except FileNotFoundError:
            text = b""
        policy, log = self.member.spec.get("terminationMessagePolicy"), run.directory / "log"
        if not text and ended.code and policy == "FallbackToLogsOnError" and log.exists():
            lines = log.read_bytes()[-16 * MAX_MESSAGE_BYTES :].splitlines()[-MAX_MESSAGE_LINES:]
            text = b"\n".join(line.split(b" ", 3)[-1] for line in lines)[-_MAX_FALLBACK_BYTES:]
        return text.decode(errors="replace").strip()
