"""Asynchronous requests that a server has accepted."""

from collections.abc import Awaitable, Callable
from typing import Any

from shoal.wire.session import CallOptions, Conversation, Session


class Job:
    """An asynchronous request of a blocking client: see :meth:`shoal.Client.submit`."""

    def __init__(
        self, job_id: str, session: Session, options: CallOptions, run: Callable[[Conversation[Any], float], Any]
    ) -> None:
        self.id = job_id
        """The id of the result, for :meth:`shoal.Client.job`."""
        self._session = session
        self._options = options
        self._run = run

    def __repr__(self) -> str:
        return f"Job({self.id!r})"

    def result(self, timeout_s: float | None = None) -> Any:
        """Wait for the model's result, and return it as :meth:`shoal.Client.predict` does.

        Args:
            timeout_s: time to wait (s), by default the client's; the request continues afterwards.

        Raises:
            DeadlineExceeded: there is no result yet.
            NotFound: the request is unknown, or its result has expired.
            ShoalError: the request failed, or the server did not respond.
        """
        options = self._options.override(timeout_s=timeout_s)
        return self._run(self._session.result(self.id, options), options.timeout_s)

    def cancel(self) -> None:
        """Cancel the request, or delete its result.

        Raises:
            NotFound: the request is unknown, or its result has expired.
            ShoalError: the server did not respond.
        """
        self._run(self._session.cancel(self.id, self._options), self._options.timeout_s)


class AsyncJob:
    """An asynchronous request of an asyncio client: see :meth:`shoal.AsyncClient.submit`."""

    def __init__(
        self,
        job_id: str,
        session: Session,
        options: CallOptions,
        run: Callable[[Conversation[Any], float], Awaitable[Any]],
    ) -> None:
        self.id = job_id
        """The id of the result, for :meth:`shoal.AsyncClient.job`."""
        self._session = session
        self._options = options
        self._run = run

    def __repr__(self) -> str:
        return f"AsyncJob({self.id!r})"

    async def result(self, timeout_s: float | None = None) -> Any:
        """Wait for the model's result: see :meth:`Job.result`."""
        options = self._options.override(timeout_s=timeout_s)
        return await self._run(self._session.result(self.id, options), options.timeout_s)

    async def cancel(self) -> None:
        """Cancel the request, or delete its result: see :meth:`Job.cancel`."""
        await self._run(self._session.cancel(self.id, self._options), self._options.timeout_s)
