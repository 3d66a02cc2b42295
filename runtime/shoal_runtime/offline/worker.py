"""`python -m shoal_runtime engine FD`: compute batches from a socket.

Batches pass the same pipeline as online requests. The process ends when the socket closes.
"""

import asyncio
import hashlib
import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

from shoal_runtime.codecs.metadata import model_metadata
from shoal_runtime.errors import EXIT_LOAD_FAILED, BatchError, DeviceLost, LoadError
from shoal_runtime.execution.executor import Executor
from shoal_runtime.execution.garbage import seldom_collected
from shoal_runtime.execution.pipeline import Pipeline, StageThreads
from shoal_runtime.execution.watchdog import Watchdog
from shoal_runtime.faults import describe
from shoal_runtime.readiness import Readiness
from shoal_runtime.serving import log_cause
from shoal_runtime.settings import Settings
from shoal_runtime.startup.starting import StartedModel, load_and_warm
from shoal_runtime.storage.fetching import ModelFiles, fetch_model
from shoal_runtime.storage.unpacking import CHUNK_BYTES
from shoal_schema.fields.declaring import as_json
from shoal_schema.wire.engine_messages import BatchDone, BatchFailed, EngineBatch, EngineFailed, EngineReady, Message

IN_FLIGHT: Final = 3
"""Batches held at once: one is prepared and one finished while one computes."""

_MODEL_FIELDS: Final = ("format", "handler", "parameters")

_Messages = SimpleQueue[Message | None]

logger = logging.getLogger(__name__)


def work(settings: Settings, descriptor: int) -> int:
    """Load the model and compute batches until the socket closes; then exit the process."""
    connection = Connection(descriptor)
    # The same parts as the server's, without HTTP.
    executor, readiness = Executor(), Readiness()
    watchdog = Watchdog(executor, readiness, limit_s=settings.runtime.forward_timeout_seconds)
    messages: _Messages = SimpleQueue()

    def send() -> None:
        try:
            while (message := messages.get()) is not None:
                connection.send(message)
        except OSError:  # the batch program has ended
            os._exit(0)

    sender = threading.Thread(target=send, name="send", daemon=True)
    sender.start()

    def load() -> tuple[ModelFiles, StartedModel]:
        with seldom_collected():
            files = fetch_model(settings, readiness)
            return files, load_and_warm(files, settings, readiness)

    async def run() -> int:
        try:
            files, started = await executor.call(load, watched=False)
        except Exception as error:
            if isinstance(error, LoadError):
                log_cause(error)
            else:
                logger.exception("event=loading_failed_inside_the_runtime")
            messages.put(EngineFailed(str(error) if isinstance(error, LoadError) else describe(error)))
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
            lanes=StageThreads(executor, pool, threads),
            on_lost=watchdog.lose,
        )
        metadata = model_metadata(
            model.name,
            settings.model.version,
            model.platform,
            model.signature,
            started.measured,
            precision=started.precision,
        )
        messages.put(EngineReady(metadata, digest_of(files), settings_of(settings), IN_FLIGHT))
        await _compute(connection, pipeline, messages)
        return 0

    code = asyncio.run(run())
    messages.put(None)
    sender.join()
    logging.shutdown()
    # Without a wait for threads of the model's own code.
    os._exit(code)


async def _compute(connection: Connection, pipeline: Pipeline, messages: _Messages) -> None:
    """Compute received batches concurrently until the socket closes."""
    loop = asyncio.get_running_loop()
    received: asyncio.Queue[EngineBatch | None] = asyncio.Queue()

    def receive() -> None:
        try:
            while True:
                loop.call_soon_threadsafe(received.put_nowait, connection.recv())
        except (EOFError, OSError):
            loop.call_soon_threadsafe(received.put_nowait, None)

    async def compute(batch: EngineBatch) -> None:
        try:
            result = await pipeline.run(batch.inputs, batch.rows)
            messages.put(
                BatchDone(batch.number, dict(result.outputs), {each.row: each.message for each in result.errors})
            )
        except DeviceLost:
            # The process ends at once. That end is the message: rows that only shared the batch are tried alone.
            return
        except BatchError as error:
            messages.put(BatchFailed(batch.number, error.code, str(error)))
        except Exception as error:  # every batch has an outcome
            logger.exception("event=batch_failed_inside_the_runtime")
            messages.put(BatchFailed(batch.number, "FORWARD_FAILED", describe(error)))

    threading.Thread(target=receive, name="receive", daemon=True).start()
    running: set[asyncio.Task[None]] = set()
    while (batch := await received.get()) is not None:
        task = asyncio.create_task(compute(batch))
        running.add(task)
        task.add_done_callback(running.discard)


def digest_of(files: ModelFiles) -> str:
    """Return ``sha256:`` and the hex digest of a model's files.

    Hidden files and bytecode are ignored.
    """
    paths = [files.directory / files.file] if files.file else []
    if not files.file:
        for parent, folders, names in os.walk(files.directory, followlinks=True):
            folders[:] = [each for each in folders if not each.startswith(".") and each != "__pycache__"]
            paths += (path for name in names if not name.startswith(".") and (path := Path(parent, name)).is_file())
    sha256 = hashlib.sha256()
    for path in sorted(paths):
        # Paths are part of the digest: a renamed file may change the model.
        sha256.update(f"{path.relative_to(files.directory)}\0".encode(errors="surrogateescape"))
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                sha256.update(chunk)
    return f"sha256:{sha256.hexdigest()}"


def settings_of(settings: Settings) -> dict[str, Any]:
    """Return the settings that change a model's results."""
    model = as_json(settings.model)
    return {
        **{name: model[name] for name in _MODEL_FIELDS if name in model},
        "dtype": settings.runtime.dtype.value,
        "compile": settings.runtime.compile,
    }
