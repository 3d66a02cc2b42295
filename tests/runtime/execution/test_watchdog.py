import asyncio
import subprocess
import sys
import threading

import pytest

from shoal_runtime.errors import DeviceLost
from shoal_runtime.execution.executor import Executor
from shoal_runtime.execution.watchdog import Watchdog
from shoal_runtime.readiness import Readiness, RuntimePhase


def test_a_forward_is_overdue_only_past_its_limit() -> None:
    executor = Executor()
    watchdog = Watchdog(executor, Readiness(), limit_s=10, end=lambda _: None)

    assert watchdog.overdue(100) is None
    executor.busy_since_s = 90
    assert watchdog.overdue(100) is None
    assert watchdog.overdue(101) == "a forward runs longer than 10 s (SHOAL_RUNTIME_FORWARD_TIMEOUT_S)"
    assert executor.stop(5)


def test_a_stuck_forward_makes_the_runtime_unready_and_ends_it() -> None:
    executor, readiness = Executor(), Readiness()
    readiness.ready()
    release, ended = threading.Event(), threading.Event()
    last_lines: list[str] = []

    def end(line: str) -> None:
        last_lines.append(line)
        ended.set()

    watchdog = Watchdog(executor, readiness, limit_s=0.05, end=end)
    watchdog.start()

    with pytest.raises(DeviceLost, match=r"longer than 0\.05 s"):
        asyncio.run(executor.call(lambda: release.wait(20)))

    assert readiness.phase is RuntimePhase.LOST
    assert ended.wait(20)
    assert last_lines[0].startswith("the runtime cannot continue: a forward runs longer")
    release.set()
    watchdog.stop()
    assert executor.stop(5)


def test_a_lost_device_ends_the_process_at_once() -> None:
    executor, readiness, ended = Executor(), Readiness(), threading.Event()
    watchdog = Watchdog(executor, readiness, limit_s=60, end=lambda _: ended.set())
    watchdog.start()

    watchdog.lose("CUDA error: an illegal memory access was encountered")

    assert readiness.reason == "CUDA error: an illegal memory access was encountered"
    assert ended.wait(20)
    watchdog.stop()
    assert executor.stop(5)


def test_a_lost_device_is_never_ready_again() -> None:
    readiness = Readiness()

    readiness.lost("gone")
    readiness.ready()

    assert readiness.phase is RuntimePhase.LOST


def test_a_quiet_watchdog_stops_without_ending_anything() -> None:
    executor = Executor()
    ended: list[str] = []
    watchdog = Watchdog(executor, Readiness(), limit_s=60, end=ended.append)
    watchdog.start()

    watchdog.stop()

    assert ended == []
    assert executor.stop(5)


def test_a_thread_that_the_process_cannot_do_without_ends_it() -> None:
    executor, ended = Executor(), threading.Event()
    last_lines: list[str] = []

    def end(line: str) -> None:
        last_lines.append(line)
        ended.set()

    watchdog = Watchdog(executor, Readiness(), limit_s=60, end=end)
    worker = threading.Thread(target=watchdog.enlist, name="preprocess_0")
    worker.start()
    worker.join()
    watchdog.start()

    assert ended.wait(20)
    assert last_lines[0].startswith("the runtime cannot continue: the thread preprocess_0 ended")
    watchdog.stop()
    assert executor.stop(5)


def test_the_last_line_is_written_whatever_letters_it_holds() -> None:
    code = "from shoal_runtime.execution.watchdog import exit_now; exit_now('lost: \\ud800')"

    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, timeout=60)

    assert (ended.returncode, ended.stderr) == (4, b"shoal_runtime: lost: \\ud800\n")
