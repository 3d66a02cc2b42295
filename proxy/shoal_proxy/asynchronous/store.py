"""Store of asynchronous requests: a directory or a bucket, through obstore.

Below `model-NAME`:

    requests/ID/PROCESS   an accepted request, and the process that accepted it
    started/ID/NUMBER     the process that runs it; created once, so that no request runs twice
    results/ID            its result
    processes/PROCESS     the lease of a process

An object is created with a condition where two processes could create it, and the first one wins.
"""

import asyncio
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import obstore
from obstore import exceptions
from obstore.store import LocalStore, from_url

from shoal_proxy.asynchronous.records import DELETED, StoredResult, decode_result, encode_result, owner_in
from shoal_proxy.asynchronous.stored_files import StoredFile, list_files
from shoal_proxy.codecs.base import HttpResponse
from shoal_proxy.errors import StoreUnavailable
from shoal_schema.process.environment import SettingsError
from shoal_schema.resource.credentials import fault
from shoal_schema.resource.locations import scheme_of

logger = logging.getLogger(__name__)

_PATIENCE: Final[Any] = {"connect_timeout": timedelta(seconds=5), "timeout": timedelta(seconds=60)}
_RETRIES: Final[Any] = {"max_retries": 2, "retry_timeout": timedelta(seconds=20)}
_HEAD_BYTES: Final = 1 << 16
_NUMBER: Final = re.compile("[0-9]{1,9}")
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT", "GOOGLE_BASE_URL")


class StoredObject(NamedTuple):
    """An object of the store."""

    name: str
    """Its path below the kind of object."""
    version: str
    age_s: float


class _Fetched(NamedTuple):
    """An object, or a part of it, and the time at which it was written, in seconds since 1970."""

    content: bytes
    modified_s: float


