import os
import subprocess
import sys

import pytest

from benchmarks.processes import (
    cpu_s,
    find_child,
    parse_cpu_ticks,
    parse_resident_bytes,
    resident_bytes,
)

STAT = "42 (python3) (x) S 1 42 42 0 -1 4194560 1 2 3 4 120 30 0 0 20 0 1 0 5 6 7"


def test_ticks_are_found_behind_any_name() -> None:
    assert parse_cpu_ticks(STAT) == 150
    assert parse_cpu_ticks(STAT.replace("python3", "a) R 9 9")) == 150


def test_resident_memory_is_told_in_bytes() -> None:
    assert parse_resident_bytes("VmPeak:\t  900 kB\nVmRSS:\t   50 kB\n") == 51_200


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_this_process_has_used_some_of_both() -> None:
    assert cpu_s(os.getpid()) > 0
    assert resident_bytes(os.getpid()) > 1_000_000


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_child_is_found_by_its_command_line() -> None:
    command = [sys.executable, "-c", "input()  # shoal-child"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        try:
            assert find_child(os.getpid(), "# shoal-child") == child.pid
        finally:
            child.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_child_that_is_not_there_is_an_error() -> None:
    with pytest.raises(LookupError, match="0 children with 'no-such-word'"):
        find_child(os.getpid(), "no-such-word")
