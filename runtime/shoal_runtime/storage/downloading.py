"""A store's files, brought to this machine: each once, whole, and under their final name only all together.

    CACHE/.parts-LISTING/sums.json    SHA-256 of the files that are complete; a killed download goes on from there
                        /files/       these files
    CACHE/TREE/                       all of them

Who downloads holds a lock on the first folder; another process on the same volume waits, and then finds the last one.
"""

import fcntl
import hashlib
import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

import orjson

from shoal_runtime.cache import PARTS_PREFIX, sweep
from shoal_runtime.errors import LoadError
from shoal_runtime.progress import Progress
from shoal_runtime.readiness import Readiness
from shoal_runtime.storage.listing import Entry, Listing, TooMany, checked
from shoal_runtime.storage.store import Store, StoreAway
from shoal_runtime.unpacking import Limits, check_time

T = TypeVar("T")

ATTEMPTS: Final = 3
LOOK_EVERY_S: Final = 0.5
"""At a lock that another process holds."""

logger = logging.getLogger(__name__)


class Download:
    """Bring what a store lists into a folder of the cache.

    ``pause_s`` waits between attempts, by their number; ``deadline_s`` is on the monotonic clock.
    """

    def __init__(
        self,
        store: Store,
        cache_dir: Path,
        readiness: Readiness,
        *,
        limits: Limits,
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
        """Return what the store has.

        Raises:
            LoadError: it has nothing, or more than the limits allow.
            StoreAway: it cannot be asked.
        """
        try:
            listing = self._again(lambda: self._store.list(self._limits.max_files))
        except TooMany:
            raise self._limits.too_many_files(self._store.shown) from None
        return checked(listing, self._limits, self._store.shown)

    def bring(self, listing: Listing, keep: Callable[[Path, Mapping[str, str]], None]) -> None:
        """Download all files and hand ``keep`` their folder, for it to move, and their SHA-256 by path.

        Where another process does so at the same time it waits for that, and hands over nothing.

        Raises:
            LoadError: a file cannot be had.
        """
        parts = self._cache_dir / f"{PARTS_PREFIX}{listing.digest()}"
        with self._locked(parts) as mine:
            if mine:
                (parts / "files").mkdir(exist_ok=True)
                sums = self._bring_files(listing, parts)
                try:
                    keep(parts / "files", sums)
                finally:
                    # What is refused is not brought out again at the next start: it may be the transfer's fault.
                    shutil.rmtree(parts, ignore_errors=True)

    def _bring_files(self, listing: Listing, parts: Path) -> dict[str, str]:
        done = _read_sums(parts)
        sums: dict[str, str] = {}
        with Progress(self._readiness, "downloading", total=listing.size_bytes, unit="B") as progress:
            for entry in listing.entries:
                if entry.path in done and (parts / "files" / entry.path).is_file():
                    progress.advance(entry.size_bytes)
                    sums[entry.path] = done[entry.path]
                    continue
                sums[entry.path] = self._file(entry, parts, progress)
                _write_sums(parts, sums)
        return sums

    def _file(self, entry: Entry, parts: Path, progress: Progress) -> str:
        # Its own name: where a file system knows no locks, two processes may be here.
        target, partial = parts / "files" / entry.path, parts / f"partial-{uuid.uuid4().hex}"
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            digest = self._again(lambda: self._read(entry, partial, progress))
        except StoreAway as reason:
            raise LoadError(f"{self._store.shown} cannot be downloaded: {reason}") from None
        partial.rename(target)
        return digest

    def _read(self, entry: Entry, partial: Path, progress: Progress) -> str:
        digest, size_bytes = hashlib.sha256(), 0
        try:
            with partial.open("wb") as file:
                for chunk in self._store.read(entry):
                    size_bytes += len(chunk)
                    progress.advance(len(chunk))
                    if size_bytes > entry.size_bytes:
                        raise LoadError(f"{entry.path} of {self._store.shown} is larger than it was listed")
                    file.write(chunk)
                    digest.update(chunk)
                    check_time(self._limits, self._deadline_s)
                os.fsync(file.fileno())
            if size_bytes < entry.size_bytes:
                raise StoreAway(f"{entry.path} ended after {size_bytes} of {entry.size_bytes} bytes")
        except StoreAway:
            progress.advance(-size_bytes)
            raise
        return digest.hexdigest()

    def _again(self, ask: Callable[[], T]) -> T:
        for attempt in range(ATTEMPTS):
            try:
                return ask()
            except StoreAway as reason:
                if attempt + 1 == ATTEMPTS:
                    raise
                logger.warning("event=download_retried reason=%s", reason)
                time.sleep(self._pause_s(attempt))
        raise AssertionError

    @contextmanager
    def _locked(self, parts: Path) -> Iterator[bool]:
        """Yield whether the folder is this process's now; if not, another one has just finished with it."""
        try:
            self._cache_dir.mkdir(parents=True, exist_ok=True)
            sweep(self._cache_dir)
            parts.mkdir(exist_ok=True)
            lock = os.open(parts, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise LoadError(f"SHOAL_MODEL_CACHE_DIR cannot be written: {error}") from None
        try:
            if self._wait_for(lock):
                for left_over in parts.glob("partial-*"):
                    left_over.unlink(missing_ok=True)
            yield parts.is_dir() and os.path.samestat(os.fstat(lock), parts.stat())
        except OSError as error:
            raise LoadError(f"the model cannot be stored: {error}") from None
        finally:
            os.close(lock)

    def _wait_for(self, lock: int) -> bool:
        """Wait for the lock; return whether it is held, which not every file system has a notion of."""
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._readiness.progress("waiting for another process, which downloads this model")
                check_time(self._limits, self._deadline_s)
                time.sleep(LOOK_EVERY_S)
            except OSError:
                return False
            else:
                return True


def _read_sums(parts: Path) -> dict[str, str]:
    try:
        sums = orjson.loads((parts / "sums.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return sums if isinstance(sums, dict) else {}


def _write_sums(parts: Path, sums: dict[str, str]) -> None:
    new = parts / "sums.new"
    new.write_bytes(orjson.dumps(sums))
    new.rename(parts / "sums.json")
