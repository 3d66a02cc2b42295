"""HTTP client for the admin port of a running proxy."""

import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from shoal_schema.interfaces.headers import ADMIN

_TIMEOUT_S = 10.0
_MAX_ERROR_CHARS = 300


class AdminRequestError(Exception):
    """A request to the proxy's admin port failed; the message states the cause and the remedy."""


class InvalidAddressError(AdminRequestError):
    """The given URL is not the address of a proxy."""


def fetch_text(url: str, path: str) -> str:
    """Return the body of the response to ``GET path``.

    Raises:
        AdminRequestError: there is no response, or its status is not 200.
    """
    with _get(url, path, _TIMEOUT_S) as response:
        return response.read().decode(errors="replace")


def stream_lines(url: str, path: str, *, silent_s: float = _TIMEOUT_S) -> Iterator[str]:
    """Yield the lines of the response to ``GET path``, with their line ends.

    Raises:
        AdminRequestError: there is no response, its status is not 200, it pauses for ``silent_s``, or it is truncated.
    """
    with _get(url, path, silent_s) as response:
        while line := response.readline():
            yield line.decode(errors="replace")


@contextmanager
def _get(url: str, path: str, timeout_s: float) -> Iterator[http.client.HTTPResponse]:
    try:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if host is None or parts.scheme != "http":
        raise InvalidAddressError(f"{url!r} is not the address of a proxy. Use one like http://127.0.0.1:8079")
    connection = http.client.HTTPConnection(host, port or 80, timeout=timeout_s)
    try:
        # `cross_site` requires the header for /v1/trace.
        connection.request("GET", path, headers={ADMIN: "1"})
        response = connection.getresponse()
        if response.status != 200:
            text = response.read(_MAX_ERROR_CHARS).decode(errors="replace").strip()
            raise AdminRequestError(f"{url}{path} returned {response.status}: {text}. Is this the admin port?")
        yield response
    except TimeoutError:
        raise AdminRequestError(f"{url} sent nothing for {timeout_s:g} s") from None
    except (OSError, http.client.HTTPException) as error:
        raise AdminRequestError(f"{url}: {getattr(error, 'strerror', None) or error or type(error).__name__}") from None
    finally:
        connection.close()
