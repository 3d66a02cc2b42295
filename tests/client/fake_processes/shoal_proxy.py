"""Stands for ``python -m shoal_proxy``: a real server that writes down what happens to it."""

import os
import signal
import sys
from pathlib import Path
from threading import Thread

from tests.client.fake_server import Answer, Call, FakeServer, json_answer, v2

events = Path(os.environ["FAKE_EVENTS"])


def write(event: str) -> None:
    with events.open("a") as file:
        file.write(f"proxy {event}\n")


def address(variable: str) -> tuple[str, int]:
    host, _, port = os.environ[variable].rpartition(":")
    return host, int(port)


def runtime_lives() -> bool:
    """Return whether the last runtime that wrote down its number is ready and alive."""
    *_, life = events.read_text().split("runtime started ")
    number = life.partition("\n")[0]
    return "runtime ready" in life and Path("/proc", number).exists()


def readiness(call: Call) -> Answer:
    ready = call.path == "/readyz" and runtime_lives()
    return json_answer({"ready": ready, "reason": "the model is loading"}, 200 if ready else 503)


write(f"started {os.getpid()}")
if port := os.environ.get("SHOAL_PROXY_GRPC_PORT"):
    write(f"SHOAL_PROXY_GRPC_PORT={port}")
if os.environ.get("FAKE_PROXY") == "refuses":
    sys.exit("shoal-proxy: SHOAL_QUEUE_MAX_ROWS must be at least the max batch size 32, not 1")
# Before the threads, which leave it to this one.
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
for variable, handler in (("SHOAL_PROXY_LISTEN", v2()), ("SHOAL_PROXY_ADMIN_LISTEN", readiness)):
    server = FakeServer(handler, address(variable))
    Thread(target=server.http.serve_forever, daemon=True).start()
write("listening")
signal.sigwait({signal.SIGTERM})
while os.environ.get("FAKE_PROXY") == "hangs":
    write("ignored SIGTERM")
    signal.sigwait({signal.SIGTERM})
write("stopped")
