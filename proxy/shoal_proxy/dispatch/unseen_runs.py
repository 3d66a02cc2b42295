"""Batches that run for no client, such as row checks; no client metric counts them."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from shoal_proxy.batching.batcher import RunningBatch
from shoal_proxy.batching.scheduler import Scheduler
from shoal_proxy.dispatch.link import BatchResponse, ModelLink
from shoal_proxy.errors import ProxyError
from shoal_proxy.model.signature import ModelSignature
from shoal_proxy.observe.metrics import Metrics

logger = logging.getLogger(__name__)

_NOT_INDEPENDENT: Final = (
    "event=rows_not_independent finding=%s batch_rows=%d checked_rows=%d message=results in a batch of several requests"
    " differ from those of its single rows; from now on each batch has one request, until the model is replaced"
)


class UnseenRuns:
    """Runs batches for which no client waits.

    Args:
        link: sends the batches.
        scheduler: the scheduler.
        send_due: sends the batches that are due.
        send_soon: does so at the end of the current iteration of the event loop.
    """

    def __init__(
        self, link: ModelLink, scheduler: Scheduler, send_due: Callable[[], None], send_soon: Callable[[], None]
    ) -> None:
        self._link = link
        self._scheduler = scheduler
        self._send_due = send_due
        self._send_soon = send_soon
        self._loop = asyncio.get_running_loop()
        self._checks: set[asyncio.Task[None]] = set()
        """Rows that are run again to verify results."""
        self._uncounted = Metrics()

    def start_check(self, check: RunningBatch, signature: ModelSignature) -> None:
        """Run a row check."""
        task = self._loop.create_task(self._run_check(check, signature))
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)

    def close(self) -> None:
        """Cancel the row checks."""
        for task in self._checks:
            task.cancel()

    async def _run_check(self, check: RunningBatch, signature: ModelSignature) -> None:
        """Run rows again, and log whether their results differ from the first.

        Errors of this run are logged, and affect no client.
        """
        failed = True
        try:
            sent = await self.run(check, signature)
            result = sent.result(signature)
            violation = self._scheduler.complete_check(check, result, signature, completed_s=sent.completed_s)
            failed = False
            if violation is not None:
                logger.error(_NOT_INDEPENDENT, violation.finding, violation.rows, violation.checked_rows)
        except ProxyError as error:
            logger.warning("event=row_check_failed rows=%d error=%s", check.rows, error.message)
        except Exception:
            logger.exception("event=row_check_failed rows=%d", check.rows)
        finally:
            if failed:
                self._scheduler.fail_check(check, time.monotonic())
        self._send_soon()

    async def run(self, running: RunningBatch, signature: ModelSignature) -> BatchResponse:
        """Run a batch for which no client waits, and that no client metric counts.

        Raises:
            ProxyError: the batch failed.
        """
        try:
            sent = await self._link.exchange(running.batch, signature, self._uncounted)
        finally:
            self._scheduler.record_finished(running, time.monotonic())
            self._send_due()
        await asyncio.sleep(0)
        return sent
