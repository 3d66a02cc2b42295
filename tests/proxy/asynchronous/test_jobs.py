"""The table of asynchronous requests: each job ends once, and the bounds hold."""

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from shoal_proxy.asynchronous.jobs import Job, JobRequest, JobState, JobTable, has_room, tag_in, tag_of
from shoal_proxy.codecs.base import HttpResponse

MAX_JOBS, MAX_BYTES, RESULT_S, AGEING_S = 6, 100, 50.0, 10.0


class Jobs(RuleBasedStateMachine):
    """Any sequence of calls that the shell may make, with a hand-driven clock."""

    known = Bundle("known")

    def __init__(self) -> None:
        super().__init__()
        self.table = JobTable(max_jobs=MAX_JOBS, max_bytes=MAX_BYTES, result_s=RESULT_S, ageing_s=AGEING_S)
        self.now_s = 0.0
        self.number = 0
        self.ends: Counter[str] = Counter()
        self.alive: dict[str, Job] = {}

    def held_by(self, owner: str) -> list[int]:
        """Return the bytes of each job of a client; empty without access control."""
        return [each.held_bytes for each in self.alive.values() if owner and each.owner == owner]

    @rule(
        target=known, size=st.integers(0, 60), level=st.integers(0, 9), timeout_s=st.floats(1, 100),
        owner=st.sampled_from(["", "alice", "bob"]),
    )  # fmt: skip
    def accept(self, size: int, level: int, timeout_s: float, owner: str) -> object:
        self.number += 1
        job = Job(
            str(self.number), JobRequest("v2", {}, b"x" * size), rows=1 + size, level=level, owner=owner,
            accepted_s=self.now_s, deadline_s=self.now_s + timeout_s,
        )  # fmt: skip
        held_bytes, own = sum(each.held_bytes for each in self.alive.values()), self.held_by(owner)
        fits = len(self.alive) < MAX_JOBS and held_bytes + size <= MAX_BYTES
        if own:
            fits = fits and len(own) < MAX_JOBS - len(self.alive) and sum(own) + size <= MAX_BYTES - held_bytes
        assert (self.table.accept(job) == "") == fits
        if not fits:
            return multiple()
        self.table.enqueue(job)
        self.alive[job.id] = job
        return job

    @rule()
    def start(self) -> None:
        job = self.table.next_waiting()
        waiting = [each for each in self.alive.values() if each.state is JobState.WAITING]
        if job is None:
            assert not waiting
            return
        turns = [each.accepted_s + AGEING_S * each.level for each in waiting]
        assert job.accepted_s + AGEING_S * job.level == min(turns)
        self.table.start(job)
        assert job.state is JobState.STARTED

    @rule(job=known)
    def give_back(self, job: Job) -> None:
        if job.state is JobState.STARTED:
            self.table.give_back(job)

    @rule(job=known, size=st.integers(0, 120))
    def end(self, job: Job, size: int) -> None:
        if job.state is not JobState.STARTED:
            return
        held_bytes, own = sum(each.held_bytes for each in self.alive.values()), self.held_by(job.owner)
        more_bytes = size - job.held_bytes
        fits = held_bytes + more_bytes <= MAX_BYTES
        if len(own) > 1:
            fits = fits and sum(own) + more_bytes <= MAX_BYTES - held_bytes
        ended = self.table.end(job, HttpResponse(200, (b"y" * size,)), self.now_s)
        assert ended == (fits or size <= job.held_bytes)
        if ended:
            self.ends[job.id] += 1

    @rule(job=known)
    def drop(self, job: Job) -> None:
        self.table.drop(job)
        self.alive.pop(job.id, None)

    @rule(seconds=st.floats(0, 60))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        for job in self.table.overdue(self.now_s):
            assert job.deadline_s <= self.now_s
            assert self.table.end(job, HttpResponse(504, ()), self.now_s)
            self.ends[job.id] += 1
        expired = [job for job in self.alive.values() if job.ended_s + RESULT_S <= self.now_s]
        assert self.table.expire(self.now_s) == len(expired)
        for job in expired:
            del self.alive[job.id]
        assert not any(job.state is JobState.WAITING and job.deadline_s <= self.now_s for job in self.alive.values())

    @invariant()
    def bounds_hold(self) -> None:
        held = sum(job.held_bytes for job in self.alive.values())
        assert self.table.held_bytes == held <= MAX_BYTES
        assert len(self.table) == len(self.alive) <= MAX_JOBS
        assert all(count == 1 for count in self.ends.values())

    @invariant()
    def counts_agree(self) -> None:
        states = Counter(job.state for job in self.alive.values())
        assert (self.table.waiting, self.table.started) == (states[JobState.WAITING], states[JobState.STARTED])
        assert self.table.waiting_rows == sum(job.rows for job in self.alive.values() if job.state is JobState.WAITING)
        for job in self.alive.values():
            assert self.table.find(job.id) is job
            assert (job.response is not None) == (job.state is JobState.ENDED)


TestJobs = Jobs.TestCase


def test_room_in_the_scheduler_leaves_places_to_waiting_clients() -> None:
    assert has_room(0, 32, 1, 1024)
    assert not has_room(32, 32, 1, 1024)
    assert has_room(32, 32, 2, 1024)
    assert not has_room(16, 32, 1, 32)
    assert has_room(0, 1, 1, 1)


def test_a_client_leaves_room_for_others() -> None:
    table = JobTable(max_jobs=100, max_bytes=1000, result_s=RESULT_S, ageing_s=AGEING_S)

    def accepted(owner: str, size: int) -> int:
        """Return how many requests of a client are accepted."""
        jobs = (
            Job(f"{owner}{number}", JobRequest("v2", {}, b"x" * size), rows=1, owner=owner, accepted_s=0, deadline_s=1)
            for number in range(200)
        )
        return sum(table.accept(job) == "" for job in jobs)

    assert accepted("alice", 1) == 50
    assert accepted("bob", 38) == 13  # by bytes
    assert accepted("carol", 1) == 19
    assert accepted("dave", 500) == 0
    assert accepted("dave", 400) == 1


def test_an_id_names_its_replica() -> None:
    assert tag_in(f"{'0' * 32}-{tag_of(b'pod-1')}") == tag_of(b"pod-1") != tag_of(b"pod-2")
    assert tag_in("0" * 32) == ""
