"""The asyncio client, which drives a ``Session`` with httpx."""

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeVar
from uuid import uuid4

import httpx

from shoal.errors import ConnectionFailed, DeadlineExceeded, ShoalError
from shoal.exchange import Verify, base_urls, mapped_errors, request_of, response_of, too_late, trust
from shoal.files import plain
from shoal.jobs import AsyncJob
from shoal.keys import shown
from shoal.pool import Addresses, ConnectionPool
from shoal.progress import Progress, Report, reporting
from shoal.sent_portions import SentPortion, limits_of, record_ended
from shoal.wire.items import Items
from shoal.wire.messages import Request, Response
from shoal.wire.portions import Portion, Portions
from shoal.wire.session import CallOptions, Conversation, JobOptions, Pause, Session, StepResult
from shoal.wire.signature import Signature

Result = TypeVar("Result")


class AsyncClient:
    """An asyncio client with the arguments, results and errors of :class:`shoal.Client`.

    ``url`` may be several addresses of replicas of one model. Each call goes to the one of two random addresses that
    reports the shorter wait. An address that rejects, fails or is unreachable is avoided for a while; a call that
    certainly did not run there goes to another address at once, which does not count as one of the ``retries``.
    """

    def __init__(  # noqa: PLR0913 (keywords, each with its default)
        self,
        url: str | Sequence[str],
        model: str | None = None,
        *,
        timeout_s: float = 30.0,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        retries: int = 0,
        retry_executed: bool = False,
        transport: httpx.AsyncBaseTransport | None = None,
        verify: Verify = True,
    ) -> None:
        self._options = CallOptions(timeout_s, retries=retries, retry_executed=retry_executed)
        self._session = Session(model, random.random, plain)
        urls = base_urls(url, alone=transport is not None)
        context, sent = trust(verify), {**shown(api_key), **(headers or {})}
        self._http = httpx.AsyncClient(base_url=urls[0], headers=sent, transport=transport, verify=context)
        if transport is None:
            # Set afterwards: httpx honors the environment's proxies only with a transport that it created itself.
            self._http._transport = ConnectionPool(context) if len(urls) == 1 else Addresses(urls, context)

    async def predict(
        self, item: Any, *, timeout_s: float | None = None, request_id: str | None = None, retries: int | None = None
    ) -> Any:
        """Predict one item: see :meth:`shoal.Client.predict`."""
        options = self._options.override(timeout_s=timeout_s, request_id=request_id or uuid4().hex, retries=retries)
        return await self._run(self._session.predict(item, options), options.timeout_s)

    async def predict_batch(
        self,
        items: Items,
        *,
        timeout_s: float | None = None,
        request_id: str | None = None,
        retries: int | None = None,
        progress: Progress = False,
    ) -> Any:
        """Predict several items: see :meth:`shoal.Client.predict_batch`."""
        options = self._options.override(timeout_s=timeout_s, request_id=request_id or uuid4().hex, retries=retries)
        times = limits_of(options, timeout_s)
        portions = await self._run(self._session.portions(items, times, options), options.timeout_s)
        with reporting(progress) as report:
            await self._send_all(portions, options, report)
        return portions.result()

    async def submit(
        self,
        item: Any,
        *,
        within_s: float | None = None,
        callback: str | None = None,
        timeout_s: float | None = None,
        request_id: str | None = None,
        retries: int | None = None,
    ) -> AsyncJob:
        """Send one item as an asynchronous request: see :meth:`shoal.Client.submit`."""
        options = self._options.override(timeout_s=timeout_s, request_id=request_id or uuid4().hex, retries=retries)
        job_id = await self._run(self._session.submit(item, options, JobOptions(within_s, callback)), options.timeout_s)
        return self.job(job_id)

    def job(self, job_id: str) -> AsyncJob:
        """Return an asynchronous request by its id: see :meth:`shoal.Client.job`."""
        return AsyncJob(job_id.rpartition("/")[2], self._session, self._options, self._run)

    async def signature(self) -> Signature:
        """Request the model's inputs and outputs."""
        return await self._run(self._session.signature(self._options), self._options.timeout_s)

    async def ready(self) -> bool:
        """Return whether the server is ready; False also if it is unreachable."""
        try:
            return await self._run(self._session.ready(self._options), self._options.timeout_s)
        except (ConnectionFailed, DeadlineExceeded):
            return False

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _send_all(self, portions: Portions, options: CallOptions, report: Report) -> None:
        running: set[asyncio.Task[SentPortion]] = set()
        try:
            while running or not portions.done:
                while portion := portions.take(time.monotonic()):
                    running.add(asyncio.create_task(self._send(portions, portion, options)))
                pause_s = portions.pause_s(time.monotonic())
                if running:
                    waited = await asyncio.wait(running, timeout=pause_s or None, return_when=asyncio.FIRST_COMPLETED)
                    ended, running = waited
                    record_ended(portions, [each.result() for each in ended], report)
                else:
                    await asyncio.sleep(pause_s)
        finally:
            # After an error or a cancellation, no request stays in flight.
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _send(self, portions: Portions, portion: Portion, options: CallOptions) -> SentPortion:
        options = options.override(timeout_s=portions.time_of(portion))
        conversation = self._session.predict_portion(portion, portions.signature, options)
        try:
            return SentPortion(portion, await self._run(conversation, options.timeout_s), time.monotonic())
        except ShoalError as error:
            return SentPortion(portion, error, time.monotonic())

    async def _run(self, conversation: Conversation[Result], timeout_s: float) -> Result:
        ends_s = time.monotonic() + timeout_s
        left_s, step_result = timeout_s, None
        while True:
            try:
                step = conversation.send(step_result)
            except StopIteration as end:
                result: Result = end.value
                return result
            outcome = await self._take(step, left_s, timeout_s)
            left_s = ends_s - time.monotonic()
            step_result = StepResult(outcome, left_s)

    async def _take(self, step: Request | Pause, left_s: float, timeout_s: float) -> Response | ShoalError | None:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        request = request_of(self._http.build_request, step, left_s)
        try:
            with mapped_errors(timeout_s):
                async with asyncio.timeout(left_s):
                    return response_of(await self._http.send(request))
        except TimeoutError:
            return too_late(request, timeout_s)
        except ShoalError as error:
            return error
