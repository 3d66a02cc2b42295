"""``make demo``, run and interrupted."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def demo(temporary: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "examples.demo"]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def processes_of(folder: Path) -> set[int]:
    """Return the processes that name the folder in their command, or have mounts from it, as pods have."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            details = (path / "cmdline").read_bytes() + (path / "mountinfo").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in details:
            found.add(int(path.name))
    return found


def test_the_demo_names_the_cat_and_counts_the_batches(tmp_path: Path) -> None:
    with demo(tmp_path) as process:
        output, errors = process.communicate(timeout=240)

    assert process.returncode == 0, errors
    assert re.search(r"cat +34 +(tabby|tiger cat|Egyptian cat)", output)
    assert "200 pictures from 32 callers" in output
    assert re.search(r"rows  #+", output)
    assert re.search(r"the rate is \d+\.\d times that of single pictures", output)
    assert "what bounds the rate with batches: " in output
    assert output.endswith("The cluster of this demo stops now.\n")
    assert re.search(r"inferenceservice.serving.shoal.dev/cat +True +Ready +1", output)
    assert not processes_of(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_demo_leaves_nothing_running(tmp_path: Path, number: signal.Signals) -> None:
    with demo(tmp_path) as process:
        assert process.stdout is not None
        while not (line := process.stdout.readline()).startswith("Ready"):
            assert line, process.communicate()
        started = processes_of(tmp_path)
        process.send_signal(number)
        process.communicate(timeout=60)

    assert len(started) >= 6  # the cluster's four parts, the operator, a proxy, a runtime
    assert process.returncode == (-9 if number == signal.SIGKILL else 130)
    deadline_s = time.monotonic() + 60
    while processes_of(tmp_path):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
