"""What keeps in touch with runtimes, keys and files goes on, whatever happens to it."""

import asyncio

import pytest

from shoal_proxy.server import keep_watching


class Surprised:
    """Ends by these errors, one each time, and then goes on."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.watching = asyncio.Event()

    async def watch(self) -> None:
        if self.errors:
            raise self.errors.pop()
        self.watching.set()
        await asyncio.Event().wait()


def test_a_watcher_that_fails_is_logged_and_restarted(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        watcher = Surprised(OverflowError("of one kind"), TypeError("of another"))
        async with asyncio.timeout(10):
            task = asyncio.create_task(keep_watching(watcher, again_s=0))
            await watcher.watching.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()

    asyncio.run(main())
    assert [record.getMessage() for record in caplog.records] == ["event=watch_failed watcher=Surprised"] * 2


def test_one_that_has_nothing_to_watch_any_more_ends() -> None:
    class Done:
        async def watch(self) -> None:
            return

    asyncio.run(keep_watching(Done()))
