"""Download of a model's files from a store to the cache.

    CACHE/.parts-LISTING/sums.json    SHA-256 of complete files, from which an interrupted download resumes
                        /files/       the complete files
    CACHE/TREE/                       all files, once the download is complete

A downloading process locks the first directory. Other processes on the same volume wait, and then use ``CACHE/TREE/``.
"""

import fcntl
import hashlib
import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

import orjson

from shoal_runtime.errors import LoadError
from shoal_runtime.readiness import Readiness
from shoal_runtime.storage.cache import PARTS_PREFIX, remove_stale
from shoal_runtime.storage.listing import ListedFile, Listing, TooManyFiles, checked
from shoal_runtime.storage.progress import StepProgress
from shoal_runtime.storage.store import Store, StoreUnavailable
from shoal_runtime.storage.unpacking import ArchiveLimits, check_time

T = TypeVar("T")

ATTEMPTS: Final = 3
LOCK_CHECK_S: Final = 0.5
"""Interval of checks of a lock that another process holds."""

logger = logging.getLogger(__name__)


class Download:
    """Download of one model from a store to the cache.

    Args:
        store: store of the model.
        cache_dir: directory of the cache.
        readiness: receives the progress.
        limits: limits of size and number of files.
        deadline_s: deadline of the download, in monotonic seconds.
        pause_s: function from the number of an attempt to the pause after it, in seconds.
    """

    def __init__(
        self,
        store: Store,
        cache_dir: Path,
        readiness: Readiness,
        *,
        limits: ArchiveLimits,
        deadline_s: float,
        pause_s: Callable[[int], float],
    ) -> None:
        self._store = store
        self._cache_dir = cache_dir
        self._readiness = readiness
        self._limits = limits
        self._deadline_s = deadline_s
        self._pause_s = pause_s

    def list(self) -> Listing:
        """List the model's files in the store.

        Raises:
            LoadError: there are no files, or more than the limits allow.
            StoreUnavailable: the store is unreachable.
        """
        try:
            listing = self._retried(lambda: self._store.list(self._limits.max_files))
        except TooManyFiles:
            raise self._limits.too_many_files(self._store.shown) from None
        return checked(listing, self._limits, self._store.shown)

    def download(self, listing: Listing, keep: Callable[[Path, Mapping[str, str]], None]) -> None:
        """Download all files, then call ``keep`` with their directory and the SHA-256 of each path.

        ``keep`` moves the directory. If another process downloads the same files, wait for it and do not call ``keep``.

        Raises:
            LoadError: a file cannot be downloaded.
        """
        parts = self._cache_dir / f"{PARTS_PREFIX}{listing.digest()}"
        with self._locked(parts) as mine:
            if not mine:
                return
            (parts / "files").mkdir(exist_ok=True)
            done: dict[str, str] = {}
            # Without a readable record all files are downloaded again.
            with suppress(OSError, ValueError):
                recorded = orjson.loads((parts / "sums.json").read_bytes())
                done = recorded if isinstance(recorded, dict) else {}
            sums: dict[str, str] = {}
            with StepProgress(self._readiness, "downloading", total=listing.size_bytes, unit="B") as progress:
                for entry in listing.entries:
                    if entry.path in done and (parts / "files" / entry.path).is_file():
                        progress.advance(entry.size_bytes)
                        sums[entry.path] = done[entry.path]
                        continue
                    sums[entry.path] = self._file(entry, parts, progress)
                    # Written after each file, so that a killed download resumes here.
                    new = parts / "sums.new"
                    new.write_bytes(orjson.dumps(sums))
                    new.rename(parts / "sums.json")
            try:
                keep(parts / "files", sums)
            finally:
                # Rejected files are not kept for the next start: the transfer may be to blame.
                shutil.rmtree(parts, ignore_errors=True)

    def _file(self, entry: ListedFile, parts: Path, progress: StepProgress) -> str:
        # A name of its own: without locks of the file system, two processes may be here.
        target, partial = parts / "files" / entry.path, parts / f"partial-{uuid.uuid4().hex}"
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            digest = self._retried(lambda: self._read(entry, partial, progress))
        except StoreUnavailable as reason:
            raise LoadError(f"{self._store.shown} cannot be downloaded: {reason}") from None
        partial.rename(target)
        return digest

    def _read(self, entry: ListedFile, partial: Path, progress: StepProgress) -> str:
        digest, size_bytes = hashlib.sha256(), 0
        try:
            with partial.open("wb") as file:
                for chunk in self._store.read(entry):
                    size_bytes += len(chunk)
                    progress.advance(len(chunk))
                    if size_bytes > entry.size_bytes:
                        raise LoadError(f"{entry.path} of {self._store.shown} is larger than listed")
                    file.write(chunk)
                    digest.update(chunk)
                    check_time(self._limits, self._deadline_s)
                # On disk before its digest is recorded as complete.
                os.fsync(file.fileno())
            if size_bytes < entry.size_bytes:
                raise StoreUnavailable(f"{entry.path} ended after {size_bytes} of {entry.size_bytes} bytes")
        except StoreUnavailable:
            # The next attempt starts from the file's first byte.
            progress.advance(-size_bytes)
            raise
        return digest.hexdigest()

    def _retried(self, ask: Callable[[], T]) -> T:
        for attempt in range(ATTEMPTS):
            try:
                return ask()
            except StoreUnavailable as reason:
                if attempt + 1 == ATTEMPTS:
                    raise
                logger.warning("event=download_retried reason=%s", reason)
                time.sleep(self._pause_s(attempt))
        raise AssertionError

    @contextmanager
    def _locked(self, parts: Path) -> Iterator[bool]:
        """Lock a directory; yield False if another process has meanwhile completed or removed it."""
        try:
            self._cache_dir.mkdir(parents=True, exist_ok=True)
            remove_stale(self._cache_dir)
            parts.mkdir(exist_ok=True)
            lock = os.open(parts, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise LoadError(f"SHOAL_MODEL_CACHE_DIR cannot be written: {error}") from None
        try:
            if self._wait_for(lock):
                for left_over in parts.glob("partial-*"):
                    left_over.unlink(missing_ok=True)
            # Another process may have renamed or removed the directory that was locked.
            yield parts.is_dir() and os.path.samestat(os.fstat(lock), parts.stat())
        except OSError as error:
            raise LoadError(f"the model cannot be stored: {error}") from None
        finally:
            os.close(lock)

    def _wait_for(self, lock: int) -> bool:
        """Wait for a file lock; return False if the file system has no locks."""
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._readiness.progress("waiting for another process that downloads this model")
                check_time(self._limits, self._deadline_s)
                time.sleep(LOCK_CHECK_S)
            except OSError:
                return False
            else:
                return True
