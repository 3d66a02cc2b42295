"""Detection of instances that are stopped or stuck."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from shoal_runtime.liveness import health_client, is_stopped, until_stopped, until_stuck
from shoal_schema.fields.addresses import Address

READY = b'{"ready": true}'


@pytest.mark.parametrize(
    ("stat", "expected"),
    [
        ("12 (python) S 1 2 3", False),
        ("12 (python) T 1 2 3", True),
        pytest.param("12 (python) t 1 2 3", False, id="traced by a debugger"),
        pytest.param("12 (a) T ) R 1 2 3", False, id="a name like a state"),
        ("", False),
    ],
)
def test_the_state_is_read_behind_the_name(stat: str, expected: bool) -> None:
    assert is_stopped(stat) is expected


def test_a_process_that_is_stopped_is_found_and_one_that_continues_is_not() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])

    async def main() -> str:
        try:
            stat = Path(f"/proc/{process.pid}/stat")
            found = asyncio.create_task(until_stopped(stat, stopped_s=0.2, check_s=0.01))
            process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(0.05)
            process.send_signal(signal.SIGCONT)
            await asyncio.sleep(0.3)
            assert not found.done()
            process.send_signal(signal.SIGSTOP)
            async with asyncio.timeout(20):
                return await found
        finally:
            process.kill()
            process.wait()

    assert "SIGSTOP" in asyncio.run(main())


class Instance:
    """An HTTP server on a Unix socket whose responses a test decides."""

    def __init__(self) -> None:
        self.respond: Callable[[], Awaitable[bytes]] = self.ready
        self.requests = 0
        self.over = asyncio.Event()

    async def ready(self) -> bytes:
        return READY

    async def never(self) -> bytes:
        await self.over.wait()
        return READY

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.requests += 1
        body = await self.respond()
        status = b"200 OK" if b'"ready": true' in body else b"503 Unavailable"
        writer.write(b"HTTP/1.1 %b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (status, len(body), body))
        writer.close()


async def watched(
    folder: Path, instance: Instance, act: Callable[["asyncio.Task[str]"], Awaitable[None]], limit_s: float = 0.1
) -> None:
    server = await asyncio.start_unix_server(instance.serve, folder / "s")
    async with health_client(Address(path=f"{folder}/s")) as client:
        found = asyncio.create_task(until_stuck(client, limit_s, margin_s=0.1, confirm_s=0.1, request_s=0.01))
        async with asyncio.timeout(20):
            await act(found)
        found.cancel()
        await asyncio.gather(found, return_exceptions=True)
    instance.over.set()
    server.close()
    await server.wait_closed()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*others, return_exceptions=True)


async def until_requests(instance: Instance, count: int) -> None:
    while instance.requests < count:  # noqa: ASYNC110 (the server has no event for it)
        await asyncio.sleep(0.005)


def test_an_instance_that_stops_to_respond_is_stuck(tmp_path: Path) -> None:
    instance = Instance()

    async def act(found: "asyncio.Task[str]") -> None:
        await until_requests(instance, 3)
        assert not found.done()
        instance.respond = instance.never
        assert "not responded" in await found

    asyncio.run(watched(tmp_path, instance, act))


def test_an_instance_that_was_never_ready_is_not_stuck(tmp_path: Path) -> None:
    """It imports libraries, loads or compiles, and may hold the lock of Python for long."""
    instance = Instance()

    async def loading() -> bytes:
        return b'{"ready": false, "reason": "loading"}'

    async def act(found: "asyncio.Task[str]") -> None:
        instance.respond = loading
        await until_requests(instance, 2)
        instance.respond = instance.never
        await until_requests(instance, 6)
        assert not found.done()

    asyncio.run(watched(tmp_path, instance, act))


def test_a_long_batch_within_its_limit_is_not_stuck(tmp_path: Path) -> None:
    instance = Instance()

    async def busy() -> bytes:
        await asyncio.sleep(0.3)
        return READY

    async def declares() -> bytes:
        return b'{"ready": true, "forward_timeout_s": 30}'

    async def act(found: "asyncio.Task[str]") -> None:
        instance.respond = declares
        await until_requests(instance, 2)
        instance.respond = busy
        await until_requests(instance, 5)
        assert not found.done(), "the model's own limit applies"

    asyncio.run(watched(tmp_path, instance, act))


def test_one_late_response_is_confirmed_before_the_instance_is_stuck(tmp_path: Path) -> None:
    """This process itself may have been paused."""
    instance = Instance()
    late = iter([True])

    async def once_late() -> bytes:
        return await instance.never() if next(late, False) else READY

    async def act(found: "asyncio.Task[str]") -> None:
        await until_requests(instance, 2)
        instance.respond = once_late
        await until_requests(instance, 8)
        assert not found.done()

    asyncio.run(watched(tmp_path, instance, act))


def test_an_instance_that_has_ended_is_not_stuck(tmp_path: Path) -> None:
    async def main() -> None:
        async with health_client(Address(path=f"{tmp_path}/none")) as client:
            with pytest.raises(httpx.TransportError):
                await client.get("/v2/health/ready")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await until_stuck(client, 0.01, margin_s=0.01, confirm_s=0.01, request_s=0.001)

    asyncio.run(main())