class JobStore:
    """The store at a URI.

    Args:
        uri: a directory or a bucket, with an optional prefix.
        model: name of the model: several models may have one URI.
        process: name of this process.

    Raises:
        SettingsError: the URI or an environment variable is invalid.
    """

    def __init__(self, uri: str, model: str, process: str) -> None:
        if wrong := fault(scheme_of(uri), os.environ):
            raise SettingsError(f"{wrong} (for SHOAL_ASYNC_STORE)")
        plain = any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS)
        place = f"{uri.rstrip('/')}/model-{model}"
        self._directory = Path(place.removeprefix("file://")) if uri.startswith("file://") else None
        """None: the store is a bucket."""
        try:
            if self._directory is not None:
                self._store: Any = LocalStore(self._directory, mkdir=True, automatic_cleanup=True)
            else:
                options: Any = {"allow_http": plain, **_PATIENCE}
                self._store = from_url(place, client_options=options, retry_config=_RETRIES)
        except (exceptions.BaseError, OSError) as error:
            raise SettingsError(f"SHOAL_ASYNC_STORE: {uri} cannot be opened: {_first_line(error)}") from None
        self._skipped: frozenset[str] = frozenset()
        """Entries of the directory that were logged as skipped."""
        self.process = process
        self.ready = False
        """Whether this process has a lease: until then it accepts no requests."""

    async def renew_lease(self) -> None:
        """Record that this process runs."""
        with _translated():
            await obstore.put_async(self._store, f"processes/{self.process}", os.urandom(8).hex().encode())

    async def check(self) -> None:
        """Check that the store has conditional writes.

        Raises:
            StoreUnavailable: it has none, so that requests could run twice.
        """
        name = f"processes/{self.process}"
        await self.delete(name)
        if not await self._create(name, b"") or await self._create(name, b""):
            raise StoreUnavailable("the store has no conditional writes, so that requests could run twice")

    async def end_lease(self, process: str) -> None:
        """Record that a process has stopped."""
        await self.delete(f"processes/{process}")

    async def add_request(self, job_id: str, record: bytes) -> None:
        """Store an accepted request."""
        with _translated():
            await obstore.put_async(self._store, f"requests/{job_id}/{self.process}", record)

    async def withdraw_if_used(self, job_id: str) -> bool:
        """Delete this process's stored request if its id belonged to an earlier one; return whether it did.

        The id of a new request is chosen at random; this is for those that come with the request.
        """
        # A request leaves the store only after its result is there, so the order matters.
        others = [each.name async for each in self.listed(f"requests/{job_id}") if each.name != self.process]
        used = others or await self._read(f"results/{job_id}") is not None or await self.starts(job_id)
        if used:
            await self.delete(f"requests/{job_id}/{self.process}")
        return bool(used)

    async def request(self, job_id: str, process: str) -> bytes | None:
        """Return a stored request; None if it has been deleted."""
        return await self._read(f"requests/{job_id}/{process}")

    async def accepted_by(self, job_id: str) -> str:
        """Return the process that accepted a request without a result; empty if there is no such request."""
        found = [each.name async for each in self.listed(f"requests/{job_id}")]
        return found[0] if found else ""

    async def owner_of(self, job_id: str) -> str | None:
        """Return the client of a request without a result; None if there is no such request."""
        process = await self.accepted_by(job_id)
        name = f"requests/{job_id}/{process}"
        # A poll for the result should not read the whole body.
        record = await self._read(name, (0, _HEAD_BYTES)) if process else None
        if record is not None and b"\n" not in record:
            record = await self._read(name)
        return None if record is None else owner_in(record)

    async def delete_request(self, job_id: str) -> None:
        """Delete a request that has a result."""
        for each in [each.name async for each in self.listed(f"requests/{job_id}")]:
            await self.delete(f"requests/{job_id}/{each}")

    async def start(self, job_id: str, number: int) -> bool:
        """Claim the right to run a request for the ``number``-th time; return False if another process has it."""
        name = f"started/{job_id}/{number}"
        if await self._create(name, self.process.encode()):
            return True
        # A retry of the request to the store finds the object of the first try.
        return await self._read(name) == self.process.encode()

    async def starts(self, job_id: str) -> list[str]:
        """Return the processes that started a request, in order."""
        names = [each.name async for each in self.listed(f"started/{job_id}")]
        numbers = sorted(int(name) for name in names if _NUMBER.fullmatch(name))
        found = [await self._read(f"started/{job_id}/{number}") for number in numbers]
        return [each.decode("latin-1") for each in found if each is not None]

    async def add_result(self, job_id: str, owner: str, response: HttpResponse) -> bool:
        """Store a result; return False if there is one already."""
        return await self._create(f"results/{job_id}", encode_result(owner, response))

    async def result(self, job_id: str) -> StoredResult | None:
        """Return a result; None without one."""
        now_s = time.time()  # noqa: TID251 (objects have dates)
        found = await self._fetch(f"results/{job_id}")
        return None if found is None else decode_result(found.content, now_s - found.modified_s)

    async def cancel(self, job_id: str, owner: str, *, is_held: bool = False) -> None:
        """Delete a result; a request without one never starts again, and its result is discarded.

        Args:
            job_id: the request.
            owner: its client.
            is_held: whether no other process than this one would run the request.

        Raises:
            StoreUnavailable: the store failed, and the request may still run.
        """
        try:
            await self._mark_deleted(job_id, owner)
        except StoreUnavailable:
            # A full store has room for the mark once the objects that it replaces are gone.
            ended = await self._read(f"results/{job_id}", (0, 1)) is not None
            await self.delete(f"results/{job_id}")
            await self.delete_request(job_id)
            try:
                await self._mark_deleted(job_id, owner)
            except StoreUnavailable:
                if not (ended or is_held):
                    raise
            return
        await self.delete_request(job_id)

    async def _mark_deleted(self, job_id: str, owner: str) -> None:
        for number in range(2):
            await self.start(job_id, number)
        with _translated():
            deleted = encode_result(owner, HttpResponse(DELETED, ()))
            await obstore.put_async(self._store, f"results/{job_id}", deleted)

    async def listed(self, directory: str) -> AsyncIterator[StoredObject]:
        """Yield the objects below a directory."""
        now_s = time.time()  # noqa: TID251 (objects have dates)
        with _translated():
            if self._directory is not None:
                for each in await self._files(self._directory / directory):
                    yield StoredObject(each.name, each.version, now_s - each.modified_s)
                return
            async for chunk in obstore.list(self._store, prefix=directory):
                for meta in chunk:
                    modified_s = meta["last_modified"].timestamp()
                    version = f"{meta['e_tag']} {modified_s}"
                    name = meta["path"].removeprefix(f"{directory}/")
                    yield StoredObject(name, version, now_s - modified_s)

    async def _files(self, directory: Path) -> list[StoredFile]:
        """Return the files below a directory; log the entries that are skipped, once each."""
        found = await asyncio.to_thread(list_files, directory)  # a slow file system must not block requests
        if new := found.skipped - self._skipped:
            self._skipped |= new
            logger.warning("event=store_entries_skipped count=%d first=%a", len(new), min(new))
        return found.files

    async def _create(self, name: str, content: bytes) -> bool:
        with _translated():
            try:
                await obstore.put_async(self._store, name, content, mode="create")
            except exceptions.AlreadyExistsError:
                return False
        return True

    async def _read(self, name: str, part: tuple[int, int] | None = None) -> bytes | None:
        found = await self._fetch(name, part)
        return None if found is None else found.content

    async def _fetch(self, name: str, part: tuple[int, int] | None = None) -> _Fetched | None:
        options: Any = {"range": part} if part else {}
        with _translated():
            try:
                found = await obstore.get_async(self._store, name, options=options)
                return _Fetched(bytes(await found.bytes_async()), found.meta["last_modified"].timestamp())
            except FileNotFoundError:
                return None

    async def delete(self, name: str) -> None:
        """Delete an object, if it exists."""
        with _translated():
            try:
                await obstore.delete_async(self._store, name)
            except FileNotFoundError:
                return


@contextmanager
def _translated() -> Iterator[None]:
    """Raise errors of obstore as `StoreUnavailable`, without their details, which may hold credentials."""
    try:
        yield
    except (exceptions.BaseError, NotImplementedError) as error:
        raise StoreUnavailable(f"the store of asynchronous requests failed: {type(error).__name__}") from error
    except OSError as error:
        raise StoreUnavailable(f"the store of asynchronous requests failed: {error.strerror or error}") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
