"""Life of the runtime's process: listen, load, serve, stop.

start    listen -> load and warm up in the device's thread -> ready
SIGTERM  continue to serve -> the last connection closes, or the timeout -> unload -> exit 0
failure  exit 3 if the model cannot be loaded; the watchdog exits with 4 if the device is lost
"""

import asyncio
import inspect
import logging
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from shoal_runtime.errors import EXIT_LOAD_FAILED, LoadError
from shoal_runtime.execution.executor import Executor
from shoal_runtime.execution.garbage import seldom_collected
from shoal_runtime.execution.watchdog import Watchdog
from shoal_runtime.faults import describe, own_traceback
from shoal_runtime.http.connection_limits import ConnectionBounds, max_connections
from shoal_runtime.http.listening import Connections, open_socket
from shoal_runtime.http.server import App, ServedModel
from shoal_runtime.importing import HandlerFailed
from shoal_runtime.readiness import Readiness
from shoal_runtime.settings import Settings

if TYPE_CHECKING:
    from shoal_runtime.startup.starting import StartedModel


UNLOAD_TIMEOUT_S: Final = 10.0

logger = logging.getLogger(__name__)


class Runtime:
    """Server process of one model, until a signal."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.readiness = Readiness()
        self._executor = Executor()
        self._watchdog = Watchdog(self._executor, self.readiness, limit_s=settings.runtime.forward_timeout_seconds)
        self._pool = ThreadPoolExecutor(settings.runtime.preprocess_threads, "preprocess", self._watchdog.enlist)
        self._app = App(self.readiness, max_body_bytes=settings.process.max_body_bytes)
        self._stopping = asyncio.Event()
        self._empty = asyncio.Event()
        process = settings.process
        bounds = ConnectionBounds(
            process.max_body_bytes,
            process.max_head_bytes,
            process.head_timeout_s,
            process.transfer_timeout_s,
            process.min_bytes_per_s,
            max_connections=max_connections(),
        )
        self._connections = Connections(self._app, open_socket(process.listen), on_empty=self._empty.set, bounds=bounds)
        self._started: StartedModel | None = None
        self.clean = True
        """Whether every thread has ended; if not, the process must exit without waiting for them."""

    async def run(self) -> int:
        """Load and serve the model until a signal; return the exit status."""

        def on_signal(number: int) -> None:
            logger.info("event=stopping signal=%s", signal.Signals(number).name)
            if self._stopping.is_set() and number == signal.SIGINT:
                # A second Ctrl-C: do not wait for connections.
                self._empty.set()
            self._stopping.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, on_signal, number)
        compiled = "no" if inspect.isfunction(App.serve) else "yes"
        address, reach = await self._connections.listen()
        logger.info("event=listening address=%s reach=%s compiled=%s", address, reach, compiled)
        start = asyncio.create_task(self._start())
        stop = asyncio.create_task(self._stopping.wait())
        try:
            # A signal may arrive while the model loads.
            await asyncio.wait((start, stop), return_when=asyncio.FIRST_COMPLETED)
            if start.done() and not start.result():
                return EXIT_LOAD_FAILED
            await stop
            if len(self._connections):
                # The event may be set from an earlier moment without connections.
                self._empty.clear()
                try:
                    async with asyncio.timeout(self._settings.process.shutdown_timeout_s):
                        await self._empty.wait()
                except TimeoutError:
                    logger.warning("event=connections_still_open count=%d", len(self._connections))
            return 0
        finally:
            for task in (start, stop):
                task.cancel()
            await self._close()

    async def _start(self) -> bool:
        def load() -> tuple["StartedModel", ServedModel]:
            with seldom_collected():
                # Importing torch takes seconds, in which health requests are answered already.
                from shoal_runtime.execution.pipeline import StageThreads  # noqa: PLC0415
                from shoal_runtime.startup.starting import serve_model, start_model  # noqa: PLC0415

                started = start_model(self._settings, self.readiness)
            lanes = StageThreads(self._executor, self._pool, self._settings.runtime.preprocess_threads)
            version = self._settings.model.version
            return started, serve_model(started, version, lanes, self._watchdog.lose)

        try:
            started, served = await self._executor.call(load, watched=False)
        except Exception as error:
            if isinstance(error, LoadError):
                log_cause(error)
            else:
                logger.exception("event=loading_failed_inside_the_runtime")
            why = str(error) if isinstance(error, LoadError) else describe(error)
            logger.critical("the model cannot be loaded: %s", why)
            return False
        self._started = started
        if started.model.forward_timeout_s is not None:
            self._watchdog.limit_s = started.model.forward_timeout_s
        self._app.serve(served)
        self._watchdog.start()
        self.readiness.ready()
        return True

    async def _close(self) -> None:
        self.readiness.stopping()
        self._watchdog.stop()
        await self._connections.close()
        if self._started is not None:
            unload = getattr(self._started.model.handler, "unload", None)
            try:
                if unload is not None:
                    async with asyncio.timeout(UNLOAD_TIMEOUT_S):
                        await self._executor.call(unload, watched=False)
            except TimeoutError:
                logger.warning("event=unload_took_too_long limit_s=%g", UNLOAD_TIMEOUT_S)
            except Exception:
                logger.exception("event=unload_failed")
        self._pool.shutdown(wait=False, cancel_futures=True)
        # A thread that still loads cannot be stopped.
        loading = self._started is None
        self.clean = self._executor.stop(0 if loading else UNLOAD_TIMEOUT_S)


def log_cause(error: LoadError) -> None:
    """Log the traceback of an error that the handler's own code raised."""
    if isinstance(error, HandlerFailed) and error.__cause__ is not None:
        logger.error("event=model_code_failed traceback=\n%s", own_traceback(error.__cause__))
