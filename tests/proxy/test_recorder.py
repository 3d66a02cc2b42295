"""Recordings of what arrives: readers come, go and stall, and none of them costs the others anything."""

import asyncio

import pytest

from shoal_proxy.batching.pending import BatchKey
from shoal_proxy.observe import recorder as recorder_module
from shoal_proxy.observe.recorder import HEADER, Recorder
from tests.proxy.signatures import request


def test_each_of_two_readers_gets_what_arrives_while_it_reads() -> None:
    async def record() -> tuple[str, int]:
        recorder = Recorder()
        first, second = recorder.lines(60), recorder.lines(60)
        await anext(first)
        await anext(second)
        await second.aclose()  # type: ignore[attr-defined]
        recorder.arrived(request(3, key=BatchKey(shapes=(("x", (2, 4)),))))
        text = await anext(first)
        await first.aclose()  # type: ignore[attr-defined]
        return text, len(recorder._recordings)

    text, left = asyncio.run(record())

    assert text.rstrip("\n").split(",")[1:] == ["3", "x:2x4", ""]
    assert left == 0, "a reader that has gone must not be recorded for"


def test_a_deadline_is_recorded_as_the_time_that_was_left() -> None:
    async def record() -> str:
        recorder = Recorder()
        lines = recorder.lines(60)
        assert await anext(lines) == ",".join(HEADER) + "\n"
        pending = request(1, arrived_s=5.0)
        pending.soft_deadline_s = 5.25
        recorder.arrived(pending)
        text = await anext(lines)
        await lines.aclose()  # type: ignore[attr-defined]
        return text

    assert asyncio.run(record()).endswith(",250.000\n")


def test_a_reader_that_stalls_costs_bounded_memory_and_its_recording_ends() -> None:
    async def record() -> tuple[int, list[str]]:
        recorder = Recorder()
        lines = recorder.lines(60)
        await anext(lines)
        pending = request(1)
        for _ in range(recorder_module._MAX_WAITING + 10):
            recorder.arrived(pending)
        return len(recorder._recordings[0].arrivals), [piece async for piece in lines]

    kept, pieces = asyncio.run(record())

    assert kept == recorder_module._MAX_WAITING
    assert len(pieces) == 1


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_a_recording_without_time_has_its_header_only(seconds: float) -> None:
    async def record() -> list[str]:
        return [piece async for piece in Recorder().lines(seconds)]

    assert asyncio.run(record()) == [",".join(HEADER) + "\n"]


def test_what_admission_sets_is_not_a_value_of_the_client() -> None:
    async def record() -> str:
        recorder = Recorder()
        lines = recorder.lines(60)
        await anext(lines)
        pending = request(1, arrived_s=5.0)
        recorder.arrived(pending)
        pending.soft_deadline_s = 5.1
        text = await anext(lines)
        await lines.aclose()  # type: ignore[attr-defined]
        return text

    assert asyncio.run(record()).endswith(",1,,\n")
