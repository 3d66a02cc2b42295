import subprocess
import sys

import pytest

from benchmarks.processes import PROC

pytestmark = [pytest.mark.integration, pytest.mark.skipif(not PROC.exists(), reason="reads /proc")]

# In a process of its own, because it adopts and kills whatever its children leave behind.
HARNESS = """
import os, subprocess, sys
from benchmarks.peers.running import adopt_orphans, children, descendants, stop
from benchmarks.processes import PROC

SLEEP = "import time; time.sleep(60)"
FAMILY = '''
import subprocess, sys
child = subprocess.Popen([sys.executable, "-S", "-c", {child!r}], start_new_session=True)
print(child.pid, flush=True)
{then}
'''

def start_family(then):
    code = FAMILY.format(child=SLEEP, then=then)
    process = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, text=True)
    return process, int(process.stdout.readline())

def is_alive(pid):
    return (PROC / str(pid)).exists()

adopt_orphans()
"""


def run_harness(code: str) -> None:
    subprocess.run([sys.executable, "-c", HARNESS + code], check=True, timeout=30)


def test_a_family_ends_whatever_sessions_it_moved_to() -> None:
    run_harness("""
process, child = start_family(SLEEP)
assert child in descendants(process.pid)
stop(process)
assert not is_alive(child)
""")


def test_what_a_dead_parent_left_behind_ends_too() -> None:
    run_harness("""
process, child = start_family("")
process.wait()
assert child in children(os.getpid())
stop(process)
assert not is_alive(child)
""")
