"""The clients: one blocks, one awaits; all they do is drive a ``Session`` with httpx."""

import asyncio
import math
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple, Self, TypeVar
from uuid import uuid4

import httpx

from shoal.deadline import bounded, within
from shoal.errors import ConnectionFailed, DeadlineExceeded, ShoalError
from shoal.exchange import Verify, base_url, base_urls, mapped_errors, request_of, response_of, too_late, trust
from shoal.files import plain
from shoal.keys import shown
from shoal.lanes import Fleet, Lanes
from shoal.progress import Progress, Report, reporting
from shoal.wire.items import Items
from shoal.wire.messages import Request, Response
from shoal.wire.portions import MAX_IN_FLIGHT, Portion, Portions, Times
from shoal.wire.session import CallOptions, Conversation, Pause, Session, Turn
from shoal.wire.signature import Signature

Result = TypeVar("Result")


class Sent(NamedTuple):
    """A portion, its answer or the error instead, and when it ended (monotonic s)."""

    portion: Portion
    outcome: Any
    ended_s: float


class Client:
    """A blocking client of one model on one server; safe to share between threads.

    Args:
        url: the server's base URL, ``http://127.0.0.1:8080``.
        model: the model's name; found out when the server has just one.
        timeout_s: how long a call may take in all, retries included, unless it says otherwise; of a large
            ``predict_batch``, each of its portions.
        api_key: shown to the server, where it asks for one; also a token (``Authorization: Bearer ...``).
        headers: sent with every request.
        retries: how often a call is sent again when it was certainly not executed: no connection
            was made, or the server says so. Each time after the server's ``Retry-After`` and a
            random pause that doubles from 0.1 s to 5 s, as long as ``timeout_s`` allows.
        retry_executed: send it again also when it may have been executed (the connection broke, the
            server lost its runtime, or does not say): for models that may run twice.
        transport: another way to the server: ``httpx.HTTPTransport(uds="/run/shoal/proxy.sock")``.
        verify: whom to trust of a server that speaks TLS: a file of authorities, or an ``ssl.SSLContext``, which may
            hold a certificate of the caller's own too; else the web's authorities.
    """

    def __init__(  # noqa: PLR0913 (keywords, each with its default)
        self,
        url: str,
        model: str | None = None,
        *,
        timeout_s: float = 30.0,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        retries: int = 0,
        retry_executed: bool = False,
        transport: httpx.BaseTransport | None = None,
        verify: Verify = True,
    ) -> None:
        self._options = CallOptions(timeout_s, retries=retries, retry_executed=retry_executed)
        self._session = Session(model, random.random, plain)
        base, sent = base_url(url), {**shown(api_key), **(headers or {})}
        self._http = bounded(httpx.Client(base_url=base, headers=sent, transport=transport, verify=trust(verify)))

    def predict(
        self, item: Any, *, timeout_s: float | None = None, request_id: str | None = None, retries: int | None = None
    ) -> Any:
        """Return the model's answer to one item.

        Args:
            item: the value of a model with one input, or a dict ``{input: value}``; of an input with named
                columns, ``{column: number}``; a named tuple, a dataclass or a row of pandas stands for such a dict.
                A value is a numpy array or nested lists without the batch dimension;
                ``bytes`` or ``str`` for a ``BYTES`` input; any JSON value if its content type is
                ``application/json``. A ``Path`` or an open file stands for what it holds, a picture of PIL for its
                file.
            timeout_s: how long the call may take in all; the server is told, and drops what nobody is waiting for.
            request_id: sent as ``x-request-id``, by which the server's log names a call; made when missing.
            retries: see :class:`Client`.

        Returns:
            The output without the batch dimension, or a dict of them if the model has several.
            Text comes as ``str``, JSON as its value, other bytes as ``bytes``; arrays of these are
            object arrays.

        Raises:
            ShoalError: one of the tree in :mod:`shoal.errors`.
        """
        options = self._options.but(timeout_s=timeout_s, request_id=request_id or uuid4().hex, retries=retries)
        return self._run(self._session.predict(item, options), options.timeout_s)

    def predict_batch(
        self,
        items: Items,
        *,
        timeout_s: float | None = None,
        request_id: str | None = None,
        retries: int | None = None,
        progress: Progress = False,
    ) -> Any:
        """Return the model's answers to several items.

        What is more than a batch of the model goes out in portions, several at a time, as the server's queue takes
        them; one that the full queue refuses is sent again.

        Args:
            items: items as for :meth:`predict`, an array whose first dimension counts them, a data frame, a table of
                Arrow, a structured array, or a dict of columns: columns are matched by name. Those called 0 to n - 1,
                in this order, are together the rows of the only input.
            timeout_s: how long all of it may take. If not given, each portion may take the client's ``timeout_s``.
            request_id: as for :meth:`predict`; every portion carries it.
            retries: as for :meth:`predict`, for each portion.
            progress: called after each portion with the rows answered and all rows; True shows a bar (of tqdm, if
                it is installed) on standard error.

        Returns:
            The output, or a dict of them, with the batch dimension in front.

        Raises:
            ShoalError: the call failed; when some rows failed, ``errors`` says which.
        """
        options = self._options.but(timeout_s=timeout_s, request_id=request_id or uuid4().hex, retries=retries)
        times = _times(options, timeout_s)
        portions = self._run(self._session.portions(items, times, options), options.timeout_s)
        with reporting(progress) as tell:
            self._send_all(portions, options, tell)
        return portions.result()

    def signature(self) -> Signature:
        """Return what the model takes and gives, as the server tells it now."""
        return self._run(self._session.signature(self._options), self._options.timeout_s)

    def ready(self) -> bool:
        """Return whether the server can answer predictions; False also when nobody listens."""
        try:
            return self._run(self._session.ready(self._options), self._options.timeout_s)
        except (ConnectionFailed, DeadlineExceeded):
            return False

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send_all(self, portions: Portions, options: CallOptions, tell: Report) -> None:
        """Send portions as they may be sent; threads are only made when there are several at a time."""
        running: set[Future[Sent]] = set()
        with ThreadPoolExecutor(MAX_IN_FLIGHT, "shoal-portion") as pool:
            while running or not portions.done:
                ended: list[Sent] = []
                while not ended and (portion := portions.take(time.monotonic())):
                    if portions.alone:
                        ended.append(self._send(portions, portion, options))
                    else:
                        running.add(pool.submit(self._send, portions, portion, options))
                pause_s = portions.pause_s(time.monotonic())
                if running:
                    finished, running = wait(running, pause_s or None, FIRST_COMPLETED)
                    ended += [each.result() for each in finished]
                elif not ended:
                    time.sleep(pause_s)
                _take_in(portions, ended, tell)

    def _send(self, portions: Portions, portion: Portion, options: CallOptions) -> Sent:
        options = options.but(timeout_s=portions.time_of(portion))
        conversation = self._session.predict_portion(portion, portions.signature, options)
        try:
            return Sent(portion, self._run(conversation, options.timeout_s), time.monotonic())
        except ShoalError as error:
            return Sent(portion, error, time.monotonic())

    def _run(self, conversation: Conversation[Result], timeout_s: float) -> Result:
        ends_s = time.monotonic() + timeout_s
        left_s, turn = timeout_s, None
        while True:
            try:
                step = conversation.send(turn)
            except StopIteration as end:
                result: Result = end.value
                return result
            outcome = self._take(step, left_s, timeout_s)
            left_s = ends_s - time.monotonic()
            turn = Turn(outcome, left_s)

    def _take(self, step: Request | Pause, left_s: float, timeout_s: float) -> Response | ShoalError | None:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        try:
            with mapped_errors(timeout_s), within(left_s):
                return response_of(self._http.send(request_of(self._http.build_request, step, left_s)))
        except ShoalError as error:
            return error


