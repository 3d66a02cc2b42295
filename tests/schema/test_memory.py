"""What glibc does with freed memory; in a process of its own, because it cannot be undone."""

import platform
import subprocess
import sys

import pytest

PAGES_OF_A_SECOND_BLOCK = """
import resource, sys, threading
from shoal_schema.process.memory import KEEP_BODIES, KEEP_TENSORS, keep_freed_memory, return_freed_memory

def faults_of_a_block():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    memory = bytearray(80 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def measure():
    faults_of_a_block()
    if "return" in sys.argv:
        return_freed_memory()
    print(faults_of_a_block())

for word, options in (("tensors", KEEP_TENSORS), ("bodies", KEEP_BODIES)):
    if word in sys.argv:
        keep_freed_memory(options)
# As the device's: glibc treats the first thread's memory differently.
thread = threading.Thread(target=measure)
thread.start()
thread.join()
"""
PAGES = (80 << 20) // 4096


def faults(*words: str) -> int:
    """Return the page faults of a large block whose like has just been freed."""
    command = [sys.executable, "-c", PAGES_OF_A_SECOND_BLOCK, *words]
    return int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left alone")
@pytest.mark.integration
def test_a_large_block_finds_the_pages_of_the_last_one() -> None:
    assert faults("tensors") < PAGES / 100


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left alone")
@pytest.mark.integration
def test_what_loading_freed_goes_back_once() -> None:
    assert faults("keep", "return") > faults("tensors") + 100
