"""A runtime in a child process without a proxy, reached over a unix socket."""

import asyncio
import time
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

import httpx

from shoal.deadline import bounded, within
from shoal.directory import own_directory
from shoal.errors import ConnectionFailed, ShoalError, Unavailable
from shoal.exchange import mapped_errors, request_of, response_of
from shoal.outlet import Outlet
from shoal.processes import Process
from shoal.serving.errors import LocalError
from shoal.serving.supervision import Exit, cause, exit_message
from shoal.wire.messages import Request, Response, model_path
from shoal.wire.responses import json_body
from shoal.wire.signature import Signature, parse_signature

Result = TypeVar("Result")
STANDARD_ERROR = 2
DRAIN_TIMEOUT_S = 1.0
POLL_INTERVAL_S = 0.05
REQUEST_TIMEOUT_S = 5.0
EXIT_TIMEOUT_S = 10.0
"""Time in which a runtime with a lost device exits and logs the cause; a hung runtime never does."""


class LocalRuntime:
    """A runtime with one model in a child process, which ends when this process ends.

    Args:
        name: the model's name.
        environment: environment variables of the child process.

    Raises:
        LocalError: the runtime cannot load the model; the message is the runtime's.
    """

    def __init__(self, name: str, environment: Mapping[str, str]) -> None:
        self._name = name
        self._open = ExitStack()
        self._socket = Path(self._open.enter_context(own_directory()), "runtime.sock")
        self._environment = {**environment, "SHOAL_RUNTIME_LISTEN": f"unix:{self._socket}"}
        self._log = Outlet(STANDARD_ERROR)
        # The kernel ends a child with the thread that started it, so a thread of its own starts it and stays.
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="shoal-runtime", daemon=True)
        self._thread.start()
        transport = httpx.HTTPTransport(uds=str(self._socket))
        self._http = self._open.enter_context(bounded(httpx.Client(base_url="http://runtime", transport=transport)))
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Start the runtime and wait until it is ready.

        Raises:
            LocalError: the runtime exited before it was ready.
        """
        # A killed runtime leaves its socket behind.
        self._socket.unlink(missing_ok=True)
        self._served = False
        self._process = self._run(Process.start("shoal_runtime", self._environment, log=self._log)).result()
        self._exit: Future[int] = self._run(self._process.wait())
        while not self._served:
            if self._exit.done():
                raise LocalError(self.exit_report())
            time.sleep(POLL_INTERVAL_S)
            with suppress(ShoalError):  # not listening yet
                self._served = self.send(Request("GET", "/v2/health/ready"), REQUEST_TIMEOUT_S).status == 200

    def signature(self) -> Signature:
        """Request the model's inputs and outputs."""
        return parse_signature(json_body(self.send(Request("GET", model_path(self._name)), REQUEST_TIMEOUT_S)))

    def send(self, request: Request, timeout_s: float) -> Response:
        """Send a request and return the response.

        Raises:
            ShoalError: there is no response in time, or the process has exited.
        """
        with mapped_errors(timeout_s), within(timeout_s):
            return response_of(self._http.send(request_of(self._http.build_request, request, timeout_s)))

    def end(self, error: ShoalError) -> str:
        """End the runtime after a fatal error, and return the cause as a sentence."""
        # These errors mean that the runtime is exiting; after any other, it hangs.
        ending = isinstance(error, ConnectionFailed | Unavailable) or error.status == 503
        try:
            self._exit.result(EXIT_TIMEOUT_S if ending else 0)
        except TimeoutError:
            self._process.kill()
            self._exit.result()
            return f"{error.message}; the runtime was killed"
        return self.exit_report()

    def exit_report(self) -> str:
        """Return how and why the runtime ended, as a sentence."""
        return exit_message(Exit("runtime", self._exit.result(), cause(self._process.last_written), self._served))

    def close(self) -> None:
        """Kill the runtime and free all resources."""
        # The process may have failed to start.
        if hasattr(self, "_exit"):
            self._process.kill()
            self._exit.result()
        # The thread ends after the process: the kernel kills the child with its thread.
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._log.close(DRAIN_TIMEOUT_S)
        self._open.close()

    def _run(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)