class AsyncClient:
    """The same client for asyncio: same arguments, same results, same errors as :class:`Client`.

    ``url`` may be several: addresses of replicas of the same model. Each call goes to one that says that it would take
    less time than another. One that refuses, fails or cannot be reached is left alone for a while, and a call that
    certainly did not run there goes to another at once, without being one of the ``retries``.
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
            # Set afterwards, since httpx heeds a proxy of the environment only where it made the transport itself.
            self._http._transport = Lanes(context) if len(urls) == 1 else Fleet(urls, context)

    async def predict(
        self, item: Any, *, timeout_s: float | None = None, request_id: str | None = None, retries: int | None = None
    ) -> Any:
        """Return the model's answer to one item: see :meth:`Client.predict`."""
        options = self._options.but(timeout_s=timeout_s, request_id=request_id or uuid4().hex, retries=retries)
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
        """Return the model's answers to several items: see :meth:`Client.predict_batch`."""
        options = self._options.but(timeout_s=timeout_s, request_id=request_id or uuid4().hex, retries=retries)
        times = _times(options, timeout_s)
        portions = await self._run(self._session.portions(items, times, options), options.timeout_s)
        with reporting(progress) as tell:
            await self._send_all(portions, options, tell)
        return portions.result()

    async def signature(self) -> Signature:
        """Return what the model takes and gives, as the server tells it now."""
        return await self._run(self._session.signature(self._options), self._options.timeout_s)

    async def ready(self) -> bool:
        """Return whether the server can answer predictions; False also when nobody listens."""
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

    async def _send_all(self, portions: Portions, options: CallOptions, tell: Report) -> None:
        running: set[asyncio.Task[Sent]] = set()
        try:
            while running or not portions.done:
                while portion := portions.take(time.monotonic()):
                    running.add(asyncio.create_task(self._send(portions, portion, options)))
                pause_s = portions.pause_s(time.monotonic())
                if running:
                    waited = await asyncio.wait(running, timeout=pause_s or None, return_when=asyncio.FIRST_COMPLETED)
                    ended, running = waited
                    _take_in(portions, [each.result() for each in ended], tell)
                else:
                    await asyncio.sleep(pause_s)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _send(self, portions: Portions, portion: Portion, options: CallOptions) -> Sent:
        options = options.but(timeout_s=portions.time_of(portion))
        conversation = self._session.predict_portion(portion, portions.signature, options)
        try:
            return Sent(portion, await self._run(conversation, options.timeout_s), time.monotonic())
        except ShoalError as error:
            return Sent(portion, error, time.monotonic())

    async def _run(self, conversation: Conversation[Result], timeout_s: float) -> Result:
        ends_s = time.monotonic() + timeout_s
        left_s, turn = timeout_s, None
        while True:
            try:
                step = conversation.send(turn)
            except StopIteration as end:
                result: Result = end.value
                return result
            outcome = await self._take(step, left_s, timeout_s)
            left_s = ends_s - time.monotonic()
            turn = Turn(outcome, left_s)

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


def _times(options: CallOptions, timeout_s: float | None) -> Times:
    """Return the times of a call of several portions: of all if the caller said so, else of each."""
    ends_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
    return Times(ends_s, options.timeout_s, options.retry_executed)


def _take_in(portions: Portions, ended: Iterable[Sent], tell: Report) -> None:
    for portion, outcome, ended_s in ended:
        portions.ended(portion, outcome, ended_s)
        if not isinstance(outcome, ShoalError):
            tell(portions.answered_rows, len(portions.rows))
