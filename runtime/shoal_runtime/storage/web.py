"""One file from a web server. Imported when there is one to bring: a pod's runtime finds its model in the cache."""

import hashlib
import os
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx

from shoal_runtime.cache import Origin
from shoal_runtime.errors import LoadError
from shoal_runtime.progress import Progress
from shoal_runtime.readiness import Readiness
from shoal_runtime.storage.redaction import safe
from shoal_runtime.storage.store import StoreAway
from shoal_runtime.storage.trust import tls_fault, trusted
from shoal_runtime.unpacking import Limits, check_time
from shoal_schema.resource.locations import shown

TIMEOUT: Final = httpx.Timeout(60.0, connect=10.0)


class WebDownload:
    """Bring a file within limits; ``deadline_s`` is on the monotonic clock."""

    def __init__(self, readiness: Readiness, limits: Limits, deadline_s: float) -> None:
        self._readiness = readiness
        self._limits = limits
        self._deadline_s = deadline_s

    def receive(self, uri: str, path: Path, conditions: Mapping[str, str]) -> Origin | None:
        """Write what ``uri`` names into a file; return its digest and validators, or None where it has not changed.

        Raises:
            StoreAway: the server or the network may do better next time.
            LoadError: it cannot be had.
        """
        try:
            with (
                httpx.Client(
                    follow_redirects=True, timeout=TIMEOUT, event_hooks=stay_secure(uri), verify=verified(uri)
                ) as client,
                client.stream("GET", uri, headers=dict(conditions)) as response,
            ):
                if conditions and response.status_code == 304:
                    return None
                status = response.status_code
                if status >= 500 or status == 429:
                    raise StoreAway(f"the server answered {status}")
                if status != 200:
                    raise LoadError(f"{shown(uri)} cannot be downloaded: the server answered {status}")
                headers = response.headers
                return Origin(self._write(response, path), headers.get("etag"), headers.get("last-modified"))
        except httpx.TransportError as error:
            raise StoreAway(why_away(uri, error)) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise LoadError(f"{shown(uri)} cannot be downloaded: {safe(str(error), os.environ)}") from None

    def _write(self, response: httpx.Response, path: Path) -> str:
        digest = hashlib.sha256()
        length = response.headers.get("content-length")
        total = int(length) if length and "content-encoding" not in response.headers else None
        self._limits.check_bytes(total or 0, "the download")
        progress = Progress(self._readiness, "downloading", total=total, unit="B")
        with path.open("wb") as file, progress:
            # As they come: a server that drips would else fill a chunk for hours before the limits are looked at.
            for chunk in response.iter_bytes():
                file.write(chunk)
                digest.update(chunk)
                progress.advance(len(chunk))
                self._limits.check_bytes(file.tell(), "the download")
                check_time(self._limits, self._deadline_s)
            os.fsync(file.fileno())
        return digest.hexdigest()


def stay_secure(uri: str) -> dict[str, list[Callable[[httpx.Request], None]]]:
    """Return hooks that refuse to be sent from https to http."""
    secure = urlsplit(uri).scheme == "https"

    def check(request: httpx.Request) -> None:
        if secure and request.url.scheme != "https":
            raise LoadError(f"{shown(uri)} cannot be downloaded: the server sends on to {request.url.scheme}")

    return {"request": [check]}


def verified(url: str) -> ssl.SSLContext:
    """Return whom a client of an address trusts; for plain HTTP nobody, as all authorities take 50 ms to read."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if url.startswith("http://") else trusted()


def why_away(url: str, error: Exception) -> str:
    """Return why a server cannot be reached."""
    text = str(error)
    request = getattr(error, "_request", None)  # of the server that it was sent on to
    host = (request.url.host if request is not None else urlsplit(url).hostname) or ""
    return tls_fault(host, text) or f"{type(error).__name__}: {safe(text, os.environ)}"
