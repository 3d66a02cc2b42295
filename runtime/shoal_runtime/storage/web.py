"""Download of one file from a web server; imported only where it is used."""

import hashlib
import os
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx

from shoal_runtime.errors import LoadError
from shoal_runtime.readiness import Readiness
from shoal_runtime.storage.cache import DownloadOrigin
from shoal_runtime.storage.progress import StepProgress
from shoal_runtime.storage.redaction import redacted_line
from shoal_runtime.storage.store import StoreUnavailable
from shoal_runtime.storage.trust import tls_context, tls_fault
from shoal_runtime.storage.unpacking import ArchiveLimits, check_time
from shoal_schema.resource.locations import shown

TIMEOUT: Final = httpx.Timeout(60.0, connect=10.0)


class WebDownload:
    """Download of a file within limits of size and time; ``deadline_s`` is in monotonic seconds."""

    def __init__(self, readiness: Readiness, limits: ArchiveLimits, deadline_s: float) -> None:
        self._readiness = readiness
        self._limits = limits
        self._deadline_s = deadline_s

    def receive(self, uri: str, path: Path, conditions: Mapping[str, str]) -> DownloadOrigin | None:
        """Download a file to a path, and return its digest and validators.

        Return None if the server reports, for the given ``conditions``, that the file has not changed.

        Raises:
            StoreUnavailable: the server fails, perhaps temporarily.
            LoadError: the file cannot be downloaded.
        """
        try:
            with (
                httpx.Client(
                    follow_redirects=True,
                    timeout=TIMEOUT,
                    event_hooks=reject_insecure_redirects(uri),
                    verify=tls_context_for(uri),
                ) as client,
                client.stream("GET", uri, headers=dict(conditions)) as response,
            ):
                # The cached file is current.
                if conditions and response.status_code == 304:
                    return None
                status = response.status_code
                if status >= 500 or status == 429:
                    raise StoreUnavailable(f"the server returned {status}")
                if status != 200:
                    raise LoadError(f"{shown(uri)} cannot be downloaded: the server returned {status}")
                headers = response.headers
                return DownloadOrigin(self._write(response, path), headers.get("etag"), headers.get("last-modified"))
        except httpx.TransportError as error:
            raise StoreUnavailable(why_unreachable(uri, error)) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise LoadError(f"{shown(uri)} cannot be downloaded: {redacted_line(str(error), os.environ)}") from None

    def _write(self, response: httpx.Response, path: Path) -> str:
        digest = hashlib.sha256()
        length = response.headers.get("content-length")
        # The length of a compressed response is not that of the file.
        total = int(length) if length and "content-encoding" not in response.headers else None
        self._limits.check_bytes(total or 0, "the download")
        progress = StepProgress(self._readiness, "downloading", total=total, unit="B")
        with path.open("wb") as file, progress:
            # Chunks of any size, as they arrive: a slow server would fill a large one for hours before a check.
            for chunk in response.iter_bytes():
                file.write(chunk)
                digest.update(chunk)
                progress.advance(len(chunk))
                self._limits.check_bytes(file.tell(), "the download")
                check_time(self._limits, self._deadline_s)
            os.fsync(file.fileno())
        return digest.hexdigest()


def reject_insecure_redirects(uri: str) -> dict[str, list[Callable[[httpx.Request], None]]]:
    """Return httpx event hooks that reject a redirect from https to http."""
    secure = urlsplit(uri).scheme == "https"

    def check(request: httpx.Request) -> None:
        if secure and request.url.scheme != "https":
            raise LoadError(f"{shown(uri)} cannot be downloaded: the server redirects to {request.url.scheme}")

    return {"request": [check]}


def tls_context_for(url: str) -> ssl.SSLContext:
    """Return the TLS context for a URL; empty for plain HTTP, because loading authorities takes 50 ms."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if url.startswith("http://") else tls_context()


def why_unreachable(url: str, error: Exception) -> str:
    """Return the reason why a server is unreachable, as text."""
    text = str(error)
    request = getattr(error, "_request", None)  # after a redirect, of the other server
    host = (request.url.host if request is not None else urlsplit(url).hostname) or ""
    return tls_fault(host, text) or f"{type(error).__name__}: {redacted_line(text, os.environ)}"
