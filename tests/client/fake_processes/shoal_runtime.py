"""Stands for ``python -m shoal_runtime``: does what FAKE_RUNTIME says, writes down what happens."""

import os
import signal
import subprocess
import sys
from pathlib import Path

events = Path(os.environ["FAKE_EVENTS"])
behaviour = os.environ.get("FAKE_RUNTIME", "runs")


def write(event: str) -> None:
    with events.open("a") as file:
        file.write(f"runtime {event}\n")


lives_before = events.read_text().count("runtime started") if events.exists() else 0
write(f"started {os.getpid()}")
for name in ("SHOAL_MODEL_URI", "SHOAL_MODEL_NAME", "SHOAL_BATCHING_MAX_BATCH_SIZE"):
    write(f"{name}={os.environ.get(name)}")
if behaviour == "cannot load":
    why = "CRITICAL shoal_runtime.serving the model cannot be loaded: model.pt2 is no exported program"
    sys.stderr.write(f"reading weights\n2026-11-21T03:44:01.703Z {why}\n")
    sys.exit(3)
if behaviour == "crashes while it loads":
    os.kill(os.getpid(), signal.SIGSEGV)
if behaviour == "loses its device once" and lives_before == 0:
    sys.stderr.write("shoal_runtime: the device is lost\n")
    sys.exit(4)
if behaviour == "leaves children":
    for apart in (False, True):
        child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=apart)
        write(f"child started {child.pid}")
if behaviour == "prints":
    sys.stdout.write("printed by the model\n")
if behaviour == "writes a lot":
    for _ in range(64):
        os.write(2, b"x" * 65535 + b"\n")
# Waited for, not handled: a handler that sets an Event stands still if its own thread is just looking at the Event.
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
write("ready")
signal.sigwait({signal.SIGTERM})
write("stopped")
