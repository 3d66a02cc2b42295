"""Fetching of a model's files from a URI.

Downloads are stored by content: a file is checked and unpacked in `CACHE/SHA256/`.
"""

import hashlib
import logging
import os
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from shoal_runtime.errors import LoadError
from shoal_runtime.readiness import Readiness
from shoal_runtime.settings import Settings
from shoal_runtime.storage.cache import DownloadOrigin, publish_directory, read_origin, temporary, write_origin
from shoal_runtime.storage.downloading import Download
from shoal_runtime.storage.listing import Listing, tree_digest
from shoal_runtime.storage.load_time_limit import FETCH_GRACE_S, load_time_limit
from shoal_runtime.storage.store import StoreUnavailable, check_environment, open_store
from shoal_runtime.storage.unpacking import CHUNK_BYTES, ArchiveLimits, archive_stem, check_time, unpack
from shoal_schema.resource.locations import MOUNTED, WEB, LocationError, local_path, parse, scheme_of, shown

ATTEMPTS: Final = 3
MODELS: Final = Path("/models")
"""Usual directory of models in pods."""
HINT: Final = ". The image or a volume must hold it; on one machine, `shoal local up --model {}=DIR` shows it to pods"

MAX_SEARCHED: Final = 10_000
"""Files of a directory that are searched for broken links."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Files of a fetched model: directory, default name (`stem`), and the file that the URI names, if any."""

    directory: Path
    stem: str
    file: str | None = None


def broken_link(directory: Path) -> str | None:
    """Return an error message for the first broken link in a directory, or None."""
    paths = sorted(islice(directory.rglob("*"), MAX_SEARCHED))
    return next((error for path in paths if (error := broken_link_error(path)) is not None), None)


def broken_link_error(path: Path) -> str | None:
    """Return an error message with its remedy if a path is a broken link, else None."""
    if not path.is_symlink() or os.path.exists(path):
        return None
    copied = shlex.quote(str(path.parent))
    return (
        f"{path} is a link to {os.readlink(path)}, which cannot be reached. Mount the directory of that file too, or"
        f" serve a copy made where it can be reached (cp -rL {copied} DIRECTORY)"
    )


