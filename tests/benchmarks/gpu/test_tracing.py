import sys
import threading
import time

import pytest

from benchmarks.gpu.tracing import idle_time, pauses, thread_shares


def event(kind: str, start_us: float, duration_us: float) -> dict[str, object]:
    return {"cat": kind, "ts": start_us, "dur": duration_us}


def test_short_pauses_are_no_idle_time() -> None:
    gaps, span_us = pauses([(0, 100), (110, 200), (300, 400)])

    assert gaps == [100]
    assert span_us == 400


def test_overlapping_work_counts_once() -> None:
    gaps, span_us = pauses([(0, 500), (100, 200), (450, 600), (700, 800)])

    assert (gaps, span_us) == ([100], 800)


def test_copies_occupy_the_device_but_compute_nothing() -> None:
    events = [
        event("kernel", 0, 400),
        event("gpu_memcpy", 400, 100),
        event("kernel", 500, 400),
        event("cpu_op", 0, 9e9),
    ]

    found = idle_time([*events, event("kernel", 900, 100)])

    assert found["device_idle"] == 0
    assert found["compute_idle"] == pytest.approx(0.1)


def test_a_trace_without_a_device_gives_nothing() -> None:
    assert idle_time([event("cpu_op", 0, 10), {"name": "metadata"}]) == {}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_share_of_a_core_is_known_by_kind_of_thread() -> None:
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            time.monotonic()

    threads = [threading.Thread(target=work, name=f"busy_{number}") for number in range(2)]
    for thread in threads:
        thread.start()
    shares = thread_shares(0.2)
    ended.set()
    for thread in threads:
        thread.join()

    assert shares["busy"] > 0
    assert shares.get("MainThread", 0.0) < shares["busy"]
