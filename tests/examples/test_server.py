import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from examples.server import Server, ServerError, free_ports, start, stop, tail, wait_until_ready

UNREACHABLE = Server("http://127.0.0.1:1", "http://127.0.0.1:1", pid=0)


def test_free_ports_differ() -> None:
    assert len(set(free_ports(20))) == 20


def test_the_tail_is_the_end_of_a_long_log_whatever_its_bytes() -> None:
    with tempfile.TemporaryFile() as log:
        log.write(b"\xff" * 100_000 + b"\n" + b"\n".join(b"%d" % n for n in range(100)))

        assert tail(log).splitlines() == [str(n) for n in range(85, 100)]


def test_a_server_that_ends_is_reported_with_its_log() -> None:
    with tempfile.TemporaryFile() as log:
        process = start([sys.executable, "-c", "import sys; sys.exit('no model at x')"], log)

        with pytest.raises(ServerError, match=r"ended with status 1(?s:.*)no model at x"):
            wait_until_ready(UNREACHABLE, process, log, timeout_s=60)


def test_a_server_that_never_gets_ready_is_reported() -> None:
    with tempfile.TemporaryFile() as log:
        process = start(["sleep", "60"], log)
        try:
            with pytest.raises(ServerError, match=r"not ready within 0 s"):
                wait_until_ready(UNREACHABLE, process, log, timeout_s=0)
        finally:
            stop(process)
        assert process.returncode is not None


@pytest.mark.integration
@pytest.mark.skipif(sys.platform != "linux", reason="parent-death signals exist on Linux only")
def test_a_killed_program_takes_its_server_along(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from examples.server import start\n"
        f"process = start(['sleep', '60'], open({str(tmp_path / 'log')!r}, 'wb'))\n"
        f"Path({str(pid_file)!r}).write_text(str(process.pid))\n"
        "print('started', flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"started\n"
        parent.kill()

    deadline_s = time.monotonic() + 10
    while is_running(int(pid_file.read_text())):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
