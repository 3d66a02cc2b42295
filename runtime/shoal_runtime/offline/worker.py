"""`python -m shoal_runtime engine FD`: a model that computes the batches it is given, in a process of its own.

The same stages run as online. It ends when whoever gave it the socket does.
"""

import asyncio
import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Final

from shoal_runtime.codecs.metadata import model_metadata
from shoal_runtime.errors import EXIT_LOAD_FAILED, BatchError, DeviceLost, LoadError
from shoal_runtime.executor import Executor
from shoal_runtime.faults import describe
from shoal_runtime.fetching import ModelFiles, fetch_model
from shoal_runtime.garbage import seldom_collected
from shoal_runtime.offline.identity import digest_of, settings_of
from shoal_runtime.pipeline import Lanes, Pipeline
from shoal_runtime.readiness import Readiness
from shoal_runtime.serving import log_cause
from shoal_runtime.settings import Settings
from shoal_runtime.starting import Started, bring_up
from shoal_runtime.watchdog import Watchdog
from shoal_schema.wire.engine import Batch, Done, Failed, Ready, Refused, Told

IN_FLIGHT: Final = 3
"""One is prepared and one finished while one computes."""

logger = logging.getLogger(__name__)


def work(settings: Settings, descriptor: int) -> int:
    """Load the model and compute until the other side is gone; return an exit code."""
    connection = Connection(descriptor)
    executor, readiness = Executor(), Readiness()
    watchdog = Watchdog(executor, readiness, limit_s=settings.runtime.forward_timeout_seconds)
    telling: SimpleQueue[Told | None] = SimpleQueue()
    teller = threading.Thread(target=_tell, args=(connection, telling), name="tell", daemon=True)
    teller.start()

    async def run() -> int:
        try:
            files, started = await executor.call(lambda: _load(settings, readiness), watched=False)
        except Exception as error:
            if isinstance(error, LoadError):
                log_cause(error)
            else:
                logger.exception("event=loading_failed_inside_the_runtime")
            telling.put(Refused(str(error) if isinstance(error, LoadError) else describe(error)))
            return EXIT_LOAD_FAILED
        if started.model.forward_timeout_s is not None:
            watchdog.limit_s = started.model.forward_timeout_s
        watchdog.start()
        threads = settings.runtime.preprocess_threads
        pool = ThreadPoolExecutor(threads, "preprocess", watchdog.enlist)
        model = started.model
        pipeline = Pipeline(
            model.stages,
            model.signature,
            started.placement,
            lanes=Lanes(executor, pool, threads),
            on_lost=watchdog.lose,
        )
        metadata = model_metadata(model.name, settings.model.version, model.platform, model.signature, started.measured)
        telling.put(Ready(metadata, digest_of(files), settings_of(settings), IN_FLIGHT))
        await _compute(connection, pipeline, telling)
        return 0

    code = asyncio.run(run())
    telling.put(None)
    teller.join()
    logging.shutdown()
    # Threads of the model's code are waited for by nobody.
    os._exit(code)


def _load(settings: Settings, readiness: Readiness) -> tuple[ModelFiles, Started]:
    with seldom_collected():
        files = fetch_model(settings, readiness)
        return files, bring_up(files, settings, readiness)


async def _compute(connection: Connection, pipeline: Pipeline, telling: "SimpleQueue[Told | None]") -> None:
    """Run what is asked for, several at a time, until nobody asks any more."""
    loop = asyncio.get_running_loop()
    asked: asyncio.Queue[Batch | None] = asyncio.Queue()
    listener = threading.Thread(target=_listen, args=(connection, loop, asked), name="listen", daemon=True)
    listener.start()
    running: set[asyncio.Task[None]] = set()
    while (batch := await asked.get()) is not None:
        task = asyncio.create_task(_run(pipeline, batch, telling))
        running.add(task)
        task.add_done_callback(running.discard)


def _listen(connection: Connection, loop: asyncio.AbstractEventLoop, asked: "asyncio.Queue[Batch | None]") -> None:
    try:
        while True:
            loop.call_soon_threadsafe(asked.put_nowait, connection.recv())
    except (EOFError, OSError):
        loop.call_soon_threadsafe(asked.put_nowait, None)


def _tell(connection: Connection, telling: "SimpleQueue[Told | None]") -> None:
    try:
        while (message := telling.get()) is not None:
            connection.send(message)
    except OSError:  # nobody is there any more
        os._exit(0)


async def _run(pipeline: Pipeline, batch: Batch, telling: "SimpleQueue[Told | None]") -> None:
    try:
        result = await pipeline.run(batch.inputs, batch.rows)
        telling.put(Done(batch.number, dict(result.outputs), {each.row: each.message for each in result.errors}))
    except DeviceLost:
        # The process ends at once, and that is told: rows that only stood beside the one to blame are tried alone.
        return
    except BatchError as error:
        telling.put(Failed(batch.number, error.code, str(error)))
    except Exception as error:  # every batch is answered
        logger.exception("event=batch_failed_inside_the_runtime")
        telling.put(Failed(batch.number, "FORWARD_FAILED", describe(error)))