class Fetcher:
    """Fetcher of one model to a cache of downloads and unpacked archives.

    Args:
        cache_dir: directory of the cache.
        readiness: receives the progress.
        checksum: `sha256:` and hex digits of the file, or of the list of sums of a directory.
        limits: limits of the download and the archive.
        fetched: whether to use cached files without a request to the server.
        pause_s: function from the number of an attempt to the pause after it, in seconds.
    """

    def __init__(
        self,
        cache_dir: Path,
        readiness: Readiness,
        *,
        checksum: str | None = None,
        limits: ArchiveLimits | None = None,
        fetched: bool = False,
        pause_s: Callable[[int], float] = lambda attempt: 2.0**attempt,
    ) -> None:
        self._cache_dir = cache_dir
        self._readiness = readiness
        self._digest = checksum.removeprefix("sha256:").lower() if checksum else None
        self._limits = limits or ArchiveLimits()
        self._fetched = fetched
        self._deadline_s = float("inf")
        self._pause_s = pause_s

    def fetch(self, uri: str) -> ModelFiles:
        """Return a model's files; download and unpack them if needed.

        Raises:
            LoadError: there is no model, it exceeds the limits of size or time, or the checksum differs.
        """
        self._deadline_s = time.monotonic() + self._limits.timeout_s
        if not scheme_of(uri):
            return self._local(Path(uri))
        try:
            location = parse(uri)
            if location.scheme == "file":
                return self._local(Path(local_path(uri)))
            if location.scheme in WEB:
                return self._remote(uri)
            if location.scheme in MOUNTED:
                raise LoadError(f"{shown(uri)} is mounted by the operator. Without it, give the path of the files")
            return self._listed(uri, location.name)
        except LocationError as error:
            raise LoadError(str(error)) from None

    def _local(self, path: Path) -> ModelFiles:
        path = Path(os.path.abspath(path))
        if path.is_dir():
            if self._digest is not None:
                # As of a directory that a store lists; links are followed.
                sums: dict[str, str] = {}
                for parent, _, names in os.walk(path, followlinks=True):
                    check_time(self._limits, self._deadline_s)
                    for each in (Path(parent, name) for name in names):
                        if len(sums) == self._limits.max_files:
                            raise self._limits.too_many_files(str(path))
                        if each.is_file():
                            sums[str(each.relative_to(path))] = self._sum_of(each)
                self._check(tree_digest(sums), str(path))
            return ModelFiles(path, path.name)
        if not path.is_file():
            if (link := broken_link_error(path)) is not None:
                raise LoadError(link)
            hint = HINT.format(path.name) if path.parent == MODELS else ""
            raise LoadError(f"{path} does not exist{hint}")
        stem = archive_stem(path.name)
        if self._digest is None and stem is None:
            return ModelFiles(path.parent, path.stem, path.name)
        # An archive is unpacked once per content.
        digest = self._sum_of(path)
        self._check(digest, str(path))
        if stem is None:
            return ModelFiles(path.parent, path.stem, path.name)
        return self._store(path, digest, path.name)

    def _sum_of(self, path: Path) -> str:
        sha256 = hashlib.sha256()
        try:
            with path.open("rb") as file:
                while chunk := file.read(CHUNK_BYTES):
                    sha256.update(chunk)
                    check_time(self._limits, self._deadline_s)
        except OSError as error:
            raise LoadError(f"{path} cannot be read: {error.strerror}") from None
        return sha256.hexdigest()

    def _listed(self, uri: str, name: str) -> ModelFiles:
        """Return the files that a store currently lists, or cached files if the store is unreachable."""
        if self._fetched and (files := self._last_download(uri, name)) is not None:
            return files
        store = open_store(uri)
        download = Download(
            store,
            self._cache_dir,
            self._readiness,
            limits=self._limits,
            deadline_s=self._deadline_s,
            pause_s=self._pause_s,
        )
        try:
            listing = download.list()
        except StoreUnavailable as reason:
            if (old := self._last_download(uri, name)) is None:
                raise LoadError(f"{store.shown} cannot be downloaded: {reason}") from None
            logger.warning("event=download_failed_using_last directory=%s reason=%s", old.directory, reason)
            return old

        def keep(folder: Path, sums: Mapping[str, str]) -> None:
            digest = tree_digest(sums) if listing.file is None else sums[listing.file]
            self._check(digest, store.shown)
            if listing.file is None:
                publish_directory(folder, self._cache_dir / digest)
            else:
                self._store(folder / listing.file, digest, listing.file)
            write_origin(self._cache_dir, uri, DownloadOrigin(digest, etag=listing.digest(), file=listing.file))

        # Until the cache has this listing: another process may replace it in the meantime.
        while (files := self._last_download(uri, name, listing)) is None:
            download.download(listing, keep)
        return files

    def _last_download(self, uri: str, name: str, listing: Listing | None = None) -> ModelFiles | None:
        """Return the cached files of a URI, if they match the checksum and, where given, the listing."""
        origin = read_origin(self._cache_dir, uri)
        if origin is None or self._digest not in (None, origin.digest):
            return None
        if listing is not None and listing.digest() != origin.etag:
            return None
        if origin.file is not None:
            return self._cached_files(origin.digest, origin.file)
        directory = self._cache_dir / origin.digest
        return ModelFiles(directory, name) if directory.is_dir() else None

    def _remote(self, uri: str) -> ModelFiles:
        check_environment(scheme_of(uri))
        # A file with the expected checksum needs no request.
        name = Path(unquote(urlsplit(uri).path)).name or "model"
        if self._digest is not None and (kept := self._cached_files(self._digest, name)):
            logger.info("event=model_cached directory=%s", kept.directory)
            return kept
        # The last download serves if the server returns 304, or is unreachable.
        origin = read_origin(self._cache_dir, uri)
        old = (
            self._cached_files(origin.digest, name)
            if origin is not None and self._digest in (None, origin.digest)
            else None
        )
        # The init container has fetched it just now.
        if self._fetched and old is not None:
            return old
        conditions = origin.conditions() if origin is not None and old is not None else {}
        for attempt in range(ATTEMPTS):
            try:
                if (files := self._download(uri, name, conditions)) is not None:
                    return files
                assert old is not None, "a request without conditions cannot get a 304"
                logger.info("event=model_unchanged directory=%s", old.directory)
                return old
            except StoreUnavailable as reason:
                if attempt + 1 < ATTEMPTS:
                    logger.warning("event=download_retried reason=%s", reason)
                    time.sleep(self._pause_s(attempt))
                elif old is not None:
                    logger.warning("event=download_failed_using_last directory=%s reason=%s", old.directory, reason)
                    return old
                else:
                    raise LoadError(f"{shown(uri)} cannot be downloaded: {reason}") from None
        raise AssertionError

    def _download(self, uri: str, name: str, conditions: Mapping[str, str]) -> ModelFiles | None:
        """Download a file from a web server; None if the server reports that it has not changed."""
        from shoal_runtime.storage.web import WebDownload  # noqa: PLC0415 (imports an HTTP client)

        with temporary(self._cache_dir) as folder:
            path = folder / "download"
            origin = WebDownload(self._readiness, self._limits, self._deadline_s).receive(uri, path, conditions)
            if origin is None:
                return None
            self._check(origin.digest, shown(uri))
            files = self._store(path, origin.digest, name)
            write_origin(self._cache_dir, uri, origin)
            return files

    def _check(self, digest: str, what: str) -> None:
        if self._digest is not None and digest != self._digest:
            raise LoadError(
                f"{what} has sha256:{digest}, but model.checksum (SHOAL_MODEL_CHECKSUM) is sha256:{self._digest}."
                " Correct the checksum or the model"
            )

    def _cached_files(self, digest: str, name: str) -> ModelFiles | None:
        directory = self._cache_dir / digest
        stem = archive_stem(name)
        if stem is not None:
            return ModelFiles(directory, stem) if directory.is_dir() else None
        found = (directory / name).is_file()
        return ModelFiles(directory, Path(name).stem, name) if found else None

    def _store(self, path: Path, digest: str, name: str) -> ModelFiles:
        """Move a checked file, or an archive's content, to its final directory, unless it is already there."""
        kept = self._cached_files(digest, name)
        if kept is not None:
            return kept
        self._readiness.progress("unpacking")
        with temporary(self._cache_dir) as folder:
            ready = folder / "model"
            ready.mkdir()
            if archive_stem(name) is None:
                path.rename(ready / name)
            else:
                ready = unpack(path, ready, name, self._limits, self._deadline_s)
            publish_directory(ready, self._cache_dir / digest)
        found = self._cached_files(digest, name)
        if found is None:
            raise LoadError(f"{self._cache_dir / digest} exists but does not contain {name}. Delete it")
        return found


def fetch_model(settings: Settings, readiness: Readiness) -> ModelFiles:
    """Return the files of the configured model.

    Raises:
        LoadError: the model cannot be fetched (see `Fetcher.fetch`).
    """
    process = settings.process
    limits = ArchiveLimits(
        process.model_max_bytes, process.model_max_files, process.model_max_ratio, process.fetch_timeout_s
    )
    fetcher = Fetcher(
        settings.cache_dir,
        readiness,
        checksum=settings.model.checksum,
        limits=limits,
        fetched=process.model_fetched,
    )
    with load_time_limit(limits.timeout_s, "SHOAL_MODEL_FETCH_TIMEOUT_S", readiness, grace_s=FETCH_GRACE_S):
        return fetcher.fetch(settings.uri)
